//! Commands of a passthrough logical unit: those that are executed here, and the conditions under which a command is
//! not sent to the device.

use crate::dispatch::{self, Requester};
use crate::reservation;
use crate::table::{self, ChangeScope, CommandContext, Row};
use crate::{Lu, LuSettings, NexusId, PassthroughMode, Plan, PlanResult, ReservationClass, State};
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::{Sense, Status, op};

/// The row of an unknown command: it conflicts with every reservation.
static UNKNOWN: Row =
    Row::new(0xff, |_| Ok(Plan::Done), ReservationClass::Never, ChangeScope::Shared, &[0xff]);

/// Each nexus has its own nexus to the device. Only REPORT LUNS is executed here, because it lists the logical units
/// of this target.
pub(crate) fn run_per_nexus(cx: &mut CommandContext<'_>, requester: Requester<'_>) -> PlanResult {
    if cx.state.is_busy() {
        return Err(Status::Busy.into());
    }
    let opcode = cdb::opcode(cx.cdb);
    if opcode == op::REPORT_LUNS {
        return dispatch::execute_here(cx, requester);
    }
    if !table::is_despite_attention(&cx.lu.settings(), opcode)
        && let Some(sense) = own_attention(cx.state, requester.id)
    {
        return Err(sense.into());
    }
    pass_through(cx, requester)
}

/// All nexuses share one nexus to the device. Reservations and unit attentions of each nexus are handled here.
pub(crate) fn run_shared_nexus(cx: &mut CommandContext<'_>, requester: Requester<'_>) -> PlanResult {
    let opcode = cdb::opcode(cx.cdb);
    let has_attention = cx.state.nexuses.get(&requester.id).is_some_and(|p| !p.attentions.is_empty());
    // The device could execute these, but cannot distinguish the nexuses.
    let is_reservation = reservation::OPCODES.contains(&opcode);
    if is_reservation || opcode == op::REPORT_LUNS || (opcode == op::REQUEST_SENSE && has_attention) {
        return dispatch::execute_here(cx, requester);
    }
    if cx.state.is_busy() {
        return Err(Status::Busy.into());
    }
    let settings = cx.lu.settings();
    if !table::is_despite_attention(&settings, opcode) {
        dispatch::attention(cx.state, requester.id)?;
    }
    let row = table::find(&settings, cx.cdb).unwrap_or(&UNKNOWN);
    if cx.state.reservations.conflicts(row, requester.id, requester.port) {
        return Err(Status::ReservationConflict.into());
    }
    pass_through(cx, requester)
}

/// EXTENDED COPY and related commands. They name other logical units, and the device would check the access of this
/// router instead of its initiator's.
const COPY_COMMANDS: [u8; 2] = [op::EXTENDED_COPY, op::RECEIVE_COPY_RESULTS];

/// Whether every command of the nexus is forwarded that [`is_always_forwarded`], whatever it is: no unit attention is
/// pending, and none is write-protected.
pub(crate) fn forwards_all(state: &State, settings: &LuSettings, requester: Requester<'_>) -> bool {
    let has_none = state.nexuses.get(&requester.id).is_some_and(|p| p.attentions.is_empty());
    let is_writable = !requester.read_only && !settings.read_only;
    settings.passthrough == PassthroughMode::PerNexus && !state.is_busy() && has_none && is_writable
}

/// Whether a nexus of its own forwards the command, unless the state of the logical unit prevents it.
pub(crate) fn is_always_forwarded(cdb: &[u8]) -> bool {
    let opcode = cdb::opcode(cdb);
    opcode != op::REPORT_LUNS && !COPY_COMMANDS.contains(&opcode)
}

fn pass_through(cx: &CommandContext<'_>, requester: Requester<'_>) -> PlanResult {
    if COPY_COMMANDS.contains(&cdb::opcode(cx.cdb)) {
        return Err(Sense::INVALID_OPCODE.into());
    }
    if (requester.read_only || cx.lu.settings().read_only) && !op::only_reads(cx.cdb) {
        return Err(Sense::WRITE_PROTECTED.into());
    }
    Ok(Plan::Passthrough)
}

/// The next unit attention that only this target can report. Resets and similar events are reported by the device, on
/// the nexus that observes them.
fn own_attention(state: &mut State, id: NexusId) -> Option<Sense> {
    const OURS: [Sense; 3] = [Sense::LUNS_CHANGED, Sense::MEDIUM_CHANGED, Sense::INQUIRY_CHANGED];
    let attentions = &mut state.nexuses.get_mut(&id)?.attentions;
    std::iter::from_fn(|| attentions.take()).find(|sense| OURS.contains(sense))
}

