//! The commands of a session and their tags.

use super::completions::Completions;
use super::parts::Parts;
use super::task_pipe::TaskPipe;
use crate::command::ExtendedCdb;
use crate::nexus::TargetPort;
use crate::{Command, CommandResult, Completion, Error};
use lunar_block::range_lock::RangeLock;
use lunar_runtime::Buf;
use lunar_wire::scsi::Status;
use lunar_wire::scsi::TaskAttribute;
use lunar_wire::scsi::cdb::Cdb;
use std::rc::Rc;
use std::task::Waker;
use std::time::{Duration, Instant};

/// The number of tag bits that contain the slot.
const SLOT_BITS: u32 = 16;
const SLOTS: u32 = (1 << SLOT_BITS) - 1;
/// A sense key (SPC-5 section 4.4.8).
const UNIT_ATTENTION: u8 = 6;
/// The maximum number of attempts of a repeatable command.
pub const TRIES: u8 = 6;
/// The bit that marks tags of requests other than SCSI commands.
pub const CONTROL: u32 = 1 << 31;

/// The state of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for the command window.
    Queued,
    /// The target has the command.
    Sent,
    /// Was sent on a lost connection. The target may still execute it.
    Orphaned,
    /// Was answered. The owner may not have taken the result yet, and parts of the buffer may still be in the send
    /// queue.
    Completed,
}

/// The owner of a command.
#[derive(Debug)]
pub enum Waiter {
    /// A future on this core that has not been polled.
    Unknown,
    /// A future on this core.
    Here(Waker),
    /// A batch on this core, and the batch's number for the command.
    Among(Rc<Completions>, u32),
    /// An owner on another core, and the owner's number for the command.
    There(flume::Sender<CommandResult>, u64),
    /// The owner no longer waits.
    Gone,
}

impl Waiter {
    /// Wakes an owner on this core.
    #[inline]
    fn wake(self, tag: u32) {
        match self {
            Waiter::Here(waker) => waker.wake(),
            Waiter::Among(ends, name) => ends.add(name, tag),
            Waiter::Unknown | Waiter::There(..) | Waiter::Gone => {}
        }
    }
}

/// The data of a command.
#[derive(Debug)]
pub enum Data {
    /// No data.
    None,
    /// Data-In: the buffer without the parts that were split off, and the number of bytes received in order. The
    /// buffer is None while a segment is received into it.
    In(Option<Buf>, u32),
    /// Data-Out: the buffer.
    Out(Rc<Buf>),
}

/// A command whose result the owner has not taken yet.
#[derive(Debug)]
pub struct Task {
    /// Initiator Task Tag.
    pub tag: u32,
    /// The eight bytes of the LUN.
    pub lun: u64,
    /// The first 16 bytes of the CDB.
    pub cdb: Cdb,
    /// The CDB bytes after the first 16.
    pub extended_cdb: Option<Box<ExtendedCdb>>,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// Whether it may be sent again.
    pub repeatable: bool,
    /// Whether it may change the medium or the state of the logical unit.
    pub changes: bool,
    /// Whether it precedes all others, as an identity check does.
    pub urgent: bool,
    /// The state.
    pub state: TaskState,
    /// The data.
    pub data: Data,
    /// Expected Data Transfer Length.
    pub expected: u32,
    /// The received ranges of Data-In, if any order is permitted: disjoint and ascending.
    pub pieces: Vec<(u32, u32)>,
    /// The parts of a read whose owner takes them before the command ends.
    pub parts: Option<Box<Parts>>,
    /// The pipe of a read whose owner sends the data on.
    pub pipe: Option<Box<TaskPipe>>,
    /// The CmdSN of the last transmission.
    pub cmd_sn: u32,
    /// The number of bytes sent on the connection up to the end of its last PDU.
    pub end: u64,
    /// The number of received Data-In and R2T PDUs, which is the next DataSN or R2TSN.
    pub data_sn: u32,
    /// The number of transmissions.
    pub tries: u8,
    /// The time of submission.
    pub started_at: Instant,
    /// The start of the time limit: the time of the last transmission or, later, when bytes before it were last being
    /// sent. For a queued command, the time when it was queued.
    pub sent: Instant,
    /// The time spent in the queue.
    pub queued: Duration,
    /// The owner.
    pub waiter: Waiter,
    /// The range lock of a write.
    pub hold: Option<RangeLock>,
    /// The target port of an orphan's lost connection, if known.
    pub port: Option<Box<TargetPort>>,
    /// Whether it has been an orphan.
    pub waited: bool,
    /// Whether the owner has requested an abort, so that the command is not resent.
    pub aborting: bool,
    /// The error that the owner gets for a timeout while the target may still transfer data.
    pub expired: Option<Error>,
    /// The error for the operation timeout, which the owner gets once the target can no longer execute the command.
    pub overdue: Option<Error>,
    /// The result.
    pub result: Option<Result<Completion, Error>>,
}

