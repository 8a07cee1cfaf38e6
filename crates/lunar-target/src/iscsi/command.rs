//! SCSI commands: those that end on the spot, and the way of all others.

use super::connection::{Connection, Session};
use super::late::{READS, Waited};
use super::letters::Around;
use super::luns::{Found, Handle};
use super::parts::{self, Room};
use super::pass::passes;
use super::pieces;
use super::receive::Data;
use super::respond::{Sent, Source};
use super::task::{Attribute, Command, Task};
use crate::Unit;
use crate::exec::{self, Ended, Outcome};
use crate::fence::{Fence, InFlight};
use crate::gate::{Entry, Inside, Member};
use crate::registry::Which;
use lunar_block::Inline;
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{Answer, Count, Failure, Op, Order, Plan};
use lunar_wire::scsi::{Sense, Status, op};
use std::cmp::Ordering;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// Reads up to this are tried on the spot; longer ones would keep the core from its other connections.
const READ_NOW: u32 = 256 << 10;

/// How long a READ waits for a buffer.
const ROOM: Duration = Duration::from_secs(2);

/// What a read on the spot came to.
enum Read {
    Zeros,
    Done(Buf),
    Not,
}

/// Reads from the cache, or knows that all is zeros.
#[inline]
fn read_now(handle: &Handle, pool: &Pool, offset: u64, len: u32, room: u32) -> Read {
    if handle.null {
        return Read::Zeros;
    }
    let n = len.min(room);
    if n == 0 || n > READ_NOW || handle.is_afar {
        return Read::Not;
    }
    let Some(mut buf) = pool.try_get(n as usize) else { return Read::Not };
    match handle.backend.read_now(offset, &mut buf) {
        Inline::Done(Ok(())) => Read::Done(buf),
        _ => Read::Not,
    }
}

impl Session {
    /// Starts a command. Most end here; the others become tasks.
    #[inline]
    pub fn command(&mut self, c: Command, data: Data<'_>) {
        self.info.counters.commands.add(1);
        let brings = self.brings_all(&c, &data);
        let handle = match self.luns.find(c.lun) {
            Found::Unit(handle) => handle,
            Found::WellKnown => return self.elsewhere(c, lunar_scsi::well_known, data),
            Found::Absent => return self.elsewhere(c, lunar_scsi::absent, data),
        };
        if c.attribute != Attribute::Simple
            || handle.ordered > 0
            || self.recalling.is_some()
            || !handle.unit.gate.try_enter(handle.nexus.part())
        {
            let is_recalled =
                |which: &Which| which.names(&handle.unit, handle.nexus.id()).then_some(Status::Busy);
            let recalled = self.recalling.as_ref().and_then(is_recalled);
            // Who is busy says so at once: at the gate it could be a long wait.
            if let Some(status) = recalled.or_else(|| handle.unit.lu.refuses()) {
                return self.task(c, None, Some(Err(status.into())), data);
            }
            let place = (handle.unit.clone(), handle.nexus.id(), handle.unit.lu.epoch());
            return self.task(c, Some(place), None, data);
        }
        match handle.begin(c.cdb()) {
            Ok(Plan::Read { offset, len }) => match read_now(handle, &self.pool, offset, len, c.room()) {
                Read::Not => self.waits(c, Plan::Read { offset, len }, data),
                Read::Zeros => self.read_done(&c, Source::Zeros, len),
                Read::Done(buf) => self.read_done(&c, Source::Buf(buf), len),
            },
            Ok(Plan::Write { offset, len, stable }) if brings && len == c.offered() => {
                let now =
                    if stable { Inline::WouldWait } else { handle.backend.write_now(offset, data.bytes()) };
                match now {
                    Inline::Done(Ok(())) => self.write_done(&c, len),
                    _ => self.waits(c, Plan::Write { offset, len, stable }, data),
                }
            }
            answer => self.inside(c, answer, data),
        }
    }

    /// All of a command's Data-Out came with it, as it may.
    #[inline]
    fn brings_all(&self, c: &Command, data: &Data<'_>) -> bool {
        let p = &self.parameters;
        let whole = c.is_final && data.bytes().len() == c.offered() as usize;
        whole && p.immediate_data && c.offered() <= p.first_burst_length
    }

