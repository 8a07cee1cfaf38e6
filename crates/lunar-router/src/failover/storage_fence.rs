//! The reservation of one logical unit, whatever the protocol of its storage.

use super::PairSpec;
use super::fence::{Fence, FencePort, KIND, ReservationState};
use super::gate::IoGate;
use super::machine::Holder;
use super::namespace_fence::NamespaceFence;
use crate::upstream::UpstreamLu;
use lunar_initiator::{Error, ErrorCode};

/// The state of a reservation, as its owner sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObservedReservation {
    /// The number of changes of reservations at the logical unit.
    pub generation: u32,
    /// The holder.
    pub holder: Holder,
}

/// The access to the reservation of one logical unit.
pub enum StorageFence {
    /// Persistent reservations of a SCSI logical unit, and the key of this router.
    Scsi(Box<Fence>, u64),
    /// Reservations of an NVMe namespace.
    Nvme(Box<NamespaceFence>),
}
use StorageFence::{Nvme, Scsi};

impl StorageFence {
    /// Creates the fence without a connection. `isid` is that of the nexus that holds a reservation of SCSI storage.
    pub fn new(remote: &UpstreamLu, spec: &PairSpec, isid: [u8; 6]) -> StorageFence {
        if remote.is_namespace() {
            return Nvme(Box::new(NamespaceFence::new(remote, spec.key)));
        }
        let port = FencePort { initiator: spec.initiator.clone(), isid };
        Scsi(Box::new(Fence::new(remote, port, spec.key, spec.path_loss_timeout)), spec.key)
    }

    /// Reads the holder of the reservation.
    ///
    /// # Errors
    /// When the logical unit is unreachable.
    pub async fn probe(&mut self) -> Result<ObservedReservation, Error> {
        match self {
            Scsi(fence, key) => fence.probe().await.map(|seen| observed(seen, *key)),
            Nvme(fence) => fence.probe().await,
        }
    }

    /// Changes the generation, which shows the peer that this router is alive.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when this router no longer has the reservation.
    pub async fn heartbeat(&mut self, gate: &IoGate) -> Result<(), Error> {
        match self {
            Scsi(fence, _) => fence.heartbeat(gate).await,
            Nvme(fence) => fence.heartbeat().await,
        }
    }

    /// Takes the reservation if it is free or already ours; with `seize`, also from another initiator. Afterwards all
    /// earlier registrations are removed, including ours, and the commands of others have ended.
    ///
    /// # Errors
    /// [`ErrorCode::ReservationConflict`] when another initiator has it. Other errors when the logical
    /// unit is unreachable, or commands of others do not end.
    pub async fn take(&mut self, seize: bool, gate: &IoGate) -> Result<(), Error> {
        match self {
            Scsi(fence, _) => fence.take(seize).await,
            Nvme(fence) => fence.take(seize, gate).await,
        }
    }

    /// Whether this router held the reservation, and another initiator preempted it before the end of the takeover. Always
    /// false for SCSI storage.
    pub fn was_preempted(&self, taken: &Result<(), Error>) -> bool {
        let is_conflict = taken.as_ref().is_err_and(|e| e.code == ErrorCode::ReservationConflict);
        is_conflict && matches!(self, Nvme(fence) if fence.has_held())
    }

    /// Flushes all writes, and releases the reservation and all registrations.
    ///
    /// # Errors
    /// When the logical unit is unreachable, or the reservation is not ours.
    pub async fn release(&mut self, gate: &IoGate) -> Result<(), Error> {
        match self {
            Scsi(fence, _) => fence.release(gate).await,
            Nvme(fence) => fence.release(gate).await,
        }
    }

    /// Ends the session or controller.
    pub async fn close(&mut self) {
        match self {
            Scsi(fence, _) => fence.close().await,
            Nvme(fence) => fence.close().await,
        }
    }
}

fn observed(seen: ReservationState, key: u64) -> ObservedReservation {
    let holder = match seen.held {
        None => Holder::Nobody,
        Some(held) if (held.key, held.kind) == (key, KIND) => Holder::Ours,
        Some(_) => Holder::Other,
    };
    ObservedReservation { generation: seen.generation, holder }
}
