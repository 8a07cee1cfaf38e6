//! The state of the medium: loaded, started, removal prevented. START STOP UNIT (SBC-4 section 5.31) and PREVENT
//! ALLOW MEDIUM REMOVAL (SPC-5 section 6.17).

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{CommandError, Lu, NexusId, Op, Plan, PlanResult};
use lunar_wire::scsi::cdb::prevent_allow_medium_removal::PREVENT;
use lunar_wire::scsi::cdb::start_stop_unit::{LOEJ, NO_FLUSH, POWER_CONDITION, START};
use lunar_wire::scsi::{Sense, Status, op};
use std::collections::BTreeSet;

const START_STOP_UNIT: &[u8] = &[0x1b, 0x01, 0, 0x0f, 0xf7, 0];
const PREVENT_ALLOW: &[u8] = &[0x1e, 0, 0, 0, 0x03, 0];

/// Rows of the command table. A reservation allows only some forms of these commands: see [`unreserved`].
pub(crate) const ROWS: &[Row] = &[
    Row::new(op::START_STOP_UNIT, start_stop, ReservationClass::Always, ChangeScope::Shared, START_STOP_UNIT)
        .despite_reserve(),
    Row::new(op::PREVENT_ALLOW, prevent_allow, ReservationClass::Always, ChangeScope::Shared, PREVENT_ALLOW)
        .despite_reserve(),
];

/// The access to the medium that the server withholds from initiators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Withheld {
    /// Nothing.
    #[default]
    Nothing,
    /// Writes: the logical unit is write protected.
    Writes,
    /// All access: the logical unit is not ready, manual intervention required.
    All,
}

/// The state of the medium.
#[derive(Debug, Default)]
pub(crate) struct State {
    ejected: bool,
    stopped: bool,
    /// Nexuses that prevent removal.
    preventing: BTreeSet<NexusId>,
    withheld: Withheld,
}

impl State {
    /// The sense data with which commands fail that need the medium.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        if self.ejected {
            Some(Sense::NOT_READY_NO_MEDIUM)
        } else if self.withheld == Withheld::All {
            Some(Sense::NOT_READY_INTERVENTION)
        } else if self.stopped {
            Some(Sense::NOT_READY_STOPPED)
        } else {
            None
        }
    }

    pub(crate) fn withholds_writes(&self) -> bool {
        self.withheld == Withheld::Writes
    }

    /// Loads and starts the medium.
    pub(crate) fn load(&mut self) {
        (self.ejected, self.stopped) = (false, false);
    }

    /// Removes a lost nexus, which ends its prevention (SPC-5 section 6.17).
    pub(crate) fn detach(&mut self, nexus: NexusId) {
        self.preventing.remove(&nexus);
    }

    /// A reset ends all preventions, and starts a stopped unit.
    pub(crate) fn reset(&mut self) {
        self.preventing.clear();
        self.stopped = false;
    }
}

impl Lu {
    /// Sets the access to withhold. When write protection begins or ends, every nexus gets the unit attention MODE
    /// PARAMETERS CHANGED.
    pub fn withhold(&self, what: Withheld) {
        let mut state = self.change();
        let before = std::mem::replace(&mut state.medium.withheld, what);
        if before == what {
            return;
        }
        if (before == Withheld::Writes) != (what == Withheld::Writes) {
            state.raise(Sense::MODE_PARAMETERS_CHANGED, |_, _| true);
        }
        state.mark_changed();
    }
}

/// Fails with a conflict if another nexus holds a reservation. For forms of a command that reservations do not allow.
fn unreserved(cx: &CommandContext<'_>) -> Result<(), CommandError> {
    const STRICT: &Row = &Row::new(
        op::START_STOP_UNIT,
        start_stop,
        ReservationClass::Never,
        ChangeScope::Shared,
        START_STOP_UNIT,
    );
    if cx.state.reservations.conflicts(STRICT, cx.nexus, cx.port) {
        return Err(Status::ReservationConflict.into());
    }
    Ok(())
}