    #[inline]
    fn read_done(&mut self, c: &Command, source: Source, len: u32) {
        self.leave(c, Count::ReadBytes, len);
        self.info.counters.reads.add(1);
        self.info.counters.read_bytes.add(len as u64);
        self.finished(c);
        self.data_in(c, source, len as usize);
    }

    #[inline]
    fn write_done(&mut self, c: &Command, len: u32) {
        self.leave(c, Count::WriteBytes, len);
        self.info.counters.writes.add(1);
        self.info.counters.write_bytes.add(len as u64);
        self.finished(c);
        self.status(c, Status::Good, len as u64, 0);
    }

    /// Steps out of the gate that a command entered on the spot; the logical unit counts what it did.
    #[inline]
    fn leave(&mut self, c: &Command, count: Count, bytes: u32) {
        if let Found::Unit(handle) = self.luns.find(c.lun) {
            let part = handle.nexus.part();
            handle.unit.gate.leave(part);
            part.count(count, bytes as u64);
        }
    }

    /// The command has ended: its place in the window is free.
    #[inline]
    pub fn finished(&mut self, c: &Command) {
        if c.immediate {
            self.immediate_live -= 1;
        } else {
            self.window.finished();
        }
    }

    /// A command that is inside the gate and has to wait for its medium.
    fn waits(&mut self, c: Command, plan: Plan, data: Data<'_>) {
        if !self.goes_straight(&c, &plan, &data) {
            self.inside(c, Ok(plan), data);
        }
    }

    /// A command that is inside the gate and did not end on the spot.
    fn inside(&mut self, c: Command, answer: Answer, data: Data<'_>) {
        let Found::Unit(handle) = self.luns.find(c.lun) else { return };
        // What is left to do waits for its turn again: a command that waits for its data must not keep others
        // out.
        handle.unit.gate.leave(handle.nexus.part());
        let place = (handle.unit.clone(), handle.nexus.id(), handle.nexus.epoch());
        let needs_no_more = c.is_final && data.bytes().is_empty();
        match answer {
            Ok(Plan::Done) if needs_no_more => self.finish_now(&c, Ok(Outcome::Good), false),
            Ok(Plan::Data(d)) if needs_no_more => self.finish_now(&c, Ok(Outcome::Data(d)), false),
            Err(f) if needs_no_more && c.offered() == 0 => {
                let descriptor = handle.nexus.sense_format();
                self.finish_now(&c, Err(f), descriptor);
            }
            answer => self.task(c, Some(place), Some(answer), data),
        }
    }

    fn finish_now(&mut self, c: &Command, ended: Ended, descriptor: bool) {
        self.finished(c);
        self.end(c, ended, 0, descriptor);
    }

    /// A command for no logical unit.
    fn elsewhere(&mut self, c: Command, decide: fn(&[u8]) -> Answer, data: Data<'_>) {
        let answer = decide(c.cdb());
        self.task(c, None, Some(answer), data);
    }

    /// Makes a task of a command; it runs once its data is here. A place bears the epoch that its answer, if it
    /// has one, is of.
    fn task(
        &mut self,
        c: Command,
        place: Option<(Arc<Unit>, lunar_scsi::NexusId, u64)>,
        answer: Option<Answer>,
        data: Data<'_>,
    ) {
        let mut answer = answer;
        let in_pieces = pieces::suits(&c, place.as_ref().map(|(unit, ..)| &**unit), answer.as_ref());
        let receiving = self.receive_for(&c, &mut answer, data, in_pieces);
        let itt = c.itt;
        self.serial += 1;
        let receiving = Some(receiving);
        let epoch = place.as_ref().map_or(0, |(.., epoch)| *epoch);
        let medium = place.as_ref().map_or(0, |(unit, ..)| unit.lu.medium());
        let place = place.map(|(unit, nexus, _)| (unit, nexus));
        self.count_ordered(&c, place.as_ref(), 1);
        let task = Task {
            serial: self.serial,
            command: c,
            place,
            reaches: Vec::new(),
            epoch,
            medium,
            aborted: None,
            receiving,
            answer,
            sent: Sent::default(),
            began: self.info.visit.get().map(|_| Instant::now()),
        };
        self.tasks.insert(itt, task);
        self.progress(itt);
    }

