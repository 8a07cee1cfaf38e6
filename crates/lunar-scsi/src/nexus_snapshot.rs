//! Plans READ, WRITE and forwarded commands from a snapshot, without a lock or an allocation.

use crate::dispatch::{Requester, passes_all_checks};
use crate::lba_range::{LbaRange, MAX_TRANSFER};
use crate::{Lu, Plan, State, passthrough};
use lunar_wire::scsi::cdb::read_write::{FUA, other_bits_6, other_bits_10, other_bits_12, other_bits_16};
use lunar_wire::scsi::{cdb, op};

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
    /// Commands are forwarded to the backing device.
    forwards: bool,
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
            forwards: passthrough::forwards_all(state, settings, requester),
            descriptor_sense: state.modes.descriptor_sense(),
            // An NVMe host knows no unit attention that would report the end of its commands.
            task_aborted_status: state.modes.task_aborted_status() || requester.port.initiator.is_nvme(),
        }
    }

    /// Whether the command is forwarded to the backing device. False also if the slow path must decide.
    #[inline]
    pub(crate) fn forwards(&self, cdb: &[u8]) -> bool {
        self.forwards && passthrough::is_always_forwarded(cdb)
    }

    /// The plan of a READ or WRITE; `None` if the command must take the slow path.
    #[inline]
    pub(crate) fn plan(&self, cdb: &[u8]) -> Option<Plan> {
        let cdb = cdb.first_chunk()?;
        let opcode = cdb::opcode(cdb);
        let (write, other_bits) = match opcode {
            op::READ_10 => (false, other_bits_10(cdb)),
            op::WRITE_10 => (true, other_bits_10(cdb)),
            op::READ_16 => (false, other_bits_16(cdb)),
            op::WRITE_16 => (true, other_bits_16(cdb)),
            op::READ_12 => (false, other_bits_12(cdb)),
            op::WRITE_12 => (true, other_bits_12(cdb)),
            op::READ_6 => (false, other_bits_6(cdb)),
            op::WRITE_6 => (true, other_bits_6(cdb)),
            _ => return None,
        };
        let allowed = if write { self.may_write } else { self.may_read };
        let range = LbaRange::of(cdb);
        let possible =
            range.blocks != 0 && range.blocks <= self.max_blocks && range.fits(self.capacity_blocks);
        if !allowed || other_bits != 0 || !possible {
            return None;
        }
        let (offset, len) = (range.lba << self.block_shift, range.blocks << self.block_shift);
        Some(if write {
            let fua = opcode != op::WRITE_6 && FUA.is_set(cdb);
            Plan::Write { offset, len, stable: self.stable || fua }
        } else {
            Plan::Read { offset, len }
        })
    }
}
