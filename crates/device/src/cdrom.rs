//! What a CD-ROM knows beyond a disk (MMC-6).

use crate::table::Row;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[];
