//! Reservations: RESERVE and RELEASE (SPC-2), and persistent reservations (SPC-5 section 5.14).

use crate::table::Row;
use crate::{Invalid, NexusId, Port, Settings};

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[];

/// Registrations and reservations of a logical unit.
#[derive(Debug)]
pub(crate) struct State {}

impl State {
    /// Nobody registered.
    pub(crate) fn new(_settings: &Settings) -> State {
        State {}
    }

    /// The reservation of somebody else keeps this nexus from a command.
    pub(crate) fn conflicts(&self, _row: &Row, _nexus: NexusId, _port: &Port) -> bool {
        false
    }

    /// A nexus came: a registration of its ports is its own.
    pub(crate) fn attach(&mut self, _nexus: NexusId, _port: &Port) {}

    /// A nexus went: its RESERVE ends, its registration stays.
    pub(crate) fn detach(&mut self, _nexus: NexusId) {}

    /// Logical unit reset: RESERVE ends.
    pub(crate) fn reset(&mut self) {}

    /// What persists through power loss (APTPL); empty for nothing.
    pub(crate) fn save(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Takes what `save` gave.
    pub(crate) fn restore(&mut self, saved: &[u8]) -> Result<(), Invalid> {
        if saved.is_empty() { Ok(()) } else { Err(Invalid::new("reservations of an unknown form")) }
    }
}
