//! The list of logical units of a target.

use crate::lun::{BusyRetry, List};
use crate::{Error, Session};
use lunar_wire::be;
use lunar_wire::scsi::cdb;

/// The LUNs of a target in the order of REPORT LUNS (SPC-5 section 6.34), eight bytes each.
///
/// # Errors
/// Those of the command.
pub async fn luns(session: &Session) -> Result<Vec<u64>, Error> {
    let list = List { cdb: cdb::report_luns, head: 8 }.read(BusyRetry::of(session), session, 0).await?;
    let (head, luns) = list.split_at_checked(8).unwrap_or_default();
    let count = if head.is_empty() { 0 } else { be::get32(head) as usize / 8 };
    Ok(luns.chunks_exact(8).take(count).map(be::get64).collect())
}
