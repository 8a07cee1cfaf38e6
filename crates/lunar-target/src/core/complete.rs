//! The completion of commands: all accounting, and the response to the initiator.

use super::command::ScsiCommand;
use super::data_in::DataIn;
use super::front_end::FrontEnd;
use super::nexus::NexusState;
use super::response::{CommandResponse, DataInProgress, Residual};
use super::response_log::LoggedResponse;
use super::task::{AbortResponse, Task, TaskTimes};
use crate::PassthroughResponse;
use crate::exec::{ExecutionOutput, ExecutionResult};
use crate::lu_counters::OpClass;
use lunar_runtime::Buf;
use lunar_scsi::CommandError;
use lunar_wire::scsi::{Sense, Status};
use std::time::{Duration, Instant};

impl CommandResponse {
    /// A response with a status and no data. `moved`: bytes that the CDB requests.
    #[inline]
    fn status(c: &ScsiCommand, status: Status, moved: u64) -> CommandResponse {
        let residual = Residual::new(c.expected_len, moved);
        CommandResponse {
            status: status as u8,
            sense: Vec::new(),
            residual,
            data: DataIn::None,
            sent: DataInProgress::default(),
        }
    }

    /// GOOD with `len` bytes, or with as many as the initiator accepts.
    #[inline]
    fn data(c: &ScsiCommand, data: impl FnOnce(usize) -> DataIn, len: usize) -> CommandResponse {
        let send = len.min(c.data_in_len() as usize);
        if send == 0 {
            // The initiator offers data instead of accepting them: it gets none, and none of its data are used.
            let moved = if c.data_out_len() > 0 { 0 } else { len };
            return CommandResponse::status(c, Status::Good, moved as u64);
        }
        CommandResponse {
            status: Status::Good as u8,
            sense: Vec::new(),
            residual: Residual::new(c.data_in_len().max(c.data_out_len()), len as u64),
            data: data(send),
            sent: DataInProgress::default(),
        }
    }

    fn failure(c: &ScsiCommand, failure: CommandError, descriptor: bool, moved: u64) -> CommandResponse {
        let sense = failure.sense.map_or(Vec::new(), |sense| sense.encode(descriptor));
        CommandResponse { sense, ..CommandResponse::status(c, failure.status, moved) }
    }

    /// The response of a passthrough logical unit: any status, data and sense data. `sent`: data that were sent before.
    fn passed(c: &ScsiCommand, reply: PassthroughResponse, sent: DataInProgress) -> CommandResponse {
        let PassthroughResponse { status, sense, data, moved, fate: _ } = reply;
        let (room, is_good) = (c.data_in_len() as usize - sent.bytes, status == Status::Good as u8);
        match data.filter(|data| c.reads && (is_good || !data.is_empty())) {
            Some(buf) if is_good && sent.bytes == 0 => {
                let moved = if buf.len() < room { buf.len() } else { moved as usize };
                CommandResponse::data(c, |send| DataIn::Buf(buf, send), moved)
            }
            data => CommandResponse {
                status,
                sense: sense.into_vec(),
                // A command that failed without a response moved nothing, but some data may have been sent.
                residual: Residual::new(c.data_in_len().max(c.data_out_len()), moved.max(sent.bytes as u64)),
                data: data.map_or(DataIn::None, |buf| whole(buf, room)),
                sent,
            },
        }
    }
}

fn whole(buf: Buf, room: usize) -> DataIn {
    let len = buf.len().min(room);
    DataIn::Buf(buf, len)
}

/// How a command ended.
pub(super) enum Completion {
    /// With a result, which the initiator gets.
    Responded(CommandResult),
    /// Without a response: its own session aborted it, or is over.
    Aborted {
        /// Data-In that was sent before the end.
        sent: DataInProgress,
        /// See [`CommandResult::times`].
        times: Option<TaskTimes>,
    },
}

impl Completion {
    /// The end of an aborted task.
    pub fn aborted(task: &Task, how: AbortResponse) -> Completion {
        let (sent, times) = (task.sent(), Some(task.times()));
        match how.failure() {
            Some(failure) => {
                Completion::Responded(CommandResult { sent, times, ..CommandResult::of(Err(failure)) })
            }
            None => Completion::Aborted { sent, times },
        }
    }

    #[inline]
    fn times(&self) -> Option<TaskTimes> {
        match self {
            Completion::Responded(result) => result.times,
            Completion::Aborted { times, .. } => *times,
        }
    }
}

