//! EXTENDED COPY and RECEIVE COPY RESULTS (SPC-5).

use crate::table::Row;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[];

/// What lasts from one command to the next.
#[derive(Debug, Default)]
pub(crate) struct State {}
