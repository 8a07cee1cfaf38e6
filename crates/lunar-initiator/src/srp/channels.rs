//! A session with several channels (SRP r16a section 5.4). A command uses the channel with the most free credits. A
//! task management function uses the channel of its commands. The loss of one channel ends the session, which
//! recovers all channels.

use super::datamover::SrpDatamover;
use crate::Error;
use crate::session::task::Task;
use crate::session::transport::{self, DatamoverEvents};
use lunar_proto::parameters::Parameters;
use lunar_rdma::LocalBoxFuture;
use lunar_runtime::iscsi::receive::{ReceiveError, ReceiveStatus};
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::request::function_code;
use lunar_wire::iscsi::status::management_response;
use lunar_wire::iscsi::{Bhs, NONE, opcode, pdu};
use lunar_wire::scsi::TaskManagementFunction;
use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

/// A channel.
struct Channel {
    datamover: Rc<SrpDatamover>,
    /// Whether it has queued information units that could not be sent.
    is_blocked: Cell<bool>,
}

/// The channels of a session.
pub struct Channels {
    list: Vec<Channel>,
    /// The channel of the next ping. Pings rotate over the channels.
    pinged: Cell<usize>,
}

impl Channels {
    /// Creates the set from at least one channel.
    pub fn new(datamovers: Vec<Rc<SrpDatamover>>) -> Channels {
        let channel = |datamover| Channel { datamover, is_blocked: Cell::new(false) };
        Channels { list: datamovers.into_iter().map(channel).collect(), pinged: Cell::new(0) }
    }

    /// The channel that has a request with this tag.
    fn with(&self, itt: u32) -> Option<&SrpDatamover> {
        self.list.iter().map(|channel| &*channel.datamover).find(|datamover| datamover.has(itt))
    }

    fn next_to_ping(&self) -> &SrpDatamover {
        let next = (self.pinged.get() + 1) % self.list.len();
        self.pinged.set(next);
        &self.list[next].datamover
    }

    /// The channel for a task management function: that of the affected commands. None if they are on several
    /// channels: the target could receive some of them after the function.
    fn to_manage(&self, header: &Bhs) -> Option<&SrpDatamover> {
        let first = &*self.list[0].datamover;
        if header.flags() & 0x7f == function_code(TaskManagementFunction::AbortTask) {
            return Some(self.with(header.referenced_task_tag()).unwrap_or(first));
        }
        let mut busy =
            self.list.iter().map(|channel| &*channel.datamover).filter(|datamover| datamover.is_busy());
        let only = busy.next().unwrap_or(first);
        busy.next().is_none().then_some(only)
    }
}

impl transport::Datamover for Channels {
    fn push(&self, header: Bhs, payload: Payload) {
        let first = &*self.list[0].datamover;
        let datamover = match (header.opcode(), header.itt()) {
            (opcode::TASK_MANAGEMENT, itt) => match self.to_manage(&header) {
                Some(datamover) => datamover,
                None => {
                    return first.answer(
                        pdu::task_management_response(itt, management_response::UNSUPPORTED),
                        Vec::new(),
                    );
                }
            },
            (opcode::NOP_OUT, itt) if itt != NONE => self.next_to_ping(),
            _ => first,
        };
        datamover.push(header, payload);
    }

    fn command(&self, header: Bhs, task: &mut Task, parameters: &Parameters) -> Result<(), Error> {
        // Among equals the first, so that a single command always uses the same channel, whose core is awake.
        let roomiest = self.list.iter().rev().max_by_key(|channel| channel.datamover.room());
        let datamover = roomiest.map_or(&self.list[0].datamover, |channel| &channel.datamover);
        datamover.command(header, task, parameters)
    }

    fn ended(&self, itt: u32) {
        if let Some(datamover) = self.with(itt) {
            datamover.ended(itt);
        }
    }

    fn waiting(&self) -> usize {
        self.list.iter().map(|channel| channel.datamover.waiting()).sum()
    }

    fn take_moved(&self) -> bool {
        // Every channel has its own flag, so each must be read.
        self.list.iter().fold(false, |moved, channel| channel.datamover.take_moved() | moved)
    }

    fn flush(&self) -> io::Result<bool> {
        let mut all = true;
        for channel in &self.list {
            let done = channel.datamover.flush()?;
            channel.is_blocked.set(!done);
            all &= done;
        }
        Ok(all)
    }

    fn receive(&self, session: &mut dyn DatamoverEvents) -> Result<ReceiveStatus, ReceiveError> {
        for channel in &self.list {
            match channel.datamover.receive(session)? {
                ReceiveStatus::More => {}
                other => return Ok(other),
            }
        }
        Ok(ReceiveStatus::More)
    }

    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        first(self.list.iter().map(|channel| channel.datamover.readable()).collect())
    }

    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        let blocked = self.list.iter().filter(|channel| channel.is_blocked.get());
        first(blocked.map(|channel| channel.datamover.writable()).collect())
    }

    fn close(&self) {
        self.list.iter().for_each(|channel| channel.datamover.close());
    }

    fn reset(&self) {
        self.list.iter().for_each(|channel| channel.datamover.reset());
    }

    fn reset_on_close(&self, reset: bool) -> io::Result<()> {
        self.list.iter().try_for_each(|channel| channel.datamover.reset_on_close(reset))
    }
}

/// Waits until one of the futures completes. Returns at once if there is none.
fn first<'a>(mut waits: Vec<LocalBoxFuture<'a, io::Result<()>>>) -> LocalBoxFuture<'a, io::Result<()>> {
    Box::pin(poll_fn(move |cx| {
        let done = waits.iter_mut().find_map(|wait| match wait.as_mut().poll(cx) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        });
        match done {
            Some(result) => Poll::Ready(result),
            None if waits.is_empty() => Poll::Ready(Ok(())),
            None => Poll::Pending,
        }
    }))
}
