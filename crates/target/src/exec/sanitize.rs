//! SANITIZE (SBC-4 section 4.11): the whole medium is overwritten or erased, with progress to be asked for.

use super::{Ended, Outcome, STEP, failed, flush};
use crate::Unit;
use device::Failure;
use net::Pool;
use std::sync::Arc;
use wire::scsi::Sense;

/// What to do with the medium.
pub struct Job {
    /// Overwrite with this, or erase.
    pub pattern: Option<Vec<u8>>,
    /// How often.
    pub passes: u8,
    /// Invert the pattern from one pass to the next.
    pub invert: bool,
}

/// With `immediate` the work goes on behind the status.
pub async fn run(unit: &Arc<Unit>, pool: &Pool, job: Job, immediate: bool) -> Ended {
    if !immediate {
        return work(unit, pool, job).await;
    }
    let (unit, pool) = (unit.clone(), pool.clone());
    compio::runtime::spawn(async move { drop(work(&unit, &pool, job).await) }).detach();
    Ok(Outcome::Good)
}

async fn work(unit: &Arc<Unit>, pool: &Pool, job: Job) -> Ended {
    let result = match overwrite(unit, pool, &job).await {
        Ok(()) => flush(unit).await.map(drop),
        Err(e) => Err(e),
    };
    unit.lu.sanitized(result.as_ref().map(drop));
    result.map(|()| Outcome::Good)
}

async fn overwrite(unit: &Arc<Unit>, pool: &Pool, job: &Job) -> Result<(), Failure> {
    let capacity = unit.backend.facts().capacity;
    let passes = if job.pattern.is_some() { job.passes.max(1) as u64 } else { 1 };
    for pass in 0..passes {
        let mut at = 0;
        while at < capacity {
            let n = (capacity - at).min(64 * STEP as u64);
            stretch(unit, pool, job, pass, at, n).await?;
            at += n;
            let share =
                (pass as u128 * capacity as u128 + at as u128) * 0xffff / (passes as u128 * capacity as u128);
            unit.lu.sanitize_progress(share as u16);
        }
    }
    Ok(())
}

async fn stretch(
    unit: &Arc<Unit>,
    pool: &Pool,
    job: &Job,
    pass: u64,
    at: u64,
    n: u64,
) -> Result<(), Failure> {
    let Some(pattern) = &job.pattern else {
        let erased = unit.backend.write_zeroes(at, n, true).await;
        return erased.map_err(|e| failed(unit, &e, at, Sense::WRITE_ERROR));
    };
    let inverted = job.invert && pass % 2 == 1;
    let size = unit.lu.settings().block_size as usize;
    let mask = if inverted { 0xff } else { 0 };
    let block: Vec<u8> = pattern.iter().map(|b| b ^ mask).cycle().take(size).collect();
    super::provision::repeat(unit, pool, at, n, &block).await
}
