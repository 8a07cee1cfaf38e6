//! The commands of a session and their tags.

use super::completions::Completions;
use crate::command::Rest;
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

/// Bits of a tag that name its slot.
const SLOT_BITS: u32 = 16;
const SLOTS: u32 = (1 << SLOT_BITS) - 1;
/// Sense key (SPC-5 section 4.4.8).
const UNIT_ATTENTION: u8 = 6;
/// Tries of a command that may be repeated.
pub const TRIES: u8 = 6;
/// Tags with this bit are those of requests that are no commands.
pub const CONTROL: u32 = 1 << 31;

/// How far a command has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// It waits for its place in the command window.
    Queued,
    /// The target has it.
    Sent,
    /// It was sent on a connection that is lost, and the target may still carry it out.
    Orphaned,
    /// Answered; its owner may not have taken the answer yet, and parts of its buffer may still be being sent.
    Answered,
}

/// The owner of a command.
#[derive(Debug)]
pub enum Waiter {
    /// A future on this core that has not been polled yet.
    Unknown,
    /// A future on this core.
    Here(Waker),
    /// A batch on this core, and its name for this command.
    Among(Rc<Completions>, u32),
    /// An owner on another core, and its number for the command.
    There(flume::Sender<CommandResult>, u64),
    /// The owner waits no longer.
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
    /// None.
    None,
    /// Data-In: the buffer (away while a segment lands in it), and how much has come, in order.
    In(Option<Buf>, u32),
    /// Data-Out: the buffer.
    Out(Rc<Buf>),
}

/// A command that has not been taken back by its owner.
#[derive(Debug)]
pub struct Task {
    /// Initiator Task Tag.
    pub tag: u32,
    /// The eight bytes of the LUN.
    pub lun: u64,
    /// Its CDB.
    pub cdb: Cdb,
    /// What it has behind 16 bytes.
    pub rest: Option<Box<Rest>>,
    /// Its attribute.
    pub attribute: TaskAttribute,
    /// It may be sent again.
    pub repeatable: bool,
    /// It may change the medium, or the state of the logical unit.
    pub changes: bool,
    /// Its place before all others: identity checks of a new session.
    pub urgent: bool,
    /// How far it has come.
    pub state: TaskState,
    /// Its data.
    pub data: Data,
    /// Expected Data Transfer Length.
    pub expected: u32,
    /// The bytes of Data-In that have come, where they may come in any order: apart, and in rising order.
    pub pieces: Vec<(u32, u32)>,
    /// CmdSN of its latest sending.
    pub cmd_sn: u32,
    /// What has left, in bytes, when the latest of it has.
    pub end: u64,
    /// Data-In and R2T PDUs that have come for it: DataSN or R2TSN of the next one.
    pub data_sn: u32,
    /// Times that it was sent.
    pub tries: u8,
    /// When it was handed in.
    pub since: Instant,
    /// When it was sent last, or seen to leave behind other bytes; while it waits to be sent, since when.
    pub sent: Instant,
    /// How long it has waited to be sent.
    pub queued: Duration,
    /// The owner.
    pub waiter: Waiter,
    /// Of a write: the bytes that no other command may write while this exists.
    pub hold: Option<RangeLock>,
    /// Of an orphan: the target port of the connection that is lost, where that is known.
    pub port: Option<Box<TargetPort>>,
    /// It was an orphan.
    pub waited: bool,
    /// Its owner wants its end: it is not sent again.
    pub aborting: bool,
    /// Its owner is to hear that its time is over.
    pub expired: Option<Error>,
    /// Its time is over: how it ends as soon as the target carries it out no more.
    pub overdue: Option<Error>,
    /// How it ended.
    pub answer: Option<Result<Completion, Error>>,
}

impl Task {
    /// Its buffer, as it is given back. One that is away, landing on a connection that was lost, is replaced.
    #[inline]
    fn take_buf(&mut self) -> Option<Buf> {
        match std::mem::replace(&mut self.data, Data::None) {
            Data::None => None,
            Data::In(buf, _) => buf.or_else(|| self.spare_buf()),
            Data::Out(buf) => Some(Rc::try_unwrap(buf).unwrap_or_else(|shared| copy_of(&shared))),
        }
    }