impl Completion {
    /// The status and the sense data of a command that failed.
    fn failure(&self) -> (Option<u8>, Option<Sense>) {
        match self {
            Completion::Aborted { .. } => (None, None),
            Completion::Responded(CommandResult { ended: Err(failure), .. }) => {
                (Some(failure.status as u8), failure.sense)
            }
            Completion::Responded(CommandResult {
                ended: Ok(ExecutionOutput::Passthrough(reply)), ..
            }) => (Some(reply.status), Sense::decode(&reply.sense)),
            Completion::Responded(_) => (Some(Status::Good as u8), None),
        }
    }
}

/// The result of a command.
pub(super) struct CommandResult {
    /// Its status, with data or sense data.
    pub ended: ExecutionResult,
    /// Bytes that its CDB requests: of Data-Out, or of a READ whose buffer was cut to the length that the initiator
    /// accepts.
    pub moved: u64,
    /// Bytes that a WRITE wrote to the medium.
    pub written: Option<u32>,
    /// Sense data are in descriptor format.
    pub descriptor: bool,
    /// Data-In that was sent before the end.
    pub sent: DataInProgress,
    /// The points in the life of its task, if it became one.
    pub times: Option<TaskTimes>,
    /// When it ended, if that is known already.
    pub ended_at: Option<Instant>,
}

impl CommandResult {
    /// A result of which nothing else is known.
    #[inline]
    pub fn of(ended: ExecutionResult) -> CommandResult {
        CommandResult {
            ended,
            moved: 0,
            written: None,
            descriptor: false,
            sent: DataInProgress::default(),
            times: None,
            ended_at: None,
        }
    }

    #[inline]
    fn response(self, c: &ScsiCommand) -> CommandResponse {
        let CommandResult { ended, moved, descriptor, sent, .. } = self;
        match ended {
            // The initiator expects data, and offers none.
            Ok(ExecutionOutput::Good) if c.data_out_len() == 0 && c.data_in_len() > 0 => {
                CommandResponse::status(c, Status::Good, 0)
            }
            Ok(ExecutionOutput::Good) => CommandResponse::status(c, Status::Good, moved),
            Ok(ExecutionOutput::Data(mut bytes)) => {
                let len = bytes.len();
                let cut = |send| {
                    bytes.truncate(send);
                    DataIn::Bytes(bytes)
                };
                CommandResponse::data(c, cut, len)
            }
            Ok(ExecutionOutput::Medium(rest)) if sent.bytes > 0 => {
                let (len, max) = (rest.len(), c.data_in_len().max(c.data_out_len()));
                let residual = Residual::new(max, (sent.bytes + len) as u64);
                let data = DataIn::Buf(rest, len);
                CommandResponse { residual, data, sent, ..CommandResponse::status(c, Status::Good, 0) }
            }
            Ok(ExecutionOutput::Medium(buf)) => {
                let len = buf.len().max(moved as usize);
                CommandResponse::data(c, |send| DataIn::Buf(buf, send), len)
            }
            Ok(ExecutionOutput::Zeros(len)) => CommandResponse::data(c, DataIn::Zeros, len),
            Ok(ExecutionOutput::Passthrough(reply)) => CommandResponse::passed(c, reply, sent),
            Err(failure) if sent.bytes > 0 => CommandResponse {
                sent,
                ..CommandResponse::failure(c, failure, descriptor, sent.bytes as u64)
            },
            // The residual count shows how much more data the command needs (RFC 7143 section 11.4.5.2).
            Err(failure) if c.data_in_len() == 0 && moved > c.data_out_len().into() => {
                CommandResponse::failure(c, failure, descriptor, moved)
            }
            Err(failure) => CommandResponse::failure(c, failure, descriptor, 0),
        }
    }
}

impl<F: FrontEnd> NexusState<F> {
    /// Completes a command: counts it, releases its place among the commands of the initiator, and responds. Every
    /// command ends here or in [`NexusState::complete_read`] or [`NexusState::complete_write`], and nothing else counts
    /// commands.
    #[inline]
    pub(super) fn complete(&mut self, c: &ScsiCommand, completion: Completion) {
        self.count(c, &completion);
        self.front_mut().release(c);
        if let Completion::Responded(result) = completion {
            self.front_mut().respond(c, result.response(c));
        }
    }

    /// Completes a command that the front end does not submit: its initiator gets this failure at once.
    pub fn refuse(&mut self, c: &ScsiCommand, failure: impl Into<CommandError>) {
        self.complete(c, Completion::Responded(CommandResult::of(Err(failure.into()))));
    }

    /// Completes a command that the front end does not submit, without a response.
    pub fn discard(&mut self, c: &ScsiCommand) {
        self.complete(c, Completion::Aborted { sent: DataInProgress::default(), times: None });
    }