impl Task {
    /// The number of bytes that were split off the buffer of a read.
    #[inline]
    pub fn split(&self) -> usize {
        self.parts.as_ref().map_or(0, |parts| parts.split())
    }

    /// The length of the buffer of a read.
    fn buffer_len(&self) -> usize {
        self.expected as usize - self.split()
    }

    /// Takes the buffer to return to the owner. A new one replaces a buffer that a receive of a lost connection still
    /// uses.
    #[inline]
    fn take_buf(&mut self) -> Option<Buf> {
        match std::mem::replace(&mut self.data, Data::None) {
            Data::None => None,
            Data::In(buf, _) => buf.or_else(|| self.spare_buf()),
            Data::Out(buf) => Some(Rc::try_unwrap(buf).unwrap_or_else(|shared| Buf::copy_of(&shared))),
        }
    }

    /// A replacement while the original buffer cannot be returned. For a write it contains the data, so that the
    /// owner can write them on another path.
    fn spare_buf(&self) -> Option<Buf> {
        match &self.data {
            Data::Out(buf) => Some(Buf::copy_of(buf)),
            Data::None | Data::In(..) => (self.expected > 0).then(|| Buf::zeroed(self.buffer_len())),
        }
    }

    /// Whether the command has neither ended nor timed out.
    pub fn is_due(&self) -> bool {
        self.result.is_none() && self.overdue.is_none()
    }

    /// Whether the owner no longer waits.
    pub fn is_abandoned(&self) -> bool {
        match &self.waiter {
            Waiter::Gone => true,
            Waiter::There(reply, _) => reply.is_disconnected(),
            Waiter::Unknown | Waiter::Here(_) | Waiter::Among(..) => false,
        }
    }

    /// Whether the command may be resent: the owner waits, and the command is repeatable. An owner that got a timeout
    /// may have continued since.
    pub fn may_be_sent_again(&self) -> bool {
        let is_wanted = !self.is_abandoned() && self.expired.is_none() && self.overdue.is_none();
        is_wanted && !self.urgent && !self.aborting && self.repeatable && self.tries < TRIES
    }

    /// Copies data that the send queue still uses, for a later transmission.
    fn leave_behind(&mut self) {
        if self.is_leaving()
            && let Data::Out(buf) = &mut self.data
        {
            *buf = Rc::new(Buf::copy_of(buf));
        }
    }

    /// Whether parts of the buffer are still in the send queue.
    pub fn is_leaving(&self) -> bool {
        matches!(&self.data, Data::Out(buf) if Rc::strong_count(buf) > 1)
    }

    /// Resets the task to its state before the transmission.
    pub fn rewind(&mut self, now: Instant) {
        self.leave_behind();
        self.state = TaskState::Queued;
        self.sent = now;
        self.data_sn = 0;
        self.pieces.clear();
        // The next transmission uses the buffer.
        self.pipe = None;
        let len = self.buffer_len();
        match &mut self.data {
            Data::None | Data::Out(_) => {}
            Data::In(buf, received) => {
                // A receive of the lost connection may still use the buffer.
                buf.get_or_insert_with(|| Buf::zeroed(len));
                *received = 0;
            }
        }
    }
}

