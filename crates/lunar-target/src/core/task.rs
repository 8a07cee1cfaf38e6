//! Tasks: SCSI commands that did not complete at once.

use super::command::ScsiCommand;
use super::data_out_transfer::DataOutTransfer;
use super::passed_commands::PassedLane;
use super::response::DataInProgress;
use crate::LogicalUnit;
use lunar_scsi::{CommandError, NexusId, PlanResult};
use lunar_wire::scsi::{Sense, Status, lun};
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

/// The logical unit of a task, as its command found it.
#[derive(Clone)]
pub struct TaskLu {
    unit: Arc<LogicalUnit>,
    nexus: NexusId,
    /// The epoch of the logical unit when the command was planned.
    epoch: u64,
    /// The medium for which the command was sent (see [`Lu::medium`](lunar_scsi::Lu::medium)).
    medium: u64,
}

impl TaskLu {
    /// The logical unit and its nexus, at the epoch of the plan.
    pub fn new(unit: Arc<LogicalUnit>, nexus: NexusId, epoch: u64) -> TaskLu {
        let medium = unit.lu.medium();
        TaskLu { unit, nexus, epoch, medium }
    }

    /// The logical unit.
    pub fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }

    /// Its nexus.
    pub fn nexus(&self) -> NexusId {
        self.nexus
    }

    /// Whether the state of the logical unit is that of the plan.
    pub fn is_current(&self) -> bool {
        self.unit.lu.epoch() == self.epoch
    }

    /// Checks that the logical unit still serves and still has the medium that the command was sent to.
    pub fn check_medium(&self) -> Result<(), CommandError> {
        let lu = &self.unit.lu;
        if !self.is_current()
            && let Some(status) = lu.busy_status()
        {
            return Err(status.into());
        }
        if lu.medium() == self.medium { Ok(()) } else { Err(Sense::MEDIUM_CHANGED.into()) }
    }
}

/// Points in the life of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskTimes {
    /// The begin of the receive that brought its command.
    pub arrived: Instant,
    /// The begin of its execution. None: it has not begun.
    pub began: Option<Instant>,
}

impl TaskTimes {
    /// The time from its arrival to its execution.
    pub fn waited(&self) -> Option<Duration> {
        self.began.map(|began| began.saturating_duration_since(self.arrived))
    }
}

/// A command that did not complete at once.
pub struct Task {
    /// Unique within its I_T nexus.
    serial: u64,
    command: ScsiCommand,
    /// None: the LUN field names no logical unit.
    lu: Option<TaskLu>,
    /// Nexuses with other logical units that a copy uses.
    copy_nexuses: Vec<NexusId>,
    aborted: Option<AbortResponse>,
    /// Data-Out that has not arrived. None: all data have arrived, and the task executes. Boxed, so that tasks without
    /// it are small.
    transfer: Option<Box<DataOutTransfer>>,
    /// The plan. None: not planned yet, or the task executes.
    plan: Option<PlanResult>,
    /// The progress of its Data-In.
    sent: DataInProgress,
    times: TaskTimes,
    /// Its place among forwarded commands, if it has no async task.
    passed: Option<PassedLane>,
    /// It waits until other servers follow its change, and does not use the medium after that.
    is_publishing: bool,
}

/// The facts of a task with which its execution begins.
pub struct LaunchedTask {
    /// Unique within its I_T nexus.
    pub serial: u64,
    /// Its command.
    pub command: ScsiCommand,
    /// Its logical unit, if it has one.
    pub lu: Option<TaskLu>,
    /// The plan, unless there is none yet.
    pub plan: Option<PlanResult>,
    /// Its data arrive chunk by chunk while it runs.
    pub is_chunked: bool,
}

impl Task {
    /// A task that executes since its arrival.
    pub fn executing(serial: u64, command: ScsiCommand, lu: Option<TaskLu>, arrived: Instant) -> Task {
        Task {
            serial,
            command,
            lu,
            copy_nexuses: Vec::new(),
            aborted: None,
            transfer: None,
            plan: None,
            sent: DataInProgress::default(),
            times: TaskTimes { arrived, began: Some(arrived) },
            passed: None,
            is_publishing: false,
        }
    }

    /// A task that a remote logical unit executes, without an async task here.
    pub fn passed(serial: u64, command: ScsiCommand, lu: TaskLu, lane: PassedLane, arrived: Instant) -> Task {
        Task { passed: Some(lane), ..Task::executing(serial, command, Some(lu), arrived) }
    }

