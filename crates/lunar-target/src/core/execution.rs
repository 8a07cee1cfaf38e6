//! A task on its way through task set, device server and backend.

use super::command::{Attribute, Command};
use super::complete::Completion;
use super::context::TaskContext;
use super::cut_through::{self, ReadBuffers};
use super::front_end::FrontEnd;
use super::late::{READS, Waited};
use super::lun_map::Found;
use super::nexus::{ItNexus, State};
use super::passthrough::passes;
use super::pieces;
use super::task::Task;
use crate::Unit;
use crate::exec::{self, Ended};
use crate::fence::{Fence, InFlight};
use crate::gate::{Entry, Inside, Member};
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{Answer, Failure, Op, Order, Plan};
use lunar_wire::scsi::{Sense, Status, op};
use std::cmp::Ordering;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// How long a READ waits for a buffer.
const ROOM: Duration = Duration::from_secs(2);

impl<F: FrontEnd> State<F> {
    /// Runs a task whose data is here.
    pub(super) fn launch(&mut self, tag: u32, data: Option<Buf>) {
        let Some(task) = self.tasks.get_mut(&tag) else { return };
        let Some(nexus) = self.me.upgrade() else { return };
        let mut execution = TaskExecution {
            nexus,
            serial: task.serial,
            command: task.command.clone(),
            unit: task.place.as_ref().map(|(unit, _)| unit.clone()),
            answer: task.answer.take(),
            epoch: task.epoch,
            medium: task.medium,
            gate: None,
            began: task.began,
            in_pieces: task.receiving.is_some(),
        };
        lunar_runtime::spawn(async move {
            let ended = execution.perform(data).await;
            let TaskExecution { nexus, command, serial, in_pieces, .. } = &execution;
            if *in_pieces {
                nexus.rest_of_data(command.tag, *serial).await;
            }
            nexus.end_task(command.tag, *serial, ended);
        });
    }
}

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
    fn of(ended: Ended) -> TaskEnd {
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
    unit: Option<Arc<Unit>>,
    answer: Option<Answer>,
    epoch: u64,
    medium: u64,
    /// The gate of its logical unit, and how it steps in.
    gate: Option<(Member, Entry)>,
    /// When its command arrived, if that is counted.
    began: Option<Instant>,
    /// Its data come piece by piece while it runs.
    in_pieces: bool,
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
    exact: bool,
}

