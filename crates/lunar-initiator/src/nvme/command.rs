//! An NVMe command and its result.

use super::queue_load::QueueLoad;
use crate::{Direction, Error};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::Buf;
use lunar_wire::nvme::{Cqe, Sqe, admin_opcode};

/// A command.
#[derive(Debug)]
pub struct NvmeCommand {
    /// The entry. The queue sets its identifier and the descriptor of its data.
    pub sqe: Sqe,
    /// The data and their direction.
    pub data: Direction,
    /// Whether the command may be sent again although the controller may already have executed it.
    pub repeatable: bool,
    /// Whether the controller may answer whenever it likes: no time limit applies.
    pub is_open_ended: bool,
    /// Whether the controller may send less data than the buffer holds.
    pub may_be_short: bool,
    /// The range lock of a write. It lasts until the controller has ended the command, even if the owner no longer waits.
    pub(crate) hold: Option<RangeLock>,
    /// Its part of the load of its queue.
    pub(super) load: QueueLoad,
    /// How often another queue has sent it.
    pub(super) sends: u32,
}

/// The completion, whatever its status, or an error if there is none; and the buffer.
pub type NvmeResult = (Result<Cqe, Error>, Option<Buf>);

impl NvmeCommand {
    /// A command that may be repeated after a lost connection.
    pub fn new(sqe: Sqe, data: Direction) -> NvmeCommand {
        NvmeCommand {
            sqe,
            data,
            repeatable: true,
            is_open_ended: false,
            may_be_short: false,
            hold: None,
            load: QueueLoad::default(),
            sends: 0,
        }
    }

    /// The same, sent once at most.
    pub fn once(self) -> NvmeCommand {
        NvmeCommand { repeatable: false, ..self }
    }
}

/// Whether an entry is a fabrics command, on any queue.
pub fn is_fabrics(sqe: &Sqe) -> bool {
    sqe.opcode() == admin_opcode::FABRICS
}
