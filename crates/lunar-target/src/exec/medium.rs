//! Reads and writes of the medium: what each is counted as, and what its failure is to an initiator.

use super::copy::CopyEnds;
use crate::task_set_lock::{LockMode, TaskSetHandle};
use crate::{LogicalUnit, PassthroughResponse, ScsiError};
use lunar_block::BufResult;
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{CommandError, CopyRange, CopySegment, LogCounter, NexusId};
use lunar_wire::scsi::{Sense, Status};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Bytes that one step of a long operation moves.
pub(super) const STEP: usize = 1 << 20;

/// The sense key of a place that cannot be read or written.
const MEDIUM_ERROR: u8 = 3;

/// How a command ends.
pub enum ExecutionOutput {
    /// GOOD without data.
    Good,
    /// GOOD with parameter data.
    Data(Vec<u8>),
    /// GOOD with what was read from the medium.
    Medium(Buf),
    /// GOOD with so many zeros.
    Zeros(usize),
    /// What a logical unit elsewhere answered.
    PassthroughCommand(PassthroughResponse),
}

/// The end of a command.
pub type ExecutionResult = Result<ExecutionOutput, CommandError>;

/// What a command may need beyond its own logical unit.
pub trait ExecutionContext {
    /// The LUNs that this initiator sees.
    fn luns(&self) -> Vec<u16>;
    /// The ends of a segment of EXTENDED COPY, the `number`th of its list, if this initiator sees them.
    fn copy_ends(&self, number: u16, segment: &CopySegment) -> Result<CopyEnds, Sense>;
    /// The bytes that it moves, if this initiator may read the one end and write the other now: to be asked
    /// inside their gates.
    fn copy_range(&self, number: u16, segment: &CopySegment, ends: &CopyEnds) -> Result<CopyRange, Sense>;
    /// The gate of the command's own logical unit, and how the command steps in.
    fn own_lock(&self) -> Option<(TaskSetHandle, LockMode)>;
    /// Ends every task of these nexuses, and waits for it.
    fn abort(&self, victims: Vec<NexusId>) -> lunar_block::LocalBoxFuture<'_, ()>;
    /// The command is aborted: a long operation asks between its steps, and ends with
    /// [`aborted_failure`] when it is.
    fn is_aborted(&self) -> bool;
}

/// The end of a command that nobody hears of any more.
pub fn aborted_failure() -> CommandError {
    Status::TaskAborted.into()
}

/// The end of a READ of which the medium has ended.
pub fn finish_read(unit: &LogicalUnit, offset: u64, finished: BufResult) -> ExecutionResult {
    fetched(unit, offset, finished, &READ).map(ExecutionOutput::Medium)
}

/// The end of a WRITE of which the medium has ended.
pub fn finish_write(unit: &LogicalUnit, offset: u64, finished: BufResult) -> ExecutionResult {
    stored(unit, offset, finished).map(|_| ExecutionOutput::Good)
}

/// Reads what a command reads, or a part of it.
pub async fn read_part(unit: &Arc<LogicalUnit>, offset: u64, buf: Buf) -> Result<Buf, CommandError> {
    fetch_into(unit, offset, buf, &READ).await
}

/// A buffer of the pool, or one beyond its limit: the caller must not wait, because the holders of the other buffers may
/// wait for the caller.
pub fn buffer_without_waiting(pool: &Pool, len: usize) -> Buf {
    pool.try_get(len).unwrap_or_else(|| Buf::zeroed(len))
}

/// Reads one step of a long operation.
pub(super) async fn fetch(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    offset: u64,
    len: usize,
    access: &MediumAccess,
) -> Result<Buf, CommandError> {
    fetch_into(unit, offset, buffer_without_waiting(pool, len), access).await
}

/// Reads into a buffer.
pub(super) async fn fetch_into(
    unit: &Arc<LogicalUnit>,
    offset: u64,
    buf: Buf,
    access: &MediumAccess,
) -> Result<Buf, CommandError> {
    let finished = unit.backend().read(offset, buf).await;
    fetched(unit, offset, finished, access)
}

