//! Reads whose data may stay in a pipe.

use super::*;
use interop::{NONE, Pdu, op};
use lunar_runtime::PipedBytes;

const LEN: usize = 256 << 10;

fn data(number: u64) -> Vec<u8> {
    (0..LEN).map(|at| (at / 512 + at) as u8 ^ number as u8 | 1).collect()
}

/// Reads, and returns the bytes and whether they were in a pipe.
async fn read(lun: &Lun) -> (Vec<u8>, bool) {
    let (result, buf) = lun.read_piped(0, Buf::zeroed(LEN)).await;
    let bytes = |piped: PipedBytes| {
        let mut bytes = vec![0; piped.len()];
        piped.move_to(&mut bytes).expect("bytes of a pipe");
        bytes
    };
    result.expect("a read").map_or_else(|| (buf.to_vec(), false), |piped| (bytes(piped), true))
}

/// A target that answers the first attempts of these reads by `fails`.
fn failing_at(
    reads: &'static [u64],
    fails: impl Fn(&mut interop::script::ScriptConnection, &Pdu) -> HookAction + Send + Sync + 'static,
) -> Script {
    let count = AtomicU64::new(0);
    Script::new().scsi(READ_10, move |link, pdu| {
        let number = count.fetch_add(1, SeqCst);
        if reads.contains(&number) {
            return fails(link, pdu);
        }
        link.data_in(pdu, &data(number));
        HookAction::Done
    })
}

#[test]
fn data_of_a_read_stay_in_a_pipe() {
    inside(async {
        let (lun, _target) = open(failing_at(&[], |_, _| HookAction::Usual)).await;
        let mut piped = 0;
        for number in 0..5 {
            let (bytes, is_piped) = read(&lun).await;
            assert!(bytes == data(number), "read {number}");
            piped += u32::from(is_piped);
        }
        assert!(piped > 0, "no read used a pipe");
        assert!(lun.read(0, Buf::zeroed(LEN)).await.1[..] == data(5), "another read needs memory");
    });
}

#[test]
fn data_with_digests_are_read_into_memory() {
    inside(async {
        let target = failing_at(&[], |_, _| HookAction::Usual).listen();
        let url = Url::parse(&target.url("data_digest=crc32c")).expect("a URL");
        let lun = crate::open(&url).await.expect("a LUN");
        for number in 0..4 {
            assert!(read(&lun).await == (data(number), false), "read {number}");
        }
    });
}

#[test]
fn piped_read_is_repeated_after_a_failure() {
    inside(async {
        let attention = failing_at(&[2, 5], |link, pdu| {
            link.check_condition(pdu, [6, 0x2a, 9]);
            HookAction::Done
        });
        let cut_off = failing_at(&[2, 5], |link, pdu| {
            let answer = Pdu::new(op::DATA_IN).flags(0x81).itt(pdu.tag()).ttt(NONE).data(&data(99));
            let bytes = link.with_numbers(answer).encode(false, false);
            link.send_bytes(&bytes[..LEN / 2]);
            // The initiator takes the first half before it sees the end.
            std::thread::sleep(Duration::from_millis(50));
            HookAction::Close
        });
        for script in [attention, cut_off] {
            let (lun, _target) = open(script).await;
            for number in [0, 1, 3, 4, 6, 7] {
                let (bytes, piped) = read(&lun).await;
                assert!(bytes == data(number), "read {number}");
                assert!(!piped || ![3, 6].contains(&number), "read {number} was repeated");
            }
        }
    });
}
