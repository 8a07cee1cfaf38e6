//! Tasks: SCSI commands that did not complete at once.

use super::command::ScsiCommand;
use super::data_out_buffers::DataOutBuffers;
use super::response::DataInProgress;
use crate::LogicalUnit;
use lunar_proto::transfer::DataOutSequencer;
use lunar_scsi::{CommandError, NexusId, PlanResult};
use lunar_wire::scsi::{Sense, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The response to an aborted task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortResponse {
    /// None: its own session aborted it.
    None,
    /// TASK ABORTED: another nexus aborted it, and TAS is set.
    TaskAborted,
    /// SNACK REJECTED: the initiator requests data again, which the target cannot send again.
    SnackRejected,
}

impl AbortResponse {
    /// The response as a failure.
    pub fn failure(self) -> Option<CommandError> {
        match self {
            AbortResponse::None => None,
            AbortResponse::TaskAborted => Some(Status::TaskAborted.into()),
            AbortResponse::SnackRejected => Some(Sense::SNACK_REJECTED.into()),
        }
    }
}

/// The Data-Out of a task while it arrives.
pub struct DataOutTransfer {
    /// The bytes that have arrived, and those to request next.
    pub sequencer: DataOutSequencer,
    /// The buffers for the data.
    pub buffers: DataOutBuffers,
    /// Bytes that the command takes.
    pub wanted: u32,
    /// Upper bits of its transfer tags.
    pub transfer_base: u32,
    /// A data digest did not match.
    pub has_digest_error: bool,
    /// The pool had no room when the data arrived.
    pub is_out_of_memory: bool,
    /// Data have arrived since the last check.
    pub has_progressed: bool,
    /// Consecutive checks without new data.
    pub idle_checks: u32,
    /// Checks at which data were missing.
    pub checks: u32,
    /// Number of checks after which the data are overdue; 0: not known yet.
    pub max_checks: u32,
    /// The number of the latest request of this transfer, among all of the session.
    pub last_request: u64,
    /// The data arrive chunk by chunk.
    pub is_chunked: bool,
    /// The command was launched, and ends this transfer.
    pub is_launched: bool,
    /// The command ends without the data that were requested.
    pub is_abandoned: bool,
}

/// A command that did not complete at once.
pub struct Task {
    /// Unique within its I_T nexus.
    pub serial: u64,
    /// The command.
    pub command: ScsiCommand,
    /// The logical unit and its nexus; None: the LUN field names none.
    pub lu_nexus: Option<(Arc<LogicalUnit>, NexusId)>,
    /// Nexuses with other logical units through which the task copies.
    pub copy_nexuses: Vec<NexusId>,
    /// The epoch of the logical unit when the answer was decided.
    pub epoch: u64,
    /// The medium that the command was sent to.
    pub medium: u64,
    /// Set when the task was aborted.
    pub aborted: Option<AbortResponse>,
    /// Data-Out that has not arrived; None: all of it is here, and the task executes.
    pub receiving: Option<DataOutTransfer>,
    /// The decision; None: not decided yet, or the task executes.
    pub answer: Option<PlanResult>,
    /// How much of its Data-In was sent.
    pub sent: DataInProgress,
    /// When it arrived, if latency is recorded.
    pub started_at: Option<Instant>,
    /// The time from its arrival to its execution, if latency is recorded.
    pub waited: Option<Duration>,
}

impl Task {
    /// Its serial, and its Data-Out if the initiator has to send some.
    pub fn waits_for_data(&mut self) -> Option<(u64, &mut DataOutTransfer)> {
        let receiving = self.receiving.as_mut().filter(|receiving| receiving.sequencer.is_awaited());
        receiving.map(|receiving| (self.serial, receiving))
    }
}
