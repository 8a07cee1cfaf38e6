//! The commands of a queue: waiting, in flight, or ended.

use super::command::{NvmeCommand, NvmeResult};
use super::queue_load::QueueLoad;
use crate::session::completions::Completions;
use crate::{Direction, Error};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::Buf;
use lunar_wire::nvme::{Cqe, Sqe};
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

/// The waiter for a completion.
pub enum CompletionWaiter {
    /// Not yet known.
    Unknown,
    /// A task of this core.
    Here(Waker),
    /// A task of another core.
    There(flume::Sender<NvmeResult>),
    /// The owner of a queue of this core, and the number by which it knows the command.
    Among(Rc<Completions<u64>>, u32),
    /// The waiter is gone.
    Gone,
}

/// The buffer of a command.
pub enum QueueTaskData {
    /// There is none.
    None,
    /// Data from the controller.
    In(Buf),
    /// As `In`: the receiver has the buffer.
    Lent,
    /// Data from the host. The send queue shares it.
    Out(Rc<Buf>),
}

/// A command of a queue.
pub struct QueueTask {
    /// The entry, without identifier.
    pub sqe: Sqe,
    /// The buffer.
    pub data: QueueTaskData,
    /// Bytes of the buffer.
    pub len: usize,
    /// Whether it may be sent again.
    pub repeatable: bool,
    /// Whether no time limit applies.
    pub is_open_ended: bool,
    /// Whether less data than `len` may arrive.
    pub may_be_short: bool,
    /// The order in which commands are sent again.
    pub sequence: u64,
    /// The identifier while it is in flight.
    pub id: Option<u16>,
    /// Received bytes, or bytes that the controller has asked for.
    pub moved: usize,
    /// Whether its data leave in its capsule.
    pub in_capsule: bool,
    /// Whether the last data PDU has arrived.
    pub is_last: bool,
    /// Whether a data digest did not match.
    pub damaged: bool,
    /// When it was sent, or its data last moved.
    pub active_at: Option<Instant>,
    /// How often it was sent.
    pub sends: u32,
    /// The waiter.
    pub waiter: CompletionWaiter,
    /// The result.
    pub result: Option<Result<Cqe, Error>>,
    /// The range lock of a write.
    pub hold: Option<RangeLock>,
    /// Its part of the load of the queue.
    pub load: QueueLoad,
}

impl QueueTask {
    /// A command that has not been sent.
    #[inline(always)]
    pub fn new(command: NvmeCommand, sequence: u64, waiter: CompletionWaiter) -> QueueTask {
        let len = command.data.expected();
        QueueTask {
            sqe: command.sqe,
            data: match command.data {
                Direction::None => QueueTaskData::None,
                Direction::In(buf) => QueueTaskData::In(buf),
                Direction::Out(buf) => QueueTaskData::Out(Rc::new(buf)),
            },
            len,
            repeatable: command.repeatable,
            is_open_ended: command.is_open_ended,
            may_be_short: command.may_be_short,
            sequence,
            id: None,
            moved: 0,
            in_capsule: false,
            is_last: false,
            damaged: false,
            active_at: None,
            sends: command.sends,
            waiter,
            result: None,
            hold: command.hold,
            load: command.load,
        }
    }

    /// Whether it reads from the controller.
    pub fn is_in(&self) -> bool {
        matches!(self.data, QueueTaskData::In(_) | QueueTaskData::Lent)
    }

    /// Whether parts of its buffer are still queued for sending.
    pub fn is_leaving(&self) -> bool {
        matches!(&self.data, QueueTaskData::Out(buf) if Rc::strong_count(buf) > 1)
    }

    /// Whether its waiter is gone.
    pub fn is_abandoned(&self) -> bool {
        matches!(self.waiter, CompletionWaiter::Gone)
    }

