//! Many concurrent reads and writes of one owner, against scripted targets: each lane gets its own result, however
//! many steps it takes.
#![forbid(unsafe_code)]

mod common;

use common::{READ_10, WRITE_10, is, run, with_disk};
use interop::script::{HookAction, Script};
use interop::{Pdu, op};
use lunar_block::{Backend, BackendQueue, BufResult};
use lunar_initiator::Url;
use lunar_runtime::{Buf, Cores};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// The time after which a test counts as hung.
const LIMIT: Duration = Duration::from_secs(60);
const LANES: usize = 8;
const BYTES: usize = 4096;

fn filled(byte: u8, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

/// The results of `many` operations, by lane.
async fn ends(queue: &mut dyn BackendQueue, many: usize) -> Vec<BufResult> {
    let mut ended: Vec<Option<BufResult>> = (0..many).map(|_| None).collect();
    for _ in 0..many {
        let (lane, finished) = poll_fn(|cx| queue.poll_ended(cx)).await;
        assert!(ended[lane].replace(finished).is_none(), "lane {lane} ended twice");
    }
    ended.into_iter().flatten().collect()
}

/// Reads the range of each lane, starting at `offset`.
async fn read_back(queue: &mut dyn BackendQueue, offset: u64) -> Vec<Buf> {
    (0..LANES).for_each(|lane| queue.read(lane, (lane * BYTES) as u64 + offset, Buf::zeroed(BYTES)));
    let read = |(result, buf): BufResult| result.map(|()| buf).expect("read");
    ends(queue, LANES).await.into_iter().map(read).collect()
}

async fn write_all(queue: &mut dyn BackendQueue, offset: u64, stable: bool) {
    for lane in 0..LANES {
        queue.write(lane, (lane * BYTES) as u64 + offset, filled(lane as u8 + 1, BYTES), stable);
    }
    ends(queue, LANES).await.into_iter().for_each(|(result, _)| result.expect("written"));
}

/// Whole blocks with one command each, and unaligned ranges whose neighbors change the same blocks concurrently.
#[test]
fn every_lane_has_its_own_bytes() {
    for (offset, stable) in [(0, false), (0, true), (7, false), (7, true)] {
        let target = Script::new().listen();
        with_disk(LIMIT, &target, "", move |lun| async move {
            let mut queue = lun.queue().expect("the session is on this core");
            write_all(&mut *queue, offset, stable).await;
            for (lane, buf) in read_back(&mut *queue, offset).await.iter().enumerate() {
                assert!(buf.iter().all(|byte| *byte == lane as u8 + 1), "lane {lane} at {offset}");
            }
        });
        let disk = target.disk();
        let at = |byte: usize| disk[byte + offset as usize];
        assert!((0..LANES * BYTES).all(|byte| at(byte) == (byte / BYTES) as u8 + 1));
        let writes = target.requests(op::SCSI).iter().filter(|pdu| is(pdu, WRITE_10)).count();
        assert!(offset > 0 || writes == LANES, "{writes} commands for {LANES} writes of whole blocks");
    }
}

/// Two BUSY responses and one unit attention: these commands are retried, and the other lanes continue.
#[test]
fn busy_or_unit_attention_is_retried() {
    let asked = AtomicUsize::new(0);
    let target = Script::new().scsi(READ_10, move |link, pdu| {
        let refusal = Pdu::new(op::SCSI_RESPONSE).itt(pdu.tag()).flags(0x82).set32(44, pdu.get32(20));
        match asked.fetch_add(1, SeqCst) {
            0 | 1 => link.send(refusal.byte(3, 0x08)),
            2 => {
                let mut sense = vec![0, 18, 0x70, 0, 6, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x2a, 0x01];
                sense.resize(20, 0);
                link.send(refusal.byte(3, 0x02).data(&sense));
            }
            _ => return HookAction::Usual,
        }
        HookAction::Done
    });
    let target = target.listen();
    with_disk(LIMIT, &target, "", |lun| async move {
        let mut queue = lun.queue().expect("the session is on this core");
        assert_eq!(read_back(&mut *queue, 0).await.len(), LANES);
    });
    let reads = target.requests(op::SCSI).iter().filter(|pdu| is(pdu, READ_10)).count();
    assert_eq!(reads, LANES + 3);
}

/// The target rejects the command of one lane: only this one fails, and its buffer is returned.
#[test]
fn error_is_that_of_its_lane() {
    let asked = AtomicUsize::new(0);
    let target = Script::new().scsi(READ_10, move |link, pdu| {
        if asked.fetch_add(1, SeqCst) != 2 {
            return HookAction::Usual;
        }
        let mut sense = vec![0, 18, 0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x21, 0x00];
        sense.resize(20, 0);
        let refusal = Pdu::new(op::SCSI_RESPONSE).itt(pdu.tag()).flags(0x82).set32(44, pdu.get32(20));
        link.send(refusal.byte(3, 0x02).data(&sense));
        HookAction::Done
    });
    let target = target.listen();
    let failed = with_disk(LIMIT, &target, "", |lun| async move {
        let mut queue = lun.queue().expect("the session is on this core");
        (0..LANES).for_each(|lane| queue.read(lane, (lane * BYTES) as u64, Buf::zeroed(BYTES)));
        let ended = ends(&mut *queue, LANES).await;
        assert!(ended.iter().all(|(_, buf)| buf.len() == BYTES));
        ended.iter().map(|(result, _)| result.is_err()).collect::<Vec<_>>()
    });
    assert_eq!(failed, [false, false, true, false, false, false, false, false]);
}

/// The connection is lost while all lanes are in flight: they complete on the next one.
#[test]
fn lanes_outlive_their_connection() {
    let target = Script::new().answer("DefaultTime2Wait", "0").hook(|link, pdu| {
        if link.number == 0 && is(pdu, READ_10) { HookAction::Close } else { HookAction::Usual }
    });
    let target = target.listen();
    let recoveries = with_disk(LIMIT, &target, "", |lun| async move {
        let mut queue = lun.clone().queue().expect("the session is on this core");
        assert_eq!(read_back(&mut *queue, 0).await.len(), LANES);
        lun.session().info().recoveries
    });
    assert_eq!(recoveries, 1);
}

/// A dropped queue discards its responses and keeps no state for them. The session still closes gracefully.
#[test]
fn dropped_queue_abandons_its_answers() {
    let target = Script::new().listen();
    with_disk(LIMIT, &target, "commands=4", |lun| async move {
        // More commands than a session has tags.
        for _ in 0..1200 {
            let mut queue = lun.clone().queue().expect("the session is on this core");
            // Some are sent, the others are queued.
            (0..60).for_each(|lane| queue.read(lane, 0, Buf::zeroed(512)));
            let (_, (result, _)) = poll_fn(|cx| queue.poll_ended(cx)).await;
            result.expect("read");
        }
        lun.read(0, Buf::zeroed(BYTES)).await.0.expect("read after all of them");
        let mut queue = lun.clone().queue().expect("the session is on this core");
        lun.session().close().await.expect("a logout");
        queue.read(0, 0, Buf::zeroed(BYTES));
        let (lane, (result, buf)) = poll_fn(|cx| queue.poll_ended(cx)).await;
        assert!(lane == 0 && result.is_err() && buf.len() == BYTES, "the session is closed");
    });
}

#[test]
fn batch_on_another_core_is_none() {
    let target = Script::new().listen();
    let url = Url::parse(&target.url("")).expect("a URL");
    let cores = Cores::one().expect("an event loop");
    let lun = cores.wait(0, move || async move { lunar_initiator::open(&url).await.expect("a LUN") });
    let lun: Arc<dyn Backend> = lun.expect("an event loop");
    let there = lun.clone();
    let there = cores.wait(0, move || async move { there.queue().is_some() }).expect("an event loop");
    assert!(there);
    assert!(run(LIMIT, move || async move { lun.queue().is_none() }));
}
