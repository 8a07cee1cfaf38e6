//! Which logical units a target has.

use crate::lun::perform;
use crate::{Direction, Error, Session};
use net::Buf;
use wire::be;
use wire::scsi::cdb;

/// Bytes for the first answer; a longer list is asked for again.
const FIRST: u32 = 4096;
/// The longest list that is taken.
const LONGEST: u32 = 16 << 20;

/// The LUNs of a target in the order that it tells them, eight bytes each (REPORT LUNS, SPC-5 section 6.34).
///
/// # Errors
/// Those of the command.
pub async fn luns(session: &Session) -> Result<Vec<u64>, Error> {
    let mut len = FIRST;
    loop {
        let data = Direction::In(Buf::zeroed(len as usize));
        let (result, buf) = perform(session, 0, cdb::report_luns(len), data).await;
        let got = result?.transferred;
        let buf = buf.unwrap_or_else(|| Buf::zeroed(0));
        let list = &buf[..got.min(buf.len())];
        let told = if list.len() < 8 { 0 } else { be::get32(list) };
        if told.saturating_add(8) > len && len < LONGEST {
            len = (told.saturating_add(8)).min(LONGEST);
            continue;
        }
        let luns = list.get(8..).unwrap_or(&[]).chunks_exact(8).take(told as usize / 8);
        return Ok(luns.map(be::get64).collect());
    }
}
