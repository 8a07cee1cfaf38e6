//! EXTENDED COPY, block to block (SPC-5 section 6.4): only between logical units that the same nexus may see.

use super::{Ended, Outcome, READ, STEP, Surroundings, fetch, gone, put};
use crate::Unit;
use device::{CopyRange, CopyResult, CopySegment, Failure, NexusId};
use net::Pool;
use std::sync::Arc;
use wire::scsi::{Sense, Status};

/// Both ends of a segment, and what it moves between them.
pub struct Ends {
    /// Where it comes from.
    pub source: Arc<Unit>,
    /// Where it goes to.
    pub destination: Arc<Unit>,
    /// Which bytes.
    pub range: CopyRange,
}

/// A copy that runs: when it ends, in whatever way, the logical unit that got the command hears of it.
struct Running<'a> {
    unit: &'a Unit,
    nexus: NexusId,
    list_id: u8,
    result: CopyResult,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.unit.lu.copied(self.nexus, self.list_id, self.result);
    }
}

pub async fn run(
    unit: &Arc<Unit>,
    pool: &Pool,
    (nexus, list_id, segments): (NexusId, u8, Vec<CopySegment>),
    around: &dyn Surroundings,
) -> Ended {
    let result = CopyResult { failure: Some(Sense::COPY_ABORTED), ..CopyResult::default() };
    let mut running = Running { unit, nexus, list_id, result };
    let ended = all(pool, &segments, around, &mut running.result).await;
    running.result.failure = match &ended {
        Ok(()) => None,
        Err(f) => Some(f.sense.unwrap_or(Sense::COPY_ABORTED)),
    };
    ended.map(|()| Outcome::Good)
}

async fn all(
    pool: &Pool,
    segments: &[CopySegment],
    around: &dyn Surroundings,
    result: &mut CopyResult,
) -> Result<(), Failure> {
    for (number, segment) in (0..).zip(segments) {
        let ends = around.copy_ends(number, segment)?;
        one(&ends, pool, number, &mut result.bytes, around).await?;
        result.segments += 1;
    }
    Ok(())
}

async fn one(
    ends: &Ends,
    pool: &Pool,
    number: u16,
    bytes: &mut u64,
    around: &dyn Surroundings,
) -> Result<(), Failure> {
    let (range, mut done) = (&ends.range, 0);
    while done < range.len {
        if around.is_aborted() {
            return Err(gone());
        }
        // The gates of the ends are not entered: two copies, each to where the other is from, would wait for
        // each other.
        let (Some(_source), Some(_destination)) = (ends.source.visit(), ends.destination.visit()) else {
            return Err(Status::Busy.into());
        };
        let n = (range.len - done).min(STEP as u64) as usize;
        let data = fetch(&ends.source, pool, range.source + done, n, &READ).await;
        let data = data.map_err(|f| third_party(f, number, 4))?;
        let stable = !ends.destination.lu.write_cache();
        let put = put(&ends.destination, range.destination + done, data, stable).await;
        put.map_err(|f| third_party(f, number, 6))?;
        done += n as u64;
        *bytes += n as u64;
    }
    Ok(())
}

/// What a failure of an end is to who asked for the copy; `byte` names the end in the segment descriptor.
fn third_party(failure: Failure, number: u16, byte: u16) -> Failure {
    match failure.sense {
        Some(_) => Sense::COPY_DEVICE_FAILURE.segment(number, byte).into(),
        None => failure,
    }
}
