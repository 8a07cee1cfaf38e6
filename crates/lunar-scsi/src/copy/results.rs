//! RECEIVE COPY RESULTS (SPC-4 section 6.24): the status of running and ended copies, and the limits of the copy
//! manager.

use super::list::ListIdUsage;
use super::{MAX_COPIES, MAX_CSCDS, MAX_DESCRIPTORS_LEN, MAX_SEGMENT_LEN, MAX_SEGMENTS};
use crate::table::CommandContext;
use crate::{CommandError, Lu, NexusId, Plan, PlanResult};
use lunar_wire::scsi::cdb::receive_copy_results::{ALLOCATION_LENGTH, LIST_IDENTIFIER};
use lunar_wire::scsi::copy::{
    BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, CopyManagerStatus, CopyStatus, FailedSegmentDetails,
    IDENTIFICATION, OperatingParameters,
};
use lunar_wire::scsi::{Sense, Status};

/// Maximum number of results that a logical unit keeps; the oldest is dropped first.
const MAX_RESULTS: usize = 256;

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyResult {
    /// Number of segments that were copied completely.
    pub segments: u16,
    /// Number of bytes that were copied.
    pub bytes: u64,
    /// The sense data with which the command ended; `None` if its status is GOOD.
    pub failure: Option<Sense>,
}

/// Running copies, and results for RECEIVE COPY RESULTS.
#[derive(Debug, Default)]
pub(crate) struct State {
    copies: Vec<CopyRecord>,
}

#[derive(Debug)]
struct CopyRecord {
    nexus: NexusId,
    id: u8,
    tracking: ListIdUsage,
    /// `None` while the copy runs.
    result: Option<CopyResult>,
}

impl State {
    /// Records the start of a copy.
    pub(super) fn begin(
        &mut self,
        nexus: NexusId,
        id: u8,
        tracking: ListIdUsage,
    ) -> Result<(), CommandError> {
        let same = |c: &CopyRecord| c.tracking != ListIdUsage::None && c.nexus == nexus && c.id == id;
        if tracking == ListIdUsage::One && self.copies.iter().any(|c| same(c) && c.result.is_none()) {
            return Err(Sense::OPERATION_IN_PROGRESS.into());
        }
        if self.copies.iter().filter(|c| c.result.is_none()).count() >= MAX_COPIES {
            return Err(Status::TaskSetFull.into());
        }
        self.copies.retain(|c| tracking == ListIdUsage::None || c.result.is_none() || !same(c));
        self.copies.push(CopyRecord { nexus, id, tracking, result: None });
        Ok(())
    }

    fn end(&mut self, nexus: NexusId, id: u8, result: CopyResult) {
        let running = |c: &CopyRecord| c.nexus == nexus && c.id == id && c.result.is_none();
        let Some(at) = self.copies.iter().position(running) else { return };
        let mut copy = self.copies.remove(at);
        copy.result = Some(result);
        if copy.tracking != ListIdUsage::None {
            self.copies.retain(|c| c.result.is_none() || c.nexus != nexus || c.id != id);
            self.copies.push(copy);
        }
        let ended: Vec<usize> = (0..self.copies.len()).filter(|&i| self.copies[i].result.is_some()).collect();
        if ended.len() > MAX_RESULTS {
            self.copies.remove(ended[0]);
        }
    }

    fn find(&mut self, nexus: NexusId, id: u8) -> Result<&mut CopyRecord, Sense> {
        let named = |c: &&mut CopyRecord| c.tracking != ListIdUsage::None && c.nexus == nexus && c.id == id;
        self.copies.iter_mut().rfind(named).ok_or(Sense::in_cdb(LIST_IDENTIFIER))
    }

    /// Removes a lost nexus with its copies.
    pub(crate) fn detach(&mut self, nexus: NexusId) {
        self.copies.retain(|c| c.nexus != nexus);
    }

    /// A reset drops all copies and results.
    pub(crate) fn reset(&mut self) {
        self.copies.clear();
    }
}