impl<F: FrontEnd> TaskExecution<F> {
    /// How the command ends.
    async fn perform(&mut self, mut data: Option<Buf>) -> TaskEnd {
        let nexus = self.nexus.clone();
        let answer = self.answer.take();
        let Some(unit) = self.unit.clone() else {
            let answer = answer.unwrap_or(Err(Sense::LUN_NOT_SUPPORTED.into()));
            return TaskEnd::of(exec::without_unit(answer, &self.context()));
        };
        let Some(Standing { member, entry, exact }) = nexus.standing(&self.command, &unit) else {
            return TaskEnd::of(gone());
        };
        self.gate = Some((member.clone(), entry));
        let waited = Waited::default();
        waited.at(nexus.in_order(&self.command, self.serial)).await;
        let room = match waited.at(self.read_buffers(&unit, answer.as_ref())).await {
            Ok(room) => room,
            Err(status) => return TaskEnd::of(Err(status.into())),
        };
        let inside = self.step_in(&member, entry, &waited).await;
        let Some((inside, under_way)) = inside else { return TaskEnd::of(untold(answer)) };
        if let Err(failure) = self.is_still_meant(&unit) {
            return TaskEnd::of(Err(failure));
        }
        // While it waited, a reservation, write protection, the size or the write cache may have changed.
        let stands = |a: &Answer| !a.as_ref().is_ok_and(moves) || unit.lu.epoch() == self.epoch;
        let plan = match answer.filter(stands).unwrap_or_else(|| nexus.decide(&self.command, &unit, None)) {
            Ok(plan) => plan,
            Err(f) => return TaskEnd::of(Err(f)),
        };
        nexus.count_front(self.began);
        let needed = plan.data_out_len();
        if passes(&plan) {
            // Boxed, so that other commands carry none of it about.
            return TaskEnd::of(Box::pin(self.pass(&unit, data, room.first)).await);
        }
        if let Some(sense) = misfit(&self.command, needed, exact) {
            return TaskEnd { moved: needed.into(), ..TaskEnd::of(Err(sense.into())) };
        }
        if let (true, &Plan::Write { offset, len, stable }) = (self.in_pieces, &plan) {
            let (write, within) = (pieces::Write { offset, len, stable }, (inside, under_way));
            let ended = Box::pin(self.write_in_pieces(&unit, write, within)).await;
            return TaskEnd { ended, moved: needed.into(), written: Some(len) };
        }
        cut(&mut data, needed as usize);
        let plan = match plan {
            Plan::Read { offset, len } if room.is_cut_to(len as usize) => {
                return TaskEnd::of(Box::pin(self.read_in_parts(&unit, offset, room)).await);
            }
            Plan::Parameters { .. } => {
                nexus.decide(&self.command, &unit, Some(data.take().as_deref().unwrap_or_default()))
            }
            Plan::Read { offset, len } => {
                data = room.whole(len as usize);
                Ok(Plan::Read { offset, len })
            }
            plan => Ok(plan),
        };
        let plan = exec::keep(&unit, plan).await;
        // While it sanitizes, the logical unit answers others at once: that it does. PREEMPT AND ABORT waits
        // for tasks that may wait at the gate themselves. And a copy passes other gates, which it must not
        // wait for while it is inside this one.
        let _inside = if plan.as_ref().is_ok_and(leaves) {
            drop(inside);
            None
        } else {
            Some(inside)
        };
        let written = plan.as_ref().ok().and_then(Plan::written_len);
        let ended = self.carry_out(&unit, plan, data).await;
        TaskEnd { ended, moved: needed.into(), written }
    }

    /// Executes a plan. After MODE SELECT the write cache may be off: what it holds has to be stable first.
    async fn carry_out(&self, unit: &Arc<Unit>, plan: Answer, data: Option<Buf>) -> Ended {
        let plan = plan?;
        if MODE_SELECT.contains(&self.command.cdb()[0]) {
            exec::flush(unit).await?;
        }
        self.execute(unit, plan, data).await
    }

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

    /// The buffer of a READ. It is taken before the gate, where nobody waits for one. And it is not waited for
    /// without end: those who hold all others may wait until this READ is over.
    async fn read_buffers(&self, unit: &Unit, answer: Option<&Answer>) -> Result<ReadBuffers, Status> {
        let offered = self.command.room() as usize;
        let len = match answer {
            _ if unit.passage().is_some() => offered,
            Some(Ok(Plan::Read { len, .. })) => *len as usize,
            _ if READS.contains(&self.command.cdb()[0]) => offered,
            _ => 0,
        };
        let wanted = len > 0 && len <= Pool::MAX_BUFFER;
        if !wanted || (unit.passage().is_none() && unit.backend().facts().null) {
            return Ok(ReadBuffers::default());
        }
        // What the initiator has no room for is not sent early either.
        let stride = unit.backend().stride().filter(|_| len <= offered);
        let mut room = ReadBuffers::default();
        for len in cut_through::lengths(len, stride) {
            let part = self.buffer(len).await?;
            match &mut room.first {
                None => room.first = Some(part),
                Some(_) => room.rest.push(part),
            }
        }
        Ok(room)
    }

    async fn buffer(&self, len: usize) -> Result<Buf, Status> {
        if let Some(buf) = self.nexus.pool().try_get(len) {
            return Ok(buf);
        }
        let room = compio::time::timeout(ROOM, self.nexus.pool().get(len));
        match self.nexus.unless_aborted(&self.command, self.serial, room).await {
            Some(Ok(buf)) => Ok(buf),
            // Who is aborted is not answered, whatever it ends with.
            Some(Err(_)) | None => Err(Status::TaskSetFull),
        }
    }

