//! SANITIZE (SBC-4).

use crate::table::Row;
use wire::scsi::Sense;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[];

/// Whether the logical unit is being sanitized, or could not be.
#[derive(Debug, Default)]
pub(crate) struct State {}

impl State {
    /// Why commands other than those allowed while sanitizing fail; REQUEST SENSE reports it as well.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        None
    }
}
