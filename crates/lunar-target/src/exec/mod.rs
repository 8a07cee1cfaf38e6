//! Plans become block operations. Knows no transport: data comes and goes in buffers.

pub mod copy;
mod medium;
mod provision;
mod sanitize;
mod verify;

use crate::Unit;
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{Answer, Count, Failure, Op, Plan, Shard};
use lunar_wire::scsi::{Sense, Status};
pub use medium::{Ended, Outcome, Surroundings, flush, gone, put, read_part, was_read, was_written, write};
use medium::{READ, fetch_into, stored};
use std::sync::Arc;
use std::time::Instant;

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

/// Writes all of it or nothing. The caller is alone in the logical unit.
async fn write_atomic(unit: &Arc<Unit>, offset: u64, data: Buf) -> Ended {
    let finished = unit.backend().write_atomic(offset, data).await;
    stored(unit, offset, finished)?;
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

#[cfg(test)]
pub mod tests;
