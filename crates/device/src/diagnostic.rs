//! SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS (SPC-5).

use crate::table::Row;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[];