/// The result of a command that was an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrphanOutcome {
    /// GOOD.
    Succeeded,
    /// Unit attention, BUSY or TASK SET FULL: the owner sends the command again (SAM-5 section 5.3).
    Repeated,
    /// An error.
    Failed,
}

impl OrphanOutcome {
    fn of(result: &Result<Completion, Error>) -> OrphanOutcome {
        let Ok(completion) = result else { return OrphanOutcome::Failed };
        let is = |status: Status| completion.status == status as u8;
        let is_attention = completion.sense().is_some_and(|sense| sense.key == UNIT_ATTENTION);
        match is(Status::Good) {
            true => OrphanOutcome::Succeeded,
            false if is_attention || is(Status::Busy) || is(Status::TaskSetFull) => OrphanOutcome::Repeated,
            false => OrphanOutcome::Failed,
        }
    }
}

#[derive(Debug, Default)]
struct Slot {
    generation: u16,
    task: Option<Task>,
}

/// The tasks of a session, indexed by tag.
#[derive(Debug, Default)]
pub struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u16>,
    count: usize,
    /// The number of former orphans for each [`OrphanOutcome`].
    waited: [usize; 3],
}

fn slot_and_generation(tag: u32) -> (usize, u16) {
    ((tag & SLOTS) as usize, (tag >> SLOT_BITS) as u16)
}

/// The slot in the tag of a command. None for tags of other requests.
#[inline]
pub fn slot(tag: u32) -> Option<usize> {
    (tag & CONTROL == 0).then(|| slot_and_generation(tag).0)
}

impl Tasks {
    /// Whether no tag is free.
    pub fn is_full(&self) -> bool {
        self.count >= SLOTS as usize
    }

    /// Adds a command and assigns its tag. A tag must be free.
    pub fn insert(&mut self, command: Command, waiter: Waiter, now: Instant) -> u32 {
        let at = self.free.pop().map_or(self.slots.len(), usize::from);
        if at == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let slot = &mut self.slots[at];
        slot.generation = (slot.generation + 1) & 0x7fff;
        let tag = (slot.generation as u32) << SLOT_BITS | at as u32;
        let expected = command.data.expected() as u32;
        let data = match command.data {
            crate::Direction::None => Data::None,
            crate::Direction::In(buf) => Data::In(Some(buf), 0),
            crate::Direction::Out(buf) => Data::Out(Rc::new(buf)),
        };
        slot.task = Some(Task {
            tag,
            lun: command.lun,
            cdb: command.cdb,
            extended_cdb: command.extended_cdb,
            attribute: command.attribute,
            repeatable: command.repeatable,
            changes: command.changes,
            urgent: false,
            state: TaskState::Queued,
            data,
            expected,
            pieces: Vec::new(),
            parts: None,
            pipe: None,
            cmd_sn: 0,
            end: 0,
            data_sn: 0,
            tries: 0,
            started_at: command.started_at.unwrap_or(now),
            sent: now,
            queued: Duration::ZERO,
            waiter,
            hold: command.hold,
            port: None,
            waited: false,
            aborting: false,
            expired: None,
            overdue: None,
            result: None,
        });
        self.count += 1;
        tag
    }

    /// The task of a tag.
    #[inline]
    pub fn get(&mut self, tag: u32) -> Option<&mut Task> {
        let (at, generation) = slot_and_generation(tag);
        let slot = self.slots.get_mut(at)?;
        if slot.generation == generation { slot.task.as_mut() } else { None }
    }

    /// The task of a tag, to look at.
    pub fn at(&self, tag: u32) -> Option<&Task> {
        let (at, generation) = slot_and_generation(tag);
        let slot = self.slots.get(at).filter(|slot| slot.generation == generation)?;
        slot.task.as_ref()
    }

    /// The task of a tag, if the target has the command.
    #[inline]
    pub fn sent(&mut self, tag: u32) -> Option<&mut Task> {
        self.get(tag).filter(|task| task.state == TaskState::Sent)
    }

