//! One logical unit of a pair: probes, takes and releases its reservation.

use super::PairSpec;
use super::gate::IoGate;
use super::machine::Holder;
use super::storage_fence::{ObservedReservation, StorageFence};
use crate::upstream::UpstreamLu;
use compio::runtime::{JoinHandle, spawn};
use lunar_initiator::{Error, ErrorCode, Lun};
use lunar_wire::scsi::TaskManagementFunction;
use sha2::{Digest, Sha256};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A logical unit that does not respond, or cannot be taken, is not probed for this time. So it does not delay each probe
/// of the others.
const PAUSE: Duration = Duration::from_secs(3);

/// Repeated conflicts within this time after the gate opened do not mean a takeover: the storage rejects registered
/// sessions.
const SOON: Duration = Duration::from_secs(5);
const REFUSALS: u32 = 4;

/// A logical unit of a pair.
pub struct ReservationOwner {
    remote: Weak<UpstreamLu>,
    gate: Arc<IoGate>,
    fence: StorageFence,
    path_loss_timeout: Duration,
    /// The name, for logs.
    name: String,
    /// The last observed reservation. None if the logical unit was unreachable.
    pub seen: Option<ObservedReservation>,
    /// Whether this router took the reservation and has not observed another holder since.
    pub is_taken: bool,
    /// Whether another initiator took the reservation during the last takeover.
    pub is_preempted: bool,
    /// The time before which it is not probed.
    pause: Option<Instant>,
    /// The time of the first opening since the reservation was taken, and the number of conflicts soon after an
    /// opening.
    opened: Option<Instant>,
    refusals: u32,
    /// The running requests that end aborted commands, one for each session.
    ending: Vec<JoinHandle<()>>,
}

impl ReservationOwner {
    /// Creates the owner of a logical unit. None if it has no gate.
    pub fn new(remote: &Arc<UpstreamLu>, spec: &PairSpec) -> Option<ReservationOwner> {
        let gate = remote.gate()?.clone();
        let name = remote.location();
        let fence = StorageFence::new(remote, spec, isid(&spec.seed, &name));
        let remote = Arc::downgrade(remote);
        let path_loss_timeout = spec.path_loss_timeout;
        let (seen, pause, opened) = (None, None, None);
        let (is_taken, is_preempted, refusals, ending) = (false, false, 0, Vec::new());
        Some(ReservationOwner {
            remote,
            gate,
            fence,
            path_loss_timeout,
            name,
            seen,
            is_taken,
            is_preempted,
            pause,
            opened,
            refusals,
            ending,
        })
    }

    /// Whether it owns the logical unit at this place, and thus uses its nexus.
    pub fn is_at(&self, location: &str) -> bool {
        self.name == location
    }

    /// Whether the logical unit is no longer routed.
    pub fn is_gone(&self) -> bool {
        self.remote.strong_count() == 0
    }

    pub fn gate(&self) -> &Arc<IoGate> {
        &self.gate
    }

    /// The last observed holder.
    pub fn holder(&self) -> Holder {
        self.seen.map_or(Holder::Unknown, |seen| seen.holder)
    }

    /// Reads the reservation. If another initiator has it, ends the commands that it may have aborted.
    pub async fn probe(&mut self) {
        self.read_reservation().await;
        if self.holder() == Holder::Other {
            self.end_aborted();
        }
    }

    /// Ends commands that a takeover may have aborted at the storage. Unless TAS is set, the storage sends no response
    /// for them (SAM-5 section 5.3.1), and hosts would wait until the command timeout.
    fn end_aborted(&mut self) {
        if self.gate.is_empty() || !self.ending.iter().all(JoinHandle::is_finished) {
            return;
        }
        let Some(remote) = self.remote.upgrade() else { return };
        self.gate.shut();
        let end = |lun| spawn(end_commands(self.gate.clone(), lun, self.name.clone()));
        self.ending = remote.luns().into_iter().map(end).collect();
    }

    async fn read_reservation(&mut self) {
        if self.pause.is_some_and(|until| Instant::now() < until) {
            return;
        }
        let was_seen = self.seen.is_some() || self.pause.is_none();
        match self.fence.probe().await {
            Ok(seen) => (self.seen, self.pause) = (Some(seen), None),
            Err(e) => {
                if was_seen {
                    tracing::warn!(name: "pair.error", "cannot read the reservation of {}: {e}", self.name);
                }
                (self.seen, self.pause) = (None, Some(Instant::now() + PAUSE));
            }
        }
    }

    /// Sends a heartbeat to the storage.
    pub async fn heartbeat(&mut self) {
        // The next probe handles a failure.
        if let Err(e) = self.fence.heartbeat(&self.gate).await {
            tracing::debug!("{}: {e}", self.name);
        }
    }

