//! Plans become block operations. Knows no transport: data comes and goes in buffers.

pub mod copy;
mod provision;
mod sanitize;
mod verify;

use crate::gate::{Entry, Member};
use crate::{Reply, Told, Unit};
use lunar_block::Finished;
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{Answer, CopyRange, CopySegment, Count, Failure, NexusId, Op, Plan, Shard};
use lunar_wire::scsi::{Sense, Status};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Instant;

/// Bytes that one step of a long operation moves.
const STEP: usize = 1 << 20;

/// The sense key of a place that cannot be read or written.
const MEDIUM_ERROR: u8 = 3;

/// How a command ends.
pub enum Outcome {
    /// GOOD without data.
    Good,
    /// GOOD with parameter data.
    Data(Vec<u8>),
    /// GOOD with what was read from the medium.
    Medium(Buf),
    /// GOOD with so many zeros.
    Zeros(usize),
    /// What a logical unit elsewhere answered.
    Passed(Reply),
}

/// The end of a command.
pub type Ended = Result<Outcome, Failure>;

/// What a command may need beyond its own logical unit.
pub trait Surroundings {
    /// The LUNs that this initiator sees.
    fn luns(&self) -> Vec<u16>;
    /// The ends of a segment of EXTENDED COPY, the `number`th of its list, if this initiator sees them.
    fn copy_ends(&self, number: u16, segment: &CopySegment) -> Result<copy::Ends, Sense>;
    /// The bytes that it moves, if this initiator may read the one end and write the other now: to be asked
    /// inside their gates.
    fn copy_range(&self, number: u16, segment: &CopySegment, ends: &copy::Ends) -> Result<CopyRange, Sense>;
    /// The gate of the command's own logical unit, and how the command steps in.
    fn own_gate(&self) -> Option<(Member, Entry)>;
    /// Ends every task of these nexuses, and waits for it.
    fn abort(&self, victims: Vec<NexusId>) -> lunar_block::Future<'_, ()>;
    /// The command is aborted: a long operation asks between its steps, and ends with
    /// [`gone`] when it is.
    fn is_aborted(&self) -> bool;
}

/// The end of a command that nobody hears of any more.
pub fn gone() -> Failure {
    Status::TaskAborted.into()
}

/// Does what a plan says that [`keep`] gave back. `data` is the Data-Out, of the length that the plan asked for, or a buffer with room
/// for what is to be read.
pub async fn run(
    unit: &Arc<Unit>,
    pool: &Pool,
    plan: Plan,
    data: Option<Buf>,
    around: &dyn Surroundings,
) -> Ended {
    match plan {
        Plan::Done | Plan::Parameters { .. } => Ok(Outcome::Good),
        Plan::Data(d) => Ok(Outcome::Data(d)),
        Plan::Read { offset, len } => read(unit, pool, (offset, len as usize), data).await,
        Plan::Write { offset, stable, .. } => write(unit, offset, data_of(data)?, stable).await,
        // Boxed, so that reads and writes carry none of it about.
        Plan::Op(op) => Box::pin(rare(unit, pool, *op, data, around)).await,
    }
}

async fn rare(unit: &Arc<Unit>, pool: &Pool, op: Op, data: Option<Buf>, around: &dyn Surroundings) -> Ended {
    match op {
        Op::Flush | Op::Stop => flush(unit).await,
        Op::Prefetch { offset, len } => {
            unit.backend().prefetch(offset, len);
            Ok(Outcome::Good)
        }
        Op::Verify { offset, len, compare } => {
            verify::verify(unit, pool, (offset, len), compare, data, around).await
        }
        Op::WriteVerify { offset, compare, .. } => {
            verify::write_verify(unit, pool, offset, data_of(data)?, compare, around).await
        }
        Op::CompareAndWrite { offset, len, stable } => {
            verify::compare_and_write(unit, offset, len as usize, data_of(data)?, stable).await
        }
        Op::WriteAtomic { offset, .. } => write_atomic(unit, offset, data_of(data)?).await,
        Op::OrWrite { offset, stable, .. } => verify::or_write(unit, offset, data_of(data)?, stable).await,
        Op::WriteSame { offset, len, zero, unmap, stable, .. } => {
            let block = if zero { None } else { Some(data_of(data)?) };
            provision::write_same(unit, pool, (offset, len), block, (unmap, stable), around).await
        }
        Op::Unmap { extents, stable } => provision::unmap(unit, extents, stable, around).await,
        Op::LbaStatus { offset, allocation_len, block_size } => {
            provision::lba_status(unit, offset, allocation_len, block_size).await
        }
        // `keep` is over when this begins, and what is passed on does not come here.
        Op::Keep(_) | Op::Pass => Err(Sense::INTERNAL_FAILURE.into()),
        Op::Preempt { victims } => {
            around.abort(victims).await;
            Ok(Outcome::Good)
        }
        Op::ReportLuns { select, allocation_len } => {
            answer(lunar_scsi::report_luns(&around.luns(), select, allocation_len))
        }
        Op::Copy { nexus, list_id, segments } => {
            copy::run(unit, pool, (nexus, list_id, segments), around).await
        }
        Op::Sanitize { pattern, passes, invert, immediate } => {
            sanitize::run(unit, pool, sanitize::Job { pattern, passes, invert }, immediate).await
        }
    }
}

