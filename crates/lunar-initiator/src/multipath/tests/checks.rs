//! When path checks run, and how they are cancelled.

use super::*;

/// Joins paths that are checked only after events and failures: the interval is an hour.
async fn join_unhurried(wires: &[Arc<Wire>; 2]) -> Arc<Multipath> {
    let lun_paths: Vec<Arc<dyn LunPath>> = vec![wires[0].clone(), wires[1].clone()];
    let settings = MultipathOptions { check: Duration::from_secs(3600), ..MultipathOptions::default() };
    Multipath::join(lun_paths, settings).await.expect("two paths to one logical unit")
}

async fn until(what: impl Fn() -> bool) {
    let polled = async {
        while !what() {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    compio::time::timeout(Duration::from_secs(20), polled)
        .await
        .expect("the condition must become true in time");
}

/// The failed operation may have started before the path came back.
#[test]
fn path_that_has_failed_is_checked_at_once() {
    inside(async {
        let joined = join_unhurried(&two()).await;
        for _ in 0..2 {
            joined.fail(0, PathState::Down);
            assert!(!joined.paths()[0].1.is_usable());
            until(|| joined.paths()[0].1.is_usable()).await;
        }
    });
}

/// Otherwise check and failure would alternate without a pause.
#[test]
fn path_that_fails_after_each_check_is_checked_less_often() {
    inside(async {
        let joined = join_unhurried(&two()).await;
        let started_at = Instant::now();
        for _ in 0..3 {
            joined.fail(0, PathState::Down);
            until(|| joined.paths()[0].1.is_usable()).await;
        }
        assert!(started_at.elapsed() >= Duration::from_secs(2), "{:?}", started_at.elapsed());
    });
}

#[test]
fn with_the_last_path_gone_the_others_are_looked_at_at_once() {
    inside(async {
        let joined = join_unhurried(&two()).await;
        joined.set(0, PathState::Standby);
        compio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(
            joined.paths()[0].1,
            PathState::Standby,
            "a standby path is not checked while another works"
        );
        joined.set(1, PathState::Standby);
        until(|| joined.paths().iter().all(|path| path.1 == PathState::Optimized)).await;
    });
}

#[test]
fn dropping_paths_does_not_wait_for_a_check() {
    inside(async {
        let wires = two();
        let joined = join_unhurried(&wires).await;
        wires[0].silent.store(true, Relaxed);
        wires[0].set(true);
        // The check has started.
        until(|| Arc::strong_count(&wires[0]) > 2).await;
        let gone = Arc::downgrade(&joined);
        drop(joined);
        assert!(gone.upgrade().is_none());
        until(|| Arc::strong_count(&wires[0]) == 1).await;
    });
}
