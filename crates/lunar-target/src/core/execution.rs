//! A task on its way through the task set: how it stands to others, and its end.

use super::command::{Attribute, Command};
use super::complete::Completion;
use super::front_end::FrontEnd;
use super::late::Waited;
use super::lun_map::Found;
use super::nexus::{ItNexus, State};
use super::task::Task;
use crate::Unit;
use crate::exec::Ended;
use crate::fence::{Fence, InFlight};
use crate::gate::{Entry, Inside, Member};
use lunar_scsi::{Answer, Failure, Order};
use lunar_wire::scsi::Sense;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

/// How a task ended.
pub(super) struct TaskEnd {
    /// What it came to.
    pub ended: Ended,
    /// Bytes of Data-Out that its CDB asked for.
    pub moved: u64,
    /// Bytes that a WRITE has put on the medium.
    pub written: Option<u32>,
}

impl TaskEnd {
    /// Of a task that asked for no data.
    pub fn of(ended: Ended) -> TaskEnd {
        TaskEnd { ended, moved: 0, written: None }
    }
}

/// A task on its way through task set, device server and backend.
pub(super) struct TaskExecution<F: FrontEnd> {
    /// Its I_T nexus.
    pub nexus: Rc<ItNexus<F>>,
    /// Names the task in its nexus.
    pub serial: u64,
    /// Its command.
    pub command: Command,
    pub unit: Option<Arc<Unit>>,
    pub answer: Option<Answer>,
    pub epoch: u64,
    pub medium: u64,
    /// The gate of its logical unit, and how it steps in.
    pub gate: Option<(Member, Entry)>,
    /// When its command arrived, if that is counted.
    pub began: Option<Instant>,
    /// Its data come piece by piece while it runs.
    pub in_pieces: bool,
}

/// What holds a command's place among others while it is carried out.
pub(super) type Within = (Inside, InFlight<Arc<Fence>>);

/// What the command table says of a command, where it waits for others and for data.
pub(super) struct Standing {
    /// Its core's place at the gate.
    pub member: Member,
    /// How it steps in.
    pub entry: Entry,
    /// It takes as much Data-Out as its CDB asks for, or none.
    pub exact: bool,
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Passes the gate; None when the command is aborted, or comes too late. It does not wait on then: what is inside may
    /// never come out by itself, and others wait behind it.
    pub async fn step_in(&self, member: &Member, entry: Entry, waited: &Waited) -> Option<Within> {
        let nexus = &self.nexus;
        let inside = nexus.unless_aborted(&self.command, self.serial, member.step_in(entry));
        let inside = waited.at(inside).await?;
        let is_aborted = nexus.state().is_aborted(self.command.tag, self.serial);
        let under_way = (!is_aborted).then(|| nexus.lets_begin(&self.command, self.serial, waited));
        let under_way = under_way.flatten()?;
        Some((inside, under_way))
    }