    /// Takes the reservation. Commands admitted earlier must have left the gate: otherwise they could overwrite later
    /// writes of the other router.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when another initiator has it.
    pub async fn take(&mut self, seize: bool) -> Result<(), Error> {
        self.gate.shut();
        (self.is_taken, self.opened, self.refusals) = (false, None, 0);
        if !self.gate.empty(self.path_loss_timeout).await {
            return Err(Error::new(
                ErrorCode::TimedOut,
                "the storage still executes earlier commands of this router",
            ));
        }
        let taken = self.fence.take(seize, &self.gate).await;
        self.is_preempted = self.fence.was_preempted(&taken);
        match &taken {
            Ok(()) => (self.is_taken, self.pause) = (true, None),
            Err(e) => {
                tracing::warn!(name: "pair.error", "cannot reserve {}: {e}", self.name);
                if e.code != ErrorCode::ReservationConflict {
                    // The next attempt would fail the same way.
                    (self.seen, self.pause) = (None, Some(Instant::now() + PAUSE));
                }
            }
        }
        taken
    }

    /// Registers the sessions, and opens the gate if the reservation is still ours afterwards. The registration of a
    /// session whose connection was lost may have been executed after a takeover.
    pub async fn open(&mut self) {
        if !self.gate.is_empty() {
            return;
        }
        let Some(remote) = self.remote.upgrade() else { return };
        // New controllers are registered when they connect.
        remote.renew_hosts();
        // Concurrently, so that several unresponsive sessions cost one timeout.
        let admitted: Vec<_> =
            remote.luns().into_iter().map(|lun| spawn(admit(self.gate.clone(), lun))).collect();
        let mut is_ours = true;
        for session in admitted {
            match session.await {
                Ok(Err(e)) if e.code == ErrorCode::ReservationConflict => is_ours = false,
                // The session is admitted at its first conflict.
                Ok(Err(e)) => tracing::debug!("cannot register a session at {} yet: {e}", self.name),
                // A panicked task has not registered its session.
                Ok(Ok(())) | Err(_) => {}
            }
        }
        if !is_ours {
            return self.count_refusals();
        }
        self.probe().await;
        if self.holder() == Holder::Ours {
            // This router received no events while the peer held the logical unit.
            remote.record_possible_reset();
            self.count_refusals();
            self.gate.open();
        }
    }

    /// Logs if the storage rejects registered sessions.
    fn count_refusals(&mut self) {
        let is_soon = self.opened.replace(Instant::now()).is_some_and(|opened| opened.elapsed() < SOON);
        self.refusals = if is_soon { self.refusals + 1 } else { 0 };
        if self.refusals == REFUSALS {
            tracing::error!(
                name: "pair.error",
                "{} rejects the registered sessions of this router with RESERVATION CONFLICT. LIO does this if the \
                 reservation has the same initiator name; hint: set another `initiator` in \
                 [router.NAME.failover]",
                self.name
            );
        }
    }

    /// Shuts the gate: another initiator has the reservation.
    pub fn lose(&mut self) {
        self.gate.shut();
        (self.is_taken, self.is_preempted) = (false, false);
    }

    /// Shuts the gate, waits for admitted commands, flushes, and releases the reservation. The takeover of the other
    /// router aborts commands that do not end in time.
    pub async fn release(&mut self) {
        self.gate.shut();
        let was_taken = std::mem::take(&mut self.is_taken);
        if !was_taken {
            return;
        }
        let released = match self.gate.empty(self.path_loss_timeout).await {
            true => self.fence.release(&self.gate).await,
            false => {
                Err(Error::new(ErrorCode::TimedOut, "the storage still executes commands of this router"))
            }
        };
        if let Err(e) = released {
            tracing::warn!(name: "pair.error", "cannot release the reservation of {}: {e}", self.name);
        }
    }

    /// Releases the reservation and ends.
    pub async fn leave(mut self) {
        self.release().await;
        self.fence.close().await;
    }
}

impl Drop for ReservationOwner {
    fn drop(&mut self) {
        // Without an owner, a takeover would go unnoticed.
        self.gate.shut();
    }
}

/// Registers a session, and reads the properties of the logical unit. While the other router has the reservation, the
/// storage reports only some of them.
async fn admit(gate: Arc<IoGate>, lun: Arc<Lun>) -> Result<(), Error> {
    gate.admit(lun.session(), lun.address()).await?;
    lun.reload().await
}

/// Ends the commands of one session with ABORT TASK SET, unless this router has taken the reservation again.
async fn end_commands(gate: Arc<IoGate>, lun: Arc<Lun>, name: String) {
    if gate.is_open() || gate.is_empty() {
        return;
    }
    // If this fails, the command timeout ends the commands.
    match lun.session().manage(TaskManagementFunction::AbortTaskSet, lun.address()).await {
        Ok(code) => tracing::debug!("{name}: ABORT TASK SET after a takeover: response {code}"),
        Err(e) => tracing::debug!("{name}: ABORT TASK SET after a takeover: {e}"),
    }
}

/// An ISID in the random format (RFC 7143 section 11.12.5), derived from `seed` and `name`.
fn isid(seed: &str, name: &str) -> [u8; 6] {
    let mut hash = Sha256::new();
    for part in [seed, name] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash = hash.finalize();
    [0x80, hash[0], hash[1], hash[2], hash[3], hash[4]]
}