/// START STOP UNIT. A power condition changes nothing: the unit leaves it at once, as it may at any time.
fn start_stop(cx: &mut CommandContext<'_>) -> PlanResult {
    let (condition, starts) = (POWER_CONDITION.get_u8(cx.cdb), START.is_set(cx.cdb));
    let load_or_eject = LOEJ.is_set(cx.cdb);
    if condition != 0 || !starts {
        unreserved(cx)?;
    }
    if load_or_eject && !cx.lu.settings().removable && condition == 0 {
        return Err(Sense::in_cdb(LOEJ).into());
    }
    if load_or_eject && condition == 0 && !cx.state.medium.preventing.is_empty() {
        return Err(Sense::REMOVAL_PREVENTED.into());
    }
    match (condition, starts) {
        (1.., _) => Ok(Plan::Done),
        (0, true) => Ok(start(cx, load_or_eject)),
        (0, false) => Ok(stop(cx, load_or_eject)),
    }
}

fn start(cx: &mut CommandContext<'_>, load: bool) -> Plan {
    let medium = &mut cx.state.medium;
    medium.stopped = false;
    if load && std::mem::take(&mut medium.ejected) {
        cx.state.raise_on_others(Sense::MEDIUM_CHANGED, cx.nexus);
    }
    cx.state.mark_changed();
    Plan::Done
}

/// Ejects the medium with LOEJ. Without LOEJ, a fixed disk stops, and a removable unit stays ready.
fn stop(cx: &mut CommandContext<'_>, eject: bool) -> Plan {
    let medium = &mut cx.state.medium;
    if eject {
        medium.ejected = true;
    } else {
        medium.stopped = !cx.lu.settings().removable;
    }
    cx.state.mark_changed();
    if NO_FLUSH.is_set(cx.cdb) { Plan::Done } else { Plan::op(Op::Stop) }
}

