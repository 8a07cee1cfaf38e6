//! Rounds: each member asks all others for a sign of life, and fences those that give none.
//!
//! A member that is cut off from the cluster ends its sessions after [`LOST_AFTER`](crate::LOST_AFTER), and its hosts repeat
//! their commands on other paths. Operations that it has in flight must not take effect after that. So the others fence it
//! earlier, and a member serves the medium only while its last round is younger than [`ROUND_VALID`].

use super::{Lost, Member, Phase};
use crate::store::{Store, Unit};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Calls of [`Member::supervise`] for each round.
const INTERVAL: u64 = 2;
/// A round begins every 2 s, and takes 5 s and the time of a fence if a member is silent.
pub(super) const ROUND_VALID: Duration = Duration::from_millis(8_500);

impl<S: Store, U: Unit> Member<S, U> {
    /// Call this each second. It asks the other members, and fences those that do not answer. If the active member is
    /// missing, it makes another one active.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn supervise(&self) -> Result<(), Lost> {
        if self.phase() != Phase::Serving || !self.is_known.load(SeqCst) {
            return Ok(());
        }
        if self.supervisions.fetch_add(1, SeqCst).is_multiple_of(INTERVAL) {
            self.round().await?;
        }
        self.follow_active().await
    }

    async fn round(&self) -> Result<(), Lost> {
        let began_ms = self.ticked_ms.load(SeqCst);
        let mut silent = self.group().members.clone();
        silent.remove(&self.id);
        if !silent.is_empty() {
            let alive = self.ask(0).await?;
            let group = self.group();
            silent.retain(|id, record| {
                group.has(*id, record) && !alive.contains_key(&(*id, record.incarnation))
            });
        }
        if silent.is_empty() {
            // Another member may have fenced one a moment ago.
            self.follow_map().await?;
            self.complete_round(began_ms);
            return Ok(());
        }
        let removed = self.fence_and_remove(silent).await?;
        self.follow_map().await?;
        self.complete_round(began_ms);
        match removed {
            Some(version) => self.announce(version).await,
            None => Ok(()),
        }
    }

    /// A round that has begun then is complete.
    pub(super) fn complete_round(&self, began_ms: u64) {
        self.round_ms.store(began_ms, SeqCst);
    }

    /// Whether the last round is young enough for operations of hosts that may have used another member before.
    pub fn has_round(&self, now: Duration) -> bool {
        let began = Duration::from_millis(self.round_ms.load(SeqCst));
        self.is_known.load(SeqCst) && now.saturating_sub(began) < ROUND_VALID
    }
}