/// The end of a command that no logical unit takes.
pub fn without_unit(plan: Answer, around: &dyn Surroundings) -> Ended {
    match plan? {
        Plan::Op(op) => match *op {
            Op::ReportLuns { select, allocation_len } => {
                answer(lunar_scsi::report_luns(&around.luns(), select, allocation_len))
            }
            _ => Err(Sense::LUN_NOT_SUPPORTED.into()),
        },
        plan => answer(Ok(plan)),
    }
}

fn answer(plan: Answer) -> Ended {
    match plan? {
        Plan::Data(d) => Ok(Outcome::Data(d)),
        _ => Ok(Outcome::Good),
    }
}

/// The Data-Out that a plan asked for; a command that brought none fails (SPC-5: parameter list length).
fn data_of(data: Option<Buf>) -> Result<Buf, Failure> {
    data.ok_or(Sense::INVALID_FIELD_IN_CDB.into())
}

async fn read(unit: &Arc<Unit>, pool: &Pool, (offset, len): (u64, usize), room: Option<Buf>) -> Ended {
    if len == 0 {
        return Ok(Outcome::Good);
    }
    if unit.backend().facts().null {
        unit.lu.count(Count::ReadBytes, len as u64);
        return Ok(Outcome::Zeros(len));
    }
    let buf = match room {
        Some(mut buf) => {
            buf.set_visible(len);
            buf
        }
        // Nobody waits for memory inside a gate: those who have it may wait at that gate.
        None => pool.try_get(len).ok_or(Status::TaskSetFull)?,
    };
    Ok(Outcome::Medium(fetch_into(unit, offset, buf, &READ).await?))
}

/// The end of a READ of which the medium has ended.
pub fn was_read(unit: &Unit, offset: u64, finished: Finished) -> Ended {
    fetched(unit, offset, finished, &READ).map(Outcome::Medium)
}

/// The end of a WRITE of which the medium has ended.
pub fn was_written(unit: &Unit, offset: u64, finished: Finished) -> Ended {
    stored(unit, offset, finished).map(|_| Outcome::Good)
}

/// Reads what a command reads, or a part of it.
pub async fn read_part(unit: &Arc<Unit>, offset: u64, buf: Buf) -> Result<Buf, Failure> {
    fetch_into(unit, offset, buf, &READ).await
}

/// A buffer for one step of a long operation that is inside a gate. It does not wait for one of the pool:
/// those who hold them may wait at that gate.
fn step_buffer(pool: &Pool, len: usize) -> Buf {
    debug_assert!(len <= STEP);
    pool.try_get(len).unwrap_or_else(|| Buf::zeroed(len))
}

/// Reads one step of a long operation.
async fn fetch(
    unit: &Arc<Unit>,
    pool: &Pool,
    offset: u64,
    len: usize,
    access: &Access,
) -> Result<Buf, Failure> {
    fetch_into(unit, offset, step_buffer(pool, len), access).await
}

/// Reads into a buffer.
async fn fetch_into(unit: &Arc<Unit>, offset: u64, buf: Buf, access: &Access) -> Result<Buf, Failure> {
    let finished = unit.backend().read(offset, buf).await;
    fetched(unit, offset, finished, access)
}

