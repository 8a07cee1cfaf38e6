//! A logical unit as a namespace: the facts that an NVMe controller reports, and the events of its host.

use crate::dispatch::write_protected;
use crate::{AccessState, InitiatorPort, Lu, Nexus};
use lunar_wire::scsi::Sense;

/// The state of a namespace through one controller. Hosts learn of its changes by events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceView {
    /// Capacity in blocks; 0 without a medium.
    pub blocks: u64,
    /// Logical block size in bytes.
    pub block_size: u32,
    /// Physical block size in bytes.
    pub physical_block_size: u32,
    /// Whether writes are rejected.
    pub write_protected: bool,
    /// Whether writes may complete before they are on stable storage.
    pub write_cache: bool,
    /// Whether unmapped blocks take no space.
    pub thin: bool,
    /// Whether reservations are supported.
    pub reservable: bool,
    /// Whether the state of reservations can survive a restart.
    pub persistent_reservations: bool,
    /// Maximum number of blocks of COMPARE AND WRITE; 0 if it is not supported.
    pub max_compare_and_write: u8,
    /// The NAA designator.
    pub naa: Vec<u8>,
    /// The access state of the controller's port.
    pub access: AccessState,
}

/// A registrant, as a report shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedRegistrant {
    /// Its initiator port.
    pub initiator: InitiatorPort,
    /// Its key.
    pub key: u64,
    /// Whether it holds the reservation.
    pub is_holder: bool,
}

/// The state of persistent reservations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationsView {
    /// PRGENERATION.
    pub generation: u32,
    /// The TYPE code of the reservation, if there is one.
    pub kind: Option<u8>,
    /// Whether the state survives a restart.
    pub persists: bool,
    /// The registrants.
    pub registrants: Vec<ReportedRegistrant>,
}

impl Nexus {
    /// The state of the namespace now.
    pub fn namespace(&self) -> NamespaceView {
        let state = self.lu.change();
        let settings = self.lu.settings();
        NamespaceView {
            blocks: if state.no_medium().is_some() { 0 } else { state.blocks },
            block_size: settings.block_size,
            physical_block_size: settings.physical_block_size,
            write_protected: write_protected(&state, &settings, self.read_only),
            write_cache: state.modes.write_cache(),
            thin: settings.thin,
            reservable: settings.reservable,
            persistent_reservations: state.reservations.can_persist(),
            max_compare_and_write: settings.max_compare_and_write(),
            naa: settings.identity.naa.clone(),
            access: state.alua.access(self.port.own.portal_group_tag),
        }
    }

    /// Takes the reservation events of an NVMe host, oldest first.
    pub fn take_events(&self) -> Vec<Sense> {
        let mut state = self.lu.change();
        let events = state.nexuses.get_mut(&self.id).map(|own| std::mem::take(&mut own.events));
        events.into_iter().flat_map(|mut events| std::iter::from_fn(move || events.take())).collect()
    }
}