    /// While ORDERED commands are unfinished, those that come after them wait.
    fn count_ordered(&mut self, c: &Command, place: Option<&(Arc<Unit>, lunar_scsi::NexusId)>, by: i32) {
        if c.attribute == Attribute::Ordered
            && let Some((unit, _)) = place
            && let Some(handle) = self.luns.unit(c.lun, unit)
        {
            // Never below zero: the LUN may have been another one meanwhile.
            handle.ordered = (handle.ordered + by).max(0);
        }
    }

    /// A unit attention that its initiator does not hear of now is to be told later.
    fn keep_attention(&mut self, c: &Command, unit: &Arc<Unit>, untold: &Failure) {
        if let Some(sense) = untold.sense.filter(Sense::is_unit_attention)
            && let Some(handle) = self.luns.unit(c.lun, unit)
        {
            handle.nexus.tell_again(sense);
        }
    }

    /// Takes a task out; its place in the window is free.
    pub fn remove(&mut self, itt: u32) -> Option<Task> {
        let task = self.tasks.remove(&itt)?;
        self.count_ordered(&task.command, task.place.as_ref(), -1);
        if let (Some((unit, _)), Some(Err(untold))) = (&task.place, &task.answer) {
            self.keep_attention(&task.command, unit, untold);
        }
        self.finished(&task.command);
        Some(task)
    }

    /// Whether a task is aborted, or has ended already.
    pub fn is_aborted(&self, itt: u32, serial: u64) -> bool {
        self.tasks.get(&itt).is_none_or(|t| t.serial != serial || t.aborted.is_some())
    }

