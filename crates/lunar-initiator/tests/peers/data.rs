//! Data that are written, read and unmapped, on a disk that may grow.

use super::*;
use interop::peer::SIZE;

/// Writes and reads random ranges, which are not aligned to blocks.
async fn ranges(lun: Arc<Lun>, rounds: u64) {
    const AREA: u64 = 8 << 20;
    let (mut random, mut model) = (Random(7), vec![0; AREA as usize]);
    lun.write_zeroes(0, AREA, false).await.expect("zeros");
    for round in 0..rounds {
        let len = 1 + random.below(600_000);
        let at = random.below(AREA - len);
        let (from, to) = (at as usize, (at + len) as usize);
        write(&*lun, at, round, len as usize).await.unwrap_or_else(|e| panic!("{len} bytes at {at}: {e}"));
        model[from..to].copy_from_slice(&pattern(round, len as usize));
        let len = 1 + random.below(600_000);
        let at = random.below(AREA - len);
        assert!(
            read(&*lun, at, len as usize).await == model[at as usize..(at + len) as usize],
            "{len} at {at}"
        );
    }
    lun.flush().await.expect("a flush");
    assert!(read(&*lun, 0, AREA as usize).await == model);
}

#[test]
fn random_ranges_are_what_was_written() {
    for peer in peers() {
        let url = peer.open("");
        run(move || async move { ranges(open(&url).await.expect("a LUN"), 60).await });
        let odd =
            "immediate_data=no&initial_r2t=yes&max_recv_data_segment_length=4096&max_burst_length=16384";
        let url = peer.open(&format!("{odd}&first_burst_length=8192&commands=3"));
        run(move || async move { ranges(open(&url).await.expect("a LUN"), 20).await });
        if peer.has_digests() {
            let url = peer.open(DIGESTS);
            run(move || async move { ranges(open(&url).await.expect("a LUN"), 30).await });
        }
    }
}

#[test]
fn zeroed_and_unmapped_ranges_leave_their_neighbours() {
    for peer in peers() {
        let url = peer.open("");
        run(move || async move {
            let lun = open(&url).await.expect("a LUN");
            const MIB: u64 = 1 << 20;
            write(&*lun, 0, 1, 4 << 20).await.expect("written");
            let mut model = pattern(1, 4 << 20).to_vec();
            lun.write_zeroes(MIB - 512, MIB, false).await.expect("zeros");
            model[(MIB - 512) as usize..(2 * MIB - 512) as usize].fill(0);
            if lun.info().unmap {
                lun.unmap(3 * MIB, MIB / 2).await.expect("unmapped");
                model[3 << 20..7 << 19].fill(0);
            }
            assert!(read(&*lun, 0, 4 << 20).await == model);
        });
    }
}

#[test]
fn larger_disk_is_seen() {
    for mut peer in peers() {
        let url = peer.open("");
        let (sender, receiver) = flume::bounded::<()>(0);
        let watcher = std::thread::spawn(move || {
            run(move || async move {
                let lun = open(&url).await.expect("a LUN");
                assert_eq!(lun.info().capacity, SIZE);
                receiver.recv_async().await.expect("the disk grows");
                receiver.recv_async().await.expect("the disk has grown");
                // Any command may return the unit attention. Without one, the properties are read again.
                read(&*lun, 0, 512).await;
                while lun.info().capacity == SIZE {
                    compio::time::sleep(Duration::from_millis(100)).await;
                    lun.reload().await.expect("the properties");
                }
                assert_eq!(lun.info().capacity, SIZE + (32 << 20));
                write(&*lun, SIZE + 4096, 3, 65536).await.expect("the new part");
                assert!(read(&*lun, SIZE + 4096, 65536).await == *pattern(3, 65536));
            })
        });
        sender.send(()).expect("the LUN is open");
        if !peer.grow(SIZE + (32 << 20)) {
            peer.restart();
        }
        sender.send(()).expect("the watcher waits");
        watcher.join().expect("the larger disk");
    }
}