    /// Completes a READ of `len` bytes that succeeded at once. It does the same as [`NexusState::complete`], without
    /// a [`Completion`]: moving one takes longer than the rest.
    #[inline]
    pub(super) fn complete_read(&mut self, c: &ScsiCommand, data: impl FnOnce(usize) -> DataIn, len: u32) {
        self.info().counters.commands.add(1);
        self.count_read(u64::from(len));
        self.count_at_once(c.lun, OpClass::Read, (u64::from(len), 0));
        self.front_mut().release(c);
        self.front_mut().respond(c, CommandResponse::data(c, data, len as usize));
    }

    /// Completes a WRITE that wrote all of its `len` bytes at once; otherwise as [`NexusState::complete_read`].
    #[inline]
    pub(super) fn complete_write(&mut self, c: &ScsiCommand, len: u32) {
        self.info().counters.commands.add(1);
        self.count_write(u64::from(len));
        self.count_at_once(c.lun, OpClass::Write, (0, u64::from(len)));
        self.front_mut().release(c);
        self.front_mut().respond(c, CommandResponse::status(c, Status::Good, u64::from(len)));
    }

    #[inline]
    fn count_read(&self, bytes: u64) {
        self.info().counters.reads.add(1);
        self.info().counters.read_bytes.add(bytes);
    }

    #[inline]
    fn count_write(&self, bytes: u64) {
        self.info().counters.writes.add(1);
        self.info().counters.write_bytes.add(bytes);
    }

    #[inline]
    fn count(&mut self, c: &ScsiCommand, completion: &Completion) {
        self.info().counters.commands.add(1);
        if let Some(waited) = completion.times().and_then(|times| times.waited()) {
            self.record_front_latency(waited);
        }
        let counts = CommandCounts::of(completion);
        if counts.failed {
            self.info().counters.errors.add(1);
            self.info().counters.read_bytes.add(counts.read.unwrap_or_default());
        } else {
            counts.read.into_iter().for_each(|bytes| self.count_read(bytes));
            counts.written.into_iter().for_each(|bytes| self.count_write(bytes));
        }
        self.count_for_lu(c, completion, &counts);
    }

    /// Counts a command for its logical unit, and logs its response.
    fn count_for_lu(&mut self, c: &ScsiCommand, completion: &Completion, counts: &CommandCounts) {
        let class = OpClass::of(c.cdb());
        let bytes = (counts.read.unwrap_or_default(), counts.written.unwrap_or_default());
        let Some(handle) = self.luns_mut().known(c.lun) else { return };
        let counters = handle.counters();
        if counts.failed {
            let (status, sense) = completion.failure();
            counters.count_failure(status, sense.as_ref());
        }
        let Some(times) = completion.times() else { return self.count_at_once(c.lun, class, bytes) };
        counters.count(class, bytes.0, bytes.1);
        counters.end_task();
        if let Completion::Responded(result) = completion {
            let ended = result.ended_at.unwrap_or_else(Instant::now);
            let response = LoggedResponse::of_task(counters.shared().clone(), class, times, ended);
            self.log_response(response);
        }
    }

    /// Records the time from the arrival of a command to its execution.
    fn record_front_latency(&self, waited: Duration) {
        if let Some(instance_session) = self.info().instance_session.get() {
            instance_session.instance().front.add(waited);
        }
    }
}

/// The effect of a command on the counters.
struct CommandCounts {
    /// Bytes of Data-In from the medium; None: it read nothing.
    read: Option<u64>,
    /// Bytes that it wrote to the medium; None: it wrote nothing.
    written: Option<u64>,
    /// It did not end with GOOD. Data-In that was sent before counts.
    failed: bool,
}

impl CommandCounts {
    fn of(completion: &Completion) -> CommandCounts {
        let failed = |sent: DataInProgress| {
            let read = (sent.bytes > 0).then_some(sent.bytes as u64);
            CommandCounts { read, written: None, failed: true }
        };
        let CommandResult { ended, moved, written, sent, .. } = match completion {
            Completion::Responded(result) => result,
            Completion::Aborted { sent, .. } => return failed(*sent),
        };
        let read = match ended {
            Ok(ExecutionOutput::Medium(buf)) => buf.len().max(*moved as usize),
            Ok(ExecutionOutput::Zeros(len)) => *len,
            Ok(ExecutionOutput::Passthrough(reply)) if reply.status != Status::Good as u8 => {
                return failed(*sent);
            }
            Err(_) => return failed(*sent),
            Ok(ExecutionOutput::Good | ExecutionOutput::Data(_) | ExecutionOutput::Passthrough(_)) => {
                return CommandCounts { read: None, written: written.map(u64::from), failed: false };
            }
        };
        CommandCounts { read: Some((sent.bytes + read) as u64), written: None, failed: false }
    }
}
