//! Two paths to one logical unit.

use super::*;
use interop::Relay;
use lunar_initiator::multipath::{LunPath, Multipath, MultipathOptions, PathPolicy, PathState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const LEN: usize = 65536;
const WRITES: u64 = 600;

/// The number of usable paths.
fn usable(disk: &Multipath) -> usize {
    disk.paths()
        .iter()
        .filter(|(_, state, _)| matches!(state, PathState::Optimized | PathState::NonOptimized))
        .count()
}

/// Writes and verifies, while first one path and then the other is cut and restored.
async fn verified_writes(urls: [String; 2], relays: [Relay; 2], policy: PathPolicy) {
    let mut paths: Vec<Arc<dyn LunPath>> = Vec::new();
    for url in urls {
        paths.push(open(&url).await.expect("a path"));
    }
    let settings = MultipathOptions::default().with_policy(policy).with_check(Duration::from_millis(200));
    let disk = Multipath::join(paths, settings).await.expect("two paths to one logical unit");
    assert_eq!(usable(&disk), 2);
    let done = Arc::new(AtomicU64::new(0));
    let begin = |n| {
        let (disk, done) = (disk.clone(), done.clone());
        compio::runtime::spawn(async move {
            let written = write(&*disk, n * LEN as u64, n, LEN).await;
            done.fetch_add(1, Relaxed);
            written
        })
    };
    for (at, relay) in relays.iter().enumerate() {
        let part = at as u64 * WRITES / 2;
        let writes: Vec<_> = (part..part + WRITES / 2).map(begin).collect();
        while done.load(Relaxed) < part + 20 {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
        relay.cut();
        assert!(done.load(Relaxed) < part + WRITES / 2, "the cut came too late");
        for write in writes {
            write.await.expect("the task panicked").unwrap_or_else(|e| panic!("a write failed: {e}"));
        }
        // A path without I/O is found down by its next check.
        while usable(&disk) > 1 {
            compio::time::sleep(Duration::from_millis(20)).await;
        }
        write(&*disk, part * LEN as u64, part, LEN).await.expect("one path is enough");
        relay.restore();
        while usable(&disk) < 2 {
            compio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    for n in 0..WRITES {
        assert!(read(&*disk, n * LEN as u64, LEN).await == *pattern(n, LEN), "write {n} was lost");
    }
}

#[test]
fn path_is_cut_in_the_middle_of_verified_writes() {
    for peer in peers() {
        for policy in [PathPolicy::LeastQueue, PathPolicy::Failover] {
            let relays = [Relay::to(peer.address()), Relay::to(peer.second())];
            let url = |r: &Relay| {
                peer.url(
                    r.address(),
                    "",
                    interop::peer::OPEN,
                    "recovery_timeout=0.001&commands=16&login_timeout=2",
                )
            };
            let urls = [url(&relays[0]), url(&relays[1])];
            run(move || verified_writes(urls, relays, policy));
        }
    }
}
