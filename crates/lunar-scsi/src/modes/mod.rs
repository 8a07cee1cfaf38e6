//! Mode parameters (SPC-5 section 7.5): the changeable values, and the saved ones.

mod pages;
mod select;
mod sense;

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{InvalidDefinition, LuSettings, PlanResult};
use lunar_wire::scsi::op;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    sensing(op::MODE_SENSE_6, sense::mode_sense_6, &[0x1a, 0x08, 0xff, 0xff, 0xff, 0]),
    sensing(op::MODE_SENSE_10, sense::mode_sense_10, &[0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0]),
    selecting(op::MODE_SELECT_6, select::mode_select_6, &[0x15, 0x11, 0, 0, 0xff, 0]),
    selecting(op::MODE_SELECT_10, select::mode_select_10, &[0x55, 0x11, 0, 0, 0, 0, 0, 0xff, 0xff, 0]),
];

type Handler = fn(&mut CommandContext<'_>) -> PlanResult;

const fn sensing(opcode: u8, handler: Handler, usage: &'static [u8]) -> Row {
    Row::new(opcode, handler, ReservationClass::Reading, ChangeScope::Nothing, usage)
        .in_standby()
        .while_sanitizing()
}

/// MODE SELECT runs exclusively: a write that began with the write cache on must end before the cache is flushed and
/// disabled.
const fn selecting(opcode: u8, handler: Handler, usage: &'static [u8]) -> Row {
    Row::new(opcode, handler, ReservationClass::Never, ChangeScope::Shared, usage)
        .in_standby()
        .persists()
        .exclusive()
        .flushes_first()
}

/// The changeable values: a set of the following bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChangeableValues(u8);

/// Write cache enabled.
const WCE: u8 = 1;
/// Descriptor format sense data.
const D_SENSE: u8 = 2;
/// Task aborted status.
const TAS: u8 = 4;
/// Software write protect.
const SWP: u8 = 8;

impl ChangeableValues {
    fn has(self, value: u8) -> bool {
        self.0 & value != 0
    }

    fn set(&mut self, value: u8, on: bool) {
        self.0 = if on { self.0 | value } else { self.0 & !value };
    }
}

/// Current, default and saved values.
#[derive(Clone, Debug)]
pub(crate) struct State {
    current: ChangeableValues,
    default: ChangeableValues,
    /// `None` if no values were saved: the defaults apply.
    saved: Option<ChangeableValues>,
}

impl State {
    pub(crate) fn new(settings: &LuSettings) -> State {
        let default = ChangeableValues(if settings.write_cache { WCE } else { 0 });
        State { current: default, default, saved: None }
    }

    /// Sets the default of WCE. Returns whether this changes the current value, which happens if no values are saved.
    pub(crate) fn set_default_write_cache(&mut self, on: bool) -> bool {
        let before = self.current;
        let changed = self.default.has(WCE) != on;
        self.default.set(WCE, on);
        if changed && self.saved.is_none() {
            self.current.set(WCE, on);
        }
        self.current != before
    }

    /// WCE: writes may be acknowledged before they are on stable storage.
    pub(crate) fn write_cache(&self) -> bool {
        self.current.has(WCE)
    }

    /// D_SENSE: sense data have descriptor format.
    pub(crate) fn descriptor_sense(&self) -> bool {
        self.current.has(D_SENSE)
    }

    /// TAS: tasks aborted by another nexus end with TASK ABORTED.
    pub(crate) fn task_aborted_status(&self) -> bool {
        self.current.has(TAS)
    }

    /// SWP: software write protect.
    pub(crate) fn software_write_protect(&self) -> bool {
        self.current.has(SWP)
    }

    /// A reset restores the saved values, or the defaults.
    pub(crate) fn reset(&mut self) {
        self.current = self.saved_or_default();
    }

    /// Whether a reset would clear WCE.
    pub(crate) fn reset_ends_write_cache(&self) -> bool {
        self.write_cache() && !self.saved_or_default().has(WCE)
    }

    fn saved_or_default(&self) -> ChangeableValues {
        self.saved.unwrap_or(self.default)
    }

    /// Encodes the saved values in one byte; empty if none were saved.
    pub(crate) fn save(&self) -> Vec<u8> {
        self.saved.map(|v| v.0).into_iter().collect()
    }

    /// Encodes the current values if a restart would change them: these values, and those of a restart.
    pub(crate) fn hand_over(&self) -> Vec<u8> {
        let after_restart = self.saved_or_default();
        if self.current == after_restart { Vec::new() } else { vec![self.current.0, after_restart.0] }
    }

    /// Takes what [`State::hand_over`] returned, unless the saved values or the settings have changed since.
    pub(crate) fn take_over(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let &[current @ 0..16, after_restart] = bytes else {
            return Err(InvalidDefinition::new("the mode pages of the earlier process are invalid"));
        };
        if self.saved_or_default().0 == after_restart {
            self.current = ChangeableValues(current);
        }
        Ok(())
    }

    /// Encodes the current values, and the saved ones if there are any.
    pub(crate) fn save_shared(&self) -> Vec<u8> {
        [self.current].into_iter().chain(self.saved).map(|values| values.0).collect()
    }

    /// Restores what [`State::save_shared`] returned.
    pub(crate) fn restore_shared(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let (current, saved) = match *bytes {
            [current @ 0..16] => (current, None),
            [current @ 0..16, saved @ 0..16] => (current, Some(ChangeableValues(saved))),
            _ => return Err(InvalidDefinition::new("the shared mode pages are invalid")),
        };
        (self.current, self.saved) = (ChangeableValues(current), saved);
        Ok(())
    }

    /// Restores what [`State::save`] returned.
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), InvalidDefinition> {
        let &[bits @ 0..16] = bytes else {
            return Err(InvalidDefinition::new("the saved mode pages are invalid"));
        };
        self.saved = Some(ChangeableValues(bits));
        self.reset();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