fn fetched(unit: &Unit, offset: u64, (result, buf): Finished, access: &Access) -> Result<Buf, Failure> {
    result.map_err(|e| failed(unit, &e, offset, access))?;
    unit.lu.count(access.bytes, buf.len() as u64);
    Ok(buf)
}

/// Writes what a command has brought.
pub async fn write(unit: &Arc<Unit>, offset: u64, data: Buf, stable: bool) -> Ended {
    put(unit, offset, data, stable).await?;
    Ok(Outcome::Good)
}

/// Writes all of it or nothing. The caller is alone in the logical unit.
async fn write_atomic(unit: &Arc<Unit>, offset: u64, data: Buf) -> Ended {
    let finished = unit.backend().write_atomic(offset, data).await;
    stored(unit, offset, finished)?;
    Ok(Outcome::Good)
}

/// Writes a buffer and gives it back.
pub async fn put(unit: &Arc<Unit>, offset: u64, data: Buf, stable: bool) -> Result<Buf, Failure> {
    if data.is_empty() {
        return Ok(data);
    }
    let finished = unit.backend().write(offset, data, stable).await;
    stored(unit, offset, finished)
}

fn stored(unit: &Unit, offset: u64, (result, buf): Finished) -> Result<Buf, Failure> {
    result.map_err(|e| failed(unit, &e, offset, &WRITE))?;
    unit.lu.count(WRITE.bytes, buf.len() as u64);
    Ok(buf)
}

/// Every acknowledged write becomes stable.
pub async fn flush(unit: &Arc<Unit>) -> Ended {
    unit.backend().flush().await.map_err(|e| failed(unit, &e, 0, &WRITE))?;
    Ok(Outcome::Good)
}

/// Logical unit reset, of which the tasks are the caller's to abort. If it switches the write cache off, it is alone
/// and what that holds becomes stable first. A flush that fails is in the log, and the reset is done all the same.
pub async fn reset(unit: &Arc<Unit>) {
    let _alone = match unit.lu.reset_ends_write_cache() {
        true => {
            let alone = unit.gate.member(Shard::mine()).enter_alone().await;
            _ = flush(unit).await;
            Some(alone)
        }
        false => None,
    };
    unit.lu.reset();
}

/// Keeps on stable storage what a command is to change, then changes it; the plan is that of what remains to be
/// done. What cannot be kept is not changed.
pub async fn keep(unit: &Arc<Unit>, answer: Answer) -> Answer {
    let draft = match answer? {
        Plan::Op(op) => match *op {
            Op::Keep(draft) => draft,
            op => return Ok(Plan::Op(Box::new(op))),
        },
        plan => return Ok(plan),
    };
    unit.keep(draft).await.unwrap_or_else(|e| {
        if let Some(left_out) = unit.unkept.may(Instant::now()) {
            let state_file = &unit.state_file;
            tracing::error!(error = %e, ?state_file, left_out, "state cannot be kept: the command that changes it fails");
        }
        Err(Sense::INTERNAL_FAILURE.into())
    })
}

/// How an access of the medium is counted, and what the failure of the medium is to an initiator.
struct Access {
    bytes: Count,
    errors: Count,
    sense: Sense,
}

const READ: Access = Access { bytes: Count::ReadBytes, errors: Count::ReadErrors, sense: Sense::READ_ERROR };
const WRITE: Access =
    Access { bytes: Count::WriteBytes, errors: Count::WriteErrors, sense: Sense::WRITE_ERROR };
const VERIFY: Access = Access { bytes: Count::VerifyBytes, errors: Count::VerifyErrors, ..READ };

/// What an error of a backend is to an initiator. A medium error tells its LBA; what a SCSI device behind the backend
/// has said is passed on.
fn failed(unit: &Unit, e: &io::Error, offset: u64, access: &Access) -> Failure {
    if let Some(told) = Told::of(e) {
        let is_medium = told.sense.is_some_and(|sense| sense.key == MEDIUM_ERROR);
        unit.lu.count(if is_medium { access.errors } else { Count::OtherErrors }, 1);
        return Failure { status: told.status, sense: told.sense };
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
    unit.lu.count(if is_medium { access.errors } else { Count::OtherErrors }, 1);
    if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) {
        return Status::Busy.into();
    }
    unit.tell_failure(e, offset);
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

#[cfg(test)]
pub mod tests;
