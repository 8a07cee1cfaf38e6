//! Asymmetric logical unit access: REPORT and SET TARGET PORT GROUPS (SPC-5 section 5.18).
//!
//! A target port group is a portal group of the target, and holds one target port: both are numbered by the portal
//! group tag.

use crate::Port;
use crate::table::Row;
use wire::scsi::Sense;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[];

/// The access state of each target port group.
#[derive(Debug, Default)]
pub(crate) struct State {}

impl State {
    /// Why commands not allowed in standby fail through this port.
    pub(crate) fn not_ready(&self, _port: &Port) -> Option<Sense> {
        None
    }
}
