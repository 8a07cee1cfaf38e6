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
const ROUND_VALID: Duration = Duration::from_millis(8_500);

impl<S: Store, U: Unit> Member<S, U> {
    /// Call this each second. It asks the other members, and fences those that do not answer. If the active member is
    /// missing, it makes another one active.
    ///
    /// # Errors
    /// The member is lost.
    pub async fn supervise(&self) -> Result<(), Lost> {
        if self.phase() != Phase::Serving {
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
                group.members.get(id) == Some(record) && !alive.contains_key(&(*id, record.incarnation))
            });
        }
        if silent.is_empty() {
            self.complete_round(began_ms);
            return Ok(());
        }
        self.fence(&silent).await?;
        self.complete_round(began_ms);
        let version = self.remove(&silent).await?;
        self.announce(version).await
    }

    /// A round that has begun then is complete.
    pub(super) fn complete_round(&self, began_ms: u64) {
        self.round_ms.store(began_ms, SeqCst);
    }

    /// Whether the last round is young enough for operations of hosts that may have used another member before.
    pub fn has_round(&self, now: Duration) -> bool {
        now.saturating_sub(Duration::from_millis(self.round_ms.load(SeqCst))) < ROUND_VALID
    }
}