    /// While it waited, the unit may have gone, or its medium may have become another one.
    pub fn is_still_meant(&self, unit: &Unit) -> Result<(), Failure> {
        if unit.lu.epoch() != self.epoch
            && let Some(status) = unit.lu.refuses()
        {
            return Err(status.into());
        }
        if unit.lu.medium() == self.medium { Ok(()) } else { Err(Sense::MEDIUM_CHANGED.into()) }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// How a command stands to others of its logical unit, and to its data.
    ///
    /// None when its LUN is another logical unit by now, or none.
    pub(super) fn standing(&self, c: &Command, unit: &Arc<Unit>) -> Option<Standing> {
        let mut state = self.state();
        let handle = state.luns.unit(c.lun, unit)?;
        let entry = match (c.attribute, handle.nexus.order(c.cdb())) {
            // Who carries it out keeps the order: one command that hangs there is to stop no other host here.
            _ if unit.passage().is_some() => Entry::Ahead,
            (Attribute::Ordered, _) | (_, Order::Exclusive) => Entry::Alone,
            (Attribute::HeadOfQueue, _) => Entry::Ahead,
            (Attribute::Simple, _) => Entry::Beside,
        };
        Some(Standing { member: handle.member(), entry, exact: handle.nexus.takes_exactly(c.cdb()) })
    }

    /// Waits until no older task of this session stands in the way: ORDERED waits for all, SIMPLE for the
    /// ORDERED ones (SAM-5 section 8.6). The gate keeps that order among sessions, but
    /// for what is in no gate between its parts: copies, and WRITEs in pieces.
    pub(super) async fn in_order(&self, c: &Command, serial: u64) {
        let stands_before = |t: &Task| {
            let ordered = c.attribute == Attribute::Ordered || t.command.attribute == Attribute::Ordered;
            t.serial < serial && t.command.lun == c.lun && ordered
        };
        // Mostly there is none that is ORDERED.
        let nobody = match self.state().luns.find(c.lun) {
            Found::Unit(handle) => handle.ordered == 0,
            Found::WellKnown | Found::Absent => false,
        };
        if c.attribute != Attribute::HeadOfQueue && !nobody {
            self.wait_until(|s| {
                let mine = s.tasks.get(&c.tag);
                mine.is_none_or(|t| t.aborted.is_some()) || !s.tasks.values().any(stands_before)
            })
            .await;
        }
    }

    /// What a command comes to, with its parameter data if it has some.
    pub(super) fn decide(&self, c: &Command, unit: &Arc<Unit>, parameters: Option<&[u8]>) -> Answer {
        match (self.state().luns.unit(c.lun, unit), parameters) {
            (Some(handle), None) => handle.begin(c.cdb()),
            (Some(handle), Some(data)) => handle.nexus.parameters(c.cdb(), data),
            (None, _) => Err(Sense::LUN_NOT_SUPPORTED.into()),
        }
    }

    /// What a command comes to that has begun, and goes on behind a part of its data.
    pub(super) fn go_on(&self, c: &Command, unit: &Arc<Unit>) -> Answer {
        let mut state = self.state();
        let handle = state.luns.unit(c.lun, unit).ok_or(Sense::LUN_NOT_SUPPORTED)?;
        handle.nexus.go_on(c.cdb())
    }

    /// Waits for what outlives its command, or until the command is aborted: then None.
    pub(super) async fn unless_aborted<T>(
        &self,
        c: &Command,
        serial: u64,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let abort = self.wait_until(|s| s.is_aborted(c.tag, serial));
        let (mut work, mut abort) = (pin!(work), pin!(abort));
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending => abort.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    /// Counts the time that a command took to be carried out.
    pub(super) fn count_front(&self, began: Option<Instant>) {
        let Some(began) = began else { return };
        let state = self.state();
        state.info.visit.get().into_iter().for_each(|visit| visit.instance().front.add(began.elapsed()));
    }

    /// A task is over: its answer goes out, unless it was aborted.
    pub(super) fn end_task(self: &Rc<Self>, tag: u32, serial: u64, end: TaskEnd) {
        let mut state = self.state();
        if state.tasks.get(&tag).is_none_or(|t| t.serial != serial) {
            return;
        }
        let Some(task) = state.remove(tag) else { return };
        state.answer(&task, end);
        drop(state);
        self.notify();
        F::flush_soon(self);
    }
}

impl<F: FrontEnd> State<F> {
    fn answer(&mut self, task: &Task, TaskEnd { ended, moved, written }: TaskEnd) {
        let (c, sent) = (&task.command, task.sent);
        let Some(how) = task.aborted else {
            let descriptor = match self.luns.find(c.lun) {
                Found::Unit(handle) => handle.nexus.sense_format(),
                Found::WellKnown | Found::Absent => false,
            };
            return self.complete(c, Completion { ended, moved, written, descriptor, sent });
        };
        if let (Some((unit, _)), Err(untold)) = (&task.place, &ended) {
            self.keep_attention(c, unit, untold);
        }
        match how.answer() {
            Some(failure) => self.complete(c, Completion { sent, ..Completion::of(Err(failure)) }),
            None => self.front.release(c),
        }
    }
}
