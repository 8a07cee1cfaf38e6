//! Tasks: SCSI commands that did not complete at once.

use super::command::ScsiCommand;
use super::data_out_transfer::DataOutTransfer;
use super::response::DataInProgress;
use crate::LogicalUnit;
use lunar_scsi::{CommandError, NexusId, PlanResult};
use lunar_wire::scsi::{Sense, Status};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The response to an aborted task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortResponse {
    /// No response: the task's own session aborted it.
    None,
    /// TASK ABORTED: another nexus aborted it, and TAS is set.
    TaskAborted,
    /// CHECK CONDITION: the initiator requested a retransmission, which the target does not support.
    RetransmissionRefused,
}

impl AbortResponse {
    /// The response as a failure; None if there is no response.
    pub fn failure(self) -> Option<CommandError> {
        match self {
            AbortResponse::None => None,
            AbortResponse::TaskAborted => Some(Status::TaskAborted.into()),
            AbortResponse::RetransmissionRefused => Some(Sense::SNACK_REJECTED.into()),
        }
    }
}

/// A command that did not complete at once.
pub struct Task {
    /// Unique within its I_T nexus.
    pub serial: u64,
    /// The command.
    pub command: ScsiCommand,
    /// The logical unit and its nexus. None: the LUN field names no logical unit.
    pub lu_nexus: Option<(Arc<LogicalUnit>, NexusId)>,
    /// Nexuses with other logical units that a copy uses.
    pub copy_nexuses: Vec<NexusId>,
    /// The epoch of the logical unit when `answer` was planned.
    pub epoch: u64,
    /// The medium for which the command was sent (see [`Lu::medium`](lunar_scsi::Lu::medium)).
    pub medium: u64,
    /// Set when the task is aborted.
    pub aborted: Option<AbortResponse>,
    /// Data-Out that has not arrived. None: all data have arrived, and the task executes.
    pub receiving: Option<DataOutTransfer>,
    /// The plan. None: not planned yet, or the task executes.
    pub answer: Option<PlanResult>,
    /// The progress of its Data-In.
    pub sent: DataInProgress,
    /// The time at which it arrived, if latency is recorded.
    pub started_at: Option<Instant>,
    /// The time from its arrival to its execution, if latency is recorded.
    pub waited: Option<Duration>,
}

impl Task {
    /// The serial and the Data-Out of the task, if the initiator still has to send data.
    pub fn waits_for_data(&mut self) -> Option<(u64, &mut DataOutTransfer)> {
        let receiving = self.receiving.as_mut().filter(|receiving| receiving.is_awaited());
        receiving.map(|receiving| (self.serial, receiving))
    }
}
