//! Execution of plans as operations on the backend, independent of the transport.

pub mod copy;
mod medium;
mod provision;
mod sanitize;
mod verify;

use crate::LogicalUnit;
use crate::sharing::{SharingLost, StateSharing};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{CommandError, CoreIndex, LogCounter, NexusId, Op, PendingCommit, Plan, PlanResult};
use lunar_wire::scsi::{Sense, Status};
pub use medium::{
    ExecutionContext, ExecutionOutput, ExecutionResult, aborted_failure, buffer_without_waiting, finish_read,
    finish_write, flush, has_begun, read_part, write, write_buf,
};
use medium::{READ, fetch_into, stored};
use std::sync::Arc;
use std::time::Instant;

/// Executes a plan that [`persist`] returned. `data` is the Data-Out, of the length that the plan needs, or a buffer
/// for the data to read.
pub async fn run(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    plan: Plan,
    data: Option<Buf>,
    context: &dyn ExecutionContext,
) -> ExecutionResult {
    match plan {
        Plan::Done | Plan::Parameters { .. } => Ok(ExecutionOutput::Good),
        Plan::Data(d) => Ok(ExecutionOutput::Data(d)),
        Plan::Read { offset, len } => read(unit, pool, (offset, len as usize), data).await,
        Plan::Write { offset, stable, .. } => write(unit, offset, data_of(data)?, stable).await,
        // Forwarded elsewhere.
        Plan::Passthrough => Err(Sense::INTERNAL_FAILURE.into()),
        // Boxed, so that the futures of reads and writes stay small.
        Plan::Op(op) => Box::pin(run_op(unit, pool, *op, data, context)).await,
    }
}

async fn run_op(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    op: Op,
    data: Option<Buf>,
    context: &dyn ExecutionContext,
) -> ExecutionResult {
    match op {
        Op::Flush | Op::Stop => flush(unit).await,
        Op::Prefetch { offset, len } => {
            unit.backend().prefetch(offset, len);
            Ok(ExecutionOutput::Good)
        }
        Op::Verify { offset, len, compare } => {
            verify::verify(unit, pool, (offset, len), compare, data, context).await
        }
        Op::WriteVerify { offset, compare, .. } => {
            verify::write_verify(unit, pool, offset, data_of(data)?, compare, context).await
        }
        Op::CompareAndWrite { offset, len, stable } => {
            verify::compare_and_write(unit, offset, len as usize, data_of(data)?, stable).await
        }
        Op::WriteAtomic { offset, .. } => write_atomic(unit, offset, data_of(data)?).await,
        Op::OrWrite { offset, stable, .. } => verify::or_write(unit, offset, data_of(data)?, stable).await,
        Op::WriteSame { offset, len, zero, unmap, stable, .. } => {
            let block = if zero { None } else { Some(data_of(data)?) };
            provision::write_same(unit, pool, (offset, len), block, (unmap, stable), context).await
        }
        Op::Unmap { extents, stable } => provision::unmap(unit, extents, stable, context).await,
        Op::LbaStatus { offset, allocation_len, block_size } => {
            provision::lba_status(unit, offset, allocation_len, block_size).await
        }
        // [`persist`] has replaced it.
        Op::Persist(_) => Err(Sense::INTERNAL_FAILURE.into()),
        Op::Preempt { victims } => {
            context.abort(victims).await;
            Ok(ExecutionOutput::Good)
        }
        Op::SetAccess { groups } => match unit.sharing() {
            // After a loss, the status is not sent.
            Some(sharing) => answer(sharing.set_access(groups).await.unwrap_or(Err(Status::Busy.into()))),
            None => Err(Sense::INTERNAL_FAILURE.into()),
        },
        Op::ReportLuns { select, allocation_len } => {
            answer(lunar_scsi::report_luns(&context.luns(), select, allocation_len))
        }
        Op::Copy { nexus, list_id, segments } => {
            copy::run(unit, pool, (nexus, list_id, segments), context).await
        }
        Op::Sanitize { pattern, passes, invert, immediate } => {
            sanitize::run(unit, pool, sanitize::SanitizeJob { pattern, passes, invert }, immediate).await
        }
    }
}

/// The result of a command without a logical unit.
pub fn run_without_lu(plan: PlanResult, context: &dyn ExecutionContext) -> ExecutionResult {
    match plan? {
        Plan::Op(op) => match *op {
            Op::ReportLuns { select, allocation_len } => {
                answer(lunar_scsi::report_luns(&context.luns(), select, allocation_len))
            }
            _ => Err(Sense::LUN_NOT_SUPPORTED.into()),
        },
        Plan::Passthrough => Err(Sense::LUN_NOT_SUPPORTED.into()),
        plan => answer(Ok(plan)),
    }
}

