//! The command table: one row per operation code and service action.

use crate::{Answer, Lu, NexusId, Port, State};

/// What a persistent reservation of another nexus lets through (SPC-5 table 66, SBC-4 table 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Always.
    Always,
    /// Under a write exclusive reservation, not under exclusive access: commands that read.
    Reading,
    /// Never from an unregistered nexus: commands that write or change.
    Never,
}

/// How a command stands to others of the same logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Runs beside others.
    Shared,
    /// Alone: others wait, and it waits for others (COMPARE AND WRITE, ORWRITE, WRITE ATOMIC, SANITIZE).
    Exclusive,
}

/// A row of the command table.
pub struct Row {
    /// Operation code.
    pub opcode: u8,
    /// Service action, for operation codes that have them.
    pub service_action: Option<u16>,
    /// What it does.
    pub handler: fn(&mut Cx<'_>) -> Answer,
    /// Under somebody else's reservation.
    pub allowed: Allowed,
    /// Ordering class.
    pub order: Order,
    /// CDB usage data (SPC-5 section 6.29): a set bit may be set in the CDB, every other is reserved. Its length is
    /// the CDB's.
    pub usage: &'static [u8],
}

/// What a handler works with.
pub struct Cx<'a> {
    /// The CDB, at least 16 bytes.
    pub cdb: &'a [u8],
    /// Parameter data, once it is there.
    pub parameters: Option<&'a [u8]>,
    /// The logical unit.
    pub lu: &'a Lu,
    /// Its state, locked.
    pub state: &'a mut State,
    /// Who asks.
    pub nexus: NexusId,
    /// The ports of the nexus that asks.
    pub port: &'a Port,
}