    /// A task that executes when its data have arrived.
    pub fn receiving(
        serial: u64,
        command: ScsiCommand,
        lu: Option<TaskLu>,
        transfer: DataOutTransfer,
        plan: Option<PlanResult>,
        arrived: Instant,
    ) -> Task {
        let task = Task::executing(serial, command, lu, arrived);
        let times = TaskTimes { arrived, began: None };
        Task { transfer: Some(Box::new(transfer)), plan, times, ..task }
    }

    /// Identifies the task within its I_T nexus.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Its command.
    pub fn command(&self) -> &ScsiCommand {
        &self.command
    }

    /// Its logical unit. None: the LUN field names none.
    pub fn lu(&self) -> Option<&TaskLu> {
        self.lu.as_ref()
    }

    /// Whether the LUN fields are those of one logical unit.
    pub fn is_of_lun(&self, field: u64) -> bool {
        lun::is_same(self.command.lun, field)
    }

    /// Counts the task as one of these nexuses too.
    pub fn add_copy_nexuses(&mut self, nexuses: [NexusId; 2]) {
        self.copy_nexuses.extend(nexuses);
    }

    /// Whether the task copies through one of these nexuses.
    pub fn copies_through(&self, nexuses: &[NexusId]) -> bool {
        self.copy_nexuses.iter().any(|nexus| nexuses.contains(nexus))
    }

    /// Its place among forwarded commands, if it has no async task.
    pub fn passed_lane(&self) -> Option<&PassedLane> {
        self.passed.as_ref()
    }

    /// Aborts the task. Returns its response, which the first abort decides.
    pub fn abort(&mut self, how: AbortResponse) -> AbortResponse {
        *self.aborted.get_or_insert(how)
    }

    /// The response of an aborted task.
    pub fn aborted(&self) -> Option<AbortResponse> {
        self.aborted
    }

    /// Whether the task was aborted.
    pub fn is_aborted(&self) -> bool {
        self.aborted.is_some()
    }

    /// The failure of a plan that the initiator does not get.
    pub fn unreported(&self) -> Option<&CommandError> {
        self.plan.as_ref()?.as_ref().err()
    }

    /// Data-Out that has not arrived.
    pub fn transfer(&self) -> Option<&DataOutTransfer> {
        self.transfer.as_deref()
    }

    /// The same, mutably.
    pub fn transfer_mut(&mut self) -> Option<&mut DataOutTransfer> {
        self.transfer.as_deref_mut()
    }

    /// The same, with the command.
    pub fn command_and_transfer(&mut self) -> Option<(&ScsiCommand, &mut DataOutTransfer)> {
        Some((&self.command, self.transfer.as_deref_mut()?))
    }

    /// Ends the transfer.
    pub fn take_transfer(&mut self) -> Option<DataOutTransfer> {
        self.transfer.take().map(|transfer| *transfer)
    }

    /// The serial and the Data-Out of the task, if the initiator still has to send data.
    pub fn waits_for_data(&mut self) -> Option<(u64, &mut DataOutTransfer)> {
        let transfer = self.transfer.as_deref_mut().filter(|transfer| transfer.is_awaited());
        transfer.map(|transfer| (self.serial, transfer))
    }

    /// Its change is published to other servers.
    pub fn publish(&mut self) {
        self.is_publishing = true;
    }

    /// Whether it is one of these tasks, and may still change the medium.
    pub fn may_change_medium(&self, serials: &[u64]) -> bool {
        !self.is_publishing && serials.contains(&self.serial)
    }

    /// Begins the execution.
    pub fn launch(&mut self) -> LaunchedTask {
        LaunchedTask {
            serial: self.serial,
            command: self.command.clone(),
            lu: self.lu.clone(),
            plan: self.plan.take(),
            is_chunked: self.transfer.is_some(),
        }
    }

    /// Notes the begin of its execution.
    pub fn begin_execution(&mut self, now: Instant) {
        self.times.began = Some(now);
    }

    /// The points in its life so far.
    pub fn times(&self) -> TaskTimes {
        self.times
    }

    /// Sends a part of its Data-In. `send` returns the new progress.
    pub fn send_part(&mut self, send: impl FnOnce(DataInProgress) -> DataInProgress) {
        self.sent = send(self.sent);
    }

    /// The progress of its Data-In.
    pub fn sent(&self) -> DataInProgress {
        self.sent
    }
}