    /// Removes a task whose owner has taken or abandoned the result.
    #[inline]
    pub fn forget(&mut self, tag: u32) {
        let (at, generation) = slot_and_generation(tag);
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.generation == generation)
            && slot.task.is_some()
        {
            slot.task = None;
            self.free.push(at as u16);
            self.count -= 1;
        }
    }

    /// Records the result of a task and wakes its owner. The task remains while parts of its buffer are in the send
    /// queue.
    #[inline]
    pub fn finish(&mut self, tag: u32, result: Result<Completion, Error>) {
        let Some(task) = self.get(tag) else { return };
        let was_orphan = task.waited && task.result.is_none();
        let end = if was_orphan { OrphanOutcome::of(&result) } else { OrphanOutcome::Failed };
        task.result.get_or_insert(result);
        task.state = TaskState::Completed;
        if !task.is_leaving() {
            self.hand_over(tag);
        }
        if was_orphan {
            self.waited[end as usize] += 1;
        }
    }

    /// The number of former orphans for each [`OrphanOutcome`] since the last call.
    pub fn count_waited(&mut self) -> [usize; 3] {
        std::mem::take(&mut self.waited)
    }

    /// Wakes the owner of an answered task.
    #[inline]
    pub fn hand_over(&mut self, tag: u32) {
        let Some(task) = self.get(tag) else { return };
        match std::mem::replace(&mut task.waiter, Waiter::Unknown) {
            Waiter::There(reply, _) => {
                if let Some(finished) = self.take(tag) {
                    // The caller may have stopped waiting.
                    let _ = reply.send(finished);
                }
            }
            Waiter::Gone => self.forget(tag),
            here => here.wake(tag),
        }
    }

    /// Takes the result of a task for its owner, if the task has ended.
    #[inline(always)]
    pub fn take(&mut self, tag: u32) -> Option<CommandResult> {
        let task = self.get(tag)?;
        if let Some(error) = task.expired.take() {
            task.waiter = Waiter::Gone;
            let finished = (Err(error), task.spare_buf());
            if task.result.is_some() && !task.is_leaving() {
                self.forget(tag);
            }
            return Some(finished);
        }
        if task.result.is_none() || task.is_leaving() {
            return None;
        }
        // Taken in place, because moving a task is expensive.
        let finished = (task.result.take()?, task.take_buf());
        self.forget(tag);
        Some(finished)
    }

    /// Ends a task for its owner with this error. If the target has the command, it may still transfer data, so the
    /// task and its buffer remain.
    pub fn expire(&mut self, tag: u32, error: Error) {
        let Some(task) = self.get(tag).filter(|t| t.result.is_none()) else { return };
        if task.state == TaskState::Queued {
            return self.finish(tag, Err(error));
        }
        match std::mem::replace(&mut task.waiter, Waiter::Gone) {
            Waiter::There(reply, _) => drop(reply.send((Err(error), task.spare_buf()))),
            Waiter::Gone => {}
            here => {
                task.expired = Some(error);
                task.waiter = Waiter::Unknown;
                here.wake(tag);
            }
        }
    }

    /// Handles the drop of the owner.
    pub fn abandon(&mut self, tag: u32) {
        let Some(task) = self.get(tag) else { return };
        task.waiter = Waiter::Gone;
        // The owner continues. Newer writes to the same bytes must not overtake this one.
        if let Some(hold) = task.hold.as_ref().filter(|_| task.result.is_none()) {
            hold.make_exclusive();
        }
        let over = task.result.is_some() && !task.is_leaving();
        if over || task.state == TaskState::Queued {
            self.forget(tag);
        }
    }

    /// Removes unsent tasks whose owners on other cores were dropped. This releases their range locks.
    pub fn forget_abandoned(&mut self) {
        let gone = |t: &&mut Task| t.state == TaskState::Queued && t.is_abandoned();
        let gone: Vec<u32> = self.iter().filter(gone).map(|t| t.tag).collect();
        gone.into_iter().for_each(|tag| self.forget(tag));
    }

    /// All tasks.
    pub fn iter(&mut self) -> impl Iterator<Item = &mut Task> {
        self.slots.iter_mut().filter_map(|slot| slot.task.as_mut())
    }

    /// The number of tasks.
    pub fn count(&self) -> usize {
        self.count
    }
}
