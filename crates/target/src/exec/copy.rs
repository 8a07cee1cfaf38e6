//! EXTENDED COPY, block to block (SPC-5 section 6.4): only between logical units that the same nexus may see.

use super::{Ended, Outcome, STEP, Surroundings, fetch, put};
use crate::Unit;
use device::{CopySegment, Failure};
use net::Pool;
use std::sync::Arc;
use wire::scsi::Sense;

pub async fn run(
    unit: &Arc<Unit>,
    pool: &Pool,
    segments: Vec<CopySegment>,
    around: &dyn Surroundings,
) -> Ended {
    for segment in segments {
        let (source, _) = around.unit_by_naa(&segment.source).ok_or(Sense::COPY_TARGET_UNREACHABLE)?;
        let (destination, writable) =
            around.unit_by_naa(&segment.destination).ok_or(Sense::COPY_TARGET_UNREACHABLE)?;
        if !writable || destination.lu.settings().read_only {
            return Err(Sense::WRITE_PROTECTED.into());
        }
        one(&source, &destination, pool, &segment).await?;
    }
    let _ = unit;
    Ok(Outcome::Good)
}

async fn one(
    source: &Arc<Unit>,
    destination: &Arc<Unit>,
    pool: &Pool,
    s: &CopySegment,
) -> Result<(), Failure> {
    let counted = if s.count_by_destination { destination } else { source };
    let len = s.blocks.saturating_mul(block_size(counted));
    let from = range(source, s.source_lba, len)?;
    let to = range(destination, s.destination_lba, len)?;
    let mut done = 0;
    while done < len {
        let n = (len - done).min(STEP as u64) as usize;
        let data = fetch(source, pool, from + done, n).await?;
        put(destination, to + done, data, false).await?;
        done += n as u64;
    }
    Ok(())
}

fn block_size(unit: &Unit) -> u64 {
    unit.lu.settings().block_size as u64
}

/// The first byte of a stretch that lies inside the medium.
fn range(unit: &Unit, lba: u64, len: u64) -> Result<u64, Failure> {
    let start = lba.checked_mul(block_size(unit)).filter(|s| {
        s.checked_add(len).is_some_and(|end| end <= unit.backend.facts().capacity)
            && len % block_size(unit) == 0
    });
    start.ok_or(Sense::LBA_OUT_OF_RANGE.at(lba).into())
}
