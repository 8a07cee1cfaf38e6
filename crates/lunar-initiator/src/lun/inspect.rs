//! Reads the properties of a logical unit.

use super::properties::{Answers, Properties};
use super::retry::{BusyRetry, perform_within};
use crate::{CommandResult, Direction, Error, ErrorCode, Session};
use lunar_runtime::Buf;
use lunar_wire::be;
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::{Sense, op};

/// The allocation length of the commands.
const LEN: u16 = 255;
const NO_UNIT: &str = "the target has no such logical unit";

/// Reads all properties once the logical unit is ready. A reservation of another initiator does not prevent this.
pub async fn properties(session: &Session, lun: u64) -> Result<Properties, Error> {
    let inquiry = inquiry(session, lun).await?;
    match ask(session, lun, cdb::test_unit_ready(), Direction::None).await.0 {
        Err(e) if e.code != ErrorCode::ReservationConflict => return Err(e),
        _ => {}
    }
    read_on(session, lun, inquiry, true).await
}

/// Reads the properties that the logical unit reports, whether it is ready or not.
pub async fn properties_if_ready(session: &Session, lun: u64) -> Result<Properties, Error> {
    let inquiry = inquiry(session, lun).await?;
    let is_ready = match ask(session, lun, cdb::test_unit_ready(), Direction::None).await.0 {
        Err(e) if e.sense.is_some_and(|s| s.key == Sense::NOT_READY_NO_MEDIUM.key) => false,
        Err(e) if e.status.is_none() => return Err(e),
        _ => true,
    };
    read_on(session, lun, inquiry, is_ready).await
}

async fn read_on(session: &Session, lun: u64, inquiry: Vec<u8>, medium: bool) -> Result<Properties, Error> {
    let mut answers = described(session, lun, inquiry).await?;
    answers.transport = session.options().transport;
    if medium && is_disk(&answers) {
        answers.capacity = capacity(session, lun).await?;
        answers.mode = mode(session, lun).await?;
    }
    Ok(Properties::read(&answers))
}

fn is_disk(answers: &Answers) -> bool {
    answers.inquiry.first().is_some_and(|b| matches!(b & 0x1f, 0 | 5 | 7 | 0x0e))
}

async fn inquiry(session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
    let inquiry = read(session, lun, cdb::inquiry(None, 96), 96).await.map_err(not_there)?;
    // PERIPHERAL QUALIFIER (SPC-5 section 6.6.2): no logical unit at this LUN.
    if inquiry.first().is_none_or(|b| b >> 5 != 0) {
        return Err(Error::new(ErrorCode::NotFound, NO_UNIT));
    }
    Ok(inquiry)
}

/// Reads the VPD pages.
async fn described(session: &Session, lun: u64, inquiry: Vec<u8>) -> Result<Answers, Error> {
    let mut answers = Answers { inquiry, ..Answers::default() };
    let pages = page(session, lun, 0x00).await?;
    let has = |p: u8| pages.get(4..).is_some_and(|list| list.contains(&p));
    if has(0x80) {
        answers.serial = page(session, lun, 0x80).await?;
    }
    if has(0x83) {
        let len = crate::session::IDENTITY_LEN;
        answers.identity = maybe(session, lun, cdb::inquiry(Some(0x83), len), len).await?;
    }
    if has(0xb0) {
        answers.limits = page(session, lun, 0xb0).await?;
    }
    if has(0xb2) {
        answers.provisioning = page(session, lun, 0xb2).await?;
    }
    Ok(answers)
}

/// LIO rejects even INQUIRY to a LUN without a logical unit.
fn not_there(e: Error) -> Error {
    let is_missing =
        |s: Sense| (s.key, s.asc) == (Sense::LUN_NOT_SUPPORTED.key, Sense::LUN_NOT_SUPPORTED.asc);
    if e.sense.is_some_and(is_missing) { Error::new(ErrorCode::NotFound, NO_UNIT) } else { e }
}

async fn page(session: &Session, lun: u64, page: u8) -> Result<Vec<u8>, Error> {
    maybe(session, lun, cdb::inquiry(Some(page), LEN), LEN).await
}

/// READ CAPACITY(16), or READ CAPACITY(10) converted to its format.
async fn capacity(session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
    let long = maybe(session, lun, cdb::read_capacity_16(32), 32).await?;
    if long.len() >= 12 {
        return Ok(long);
    }
    let short = read(session, lun, cdb::read_capacity_10(), 8).await?;
    let mut b = vec![0; 32];
    if short.len() >= 8 {
        be::put64(&mut b, be::get32(&short).into());
        b[8..12].copy_from_slice(&short[4..8]);
    }
    Ok(b)
}

/// MODE SENSE(10) of the caching page or of all pages, or MODE SENSE(6) converted to its format.
async fn mode(session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
    for page in [0x08, 0x3f] {
        let b = maybe(session, lun, cdb::mode_sense_10(page, 0, LEN), LEN).await?;
        if b.len() >= 8 {
            return Ok(b);
        }
    }
    let short = maybe(session, lun, cdb::mode_sense_6(0x3f, 192), 192).await?;
    let Some((head, rest)) = short.split_first_chunk::<4>() else { return Ok(Vec::new()) };
    Ok([&[0, head[0], head[1], head[2], 0, 0, 0, head[3]][..], rest].concat())
}

async fn ask(session: &Session, lun: u64, cdb: Cdb, data: Direction) -> CommandResult {
    perform_within(BusyRetry::for_inspection(session), session, lun, cdb, data).await
}

async fn read(session: &Session, lun: u64, cdb: Cdb, len: u16) -> Result<Vec<u8>, Error> {
    let (result, buf) = ask(session, lun, cdb, Direction::In(Buf::zeroed(len.into()))).await;
    let got = result?.transferred;
    Ok(buf.map(|b| b[..got.min(b.len())].to_vec()).unwrap_or_default())
}

/// The same for data that a logical unit may lack, or withhold while it is reserved: an error becomes empty data.
async fn maybe(session: &Session, lun: u64, cdb: Cdb, len: u16) -> Result<Vec<u8>, Error> {
    match read(session, lun, cdb, len).await {
        Err(e) if e.sense.is_some_and(|s| s.key == 5) => {
            tracing::debug!(
                opcode = cdb[0],
                is_inquiry = cdb[0] == op::INQUIRY,
                "the logical unit does not have this page: {e}"
            );
            Ok(Vec::new())
        }
        Err(e) if e.code == ErrorCode::ReservationConflict => Ok(Vec::new()),
        other => other,
    }
}