    fn context(&self) -> TaskContext<'_, F> {
        let (nexus, command, gate) = (&self.nexus, &self.command, self.gate.clone());
        TaskContext { nexus, command, serial: self.serial, gate }
    }

    async fn execute(&self, unit: &Arc<Unit>, plan: Plan, data: Option<Buf>) -> Ended {
        let reports = matches!(&plan, Plan::Op(op) if matches!(**op, Op::ReportLuns { .. }));
        // A PREEMPT AND ABORT waits for tasks, among which may be one that waits for this.
        let goes_on = sanitizes(&plan) || preempts(&plan);
        let context = self.context();
        let work = exec::run(unit, self.nexus.pool(), plan, data, &context);
        let ended = match goes_on {
            true => self.nexus.unless_aborted(&self.command, self.serial, work).await.unwrap_or_else(gone),
            false => work.await,
        };
        if ended.is_ok() && reports {
            self.nexus.state().luns.used().for_each(|h| h.nexus.luns_reported());
        }
        ended
    }
}

/// It names bytes of the medium, and deciding it again changes nothing.
fn moves(plan: &Plan) -> bool {
    let of_medium = |op: &Op| {
        matches!(
            op,
            Op::Prefetch { .. }
                | Op::Verify { .. }
                | Op::WriteVerify { .. }
                | Op::WriteAtomic { .. }
                | Op::CompareAndWrite { .. }
                | Op::OrWrite { .. }
                | Op::WriteSame { .. }
                | Op::LbaStatus { .. }
        )
    };
    match plan {
        Plan::Read { .. } | Plan::Write { .. } => true,
        Plan::Op(op) => of_medium(op),
        _ => false,
    }
}

fn leaves(plan: &Plan) -> bool {
    sanitizes(plan) || matches!(plan, Plan::Op(op) if matches!(**op, Op::Preempt { .. } | Op::Copy { .. }))
}

fn preempts(plan: &Plan) -> bool {
    matches!(plan, Plan::Op(op) if matches!(**op, Op::Preempt { .. }))
}

/// What outlives its command.
fn sanitizes(plan: &Plan) -> bool {
    matches!(plan, Plan::Op(op) if matches!(**op, Op::Sanitize { .. }))
}

const MODE_SELECT: [u8; 2] = [op::MODE_SELECT_6, op::MODE_SELECT_10];

/// Why a command's Data-Out does not fit its CDB. Of more than the CDB asks for, the rest is not taken, unless the amount is
/// part of the meaning (`exact`): then the CDB asks for too little. Less is refused as a whole (FCP-4 section 9.4.2).
fn misfit(c: &Command, needed: u32, exact: bool) -> Option<Sense> {
    match c.offered().cmp(&needed) {
        Ordering::Less => Some(Sense::INVALID_FIELD_IN_COMMAND_IU),
        Ordering::Greater if exact => Some(Sense::INVALID_FIELD_IN_CDB),
        Ordering::Equal | Ordering::Greater => None,
    }
}

/// Hides what was offered beyond what the CDB asks for.
fn cut(data: &mut Option<Buf>, needed: usize) {
    if let Some(buf) = data.as_mut().filter(|buf| buf.len() > needed) {
        buf.set_visible(needed);
    }
}

/// The end of an aborted command. A unit attention that it was to report is kept by who ends it.
fn untold(answer: Option<Answer>) -> Ended {
    answer.and_then(Result::err).map_or_else(gone, Err)
}

fn gone() -> Ended {
    Err(Failure::from(Sense::LUN_NOT_SUPPORTED))
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
    async fn in_order(&self, c: &Command, serial: u64) {
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
    fn count_front(&self, began: Option<Instant>) {
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