    /// A buffer in place of one that cannot be given back yet. What was to be written is in it: its owner may write
    /// it by another way.
    fn spare_buf(&self) -> Option<Buf> {
        match &self.data {
            Data::Out(buf) => Some(copy_of(buf)),
            Data::None | Data::In(..) => (self.expected > 0).then(|| Buf::zeroed(self.expected as usize)),
        }
    }

    /// It has not ended, and has not been found late.
    pub fn is_due(&self) -> bool {
        self.answer.is_none() && self.overdue.is_none()
    }

    /// Its owner waits no longer.
    pub fn is_abandoned(&self) -> bool {
        match &self.waiter {
            Waiter::Gone => true,
            Waiter::There(reply, _) => reply.is_disconnected(),
            Waiter::Unknown | Waiter::Here(_) | Waiter::Among(..) => false,
        }
    }

    /// Its owner waits, and a repetition does no harm. An owner that got a time-out has done something else since.
    pub fn may_be_sent_again(&self) -> bool {
        let is_wanted = !self.is_abandoned() && self.expired.is_none() && self.overdue.is_none();
        is_wanted && !self.urgent && !self.aborting && self.repeatable && self.tries < TRIES
    }

    /// Takes the data out of what is still being sent: a copy of them is sent later.
    fn leave_behind(&mut self) {
        if self.is_leaving()
            && let Data::Out(buf) = &mut self.data
        {
            *buf = Rc::new(copy_of(buf));
        }
    }

    /// Parts of its buffer are still being sent.
    pub fn is_leaving(&self) -> bool {
        matches!(&self.data, Data::Out(buf) if Rc::strong_count(buf) > 1)
    }

    /// Back to where it was before it was sent.
    pub fn rewind(&mut self, now: Instant) {
        self.leave_behind();
        self.state = TaskState::Queued;
        self.sent = now;
        self.data_sn = 0;
        self.pieces.clear();
        let expected = self.expected as usize;
        match &mut self.data {
            Data::None | Data::Out(_) => {}
            Data::In(buf, received) => {
                // It may have been away, landing on the connection that was lost.
                buf.get_or_insert_with(|| Buf::zeroed(expected));
                *received = 0;
            }
        }
    }
}

fn copy_of(buf: &Buf) -> Buf {
    let mut copy = Buf::zeroed(buf.len());
    copy.copy_from_slice(buf);
    copy
}

/// How a command that was an orphan has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OrphanOutcome {
    /// GOOD.
    Succeeded,
    /// With an answer after which its owner sends it again: a unit attention, or that the target is busy (SAM-5 section 5.3).
    Repeated,
    /// With an error.
    Failed,
}

