//! Plans READ and WRITE from a snapshot, without a lock or an allocation.

use crate::dispatch::{Requester, passes_all_checks};
use crate::lba_range::{LbaRange, MAX_TRANSFER};
use crate::{Lu, Plan, State};
use lunar_wire::scsi::op;

/// The state of a logical unit that READ and WRITE need, as of an epoch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NexusSnapshot {
    /// The epoch of the snapshot; 0 if none was taken.
    pub(crate) epoch: u64,
    capacity_blocks: u64,
    max_blocks: u32,
    block_shift: u32,
    may_read: bool,
    may_write: bool,
    /// The write cache is off: every write is on stable storage before its status.
    stable: bool,
    pub(crate) descriptor_sense: bool,
    pub(crate) task_aborted_status: bool,
}

impl NexusSnapshot {
    pub(crate) fn new(lu: &Lu, state: &State, requester: Requester<'_>) -> NexusSnapshot {
        let settings = &*lu.settings();
        NexusSnapshot {
            epoch: lu.epoch(),
            capacity_blocks: state.blocks,
            max_blocks: MAX_TRANSFER / settings.block_size,
            block_shift: settings.block_size.trailing_zeros(),
            may_read: passes_all_checks(op::READ_10, state, settings, requester),
            may_write: passes_all_checks(op::WRITE_10, state, settings, requester),
            stable: !state.modes.write_cache(),
            descriptor_sense: state.modes.descriptor_sense(),
            task_aborted_status: state.modes.task_aborted_status(),
        }
    }

    /// The plan of a READ or WRITE; `None` if the command must take the slow path.
    #[inline]
    pub(crate) fn plan(&self, cdb: &[u8]) -> Option<Plan> {
        if cdb.len() < 16 {
            return None;
        }
        let (write, reserved) = match cdb[0] {
            op::READ_10 => (false, cdb[1] & !0x18 | cdb[6] & 0xe0 | cdb[9]),
            op::WRITE_10 => (true, cdb[1] & !0x18 | cdb[6] & 0xe0 | cdb[9]),
            op::READ_16 => (false, cdb[1] & !0x18 | cdb[14] & 0xe0 | cdb[15]),
            op::WRITE_16 => (true, cdb[1] & !0x18 | cdb[14] & 0xe0 | cdb[15]),
            op::READ_12 => (false, cdb[1] & !0x18 | cdb[10] & 0xe0 | cdb[11]),
            op::WRITE_12 => (true, cdb[1] & !0x18 | cdb[10] & 0xe0 | cdb[11]),
            op::READ_6 => (false, cdb[1] & 0xe0 | cdb[5]),
            op::WRITE_6 => (true, cdb[1] & 0xe0 | cdb[5]),
            _ => return None,
        };
        let allowed = if write { self.may_write } else { self.may_read };
        let range = LbaRange::of(cdb);
        let possible =
            range.blocks != 0 && range.blocks <= self.max_blocks && range.fits(self.capacity_blocks);
        if !allowed || reserved != 0 || !possible {
            return None;
        }
        let (offset, len) = (range.lba << self.block_shift, range.blocks << self.block_shift);
        Some(if write {
            let fua = cdb[0] != op::WRITE_6 && cdb[1] & 0x08 != 0;
            Plan::Write { offset, len, stable: self.stable || fua }
        } else {
            Plan::Read { offset, len }
        })
    }
}
