//! LOG SENSE and LOG SELECT (SPC-5).

use crate::table::Row;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[];

/// Log parameters.
#[derive(Debug, Default)]
pub(crate) struct State {}
