//! SCSI commands: those that end on the spot, and the way of all others.

use super::command::{Attribute, Command};
use super::complete::Completion;
use super::front_end::FrontEnd;
use super::lun_map::{Found, LunHandle};
use super::nexus::State;
use super::pieces;
use super::response::Sent;
use super::task::Task;
use super::transfer::Arrival;
use crate::Unit;
use crate::exec::{Ended, Outcome};
use crate::registry::Which;
use lunar_block::Inline;
use lunar_runtime::{Buf, Pool};
use lunar_scsi::{Answer, Count, Failure, Plan};
use lunar_wire::scsi::{Sense, Status};
use std::sync::Arc;
use std::time::Instant;

/// Reads up to this are tried on the spot; longer ones would keep the core from its other connections.
const READ_NOW: u32 = 256 << 10;

/// What a read on the spot came to.
enum Read {
    Zeros,
    Done(Buf),
    Not,
}

/// Reads from the cache, or knows that all is zeros.
#[inline]
fn read_now(handle: &LunHandle, pool: &Pool, offset: u64, len: u32, room: u32) -> Read {
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

impl<F: FrontEnd> State<F> {
    /// Starts a command. Most end here; the others become tasks.
    #[inline]
    pub fn command(&mut self, c: Command, data: Arrival<'_>) {
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
                Read::Zeros => self.read_done(&c, Outcome::Zeros(len as usize), len),
                Read::Done(buf) => self.read_done(&c, Outcome::Medium(buf), len),
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
    fn brings_all(&self, c: &Command, data: &Arrival<'_>) -> bool {
        let whole = !c.has_unsolicited && data.bytes().len() == c.offered() as usize;
        whole && c.offered() <= self.front.immediate_limit()
    }

    #[inline]
    fn read_done(&mut self, c: &Command, outcome: Outcome, len: u32) {
        self.leave_gate(c, Count::ReadBytes, len);
        self.complete(c, Completion { moved: len.into(), ..Completion::of(Ok(outcome)) });
    }

    #[inline]
    fn write_done(&mut self, c: &Command, len: u32) {
        self.leave_gate(c, Count::WriteBytes, len);
        let (moved, written) = (u64::from(len), Some(len));
        self.complete(c, Completion { moved, written, ..Completion::of(Ok(Outcome::Good)) });
    }

    /// Steps out of the gate that a command entered on the spot; the logical unit counts what it did.
    #[inline]
    fn leave_gate(&mut self, c: &Command, count: Count, bytes: u32) {
        if let Found::Unit(handle) = self.luns.find(c.lun) {
            let part = handle.nexus.part();
            handle.unit.gate.leave(part);
            part.count(count, bytes as u64);
        }
    }

    /// A command that is inside the gate and has to wait for its medium.
    fn waits(&mut self, c: Command, plan: Plan, data: Arrival<'_>) {
        if !self.goes_direct(&c, &plan, &data) {
            self.inside(c, Ok(plan), data);
        }
    }

    /// A command that is inside the gate and did not end on the spot.
    fn inside(&mut self, c: Command, answer: Answer, data: Arrival<'_>) {
        let Found::Unit(handle) = self.luns.find(c.lun) else { return };
        // What is left to do waits for its turn again: a command that waits for its data must not keep others
        // out.
        handle.unit.gate.leave(handle.nexus.part());
        let place = (handle.unit.clone(), handle.nexus.id(), handle.nexus.epoch());
        let needs_no_more = !c.has_unsolicited && data.bytes().is_empty();
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
        self.complete(c, Completion { descriptor, ..Completion::of(ended) });
    }

    /// A command for no logical unit.
    fn elsewhere(&mut self, c: Command, decide: fn(&[u8]) -> Answer, data: Arrival<'_>) {
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
        data: Arrival<'_>,
    ) {
        let mut answer = answer;
        let in_pieces = pieces::suits(&c, place.as_ref().map(|(unit, ..)| &**unit), answer.as_ref());
        let receiving = self.receive_for(&c, &mut answer, data, in_pieces);
        let tag = c.tag;
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
        self.tasks.insert(tag, task);
        self.progress(tag);
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
    pub(super) fn keep_attention(&mut self, c: &Command, unit: &Arc<Unit>, untold: &Failure) {
        if let Some(sense) = untold.sense.filter(Sense::is_unit_attention)
            && let Some(handle) = self.luns.unit(c.lun, unit)
        {
            handle.nexus.tell_again(sense);
        }
    }

    /// Takes a task out, which is to be completed or released.
    pub(super) fn remove(&mut self, tag: u32) -> Option<Task> {
        let task = self.tasks.remove(&tag)?;
        self.count_ordered(&task.command, task.place.as_ref(), -1);
        if let (Some((unit, _)), Some(Err(untold))) = (&task.place, &task.answer) {
            self.keep_attention(&task.command, unit, untold);
        }
        Some(task)
    }

    /// Whether a task is aborted, or has ended already.
    pub(super) fn is_aborted(&self, tag: u32, serial: u64) -> bool {
        self.tasks.get(&tag).is_none_or(|t| t.serial != serial || t.aborted.is_some())
    }
}
