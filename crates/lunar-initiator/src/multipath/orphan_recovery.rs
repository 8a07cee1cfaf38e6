//! Ends the orphans of a lost path whose session does not recover.

use super::{LunPath, Multipath};
use crate::{Lun, reinstatement};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval of attempts to reset a logical unit.
const AGAIN: Duration = Duration::from_secs(1);

/// Logical units that this process is resetting, by identity.
static RESETTING: Mutex<Option<HashSet<Vec<u8>>>> = Mutex::new(None);

/// Held by the task that resets a logical unit: one task per logical unit.
struct LunResetGuard(Vec<u8>);

impl LunResetGuard {
    fn take(identity: Vec<u8>) -> Option<LunResetGuard> {
        let is_free = with_resetting(|all| all.insert(identity.clone()));
        is_free.then_some(LunResetGuard(identity))
    }
}

impl Drop for LunResetGuard {
    fn drop(&mut self) {
        with_resetting(|all| all.remove(&self.0));
    }
}

fn with_resetting<T>(does: impl FnOnce(&mut HashSet<Vec<u8>>) -> T) -> T {
    let mut all = RESETTING.lock().unwrap_or_else(PoisonError::into_inner);
    does(all.get_or_insert_default())
}

impl Multipath {
    /// The other usable paths.
    pub(super) fn others(&self, at: usize) -> Vec<Arc<dyn LunPath>> {
        let others =
            (0..self.lun_paths.len()).filter(|other| *other != at && self.paths.state(*other).is_usable());
        others.map(|other| self.lun_paths[other].clone()).collect()
    }
}

/// Resets the logical unit through another path, once writes of this path have waited for `fast_io_fail`. A reset
/// also ends commands of other hosts, so a new login of the lost session is preferred. `failed` is the time when the
/// reset failed on all paths: it is retried after `fast_io_fail`. Returns the time until the next call, or None if no
/// write waits.
pub async fn end_orphans(
    path: &dyn LunPath,
    others: Vec<Arc<dyn LunPath>>,
    failed: &mut Option<Instant>,
) -> Option<Duration> {
    let lun = path.lun()?;
    let left = left(oldest(lun).await?, failed.map(|at| at.elapsed()), limit(lun));
    if !left.is_zero() {
        return Some(left);
    }
    let Some(_guard) = LunResetGuard::take(path.identity()) else { return Some(AGAIN) };
    for other in &others {
        if oldest(lun).await.is_none() || reset(lun, &**other).await {
            *failed = None;
            return oldest(lun).await.map(|_| AGAIN);
        }
    }
    *failed = (!others.is_empty()).then(Instant::now);
    Some(AGAIN)
}

/// The time left for a lost path to recover. `waited` is the age of its oldest write, `failed` the time since all
/// resets failed.
fn left(waited: Duration, failed: Option<Duration>, limit: Duration) -> Duration {
    let elapsed = failed.map_or(waited, |failed| failed.min(waited));
    limit.saturating_sub(elapsed)
}

fn limit(lun: &Lun) -> Duration {
    lun.session().options().timeouts.fast_io_fail
}

/// The age of the oldest write that waits.
async fn oldest(lun: &Lun) -> Option<Duration> {
    lun.session().oldest_orphan(Some(lun.address())).await
}

/// Resets a logical unit through another path. Returns false on failure.
async fn reset(lun: &Lun, other: &dyn LunPath) -> bool {
    let Some(through) = other.lun() else { return false };
    let sent = reinstatement::reset(
        through.session(),
        through.address(),
        "writes of a lost path are not known to have ended",
    )
    .await;
    if let Some(sent) = sent {
        lun.session().record_reset(lun.address(), sent).await;
    }
    sent.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_is_due_once_writes_and_failures_are_old() {
        let s = Duration::from_secs;
        for (waited, failed, wanted) in [
            (s(0), None, s(5)),
            (s(4), None, s(1)),
            (s(9), None, s(0)),
            (s(9), Some(s(2)), s(3)),
            (s(9), Some(s(5)), s(0)),
        ] {
            assert_eq!(left(waited, failed, s(5)), wanted, "{waited:?} {failed:?}");
        }
    }
}