impl OrphanOutcome {
    fn of(answer: &Result<Completion, Error>) -> OrphanOutcome {
        let Ok(completion) = answer else { return OrphanOutcome::Failed };
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

/// The tasks of a session, found by tag in one step.
#[derive(Debug, Default)]
pub struct Tasks {
    slots: Vec<Slot>,
    free: Vec<u16>,
    count: usize,
    /// How many commands that were orphans have ended in which way.
    waited: [usize; 3],
}

fn place(tag: u32) -> (usize, u16) {
    ((tag & SLOTS) as usize, (tag >> SLOT_BITS) as u16)
}

/// The slot in the tag of a command; None if it is another's.
#[inline]
pub fn slot(tag: u32) -> Option<usize> {
    (tag & CONTROL == 0).then(|| place(tag).0)
}

impl Tasks {
    /// There is no tag left.
    pub fn is_full(&self) -> bool {
        self.count >= SLOTS as usize
    }

    /// Takes a command in and gives it a tag; not to be called when it is full.
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
            rest: command.rest,
            attribute: command.attribute,
            repeatable: command.repeatable,
            changes: command.changes,
            urgent: false,
            state: TaskState::Queued,
            data,
            expected,
            pieces: Vec::new(),
            cmd_sn: 0,
            end: 0,
            data_sn: 0,
            tries: 0,
            since: command.since.unwrap_or(now),
            sent: now,
            queued: Duration::ZERO,
            waiter,
            hold: command.hold,
            port: None,
            waited: false,
            aborting: false,
            expired: None,
            overdue: None,
            answer: None,
        });
        self.count += 1;
        tag
    }

    /// The task of a tag.
    #[inline]
    pub fn get(&mut self, tag: u32) -> Option<&mut Task> {
        let (at, generation) = place(tag);
        let slot = self.slots.get_mut(at)?;
        if slot.generation == generation { slot.task.as_mut() } else { None }
    }

    /// The task of a tag, if the target has it.
    #[inline]
    pub fn sent(&mut self, tag: u32) -> Option<&mut Task> {
        self.get(tag).filter(|task| task.state == TaskState::Sent)
    }

    /// Ends a task whose owner has taken its answer, or does not want it.
    #[inline]
    pub fn forget(&mut self, tag: u32) {
        let (at, generation) = place(tag);
        if let Some(slot) = self.slots.get_mut(at).filter(|slot| slot.generation == generation)
            && slot.task.is_some()
        {
            slot.task = None;
            self.free.push(at as u16);
            self.count -= 1;
        }
    }

    /// Records the end of a task and wakes its owner. While parts of its buffer are being sent it stays.
    #[inline]
    pub fn finish(&mut self, tag: u32, answer: Result<Completion, Error>) {
        let Some(task) = self.get(tag) else { return };
        let was_orphan = task.waited && task.answer.is_none();
        let end = if was_orphan { OrphanOutcome::of(&answer) } else { OrphanOutcome::Failed };
        task.answer.get_or_insert(answer);
        task.state = TaskState::Answered;
        if !task.is_leaving() {
            self.hand_over(tag);
        }
        if was_orphan {
            self.waited[end as usize] += 1;
        }
    }

    /// How many commands that were orphans have ended in which way since this was asked last, by [`OrphanOutcome`].
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
                    // The caller may wait no longer.
                    let _ = reply.send(finished);
                }
            }
            Waiter::Gone => self.forget(tag),
            here => here.wake(tag),
        }
    }

    /// The end of a task for its owner, if there is one.
    #[inline(always)]
    pub fn take(&mut self, tag: u32) -> Option<CommandResult> {
        let task = self.get(tag)?;
        if let Some(error) = task.expired.take() {
            task.waiter = Waiter::Gone;
            let finished = (Err(error), task.spare_buf());
            if task.answer.is_some() && !task.is_leaving() {
                self.forget(tag);
            }
            return Some(finished);
        }
        if task.answer.is_none() || task.is_leaving() {
            return None;
        }
        // Taken out in place: a task is a large thing to move.
        let finished = (task.answer.take()?, task.take_buf());
        self.forget(tag);
        Some(finished)
    }

    /// Its owner waits no longer. If the target has the task, it may still move its data: the task stays, and
    /// its buffer with it.
    pub fn expire(&mut self, tag: u32, error: Error) {
        let Some(task) = self.get(tag).filter(|t| t.answer.is_none()) else { return };
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

    /// Its owner has gone.
    pub fn abandon(&mut self, tag: u32) {
        let Some(task) = self.get(tag) else { return };
        task.waiter = Waiter::Gone;
        // To its owner it is over: newer writes of the same bytes must not pass it.
        if let Some(hold) = task.hold.as_ref().filter(|_| task.answer.is_none()) {
            hold.make_exclusive();
        }
        let over = task.answer.is_some() && !task.is_leaving();
        if over || task.state == TaskState::Queued {
            self.forget(tag);
        }
    }

    /// Forgets those that wait to be sent and whose owners on other cores have gone: what they hold is free.
    pub fn forget_abandoned(&mut self) {
        let gone = |t: &&mut Task| t.state == TaskState::Queued && t.is_abandoned();
        let gone: Vec<u32> = self.iter().filter(gone).map(|t| t.tag).collect();
        gone.into_iter().for_each(|tag| self.forget(tag));
    }

    /// All tasks.
    pub fn iter(&mut self) -> impl Iterator<Item = &mut Task> {
        self.slots.iter_mut().filter_map(|slot| slot.task.as_mut())
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }
}
