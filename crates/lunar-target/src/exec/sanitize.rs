//! SANITIZE (SBC-4 section 4.11): overwrites or erases the whole medium, with progress reports.

use super::medium::{ExecutionOutput, ExecutionResult, STEP, WRITE, flush, has_begun, io_failure, of_step};
use crate::LogicalUnit;
use lunar_runtime::Pool;
use lunar_scsi::CommandError;
use lunar_wire::scsi::Sense;
use std::sync::Arc;

/// The parameters of a sanitize operation.
pub struct SanitizeJob {
    /// The pattern of an overwrite. None: a block erase.
    pub pattern: Option<Vec<u8>>,
    /// Overwrite passes.
    pub passes: u8,
    /// Whether each pass inverts the pattern of the previous one.
    pub invert: bool,
}

/// Starts the operation, whose state was saved before ([`super::persist`]). It runs to its end even if its command
/// ends first: after the status with `immediate`, or when this future is dropped because the task was aborted (SBC-4
/// section 4.11).
pub async fn run(unit: &Arc<LogicalUnit>, pool: &Pool, job: SanitizeJob, immediate: bool) -> ExecutionResult {
    let (unit, pool) = (unit.clone(), pool.clone());
    let (end, ended) = flume::bounded(1);
    let whole = async move {
        if immediate {
            let _ = end.try_send(Ok(ExecutionOutput::Good));
        }
        let result = work(&unit, &pool, job).await;
        let _ = end.try_send(result); // the command may have ended already
    };
    lunar_runtime::spawn(whole);
    ended.recv_async().await.unwrap_or(Err(Sense::INTERNAL_FAILURE.into()))
}

async fn work(unit: &Arc<LogicalUnit>, pool: &Pool, job: SanitizeJob) -> ExecutionResult {
    let result = overwrite(unit, pool, &job).await;
    unit.lu.sanitize_ended(result.as_ref().map(drop));
    save_state(unit).await;
    result.map(|()| ExecutionOutput::Good)
}

/// Saves the state, so that the server knows after a restart that the medium is not clean. A logical unit without a
/// state file loses its medium with the restart.
async fn save_state(unit: &Arc<LogicalUnit>) {
    if let Err(error) = unit.save().await
        && error.kind() != std::io::ErrorKind::Unsupported
    {
        let state_file = &unit.state_file;
        tracing::error!(name: "medium.error", %error, ?state_file, "cannot save the state of SANITIZE in the state file");
    }
}

async fn overwrite(unit: &Arc<LogicalUnit>, pool: &Pool, job: &SanitizeJob) -> Result<(), CommandError> {
    let capacity = unit.backend().info().capacity;
    let passes = if job.pattern.is_some() { job.passes.max(1) as u64 } else { 1 };
    for pass in 0..passes {
        let mut at = 0;
        while at < capacity {
            let n = (capacity - at).min(64 * STEP as u64);
            stretch(unit, pool, job, pass, at, n).await.map_err(of_step(pass > 0 || at > 0))?;
            at += n;
            let share =
                (pass as u128 * capacity as u128 + at as u128) * 0xffff / (passes as u128 * capacity as u128);
            unit.lu.sanitize_progress(share as u16);
        }
        // Without the flush, a cache could merge two passes, so that only the last reaches the medium.
        flush(unit).await.map_err(has_begun)?;
    }
    Ok(())
}

async fn stretch(
    unit: &Arc<LogicalUnit>,
    pool: &Pool,
    job: &SanitizeJob,
    pass: u64,
    at: u64,
    n: u64,
) -> Result<(), CommandError> {
    let Some(pattern) = &job.pattern else {
        let erased = unit.backend().write_zeroes(at, n, true).await;
        return erased.map_err(|e| io_failure(unit, &e, at, &WRITE));
    };
    let size = unit.lu.settings().block_size;
    let block = lunar_scsi::overwrite_block(pattern, size, pass as u8, job.passes, job.invert);
    super::provision::repeat(unit, pool, (at, n), &block, &|| true).await
}