impl Lu {
    /// The state of persistent reservations.
    pub fn reservation_report(&self) -> ReservationsView {
        self.change().reservations.view()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{disk, lu, nexus, nvme_port, run};
    use crate::{CommandError, Plan, TargetPortGroup};
    use lunar_wire::scsi::cdb::{self, Cdb};
    use lunar_wire::scsi::pr::ReserveOutParameters;
    use lunar_wire::scsi::{Status, op};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    const READ_ONE: &[u8] = &[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const REGISTER: u8 = 0;
    const RESERVE: u8 = 1;
    const PREEMPT: u8 = 4;

    fn reserve_out(nexus: &mut Nexus, action: u8, key: u64, action_key: u64) -> crate::PlanResult {
        let list = ReserveOutParameters { key, action_key, all_ports: false, aptpl: false }.encode();
        let cdb: Cdb = cdb::persistent_reserve_out(action, 1, list.len() as u32);
        nexus.parameters(&cdb, &list)
    }

    fn conflict() -> crate::PlanResult {
        Err(CommandError::from(Status::ReservationConflict))
    }

    #[test]
    fn nvme_nexus_has_no_unit_attentions() {
        let lu = lu(disk());
        let mut host = lu.attach(nvme_port(1, 1), false);
        assert_eq!(run(&mut host, READ_ONE), Ok(Plan::Read { offset: 512, len: 512 }));
        lu.resized(1 << 19);
        lu.reset();
        assert_eq!(run(&mut host, READ_ONE), Ok(Plan::Read { offset: 512, len: 512 }));
        assert_eq!((host.namespace().blocks, host.take_events()), (1024, vec![]));
    }

    #[test]
    fn controllers_of_a_host_are_one_registrant() {
        let lu = lu(disk());
        let [mut one, mut other] = [1, 2].map(|group| lu.attach(nvme_port(1, group), false));
        let mut stranger = lu.attach(nvme_port(2, 1), false);
        assert!(reserve_out(&mut one, REGISTER, 0, 7).is_ok());
        assert!(reserve_out(&mut other, RESERVE, 7, 0).is_ok());
        assert!(run(&mut one, READ_ONE).is_ok());
        let report = lu.reservation_report();
        let own = InitiatorPort::Nvme { name: "nqn.2026-11.org.example:host".into(), id: [1; 16] };
        assert_eq!(report.registrants, [ReportedRegistrant { initiator: own, key: 7, is_holder: true }]);
        assert_eq!(reserve_out(&mut stranger, RESERVE, 7, 0), conflict());
        assert_eq!(stranger.refusal(op::READ_10), None, "write exclusive");
        assert_eq!(stranger.refusal(op::WRITE_10), Some(CommandError::from(Status::ReservationConflict)));
        let guest = lu.attach(nvme_port(1, 2), true);
        assert_eq!(guest.refusal(op::WRITE_10), Some(CommandError::from(Sense::WRITE_PROTECTED)));
    }

    #[test]
    fn registrants_of_one_family_exclude_the_other() {
        let lu = lu(disk());
        let (mut host, mut initiator) = (lu.attach(nvme_port(1, 1), false), nexus(&lu, "a"));
        assert!(reserve_out(&mut host, REGISTER, 0, 7).is_ok());
        assert_eq!(reserve_out(&mut initiator, REGISTER, 0, 8), conflict());
        assert!(reserve_out(&mut host, REGISTER, 7, 0).is_ok());
        assert!(reserve_out(&mut initiator, REGISTER, 0, 8).is_ok());
        assert_eq!(reserve_out(&mut host, REGISTER, 0, 7), conflict());
    }

    #[test]
    fn preempted_host_gets_an_event_once() {
        let lu = lu(disk());
        let [mut one, mut other] = [1, 2].map(|id| lu.attach(nvme_port(id, 1), false));
        for (host, key) in [(&mut one, 7), (&mut other, 8)] {
            assert!(reserve_out(host, REGISTER, 0, key).is_ok());
        }
        assert!(reserve_out(&mut one, PREEMPT, 7, 8).is_ok());
        assert_eq!(other.take_events(), [Sense::REGISTRATIONS_PREEMPTED]);
        assert_eq!((one.take_events(), other.take_events()), (vec![], vec![]));
    }

    #[test]
    fn access_state_is_that_of_the_portal_group() {
        let lu = lu(disk());
        let hosts = [1, 2].map(|group| lu.attach(nvme_port(1, group), false));
        lu.set_access(&[TargetPortGroup { tag: 2, access: AccessState::Standby, preferred: false }]);
        let states = hosts.map(|host| host.namespace().access);
        assert_eq!(states, [AccessState::Optimized, AccessState::Standby]);
    }

    #[test]
    fn watcher_is_called_until_it_is_dropped() {
        let (lu, calls) = (lu(disk()), Arc::new(AtomicUsize::new(0)));
        let counted = calls.clone();
        let watcher: Arc<crate::LuWatcher> = Arc::new(move || _ = counted.fetch_add(1, Relaxed));
        lu.watch(&watcher);
        lu.resized(1 << 19);
        let before = calls.load(Relaxed);
        assert!(before > 0);
        drop(watcher);
        lu.resized(1 << 18);
        assert_eq!(calls.load(Relaxed), before);
    }
}
