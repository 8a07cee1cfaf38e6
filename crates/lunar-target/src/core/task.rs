//! Tasks: SCSI commands that did not end on the spot.

use super::command::ScsiCommand;
use super::data_out_buffers::DataOutBuffers;
use super::response::DataInProgress;
use crate::LogicalUnit;
use lunar_proto::transfer::DataOutSequencer;
use lunar_scsi::{CommandError, NexusId, PlanResult};
use lunar_wire::scsi::{Sense, Status};
use std::sync::Arc;
use std::time::Instant;

/// Why a task ends without its own answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortResponse {
    /// By its own session: nothing is sent.
    None,
    /// By another nexus while TAS is set: TASK ABORTED.
    TaskAborted,
    /// Data that its initiator asks for again cannot be sent again.
    SnackRejected,
}

impl AbortResponse {
    /// What the initiator hears.
    pub fn failure(self) -> Option<CommandError> {
        match self {
            AbortResponse::None => None,
            AbortResponse::TaskAborted => Some(Status::TaskAborted.into()),
            AbortResponse::SnackRejected => Some(Sense::SNACK_REJECTED.into()),
        }
    }
}

/// Data-Out on its way.
pub struct DataOutTransfer {
    /// Which bytes have come, and which are to be asked for next.
    pub sequencer: DataOutSequencer,
    /// Where it goes.
    pub buffers: DataOutBuffers,
    /// Bytes that the command is to have.
    pub wanted: u32,
    /// Upper bits of the tags of its transfers.
    pub transfer_base: u32,
    /// A data digest did not fit.
    pub has_digest_error: bool,
    /// There was no room for its data when they came.
    pub is_out_of_memory: bool,
    /// Bytes have come since this was looked at last.
    pub has_progressed: bool,
    /// How often no data had come when it was looked.
    pub idle_checks: u32,
    /// How often data were missing when it was looked.
    pub checks: u32,
    /// With so many looks its data are late; 0: not looked at yet.
    pub max_checks: u32,
    /// Requests for data of the session, up to its latest one.
    pub last_request: u64,
    /// It is taken piece by piece.
    pub is_chunked: bool,
    /// Its command has begun, and ends this.
    pub is_launched: bool,
    /// Its command ends without the data that were asked for.
    pub is_abandoned: bool,
}

/// A command that did not end on the spot.
pub struct Task {
    /// Unique in its I_T nexus.
    pub serial: u64,
    /// The command.
    pub command: ScsiCommand,
    /// The logical unit and the nexus, when there is one.
    pub lu_nexus: Option<(Arc<LogicalUnit>, NexusId)>,
    /// The nexuses with other logical units through which it copies.
    pub copy_nexuses: Vec<NexusId>,
    /// The logical unit's epoch when the answer was found.
    pub epoch: u64,
    /// The medium that it was asked of.
    pub medium: u64,
    /// It is to end without an answer of its own.
    pub aborted: Option<AbortResponse>,
    /// Data-Out on its way; None: it is all here, and the command runs.
    pub receiving: Option<DataOutTransfer>,
    /// What it comes to; None: to be decided when its turn has come, or it runs.
    pub answer: Option<PlanResult>,
    /// How much of its Data-In has gone.
    pub sent: DataInProgress,
    /// When it arrived, if that is counted.
    pub started_at: Option<Instant>,
}

impl Task {
    /// Its serial, and its Data-Out if the initiator is to send some.
    pub fn waits_for_data(&mut self) -> Option<(u64, &mut DataOutTransfer)> {
        let receiving = self.receiving.as_mut().filter(|receiving| receiving.sequencer.is_awaited());
        receiving.map(|receiving| (self.serial, receiving))
    }
}
