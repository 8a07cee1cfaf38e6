//! Makes certain that a target carries out no write of a path that is lost, where its session does not come back.

use super::{Multipath, Way};
use crate::Lun;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::iscsi::request::Function;

/// Function complete (RFC 7143 section 11.6.1).
const COMPLETE: u8 = 0;

/// Logical units that this process is resetting, by identity.
static RESETTING: Mutex<Option<HashSet<Vec<u8>>>> = Mutex::new(None);

/// The turn to reset a logical unit: one at a time has it.
struct Turn(Vec<u8>);

impl Turn {
    fn take(identity: Vec<u8>) -> Option<Turn> {
        let is_free = with_resetting(|all| all.insert(identity.clone()));
        is_free.then_some(Turn(identity))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        with_resetting(|all| all.remove(&self.0));
    }
}

fn with_resetting<T>(does: impl FnOnce(&mut HashSet<Vec<u8>>) -> T) -> T {
    let mut all = RESETTING.lock().unwrap_or_else(PoisonError::into_inner);
    does(all.get_or_insert_default())
}

impl Multipath {
    /// The paths beside this one that work.
    pub(super) fn others(&self, at: usize) -> Vec<Arc<dyn Way>> {
        let others =
            (0..self.ways.len()).filter(|other| *other != at && self.paths.state(*other).is_usable());
        others.map(|other| self.ways[other].clone()).collect()
    }
}

/// Resets the logical unit through another path if writes of this one have waited for longer than a login takes: their
/// session does not come back soon. A reset ends commands of other hosts, too, so the login has the first chance. `failed`:
/// when all paths have failed to reset it; they are tried again after the time of a login.
pub async fn end_orphans(way: &dyn Way, others: Vec<Arc<dyn Way>>, failed: &mut Option<Instant>) {
    let Some(lun) = way.lun() else { return };
    let limit = lun.session().options().timeouts.login;
    if !are_due(*failed, Instant::now(), limit) || others.is_empty() || !waits(lun).await {
        return;
    }
    let Some(_turn) = Turn::take(way.identity()) else { return };
    for other in others {
        if !waits(lun).await || reset(lun, &*other).await {
            *failed = None;
            return;
        }
    }
    *failed = Some(Instant::now());
}

/// Resets that failed at this time may be tried again.
fn are_due(failed: Option<Instant>, now: Instant, pause: Duration) -> bool {
    failed.is_none_or(|at| now.duration_since(at) >= pause)
}

/// Writes have waited for longer than a login takes.
async fn waits(lun: &Lun) -> bool {
    let limit = lun.session().options().timeouts.login;
    lun.session().oldest_orphan(Some(lun.address())).await.is_some_and(|waited| waited >= limit)
}

/// Resets a logical unit through another path; false if that fails.
async fn reset(lun: &Lun, other: &dyn Way) -> bool {
    let Some(through) = other.lun() else { return false };
    let (path, sent) = (other.name(), Instant::now());
    tracing::warn!(path, "writes of a lost path wait: the logical unit is reset");
    match through.session().manage(Function::LunReset, through.address()).await {
        Ok(COMPLETE) => {
            lun.session().was_reset(lun.address(), sent).await;
            return true;
        }
        Ok(code) => tracing::warn!(path, "the target refuses LOGICAL UNIT RESET (response {code})"),
        Err(e) => tracing::warn!(path, "LOGICAL UNIT RESET: {e}"),
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_that_failed_are_not_due_before_a_pause() {
        let (failed, pause) = (Instant::now(), Duration::from_secs(15));
        assert!(are_due(None, failed, pause) && are_due(Some(failed), failed + pause, pause));
        assert!(!are_due(Some(failed), failed + pause - Duration::from_millis(1), pause));
    }
}