impl Lu {
    /// Records the end of a copy (see [`Op::Copy`](crate::Op::Copy)). Call this for every copy, an aborted one too;
    /// otherwise it counts as running as long as the nexus exists.
    pub fn copy_ended(&self, nexus: NexusId, list_id: u8, result: CopyResult) {
        self.change().copy.end(nexus, list_id, result);
    }
}

pub(super) fn copy_status(cx: &mut CommandContext<'_>) -> PlanResult {
    let copy = cx.state.copy.find(cx.nexus, LIST_IDENTIFIER.get_u8(cx.cdb))?;
    let result = copy.result.unwrap_or_default();
    let status = match copy.result {
        None => CopyManagerStatus::InProgress,
        Some(CopyResult { failure: None, .. }) => CopyManagerStatus::Good,
        Some(_) => CopyManagerStatus::Failed,
    };
    let (units, count) = transfer_count(result.bytes);
    Ok(cut(cx, CopyStatus { status, segments: result.segments, units, count }.encode()))
}

/// TRANSFER COUNT UNITS (bytes, KiB, MiB, GiB or TiB) and TRANSFER COUNT, in the finest unit that fits.
fn transfer_count(bytes: u64) -> (u8, u32) {
    (0..4)
        .find_map(|units: u8| Some((units, u32::try_from(bytes >> (10 * units)).ok()?)))
        .unwrap_or((4, (bytes >> 40) as u32))
}

pub(super) fn failed_segment_details(cx: &mut CommandContext<'_>) -> PlanResult {
    let copy = cx.state.copy.find(cx.nexus, LIST_IDENTIFIER.get_u8(cx.cdb))?;
    let Some(sense) = copy.result.and_then(|r| r.failure) else {
        return Ok(cut(cx, FailedSegmentDetails::none()));
    };
    let details =
        FailedSegmentDetails { status: Status::CheckCondition as u8, sense: &sense.encode(false) }.encode();
    Ok(cut(cx, details))
}

/// The limits that `list` enforces.
pub(super) fn operating_parameters(cx: &mut CommandContext<'_>) -> PlanResult {
    let parameters = OperatingParameters {
        // EXTENDED COPY is supported without a list identifier.
        needs_no_list_id: true,
        max_cscds: MAX_CSCDS as u16,
        max_segments: MAX_SEGMENTS as u16,
        max_list_len: MAX_DESCRIPTORS_LEN as u32,
        max_segment_len: MAX_SEGMENT_LEN,
        total_copies: MAX_COPIES as u16,
        max_copies: MAX_COPIES as u8,
        granularity: cx.lu.settings().block_size.trailing_zeros() as u8,
        types: &[BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION],
    };
    Ok(cut(cx, parameters.encode()))
}

fn cut(cx: &CommandContext<'_>, data: Vec<u8>) -> Plan {
    Plan::data_cut(data, ALLOCATION_LENGTH.get_u32(cx.cdb))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfer_count_uses_the_finest_unit() {
        assert_eq!(transfer_count(u32::MAX as u64), (0, u32::MAX));
        assert_eq!(transfer_count(1 << 32), (1, 1 << 22));
        assert_eq!(transfer_count(1 << 43), (2, 1 << 23));
        assert_eq!(transfer_count(u64::MAX), (4, (1 << 24) - 1));
    }

    #[test]
    fn copies_and_results_are_bounded() {
        let mut state = State::default();
        for i in 0..1000 {
            assert_eq!(state.begin(NexusId(i), 0, ListIdUsage::One), Ok(()));
            state.end(NexusId(i), 0, CopyResult::default());
        }
        assert_eq!(state.copies.len(), MAX_RESULTS);
        assert!(state.find(NexusId(999), 0).is_ok());
        for i in 0..MAX_COPIES as u64 {
            assert_eq!(state.begin(NexusId(i), 0, ListIdUsage::None), Ok(()));
        }
        assert_eq!(state.begin(NexusId(7), 1, ListIdUsage::One), Err(Status::TaskSetFull.into()));
        state.end(NexusId(3), 0, CopyResult::default());
        assert_eq!(state.begin(NexusId(7), 1, ListIdUsage::One), Ok(()));
    }
}
