//! The commands of a connection: queued, in flight, or completed. Performs no I/O: `out` holds the bytes to send.

use super::receive::ReplyStreamError;
use lunar_proto::nbd::NbdCommand;
use lunar_proto::nbd::client::{
    BufferFill, ExportInfo, ExtentStatus, PendingCommand, ServerError, ServerMessage, next_message,
};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::{Payload, SendQueue};
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// A command, with the buffer for the data of a read or write.
pub struct CommandRequest {
    pub command: NbdCommand,
    pub offset: u64,
    pub len: u32,
    pub buf: Option<Buf>,
}

/// The result of a command, with the extent for BLOCK_STATUS, and the buffer.
pub type NbdCommandResult = (io::Result<Option<ExtentStatus>>, Option<Buf>);

/// The waiter for a reply.
pub enum ReplyWaiter {
    /// Not yet known.
    Unknown,
    /// A task of this core.
    Here(Waker),
    /// A task of another core.
    There(flume::Sender<NbdCommandResult>),
    /// The waiter no longer exists.
    Gone,
}

enum CommandData {
    None,
    In(Buf),
    Out(Rc<Buf>),
}

struct CommandTask {
    flight: PendingCommand,
    data: CommandData,
    waiter: ReplyWaiter,
    answer: Option<io::Result<Option<ExtentStatus>>>,
}

impl CommandTask {
    /// Whether parts of its buffer are still queued for sending.
    fn is_leaving(&self) -> bool {
        matches!(&self.data, CommandData::Out(buf) if Rc::strong_count(buf) > 1)
    }
}

#[derive(Default)]
struct TaskSlot {
    generation: u32,
    task: Option<CommandTask>,
}

/// The tasks by cookie. A lookup takes constant time, and a cookie of an earlier command matches no task.
#[derive(Default)]
struct TaskSlots {
    slots: Vec<TaskSlot>,
    free: Vec<u32>,
}

impl TaskSlots {
    fn reserve(&mut self) -> u64 {
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        if at as usize == self.slots.len() {
            self.slots.push(TaskSlot::default());
        }
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1);
        u64::from(slot.generation) << 32 | u64::from(at)
    }

    fn slot(&mut self, cookie: u64) -> Option<&mut TaskSlot> {
        let slot = self.slots.get_mut(cookie as u32 as usize)?;
        (slot.generation == (cookie >> 32) as u32).then_some(slot)
    }

    fn get(&mut self, cookie: u64) -> Option<&mut CommandTask> {
        self.slot(cookie)?.task.as_mut()
    }

    fn take(&mut self, cookie: u64) -> Option<CommandTask> {
        let task = self.slot(cookie)?.task.take()?;
        self.free.push(cookie as u32);
        Some(task)
    }
}

/// The state machine of a connection in the transmission phase.
pub struct ClientMachine {
    export: ExportInfo,
    slots: TaskSlots,
    /// The send queue.
    pub out: SendQueue,
    /// Commands that completed before all of their data was sent.
    leaving: Vec<u64>,
    /// The reason why no more commands can be sent.
    over: Option<(io::ErrorKind, String)>,
}

impl ClientMachine {
    pub fn new(export: ExportInfo) -> ClientMachine {
        let (slots, out) = (TaskSlots::default(), SendQueue::default());
        ClientMachine { export, slots, out, leaving: Vec::new(), over: None }
    }

    /// Queues a command. Returns its result at once if the connection has ended.
    pub fn submit(&mut self, ask: CommandRequest, waiter: ReplyWaiter) -> Result<u64, Box<NbdCommandResult>> {
        if let Some((kind, why)) = &self.over {
            return Err(Box::new((Err(io::Error::new(*kind, why.clone())), ask.buf)));
        }
        let cookie = self.slots.reserve();
        let flight = PendingCommand::new(ask.command, cookie, ask.offset, ask.len);
        let data = match (ask.command, ask.buf) {
            (NbdCommand::Write { .. }, Some(buf)) => CommandData::Out(Rc::new(buf)),
            (NbdCommand::Read { .. }, Some(buf)) => CommandData::In(buf),
            _ => CommandData::None,
        };
        let payload = match &data {
            CommandData::Out(buf) => Payload::Part(buf.clone(), 0, buf.len()),
            _ => Payload::Empty,
        };
        self.out.push(&flight.encode(), payload, &[]);
        let task = CommandTask { flight, data, waiter, answer: None };
        self.slots.slot(cookie).expect("a reserved slot").task = Some(task);
        Ok(cookie)
    }

    /// Queues NBD_CMD_DISC. Later commands are rejected.
    pub fn leave(&mut self) {
        if self.over.is_none() {
            self.over = Some((io::ErrorKind::NotConnected, "the NBD disk was closed".into()));
            self.out.push(
                &PendingCommand::new(NbdCommand::Disconnect, 0, 0, 0).encode(),
                Payload::Empty,
                &[],
            );
        }
    }

    /// Parses the message at the start of `bytes`.
    pub fn message(&mut self, bytes: &[u8]) -> Result<Option<ServerMessage>, ReplyStreamError> {
        let slots = &mut self.slots;
        let taken = next_message(bytes, &self.export, move |cookie| {
            slots.get(cookie).filter(|task| task.answer.is_none()).map(|task| &mut task.flight)
        });
        let taken = taken.map_err(|broken| ReplyStreamError::Rules(broken.0))?;
        if let Some(ServerMessage { cookie, fill: BufferFill::Zeros(place), .. }) = &taken {
            self.place(*cookie, place.clone()).fill(0);
        }
        Ok(taken)
    }