fn prevent_allow(cx: &mut CommandContext<'_>) -> PlanResult {
    match PREVENT.get_u8(cx.cdb) {
        0 => {
            cx.state.medium.preventing.remove(&cx.nexus);
        }
        1 => {
            unreserved(cx)?;
            cx.state.medium.preventing.insert(cx.nexus);
        }
        _ => return Err(Sense::in_cdb(PREVENT).into()),
    }
    Ok(Plan::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{LuSettings, Nexus};

    const TUR: &[u8] = &[op::TEST_UNIT_READY];
    const READ: &[u8] = &[op::READ_10, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    const START: u8 = 0x01;
    const EJECT: u8 = 0x02;
    const LOAD: u8 = 0x03;
    const NO_FLUSH: u8 = 0x04;

    fn start_stop(n: &mut Nexus, flags: u8) -> PlanResult {
        run(n, &[op::START_STOP_UNIT, 0, 0, 0, flags, 0])
    }

    fn removable() -> std::sync::Arc<crate::Lu> {
        lu(LuSettings { removable: true, ..disk() })
    }

    #[test]
    fn ejected_medium_is_missed_and_loaded_again() {
        let lu = removable();
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        assert_eq!(start_stop(&mut a, EJECT), Ok(Plan::op(Op::Stop)));
        assert_eq!(run(&mut a, TUR), fails(Sense::NOT_READY_NO_MEDIUM));
        assert_eq!(run(&mut b, READ), fails(Sense::NOT_READY_NO_MEDIUM));
        assert_eq!(start_stop(&mut a, EJECT | NO_FLUSH), Ok(Plan::Done));
        assert_eq!(start_stop(&mut a, LOAD), Ok(Plan::Done));
        assert_eq!(run(&mut a, TUR), Ok(Plan::Done));
        assert_eq!(run(&mut b, READ), fails(Sense::MEDIUM_CHANGED));
        assert!(run(&mut b, READ).is_ok());
    }

    #[test]
    fn prevention_holds_for_all_until_its_nexus_goes_or_a_reset() {
        let lu = removable();
        let (mut a, mut b) = (nexus(&lu, "a"), nexus(&lu, "b"));
        assert_eq!(run(&mut a, &[op::PREVENT_ALLOW, 0, 0, 0, 1, 0]), Ok(Plan::Done));
        assert_eq!(run(&mut b, &[op::PREVENT_ALLOW, 0, 0, 0, 0, 0]), Ok(Plan::Done));
        assert_eq!(start_stop(&mut b, EJECT), fails(Sense::REMOVAL_PREVENTED));
        assert_eq!(start_stop(&mut b, LOAD), fails(Sense::REMOVAL_PREVENTED));
        assert_eq!(start_stop(&mut b, START), Ok(Plan::Done));
        drop(a);
        assert!(start_stop(&mut b, EJECT).is_ok());
        assert_eq!(start_stop(&mut b, LOAD), Ok(Plan::Done));
        assert_eq!(run(&mut b, &[op::PREVENT_ALLOW, 0, 0, 0, 1, 0]), Ok(Plan::Done));
        lu.reset();
        assert_eq!(run(&mut b, TUR), fails(Sense::LUN_RESET));
        assert!(start_stop(&mut b, EJECT).is_ok());
    }

    #[test]
    fn stopped_disk_is_not_ready_until_started() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(start_stop(&mut n, 0), Ok(Plan::op(Op::Stop)));
        assert_eq!(run(&mut n, READ), fails(Sense::NOT_READY_STOPPED));
        let sense = data(&mut n, &[op::REQUEST_SENSE, 0, 0, 0, 252, 0]);
        assert_eq!(sense, Sense::NOT_READY_STOPPED.encode(false));
        assert_eq!(start_stop(&mut n, START), Ok(Plan::Done));
        assert!(run(&mut n, READ).is_ok());
        assert_eq!(start_stop(&mut n, EJECT), fails(Sense::cdb_field(4, 1)));
    }

    #[test]
    fn withheld_medium_is_protected_or_not_ready() {
        const WRITE: &[u8] = &[op::WRITE_10, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        assert!(run(&mut n, READ).is_ok() && run(&mut n, WRITE).is_ok());
        lu.withhold(Withheld::Writes);
        assert_eq!(run(&mut n, TUR), fails(Sense::MODE_PARAMETERS_CHANGED));
        assert!(run(&mut n, READ).is_ok());
        assert_eq!(run(&mut n, WRITE), fails(Sense::WRITE_PROTECTED));
        assert_eq!(data(&mut n, &[op::MODE_SENSE_6, 8, 0x3f, 0, 4, 0])[2] & 0x80, 0x80);
        lu.withhold(Withheld::All);
        assert_eq!(run(&mut n, TUR), fails(Sense::MODE_PARAMETERS_CHANGED));
        for cdb in [TUR, READ, WRITE] {
            assert_eq!(run(&mut n, cdb), fails(Sense::NOT_READY_INTERVENTION));
        }
        assert!(start_stop(&mut n, START).is_ok());
        assert_eq!(run(&mut n, READ), fails(Sense::NOT_READY_INTERVENTION), "no host can load it");
        lu.withhold(Withheld::Nothing);
        assert!(run(&mut n, READ).is_ok() && run(&mut n, WRITE).is_ok());
    }

    #[test]
    fn stopped_removable_unit_stays_ready() {
        let mut n = nexus(&removable(), "a");
        assert_eq!(start_stop(&mut n, 0), Ok(Plan::op(Op::Stop)));
        assert_eq!(run(&mut n, TUR), Ok(Plan::Done));
        for condition in 1..16 {
            assert_eq!(start_stop(&mut n, condition << 4 | EJECT), Ok(Plan::Done));
            assert_eq!(run(&mut n, TUR), Ok(Plan::Done));
        }
    }

    #[test]
    fn sense_points_at_an_invalid_prevent() {
        let mut n = nexus(&removable(), "a");
        assert_eq!(run(&mut n, &[op::PREVENT_ALLOW, 0, 0, 0, 2, 0]), fails(Sense::cdb_field(4, 1)));
    }
}
