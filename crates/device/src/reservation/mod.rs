//! Reservations: RESERVE and RELEASE (SPC-2 section 5.5.1), and persistent reservations (SPC-5 section 5.14).

mod actions;
mod commands;
mod kind;
mod registry;
mod report;
mod request;
mod saved;
#[cfg(test)]
mod tests;
mod transport_id;

use crate::table::Row;
use crate::{Allowed, Invalid, NexusId, Port, Settings};
use registry::Registry;
use wire::scsi::op;

pub(crate) use commands::ROWS;

/// A field pointer without a bit pointer.
const NO_BIT: u8 = 8;

/// What the RESERVE of another nexus lets through (SPC-2 table 10, SBC table 4); RELEASE has no effect then.
const DESPITE_RESERVE: [u8; 7] = [
    op::INQUIRY,
    op::REQUEST_SENSE,
    op::REPORT_LUNS,
    op::LOG_SENSE,
    op::READ_CAPACITY_10,
    op::RELEASE_6,
    op::RELEASE_10,
];

/// Registrations and reservations of a logical unit.
#[derive(Debug)]
pub(crate) struct State {
    /// Who reserved the logical unit by RESERVE.
    reserved: Option<NexusId>,
    registry: Registry,
}

impl State {
    /// Nobody registered.
    pub(crate) fn new(settings: &Settings) -> State {
        State { reserved: None, registry: Registry::new(settings.max_registrants) }
    }

    /// A reservation keeps this nexus from a command.
    pub(crate) fn conflicts(&self, row: &Row, nexus: NexusId, port: &Port) -> bool {
        match self.reserved {
            // Persistent reservations conflict with RESERVE, whoever asks.
            Some(_) if persistent(row.opcode) => true,
            Some(holder) if holder != nexus => !DESPITE_RESERVE.contains(&row.opcode),
            Some(_) => false,
            None => !self.registry.lets(port, row.allowed),
        }
    }

    /// A nexus went: its RESERVE ends, its registration stays.
    pub(crate) fn detach(&mut self, nexus: NexusId) {
        if self.reserved == Some(nexus) {
            self.reserved = None;
        }
    }

    /// Logical unit reset: RESERVE ends, persistent reservations stay.
    pub(crate) fn reset(&mut self) {
        self.reserved = None;
    }

    /// What persists through power loss (APTPL); empty for nothing.
    pub(crate) fn save(&self) -> Vec<u8> {
        saved::encode(&self.registry)
    }

    /// Takes what `save` gave.
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> Result<(), Invalid> {
        self.registry = saved::decode(bytes, self.registry.max)?;
        Ok(())
    }

    /// RESERVE and RELEASE do nothing, successfully: a persistent reservation lets this nexus do everything anyway
    /// (CRH, SPC-5 section 5.14.3).
    fn covered(&self, port: &Port) -> bool {
        self.registry.reservation.is_some() && self.registry.lets(port, Allowed::Never)
    }
}

fn persistent(opcode: u8) -> bool {
    matches!(opcode, op::PERSISTENT_RESERVE_IN | op::PERSISTENT_RESERVE_OUT)
}