    /// Returns a part of the buffer of a read in flight.
    pub fn place(&mut self, cookie: u64, place: Range<usize>) -> &mut [u8] {
        match self.slots.get(cookie).map(|task| &mut task.data) {
            Some(CommandData::In(buf)) => &mut buf[place],
            _ => unreachable!("the message parser yields ranges of reads in flight only"),
        }
    }

    /// Records the complete reply of a command.
    pub fn answered(&mut self, cookie: u64) {
        let Some(task) = self.slots.get(cookie) else { return };
        let outcome = task.flight.outcome().map_err(refused);
        self.end(cookie, outcome);
    }

    fn end(&mut self, cookie: u64, outcome: io::Result<Option<ExtentStatus>>) {
        let Some(task) = self.slots.get(cookie) else { return };
        task.answer.get_or_insert(outcome);
        match task.is_leaving() {
            true => self.leaving.push(cookie),
            false => self.hand_over(cookie),
        }
    }

    /// Hands a completed command to its waiter.
    fn hand_over(&mut self, cookie: u64) {
        let Some(task) = self.slots.get(cookie) else { return };
        match std::mem::replace(&mut task.waiter, ReplyWaiter::Unknown) {
            ReplyWaiter::Unknown => {}
            ReplyWaiter::Here(waker) => waker.wake(),
            ReplyWaiter::There(reply) => {
                if let Some(ended) = self.take(cookie) {
                    // The waiter may no longer exist.
                    let _ = reply.send(ended);
                }
            }
            ReplyWaiter::Gone => drop(self.slots.take(cookie)),
        }
    }

    /// Called after a send. Hands over completed commands whose data has now been sent.
    pub fn settle(&mut self) {
        for cookie in std::mem::take(&mut self.leaving) {
            match self.slots.get(cookie).is_some_and(|task| task.is_leaving()) {
                true => self.leaving.push(cookie),
                false => self.hand_over(cookie),
            }
        }
    }

    /// Polls for the result of a command.
    pub fn poll(&mut self, cookie: u64, cx: &mut Context<'_>) -> Poll<NbdCommandResult> {
        if let Some(ended) = self.take(cookie) {
            return Poll::Ready(ended);
        }
        if let Some(task) = self.slots.get(cookie) {
            task.waiter = ReplyWaiter::Here(cx.waker().clone());
        }
        Poll::Pending
    }

    fn take(&mut self, cookie: u64) -> Option<NbdCommandResult> {
        self.slots.get(cookie).filter(|task| task.answer.is_some() && !task.is_leaving())?;
        let task = self.slots.take(cookie)?;
        let buf = match task.data {
            CommandData::None => None,
            CommandData::In(buf) => Some(buf),
            CommandData::Out(buf) => Rc::try_unwrap(buf).ok(),
        };
        task.answer.map(|answer| (answer, buf))
    }

    /// Abandons a command. While it is in flight, its buffer stays allocated until the reply.
    pub fn abandon(&mut self, cookie: u64) {
        let Some(task) = self.slots.get(cookie) else { return };
        task.waiter = ReplyWaiter::Gone;
        if task.answer.is_some() && !task.is_leaving() {
            self.slots.take(cookie);
        }
    }

    /// Ends the connection: all unanswered commands fail, and none is repeated.
    pub fn lost(&mut self, why: &str) {
        self.over.get_or_insert((io::ErrorKind::ConnectionReset, why.to_owned()));
        self.out = SendQueue::default();
        for at in 0..self.slots.slots.len() {
            let slot = &self.slots.slots[at];
            if slot.task.as_ref().is_some_and(|task| task.answer.is_none()) {
                let cookie = u64::from(slot.generation) << 32 | at as u64;
                self.end(cookie, Err(io::Error::new(io::ErrorKind::ConnectionReset, why)));
            }
        }
        self.settle();
    }
}

/// Errors of the protocol ("Error values"): number, kind, text.
const ERRORS: [(u32, io::ErrorKind, &str); 8] = [
    (1, io::ErrorKind::PermissionDenied, "operation not permitted"),
    (5, io::ErrorKind::Other, "input/output error"),
    (12, io::ErrorKind::OutOfMemory, "out of memory"),
    (22, io::ErrorKind::InvalidInput, "invalid argument"),
    (28, io::ErrorKind::StorageFull, "no space left on device"),
    (75, io::ErrorKind::InvalidInput, "value too large"),
    (95, io::ErrorKind::Unsupported, "operation not supported"),
    (108, io::ErrorKind::NotConnected, "the server is being stopped"),
];

/// Converts an error reported by the server.
fn refused(ServerError { errno, said }: ServerError) -> io::Error {
    let known = ERRORS.iter().find(|row| row.0 == errno);
    let kind = known.map_or(io::ErrorKind::Other, |row| row.1);
    let words = known.map_or_else(|| format!("error {errno}"), |row| row.2.to_owned());
    let said = if said.is_empty() { said } else { format!(" ({said})") };
    io::Error::new(kind, format!("the NBD server returned an error: {words}{said}"))
}