    /// Whether a completion with success is possible now: all data have moved.
    pub fn is_complete(&self) -> bool {
        match self.data {
            QueueTaskData::None => true,
            QueueTaskData::In(_) | QueueTaskData::Lent => self.may_be_short || self.moved == self.len,
            QueueTaskData::Out(_) => self.in_capsule || self.moved == self.len,
        }
    }

    /// Prepares it for the next connection.
    pub fn rewind(&mut self) {
        if let QueueTaskData::Lent = self.data {
            // The buffer went with the receiver of the lost connection.
            self.data = QueueTaskData::In(Buf::zeroed(self.len));
        }
        (self.id, self.moved, self.active_at) = (None, 0, None);
        (self.in_capsule, self.is_last, self.damaged) = (false, false, false);
    }

    /// The command again, for another queue, and its waiter.
    pub fn into_command(self) -> (NvmeCommand, CompletionWaiter) {
        let data = match self.data {
            QueueTaskData::None => Direction::None,
            QueueTaskData::In(buf) => Direction::In(buf),
            QueueTaskData::Lent => Direction::In(Buf::zeroed(self.len)),
            QueueTaskData::Out(buf) => {
                Direction::Out(Rc::try_unwrap(buf).unwrap_or_else(|shared| Buf::copy_of(&shared)))
            }
        };
        let command = NvmeCommand {
            repeatable: self.repeatable,
            is_open_ended: self.is_open_ended,
            may_be_short: self.may_be_short,
            hold: self.hold,
            sends: self.sends,
            ..NvmeCommand::new(self.sqe, data)
        };
        (command, self.waiter)
    }

    /// Takes the result and the buffer, if the send queue does not share it. None: it has not ended.
    #[inline(always)]
    fn take_result(&mut self) -> Option<NvmeResult> {
        let result = self.result.take()?;
        let buf = match std::mem::replace(&mut self.data, QueueTaskData::None) {
            QueueTaskData::None | QueueTaskData::Lent => None,
            QueueTaskData::In(buf) => Some(buf),
            QueueTaskData::Out(buf) => Rc::try_unwrap(buf).ok(),
        };
        Some((result, buf))
    }
}

#[derive(Default)]
struct QueueTaskSlot {
    generation: u32,
    task: Option<QueueTask>,
}

/// The commands by key. A key of an earlier command matches none.
#[derive(Default)]
pub struct QueueTasks {
    slots: Vec<QueueTaskSlot>,
    free: Vec<u32>,
}

impl QueueTasks {
    /// Adds a command and returns its key. Inline, so that the task is built in its slot.
    #[inline(always)]
    pub fn add(&mut self, task: QueueTask) -> u64 {
        let at = self.free.pop().unwrap_or(self.slots.len() as u32);
        if at as usize == self.slots.len() {
            self.slots.push(QueueTaskSlot::default());
        }
        let slot = &mut self.slots[at as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.task = Some(task);
        u64::from(slot.generation) << 32 | u64::from(at)
    }

    #[inline]
    fn slot(&mut self, key: u64) -> Option<&mut QueueTaskSlot> {
        let slot = self.slots.get_mut(key as u32 as usize)?;
        (slot.generation == (key >> 32) as u32).then_some(slot)
    }

    /// The command with this key.
    #[inline]
    pub fn get(&mut self, key: u64) -> Option<&mut QueueTask> {
        self.slot(key)?.task.as_mut()
    }

    /// Removes a command.
    pub fn remove(&mut self, key: u64) -> Option<QueueTask> {
        let task = self.slot(key)?.task.take()?;
        self.free.push(key as u32);
        Some(task)
    }

    /// Removes a command that has ended and whose buffer is free.
    #[inline(always)]
    pub fn take_ended(&mut self, key: u64) -> Option<NvmeResult> {
        let slot = self.slot(key)?;
        let ended = slot.task.as_mut().filter(|task| !task.is_leaving())?.take_result()?;
        // The task ends in its slot: to move it would cost more than all else here.
        slot.task = None;
        self.free.push(key as u32);
        Some(ended)
    }
}
