//! EXTENDED COPY, block to block (SPC-5 section 6.4): only between logical units that the same nexus may see.
//!
//! A copy moves step after step. For each it passes the gates of source, destination and its own logical unit
//! like a command of each, and asks for reservations inside; between two steps it is in none, so that a
//! COMPARE AND WRITE waits for one step at most. A copy that must be alone (ORDERED) stays in all of its gates
//! from its first step to its last. Nobody waits for a gate while it is in another but by [`enter_all`].

use super::medium::{Ended, Outcome, READ, STEP, Surroundings, fetch_into, gone, put};
use crate::Unit;
use crate::gate::{Entry, Member, enter_all};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{CopyResult, CopySegment, Failure, NexusId};
use lunar_wire::scsi::Sense;
use std::sync::Arc;

/// Both ends of a segment.
pub struct Ends {
    /// Where it comes from.
    pub source: End,
    /// Where it goes to.
    pub destination: End,
}

/// One of them.
pub struct End {
    /// Its number for the initiator.
    pub lun: u16,
    /// What serves it.
    pub unit: Arc<Unit>,
    /// The nexus with it.
    pub nexus: NexusId,
    /// The nexus's place at its gate.
    pub member: Member,
    /// The medium that the command is about.
    pub medium: u64,
}

impl End {
    /// Its medium may have become another one between two steps; `byte` names the end in the segment descriptor.
    fn is_still_meant(&self, number: u16, byte: u16) -> Result<(), Sense> {
        if self.unit.lu.medium() == self.medium {
            Ok(())
        } else {
            Err(Sense::COPY_ABORTED.segment(number, byte))
        }
    }
}

impl Ends {
    fn gates(&self) -> impl Iterator<Item = (Member, Entry)> {
        [&self.source, &self.destination].map(|end| (end.member.clone(), Entry::Beside)).into_iter()
    }
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
    let ends = (0..).zip(segments).map(|(number, segment)| around.copy_ends(number, segment));
    let ends: Vec<_> = ends.collect();
    let own = around.own_gate();
    let alone = own.as_ref().is_some_and(|(_, entry)| *entry == Entry::Alone);
    let _whole = match alone {
        true => {
            enter_all(own.iter().cloned().chain(ends.iter().flatten().flat_map(Ends::gates)).collect()).await
        }
        false => Vec::new(),
    };
    for (number, (segment, ends)) in (0..).zip(segments.iter().zip(ends)) {
        let ends = ends?;
        let gates = if alone { Vec::new() } else { own.iter().cloned().chain(ends.gates()).collect() };
        let part = Part { number, segment, ends, gates };
        part.copy(pool, &mut result.bytes, around).await?;
        result.segments += 1;
    }
    Ok(())
}

/// A segment that is copied.
struct Part<'a> {
    /// Its place in the list.
    number: u16,
    segment: &'a CopySegment,
    ends: Ends,
    /// What each of its steps passes.
    gates: Vec<(Member, Entry)>,
}

impl Part<'_> {
    async fn copy(&self, pool: &Pool, bytes: &mut u64, around: &dyn Surroundings) -> Result<(), Failure> {
        let len = around.copy_range(self.number, self.segment, &self.ends)?.len;
        if len == 0 {
            return Ok(());
        }
        // Before the gates: those who hold the pool's buffers may wait at them.
        let mut buf = pool.get(len.min(STEP as u64) as usize).await;
        let mut done = 0;
        while done < len {
            buf.set_visible((len - done).min(STEP as u64) as usize);
            buf = self.step(done, buf, around).await?;
            done += buf.len() as u64;
            *bytes += buf.len() as u64;
        }
        Ok(())
    }

    /// Moves one buffer, `done` bytes from the beginning.
    async fn step(&self, done: u64, buf: Buf, around: &dyn Surroundings) -> Result<Buf, Failure> {
        let _inside = enter_all(self.gates.clone()).await;
        if around.is_aborted() {
            return Err(gone());
        }
        self.ends.source.is_still_meant(self.number, 4)?;
        self.ends.destination.is_still_meant(self.number, 6)?;
        let range = around.copy_range(self.number, self.segment, &self.ends)?;
        let (source, destination) = (&self.ends.source.unit, &self.ends.destination.unit);
        let data = fetch_into(source, range.source + done, buf, &READ).await;
        let data = data.map_err(|f| third_party(f, self.number, 4))?;
        let stable = !destination.lu.write_cache();
        let put = put(destination, range.destination + done, data, stable).await;
        put.map_err(|f| third_party(f, self.number, 6))
    }
}

/// What a failure of an end is to who asked for the copy; `byte` names the end in the segment descriptor.
fn third_party(failure: Failure, number: u16, byte: u16) -> Failure {
    match failure.sense {
        Some(_) => Sense::COPY_DEVICE_FAILURE.segment(number, byte).into(),
        None => failure,
    }
}

#[cfg(test)]
mod tests;
