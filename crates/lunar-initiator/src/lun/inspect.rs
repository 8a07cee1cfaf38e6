//! Reads the properties of a logical unit.

use super::properties::{ParameterData, Properties, has_blocks};
use super::retry::{BusyRetry, perform_within};
use crate::{CommandResult, Direction, Error, ErrorCode, Session};
use lunar_runtime::Buf;
use lunar_wire::scsi::cdb::{self, Cdb, opcode};
use lunar_wire::scsi::inquiry::{self, Capacity, StandardData};
use lunar_wire::scsi::{Sense, mode, op, vpd};

/// The allocation length of the commands.
const LEN: u16 = 255;
const NO_UNIT: &str = "the target has no such logical unit";

/// Reads all properties once the logical unit is ready. A reservation of another initiator does not prevent this.
pub async fn properties(session: &Session, lun: u64) -> Result<Properties, Error> {
    let inquiry = standard(session, lun).await?;
    match perform(session, lun, cdb::test_unit_ready(), Direction::None).await.0 {
        Err(e) if e.code != ErrorCode::ReservationConflict => return Err(e),
        _ => {}
    }
    read_on(session, lun, inquiry, true).await
}

/// Reads the properties that the logical unit reports, whether it is ready or not.
pub async fn properties_if_ready(session: &Session, lun: u64) -> Result<Properties, Error> {
    let inquiry = standard(session, lun).await?;
    let is_ready = match perform(session, lun, cdb::test_unit_ready(), Direction::None).await.0 {
        Err(e) if e.sense.is_some_and(|s| s.key == Sense::NOT_READY_NO_MEDIUM.key) => false,
        Err(e) if e.status.is_none() => return Err(e),
        _ => true,
    };
    read_on(session, lun, inquiry, is_ready).await
}

async fn read_on(session: &Session, lun: u64, inquiry: Vec<u8>, medium: bool) -> Result<Properties, Error> {
    let mut data = described(session, lun, inquiry).await?;
    data.transport = session.options().transport;
    if medium && has_blocks(StandardData(&data.inquiry).device_type()) {
        data.capacity = capacity(session, lun).await?;
        data.mode = mode_pages(session, lun).await?;
    }
    Ok(Properties::read(&data))
}

async fn standard(session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
    let standard = read(session, lun, cdb::inquiry(None, 96), 96).await.map_err(not_there)?;
    // PERIPHERAL QUALIFIER (SPC-5 section 6.6.2): no logical unit at this LUN.
    if !inquiry::is_connected(&standard) {
        return Err(Error::new(ErrorCode::NotFound, NO_UNIT));
    }
    Ok(standard)
}

/// Reads the VPD pages.
async fn described(session: &Session, lun: u64, inquiry: Vec<u8>) -> Result<ParameterData, Error> {
    let mut data = ParameterData { inquiry, ..ParameterData::default() };
    let pages = page(session, lun, vpd::SUPPORTED_PAGES).await?;
    let has = |code: u8| vpd::after_header(&pages).contains(&code);
    if has(vpd::SERIAL_NUMBER) {
        data.serial = page(session, lun, vpd::SERIAL_NUMBER).await?;
    }
    if has(vpd::IDENTIFICATION) {
        let len = crate::session::IDENTITY_LEN;
        data.identity = maybe(session, lun, cdb::inquiry(Some(vpd::IDENTIFICATION), len), len).await?;
    }
    if has(vpd::BLOCK_LIMITS) {
        data.limits = page(session, lun, vpd::BLOCK_LIMITS).await?;
    }
    if has(vpd::PROVISIONING) {
        data.provisioning = page(session, lun, vpd::PROVISIONING).await?;
    }
    Ok(data)
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

/// READ CAPACITY(16), or READ CAPACITY(10).
async fn capacity(session: &Session, lun: u64) -> Result<Option<Capacity>, Error> {
    let long = maybe(session, lun, cdb::read_capacity_16(32), 32).await?;
    if let Some(capacity) = Capacity::decode_16(&long) {
        return Ok(Some(capacity));
    }
    let short = read(session, lun, cdb::read_capacity_10(), 8).await?;
    Ok(Some(Capacity::decode_10(&short).unwrap_or_default()))
}

/// MODE SENSE(10) of the caching page or of all pages, or MODE SENSE(6) converted to its format.
async fn mode_pages(session: &Session, lun: u64) -> Result<Vec<u8>, Error> {
    for page in [mode::CACHING_PAGE, mode::ALL_PAGES] {
        let b = maybe(session, lun, cdb::mode_sense_10(page, 0, LEN), LEN).await?;
        if mode::has_header(&b) {
            return Ok(b);
        }
    }
    Ok(mode::from_six(&maybe(session, lun, cdb::mode_sense_6(mode::ALL_PAGES, 192), 192).await?))
}

async fn perform(session: &Session, lun: u64, cdb: Cdb, data: Direction) -> CommandResult {
    perform_within(BusyRetry::for_inspection(session), session, lun, cdb, data).await
}

async fn read(session: &Session, lun: u64, cdb: Cdb, len: u16) -> Result<Vec<u8>, Error> {
    let (result, buf) = perform(session, lun, cdb, Direction::In(Buf::zeroed(len.into()))).await;
    let got = result?.transferred;
    Ok(buf.map(|b| b[..got.min(b.len())].to_vec()).unwrap_or_default())
}

/// The same for data that a logical unit may lack, or withhold while it is reserved: an error becomes empty data.
async fn maybe(session: &Session, lun: u64, cdb: Cdb, len: u16) -> Result<Vec<u8>, Error> {
    match read(session, lun, cdb, len).await {
        Err(e) if e.sense.is_some_and(|s| s.key == 5) => {
            tracing::debug!(
                opcode = opcode(&cdb),
                is_inquiry = opcode(&cdb) == op::INQUIRY,
                "the logical unit does not have this page: {e}"
            );
            Ok(Vec::new())
        }
        Err(e) if e.code == ErrorCode::ReservationConflict => Ok(Vec::new()),
        other => other,
    }
}