    /// Runs a task whose data is here.
    pub fn launch(&mut self, itt: u32, data: Option<Buf>) {
        let Some(task) = self.tasks.get_mut(&itt) else { return };
        let mut run = Run {
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
        let Some(conn) = self.conn.upgrade() else { return };
        lunar_runtime::spawn(async move {
            let (ended, moved) = run.perform(&conn, data).await;
            if run.in_pieces {
                conn.rest_of_data(run.command.itt, run.serial).await;
            }
            conn.end_task(run.command.itt, run.serial, ended, moved);
        });
    }
}

/// A task on its way through gate, device server and backend.
pub struct Run {
    /// Names the task on its connection.
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
pub type Within = (Inside, InFlight<Arc<Fence>>);

/// What the command table says of a command, where it waits for others and for data.
pub struct Standing {
    /// Its core's place at the gate.
    pub member: Member,
    /// How it steps in.
    pub entry: Entry,
    /// It takes as much Data-Out as its CDB asks for, or none.
    exact: bool,
}

impl Run {
    /// How the command ends, and the bytes of Data-Out that its CDB asked for.
    async fn perform(&mut self, conn: &Rc<Connection>, mut data: Option<Buf>) -> (Ended, u64) {
        let answer = self.answer.take();
        let Some(unit) = self.unit.clone() else {
            let answer = answer.unwrap_or(Err(Sense::LUN_NOT_SUPPORTED.into()));
            return (exec::without_unit(answer, &self.around(conn)), 0);
        };
        let Some(Standing { member, entry, exact }) = conn.standing(&self.command, &unit) else {
            return gone();
        };
        self.gate = Some((member.clone(), entry));
        let waited = Waited::default();
        waited.at(conn.in_order(&self.command, self.serial)).await;
        let room = match waited.at(self.room_to_read(conn, &unit, answer.as_ref())).await {
            Ok(room) => room,
            Err(status) => return (Err(status.into()), 0),
        };
        let inside = self.step_in(conn, &member, entry, &waited).await;
        let Some((inside, under_way)) = inside else { return untold(answer) };
        if let Err(failure) = self.is_still_meant(&unit) {
            return (Err(failure), 0);
        }
        // While it waited, a reservation, write protection, the size or the write cache may have changed.
        let stands = |a: &Answer| !a.as_ref().is_ok_and(moves) || unit.lu.epoch() == self.epoch;
        let plan = match answer.filter(stands).unwrap_or_else(|| conn.decide(&self.command, &unit, None)) {
            Ok(plan) => plan,
            Err(f) => return (Err(f), 0),
        };
        conn.count_front(self.began);
        let needed = plan.data_out_len();
        if passes(&plan) {
            // Boxed, so that other commands carry none of it about.
            return (Box::pin(self.pass(conn, &unit, data, room.first)).await, 0);
        }
        if let Some(sense) = misfit(&self.command, needed, exact) {
            return (Err(sense.into()), needed.into());
        }
        if let (true, &Plan::Write { offset, len, stable }) = (self.in_pieces, &plan) {
            let (write, within) = (pieces::Write { offset, len, stable }, (inside, under_way));
            let work = self.write_in_pieces(conn, &unit, write, within);
            return (Box::pin(work).await, needed.into());
        }
        cut(&mut data, needed as usize);
        let plan = match plan {
            Plan::Read { offset, len } if room.is_cut_to(len as usize) => {
                let ended = Box::pin(self.read_in_parts(conn, &unit, offset, room)).await;
                return (ended, 0);
            }
            Plan::Parameters { .. } => {
                conn.decide(&self.command, &unit, Some(data.take().as_deref().unwrap_or_default()))
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
        (self.carry_out(conn, &unit, plan, data).await, needed as u64)
    }

    /// Executes a plan. After MODE SELECT the write cache may be off: what it holds has to be stable first.
    async fn carry_out(
        &self,
        conn: &Rc<Connection>,
        unit: &Arc<Unit>,
        plan: Answer,
        data: Option<Buf>,
    ) -> Ended {
        let plan = plan?;
        if MODE_SELECT.contains(&self.command.cdb()[0]) {
            exec::flush(unit).await?;
        }
        self.execute(conn, unit, plan, data).await
    }

    /// Passes the gate; None when the command is aborted, or comes too late. It does not wait on then: what is inside may
    /// never come out by itself, and others wait behind it.
    pub async fn step_in(
        &self,
        conn: &Connection,
        member: &Member,
        entry: Entry,
        waited: &Waited,
    ) -> Option<Within> {
        let inside = conn.unless_aborted(&self.command, self.serial, member.step_in(entry));
        let inside = waited.at(inside).await?;
        let is_aborted = conn.session.borrow().is_aborted(self.command.itt, self.serial);
        let under_way = (!is_aborted).then(|| conn.lets_begin(self.serial, waited)).flatten()?;
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
    async fn room_to_read(
        &self,
        conn: &Connection,
        unit: &Unit,
        answer: Option<&Answer>,
    ) -> Result<Room, Status> {
        let offered = self.command.room() as usize;
        let len = match answer {
            _ if unit.passage().is_some() => offered,
            Some(Ok(Plan::Read { len, .. })) => *len as usize,
            _ if READS.contains(&self.command.cdb()[0]) => offered,
            _ => 0,
        };
        let wanted = len > 0 && len <= Pool::MAX_BUFFER;
        if !wanted || (unit.passage().is_none() && unit.backend().facts().null) {
            return Ok(Room::default());
        }
        // What the initiator has no room for is not sent early either.
        let stride = unit.backend().stride().filter(|_| len <= offered);
        let mut room = Room::default();
        for len in parts::lengths(len, stride) {
            let part = self.buffer(conn, len).await?;
            match &mut room.first {
                None => room.first = Some(part),
                Some(_) => room.rest.push(part),
            }
        }
        Ok(room)
    }

    async fn buffer(&self, conn: &Connection, len: usize) -> Result<Buf, Status> {
        if let Some(buf) = conn.pool.try_get(len) {
            return Ok(buf);
        }
        let room = compio::time::timeout(ROOM, conn.pool.get(len));
        match conn.unless_aborted(&self.command, self.serial, room).await {
            Some(Ok(buf)) => Ok(buf),
            // Who is aborted is not answered, whatever it ends with.
            Some(Err(_)) | None => Err(Status::TaskSetFull),
        }
    }

    fn around<'a>(&self, conn: &'a Connection) -> Around<'a> {
        Around { conn, itt: self.command.itt, serial: self.serial, gate: self.gate.clone() }
    }

    async fn execute(&self, conn: &Rc<Connection>, unit: &Arc<Unit>, plan: Plan, data: Option<Buf>) -> Ended {
        let written = plan.written_len();
        let reports = matches!(&plan, Plan::Op(op) if matches!(**op, Op::ReportLuns { .. }));
        // A PREEMPT AND ABORT waits for tasks, among which may be one that waits for this.
        let goes_on = sanitizes(&plan) || preempts(&plan);
        let around = self.around(conn);
        let work = exec::run(unit, &conn.pool, plan, data, &around);
        let ended = match goes_on {
            true => conn.unless_aborted(&self.command, self.serial, work).await.unwrap_or_else(|| gone().0),
            false => work.await,
        };
        if ended.is_ok() {
            conn.note(written, reports);
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
fn untold(answer: Option<Answer>) -> (Ended, u64) {
    answer.and_then(Result::err).map_or_else(gone, |failure| (Err(failure), 0))
}

fn gone() -> (Ended, u64) {
    (Err(Failure::from(Sense::LUN_NOT_SUPPORTED)), 0)
}

impl Connection {
    /// How a command stands to others of its logical unit, and to its data.
    ///
    /// None when its LUN is another logical unit by now, or none.
    pub fn standing(&self, c: &Command, unit: &Arc<Unit>) -> Option<Standing> {
        let mut session = self.session.borrow_mut();
        let handle = session.luns.unit(c.lun, unit)?;
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
        let nobody = match self.session.borrow_mut().luns.find(c.lun) {
            Found::Unit(handle) => handle.ordered == 0,
            Found::WellKnown | Found::Absent => false,
        };
        if c.attribute != Attribute::HeadOfQueue && !nobody {
            self.wait_until(|s| {
                let mine = s.tasks.get(&c.itt);
                mine.is_none_or(|t| t.aborted.is_some()) || !s.tasks.values().any(stands_before)
            })
            .await;
        }
    }

    /// What a command comes to, with its parameter data if it has some.
    pub fn decide(&self, c: &Command, unit: &Arc<Unit>, parameters: Option<&[u8]>) -> Answer {
        match (self.session.borrow_mut().luns.unit(c.lun, unit), parameters) {
            (Some(handle), None) => handle.begin(c.cdb()),
            (Some(handle), Some(data)) => handle.nexus.parameters(c.cdb(), data),
            (None, _) => Err(Sense::LUN_NOT_SUPPORTED.into()),
        }
    }

    /// What a command comes to that has begun, and goes on behind a part of its data.
    pub fn go_on(&self, c: &Command, unit: &Arc<Unit>) -> Answer {
        let mut session = self.session.borrow_mut();
        let handle = session.luns.unit(c.lun, unit).ok_or(Sense::LUN_NOT_SUPPORTED)?;
        handle.nexus.go_on(c.cdb())
    }

    /// Waits for what outlives its command, or until the command is aborted: then None.
    pub async fn unless_aborted<T>(
        &self,
        c: &Command,
        serial: u64,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        let abort = self.wait_until(|s| s.is_aborted(c.itt, serial));
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
        let session = self.session.borrow();
        session.info.visit.get().into_iter().for_each(|visit| visit.instance().front.add(began.elapsed()));
    }

    /// Counts what a command did, and what the initiator knows by it.
    pub fn note(&self, written: Option<u32>, luns_reported: bool) {
        let mut session = self.session.borrow_mut();
        if let Some(bytes) = written {
            session.info.counters.writes.add(1);
            session.info.counters.write_bytes.add(bytes as u64);
        }
        if luns_reported {
            session.luns.used().for_each(|h| h.nexus.luns_reported());
        }
    }

    /// A task is over: its answer goes out, unless it was aborted.
    pub fn end_task(self: &Rc<Self>, itt: u32, serial: u64, ended: Ended, moved: u64) {
        let mut session = self.session.borrow_mut();
        if session.tasks.get(&itt).is_none_or(|t| t.serial != serial) {
            return;
        }
        let Some(task) = session.remove(itt) else { return };
        let (c, sent) = (&task.command, task.sent);
        match task.aborted {
            Some(how) => {
                if let (Some((unit, _)), Err(untold)) = (&task.place, &ended) {
                    session.keep_attention(c, unit, untold);
                }
                if let Some(failure) = how.answer() {
                    session.failure_after(c, failure, false, sent);
                }
            }
            None => {
                let descriptor = match session.luns.find(c.lun) {
                    Found::Unit(h) => h.nexus.sense_format(),
                    _ => false,
                };
                match ended {
                    Ok(Outcome::Medium(rest)) if sent.bytes > 0 => session.data_in_rest(c, rest, sent),
                    Err(failure) if sent.bytes > 0 => session.failure_after(c, failure, descriptor, sent),
                    ended => session.end(c, ended, moved, descriptor),
                }
            }
        }
        drop(session);
        self.task_ended.notify(usize::MAX);
        self.flush_soon();
    }
}
