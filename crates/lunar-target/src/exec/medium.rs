//! Reads and writes of the medium, their counters, and the sense data of their failures.

use super::copy::CopyEnds;
use crate::task_set_lock::{LockMode, TaskSetHandle};
use crate::{LogicalUnit, PassthroughResponse, ScsiError};
use lunar_block::BufResult;
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{CommandError, CopyRange, CopySegment, LogCounter, NexusId};
use lunar_wire::scsi::{Sense, Status};
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// Maximum number of bytes that one step of a long operation transfers.
pub(super) const STEP: usize = 1 << 20;

/// Sense key MEDIUM ERROR.
const MEDIUM_ERROR: u8 = 3;

/// The output of a command that ended with GOOD, or of a passthrough command.
pub enum ExecutionOutput {
    /// GOOD without data.
    Good,
    /// GOOD with parameter data.
    Data(Vec<u8>),
    /// GOOD with data that were read from the medium.
    Medium(Buf),
    /// GOOD with this many zeros.
    Zeros(usize),
    /// The response of a passthrough command.
    Passthrough(PassthroughResponse),
}

/// The result of a command.
pub type ExecutionResult = Result<ExecutionOutput, CommandError>;

/// The access of a command beyond its own logical unit.
pub trait ExecutionContext {
    /// The LUNs that the initiator sees.
    fn luns(&self) -> Vec<u16>;
    /// The source and destination of segment `number` of EXTENDED COPY. Fails unless the initiator sees both.
    fn copy_ends(&self, number: u16, segment: &CopySegment) -> Result<CopyEnds, Sense>;
    /// The bytes that the segment copies. Fails unless the initiator may read the source and write the destination
    /// now. The caller holds the task set locks of both.
    fn copy_range(&self, number: u16, segment: &CopySegment, ends: &CopyEnds) -> Result<CopyRange, Sense>;
    /// The task set lock of the command's own logical unit, and the mode in which the command takes it.
    fn own_lock(&self) -> Option<(TaskSetHandle, LockMode)>;
    /// Whether EXTENDED COPY writes to stable storage, although the destination has a write cache.
    fn copies_stably(&self) -> bool;
    /// Aborts all tasks of these nexuses, and waits for their end.
    fn abort(&self, victims: Vec<NexusId>) -> lunar_block::LocalBoxFuture<'_, ()>;
    /// Whether the command was aborted. A long operation checks this between its steps, and then ends with
    /// [`aborted_failure`].
    fn is_aborted(&self) -> bool;
    /// Returns when the command is aborted, for a step that waits.
    fn until_aborted(&self) -> lunar_block::LocalBoxFuture<'_, ()>;
}

/// The result of an aborted command, which is not sent.
pub fn aborted_failure() -> CommandError {
    Status::TaskAborted.into()
}

/// The result of a READ that the medium has completed.
pub fn finish_read(unit: &LogicalUnit, offset: u64, finished: BufResult) -> ExecutionResult {
    fetched(unit, offset, finished, &READ).map(ExecutionOutput::Medium)
}

/// The result of a WRITE that the medium has completed.
pub fn finish_write(unit: &LogicalUnit, offset: u64, finished: BufResult) -> ExecutionResult {
    stored(unit, offset, finished).map(|_| ExecutionOutput::Good)
}

/// The failure of a command that has changed the medium. A status that means that nothing was done is replaced. A host
/// that repeats the command gets it then.
pub fn has_begun(failure: CommandError) -> CommandError {
    match Status::NOT_EXECUTED.contains(&failure.status) {
        true => Sense::COMMAND_ABORTED.into(),
        false => failure,
    }
}

/// The failure of a step of a command. `begun`: an earlier step has changed the medium.
pub(super) fn of_step(begun: bool) -> impl Fn(CommandError) -> CommandError {
    move |failure| if begun { has_begun(failure) } else { failure }
}

/// Reads the data of a command, or a part of them.
pub async fn read_part(unit: &Arc<LogicalUnit>, offset: u64, buf: Buf) -> Result<Buf, CommandError> {
    fetch_into(unit, offset, buf, &READ).await
}

/// A buffer of the pool, or one beyond its limit. The caller must not wait for the pool, because the holders of its
/// buffers may wait for the caller.
pub fn buffer_without_waiting(pool: &Pool, len: usize) -> Buf {
    pool.try_get(len).unwrap_or_else(|| Buf::zeroed(len))
}

/// Reads data for one step of a long operation.
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

/// Writes the data of a command.
pub async fn write(unit: &Arc<LogicalUnit>, offset: u64, data: Buf, stable: bool) -> ExecutionResult {
    write_buf(unit, offset, data, stable).await?;
    Ok(ExecutionOutput::Good)
}

/// Writes a buffer and returns it.
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

/// Flushes the medium: makes every acknowledged write stable.
pub async fn flush(unit: &Arc<LogicalUnit>) -> ExecutionResult {
    unit.backend().flush().await.map_err(|e| io_failure(unit, &e, 0, &WRITE))?;
    Ok(ExecutionOutput::Good)
}

/// The log counters of an access to the medium, and the sense data of its failure.
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

/// The failure of a command for an error of its backend. A medium error contains the LBA. The status of a SCSI device
/// behind the backend is passed on.
pub(super) fn io_failure(
    unit: &LogicalUnit,
    e: &io::Error,
    offset: u64,
    access: &MediumAccess,
) -> CommandError {
    if let Some(error) = ScsiError::of(e) {
        let is_medium = error.sense.is_some_and(|sense| sense.key == MEDIUM_ERROR);
        unit.lu.count(if is_medium { access.errors } else { LogCounter::OtherErrors }, 1);
        return CommandError { status: error.status, sense: error.sense };
    }
    let is_medium = !matches!(
        e.kind(),
        ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::PermissionDenied
            | ErrorKind::NotFound
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
        // FileTooLarge: the limit of the file system, or of this process (`ulimit -f`).
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Sense::SPACE_ALLOCATION_FAILED
        }
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Sense::WRITE_PROTECTED,
        // A remote medium that was deleted.
        ErrorKind::NotFound => Sense::NOT_READY_INTERVENTION,
        ErrorKind::UnexpectedEof if unit.ends_before(offset) => Sense::LBA_OUT_OF_RANGE.at(lba),
        _ => access.sense.at(lba),
    };
    sense.into()
}
