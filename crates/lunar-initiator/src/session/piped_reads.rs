//! Reads whose owner sends the data on: they stay in a pipe, if they arrive in order.

use super::session_state::SessionState;
use super::task::{Data, Task};
use super::task_pipe::TaskPipe;
use lunar_runtime::PipedBytes;
use lunar_wire::iscsi::{Bhs, opcode};

impl SessionState {
    /// Lets the data of a read stay in a pipe.
    pub fn permit_pipe(&mut self, tag: u32) {
        if self.is_in_order()
            && let Some(task) = self.tasks.get(tag).filter(|task| matches!(task.data, Data::In(..)))
        {
            task.pipe = Some(Box::new(TaskPipe::Unused));
        }
    }

    /// Takes the pipe with all data of a read that has ended.
    pub fn take_pipe(&mut self, tag: u32) -> Option<PipedBytes> {
        let task = self.tasks.get(tag).filter(|task| task.result.is_some())?;
        let expected = task.expected as usize;
        match *task.pipe.take()? {
            TaskPipe::Holds(piped) if piped.len() == expected => Some(piped),
            _ => None,
        }
    }

    /// Whether a Data-In may be received into a pipe.
    pub(super) fn permits_pipe(&self, header: &Bhs) -> bool {
        let task = self.tasks.at(header.itt()).filter(|_| header.opcode() == opcode::DATA_IN);
        task.is_some_and(|task| task.pipe.is_some())
    }

    /// The pipe for a valid Data-In of a read, if a pipe of `room` bytes has room for all data of the read.
    pub(super) fn landing_pipe(&mut self, header: &Bhs, room: usize) -> Option<PipedBytes> {
        let offset = self.data_in_offset(header).ok()?;
        let task = self.tasks.get(header.itt()).filter(|task| task.expected as usize <= room)?;
        let pipe = task.pipe.as_deref_mut()?;
        let piped = match std::mem::replace(pipe, TaskPipe::Unused) {
            TaskPipe::Unused if offset == 0 => PipedBytes::empty()?,
            TaskPipe::Holds(piped) if offset == piped.len() => piped,
            other => {
                *pipe = other;
                return None;
            }
        };
        *pipe = TaskPipe::Lent;
        Some(piped)
    }
}

impl Task {
    /// Takes back the pipe with the data of a read that have arrived.
    pub(super) fn take_back_pipe(&mut self, piped: PipedBytes) {
        self.pipe = Some(Box::new(TaskPipe::Holds(piped)));
    }

    /// Receives the rest of a read into its buffer, and moves there what its pipe holds.
    pub(super) fn leave_pipe(&mut self) -> std::io::Result<()> {
        let (Some(pipe), Data::In(Some(buf), received)) = (self.pipe.take(), &mut self.data) else {
            return Ok(());
        };
        match *pipe {
            // After a failure, the data are missing, and the connection cannot continue.
            TaskPipe::Holds(piped) => piped.move_to(&mut buf[..piped.len()]).inspect_err(|_| *received = 0),
            TaskPipe::Unused | TaskPipe::Lent => Ok(()),
        }
    }
}