pub(super) fn fetched(
    unit: &LogicalUnit,
    offset: u64,
    (result, buf): BufResult,
    access: &MediumAccess,
) -> Result<Buf, CommandError> {
    result.map_err(|e| io_failure(unit, &e, offset, access))?;
    unit.lu.count(access.bytes, buf.len() as u64);
    Ok(buf)
}

/// Writes what a command has brought.
pub async fn write(unit: &Arc<LogicalUnit>, offset: u64, data: Buf, stable: bool) -> ExecutionResult {
    write_buf(unit, offset, data, stable).await?;
    Ok(ExecutionOutput::Good)
}

/// Writes a buffer and gives it back.
pub async fn write_buf(
    unit: &Arc<LogicalUnit>,
    offset: u64,
    data: Buf,
    stable: bool,
) -> Result<Buf, CommandError> {
    if data.is_empty() {
        return Ok(data);
    }
    let finished = unit.backend().write(offset, data, stable).await;
    stored(unit, offset, finished)
}

pub(super) fn stored(unit: &LogicalUnit, offset: u64, (result, buf): BufResult) -> Result<Buf, CommandError> {
    result.map_err(|e| io_failure(unit, &e, offset, &WRITE))?;
    unit.lu.count(WRITE.bytes, buf.len() as u64);
    Ok(buf)
}

/// Every acknowledged write becomes stable.
pub async fn flush(unit: &Arc<LogicalUnit>) -> ExecutionResult {
    unit.backend().flush().await.map_err(|e| io_failure(unit, &e, 0, &WRITE))?;
    Ok(ExecutionOutput::Good)
}

/// How an access of the medium is counted, and what the failure of the medium is to an initiator.
pub(super) struct MediumAccess {
    pub(super) bytes: LogCounter,
    errors: LogCounter,
    sense: Sense,
}

pub(super) const READ: MediumAccess =
    MediumAccess { bytes: LogCounter::ReadBytes, errors: LogCounter::ReadErrors, sense: Sense::READ_ERROR };
pub(super) const WRITE: MediumAccess = MediumAccess {
    bytes: LogCounter::WriteBytes,
    errors: LogCounter::WriteErrors,
    sense: Sense::WRITE_ERROR,
};
pub(super) const VERIFY: MediumAccess =
    MediumAccess { bytes: LogCounter::VerifyBytes, errors: LogCounter::VerifyErrors, ..READ };

/// What an error of a backend is to an initiator. A medium error tells its LBA; what a SCSI device behind the backend
/// has said is passed on.
pub(super) fn io_failure(
    unit: &LogicalUnit,
    e: &io::Error,
    offset: u64,
    access: &MediumAccess,
) -> CommandError {
    if let Some(told) = ScsiError::of(e) {
        let is_medium = told.sense.is_some_and(|sense| sense.key == MEDIUM_ERROR);
        unit.lu.count(if is_medium { access.errors } else { LogCounter::OtherErrors }, 1);
        return CommandError { status: told.status, sense: told.sense };
    }
    let is_medium = !matches!(
        e.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::PermissionDenied
            | ErrorKind::WouldBlock
            | ErrorKind::TimedOut
    );
    unit.lu.count(if is_medium { access.errors } else { LogCounter::OtherErrors }, 1);
    if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return Status::Busy.into();
    }
    unit.log_io_failure(e, offset);
    let lba = offset / unit.lu.settings().block_size as u64;
    let sense = match e.kind() {
        // A file too large: of the file system, or of the limit on this process (ulimit -f).
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Sense::SPACE_ALLOCATION_FAILED
        }
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Sense::WRITE_PROTECTED,
        ErrorKind::UnexpectedEof if unit.ends_before(offset) => Sense::LBA_OUT_OF_RANGE.at(lba),
        _ => access.sense.at(lba),
    };
    sense.into()
}