impl Lu {
    /// A command of this nexus returned a unit attention from the device. In shared mode the device reports it once,
    /// so it is raised on all other nexuses.
    pub fn attention_received(&self, nexus: NexusId, sense: Sense) {
        if self.settings().passthrough == PassthroughMode::Shared {
            self.change().raise_on_others(sense, nexus);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{Op, PeripheralDeviceType};

    const READ_ONE: &[u8] = &[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const WRITE_ONE: &[u8] = &[op::WRITE_10, 0, 0, 0, 0, 1, 0, 0, 1, 0];
    const INQUIRY: &[u8] = &[op::INQUIRY, 0, 0, 0, 36, 0];
    const SENSE: &[u8] = &[op::REQUEST_SENSE, 0, 0, 0, 18, 0];
    const TUR: &[u8] = &[op::TEST_UNIT_READY];
    const RESERVE: &[u8] = &[op::RESERVE_6, 0, 0, 0, 0, 0];
    /// MOVE MEDIUM, which disks do not support.
    const MOVE: &[u8] = &[0xa5, 0, 0, 1, 0, 2, 0, 3];

    fn passed_through() -> PlanResult {
        Ok(Plan::Passthrough)
    }

    fn passing(mode: PassthroughMode) -> std::sync::Arc<Lu> {
        lu(LuSettings { passthrough: mode, ..disk() })
    }

    #[test]
    fn own_nexus_passes_all_but_report_luns() {
        let lu = passing(PassthroughMode::PerNexus);
        let mut n = lu.attach(port("a"), false);
        for cdb in [READ_ONE, WRITE_ONE, INQUIRY, SENSE, TUR, RESERVE, MOVE, &[op::PERSISTENT_RESERVE_OUT]] {
            assert_eq!(run(&mut n, cdb), passed_through(), "{cdb:02x?}");
        }
        let inventory = run(&mut n, &[op::REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        assert_eq!(inventory, Ok(Plan::op(Op::ReportLuns { select: 0, allocation_len: 256 })));
        lu.reset();
        assert_eq!(run(&mut n, TUR), passed_through(), "the device reports its resets itself");
        lu.luns_changed();
        assert_eq!(run(&mut n, INQUIRY), passed_through());
        assert_eq!(run(&mut n, READ_ONE), fails(Sense::LUNS_CHANGED));
        assert_eq!(run(&mut n, READ_ONE), passed_through());
        lu.set_busy(true);
        assert_eq!(run(&mut n, READ_ONE), Err(Status::Busy.into()));
    }

    #[test]
    fn snapshot_forwards_what_the_checks_would_forward() {
        let lu = passing(PassthroughMode::PerNexus);
        let mut n = lu.attach(port("a"), false);
        let forwards = |n: &mut crate::Nexus| n.snapshot.forwards(READ_ONE);
        assert!(!forwards(&mut n), "POWER ON is pending");
        assert_eq!(run(&mut n, READ_ONE), passed_through());
        assert!(forwards(&mut n) && n.snapshot.forwards(&[op::PERSISTENT_RESERVE_OUT]));
        for cdb in [[op::REPORT_LUNS], [op::EXTENDED_COPY], [op::RECEIVE_COPY_RESULTS]] {
            assert!(!n.snapshot.forwards(&cdb), "{cdb:02x?}");
        }
        let mut guest = lu.attach(port("b"), true);
        assert_eq!(run(&mut guest, READ_ONE), passed_through());
        assert!(!guest.snapshot.forwards(WRITE_ONE) && !guest.snapshot.forwards(READ_ONE));
        for mode in [PassthroughMode::None, PassthroughMode::Shared] {
            let mut n = passing(mode).attach(port("a"), false);
            (0..2).for_each(|_| drop(run(&mut n, READ_ONE)));
            assert!(!n.snapshot.forwards(READ_ONE));
        }
    }

    #[test]
    fn shared_nexus_keeps_reservations_here() {
        let lu = passing(PassthroughMode::Shared);
        let (mut a, mut b) = (nexus_of(&lu, "a"), nexus_of(&lu, "b"));
        assert_eq!(run(&mut a, RESERVE), Ok(Plan::Done));
        for cdb in [READ_ONE, WRITE_ONE, MOVE, TUR] {
            assert_eq!(run(&mut a, cdb), passed_through());
            assert_eq!(run(&mut b, cdb), Err(Status::ReservationConflict.into()), "{cdb:02x?}");
        }
        assert_eq!(run(&mut b, INQUIRY), passed_through());
    }

    #[test]
    fn attention_of_a_shared_nexus_is_queued_for_the_others() {
        let lu = passing(PassthroughMode::Shared);
        let (mut a, mut b) = (nexus_of(&lu, "a"), nexus_of(&lu, "b"));
        lu.attention_received(a.id(), Sense::MEDIUM_CHANGED);
        assert_eq!(run(&mut a, TUR), passed_through());
        assert_eq!(run(&mut b, INQUIRY), passed_through());
        assert_eq!(data(&mut b, SENSE), Sense::MEDIUM_CHANGED.encode(false));
        assert_eq!(run(&mut b, SENSE), passed_through());
        assert_eq!(run(&mut b, READ_ONE), passed_through());
        let own = passing(PassthroughMode::PerNexus);
        let (a, mut b) = (own.attach(port("a"), false), own.attach(port("b"), false));
        own.attention_received(a.id(), Sense::MEDIUM_CHANGED);
        assert_eq!(run(&mut b, TUR), passed_through(), "its own nexus gets it from the device");
    }

    /// MMC-6 exempts GET CONFIGURATION and GET EVENT STATUS NOTIFICATION. Other devices can have other commands there.
    #[test]
    fn only_a_cd_is_asked_for_its_events_despite_attention() {
        for (device_type, expected) in [
            (PeripheralDeviceType::CdRom, passed_through()),
            (PeripheralDeviceType::Disk, fails(Sense::LUNS_CHANGED)),
        ] {
            let passthrough = PassthroughMode::PerNexus;
            let lu = lu(LuSettings { passthrough, device_type, ..disk() });
            let mut n = lu.attach(port("a"), false);
            lu.luns_changed();
            assert_eq!(run(&mut n, &[op::GET_EVENT_STATUS, 1, 0, 0, 0x10, 0, 0, 0, 8, 0]), expected);
        }
    }

    #[test]
    fn read_only_nexus_changes_nothing_on_the_device() {
        for passes in [PassthroughMode::PerNexus, PassthroughMode::Shared] {
            let lu = passing(passes);
            let mut n = lu.attach(port("a"), true);
            let _power_on = run(&mut n, TUR);
            // READ BLOCK LIMITS and REPORT DENSITY SUPPORT, which hosts send when they open a tape.
            let defects = &[op::READ_DEFECT_DATA_12];
            for cdb in [READ_ONE, defects, &[0x05], &[0x44, 0, 0, 0, 0, 0, 0, 1, 0, 0]] {
                assert_eq!(run(&mut n, cdb), passed_through(), "{cdb:02x?}");
            }
            for cdb in [WRITE_ONE, MOVE, RESERVE, &[op::PERSISTENT_RESERVE_OUT], &[op::MODE_SELECT_6, 0x11]] {
                assert_eq!(run(&mut n, cdb), fails(Sense::WRITE_PROTECTED), "{cdb:02x?}");
            }
        }
    }

    #[test]
    fn read_only_nexus_is_refused_changing_service_actions() {
        let mut n = passing(PassthroughMode::PerNexus).attach(port("a"), true);
        let (capacity, truncate, groups, send_key) = ([0x9e, 0x10], [0x9e, 0x18], [0xa3, 0x0a], [0xa3, 0]);
        for cdb in [capacity, groups] {
            assert_eq!(run(&mut n, &cdb), passed_through(), "{cdb:02x?}");
        }
        for cdb in [truncate, send_key] {
            assert_eq!(run(&mut n, &cdb), fails(Sense::WRITE_PROTECTED), "{cdb:02x?}");
        }
    }

    #[test]
    fn copy_cannot_access_invisible_disks() {
        for passes in [PassthroughMode::PerNexus, PassthroughMode::Shared] {
            let mut n = passing(passes).attach(port("a"), false);
            let _power_on = run(&mut n, TUR);
            assert_eq!(run(&mut n, &[op::EXTENDED_COPY]), fails(Sense::INVALID_OPCODE));
        }
    }

    #[test]
    fn unreservable_unit_rejects_reservation_commands() {
        let lu = lu(LuSettings { reservable: false, ..disk() });
        let mut n = nexus_of(&lu, "a");
        for opcode in reservation::OPCODES {
            assert_eq!(run(&mut n, &[opcode]), fails(Sense::INVALID_OPCODE));
        }
        assert!(run(&mut n, READ_ONE).is_ok());
    }

    fn nexus_of(lu: &std::sync::Arc<Lu>, initiator: &str) -> crate::Nexus {
        let mut n = lu.attach(port(initiator), false);
        assert_eq!(run(&mut n, TUR), fails(Sense::POWER_ON));
        n
    }
}