fn answer(plan: PlanResult) -> ExecutionResult {
    match plan? {
        Plan::Data(d) => Ok(ExecutionOutput::Data(d)),
        _ => Ok(ExecutionOutput::Good),
    }
}

/// The Data-Out of a plan. A command without Data-Out fails.
fn data_of(data: Option<Buf>) -> Result<Buf, CommandError> {
    data.ok_or(Sense::INVALID_FIELD_IN_CDB.into())
}

async fn read(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    (offset, len): (u64, usize),
    room: Option<Buf>,
) -> ExecutionResult {
    if len == 0 {
        return Ok(ExecutionOutput::Good);
    }
    if unit.backend().info().null {
        unit.lu.count(LogCounter::ReadBytes, len as u64);
        return Ok(ExecutionOutput::Zeros(len));
    }
    let buf = match room {
        Some(mut buf) => {
            buf.set_visible(len);
            buf
        }
        // A command that holds the task set lock must not wait for memory, because the holders of the buffers may
        // wait for the lock.
        None => pool.try_get(len).ok_or(Status::TaskSetFull)?,
    };
    Ok(ExecutionOutput::Medium(fetch_into(unit, offset, buf, &READ).await?))
}

/// Writes all of the data or nothing. The caller holds the task set lock exclusively.
async fn write_atomic(unit: &Arc<LogicalUnit>, offset: u64, data: Buf) -> ExecutionResult {
    let finished = unit.backend().write_atomic(offset, data).await;
    stored(unit, offset, finished)?;
    Ok(ExecutionOutput::Good)
}

/// CLEAR TASK SET by this nexus. The caller aborts the tasks of this server.
///
/// # Errors
/// [`SharingLost`]: whether the other servers follow is unknown.
pub async fn clear_task_set(unit: &Arc<LogicalUnit>, by: Option<NexusId>) -> Result<(), SharingLost> {
    match unit.sharing() {
        Some(sharing) => publish(&**sharing, unit.lu.pending_clear(by)).await,
        None => {
            unit.lu.task_set_cleared(by);
            Ok(())
        }
    }
}

async fn publish(sharing: &dyn StateSharing, pending: Option<PendingCommit>) -> Result<(), SharingLost> {
    match pending {
        Some(pending) => sharing.publish(pending).await.map(drop),
        None => Ok(()),
    }
}

/// Logical unit reset. The caller aborts the tasks of this server. If the reset disables the write cache, this function takes the
/// task set lock exclusively and flushes first. A failed flush is logged, and the reset continues.
///
/// # Errors
/// [`SharingLost`]: whether the other servers follow is unknown.
pub async fn reset(unit: &Arc<LogicalUnit>) -> Result<(), SharingLost> {
    if let Some(sharing) = unit.sharing() {
        return publish(&**sharing, unit.lu.pending_reset()).await;
    }
    let _alone = match unit.lu.reset_ends_write_cache() {
        true => {
            let alone = unit.task_set.handle(CoreIndex::current()).lock_exclusive().await;
            _ = flush(unit).await;
            Some(alone)
        }
        false => None,
    };
    unit.lu.reset();
    Ok(())
}

/// Saves a change to stable storage, or publishes it to other servers, before it takes effect. Returns the plan for the
/// rest of the command. If saving fails, nothing changes.
pub async fn persist(unit: &Arc<LogicalUnit>, plan: PlanResult) -> PlanResult {
    let draft = match plan? {
        Plan::Op(op) => match *op {
            Op::Persist(draft) => draft,
            op => return Ok(Plan::Op(Box::new(op))),
        },
        plan => return Ok(plan),
    };
    if let Some(sharing) = unit.sharing() {
        // After a loss, the status is not sent.
        return sharing.publish(draft).await.unwrap_or(Err(Status::Busy.into()));
    }
    unit.persist(draft).await.unwrap_or_else(|e| {
        if let Some(left_out) = unit.save_failures.may(Instant::now()) {
            let state_file = &unit.state_file;
            tracing::error!(name: "medium.error", error = %e, ?state_file, left_out, "cannot write the state file: the command fails");
        }
        Err(Sense::INTERNAL_FAILURE.into())
    })
}

#[cfg(test)]
pub mod tests;
