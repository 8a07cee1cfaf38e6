//! When a path is looked at, and until when.

use super::*;

/// Paths that are checked only after events and errors, not by the clock.
async fn join_unhurried(wires: &[Arc<Wire>; 2]) -> Arc<Multipath> {
    let ways: Vec<Arc<dyn LunPath>> = vec![wires[0].clone(), wires[1].clone()];
    let settings = MultipathOptions { check: Duration::from_secs(3600), ..MultipathOptions::default() };
    Multipath::join(ways, settings).await.expect("two paths to one unit")
}

async fn until(what: impl Fn() -> bool) {
    let polled = async {
        while !what() {
            compio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    compio::time::timeout(Duration::from_secs(20), polled).await.expect("it never comes");
}

/// What fails last may have been begun before the path was back.
#[test]
fn path_that_has_failed_is_looked_at_at_once() {
    inside(async {
        let joined = join_unhurried(&two()).await;
        for _ in 0..2 {
            joined.fail(0, State::Down);
            assert!(!joined.paths()[0].1.is_usable());
            until(|| joined.paths()[0].1.is_usable()).await;
        }
    });
}

/// It would be asked without end otherwise, as each answer brings the next failure.
#[test]
fn path_that_fails_after_each_look_is_looked_at_more_slowly() {
    inside(async {
        let joined = join_unhurried(&two()).await;
        let begun = Instant::now();
        for _ in 0..3 {
            joined.fail(0, State::Down);
            until(|| joined.paths()[0].1.is_usable()).await;
        }
        assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
    });
}

#[test]
fn with_the_last_path_gone_the_others_are_looked_at_at_once() {
    inside(async {
        let joined = join_unhurried(&two()).await;
        joined.set(0, State::Standby);
        compio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(joined.paths()[0].1, State::Standby, "there is no hurry");
        joined.set(1, State::Standby);
        until(|| joined.paths().iter().all(|path| path.1 == State::Optimized)).await;
    });
}

#[test]
fn dropping_paths_does_not_wait_for_a_check() {
    inside(async {
        let wires = two();
        let joined = join_unhurried(&wires).await;
        wires[0].silent.store(true, Relaxed);
        wires[0].set(true);
        // The look has begun.
        until(|| Arc::strong_count(&wires[0]) > 2).await;
        let gone = Arc::downgrade(&joined);
        drop(joined);
        assert!(gone.upgrade().is_none());
        until(|| Arc::strong_count(&wires[0]) == 1).await;
    });
}
