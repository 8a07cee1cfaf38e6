//! Task management (SAM-5 section 7).

use super::front_end::{FrontEnd, InFlightData};
use super::lun_map::Found;
use super::nexus::{ItNexus, Life, State};
use super::task::{Aborted, Task};
use crate::registry::{Indeterminate, Letter, Which};
use crate::session::Info;
use crate::shared::Shared;
use crate::{Unit, exec};
use lunar_proto::window::precedes;
use lunar_scsi::NexusId;
use lunar_wire::iscsi::lun;
use lunar_wire::iscsi::request;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// How long the data of aborted tasks is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same of a session that ends: it has forgotten which units it used, so it is waited for whatever it did.
const AT_THE_END: Duration = Duration::from_millis(100);
/// How long the end of tasks elsewhere is waited for: shorter than Open-iSCSI waits for ABORT TASK, which is 15 s.
const CERTAINTY: Duration = Duration::from_secs(10);
/// Tasks that may still be carried out elsewhere and are remembered. A function looks for its own as soon as they have ended.
const INDETERMINATE: usize = 4096;
/// So often that time is given anew to who takes what it gets.
const TURNS: usize = 5;
/// So often it is looked whether data still travels.
const LOOK: Duration = Duration::from_millis(1);

/// A task management function (SAM-5 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// ABORT TASK, of the command with this tag.
    AbortTask {
        /// The tag.
        tag: u32,
    },
    /// ABORT TASK SET.
    AbortTaskSet,
    /// CLEAR ACA: there is never an ACA condition to clear.
    ClearAca,
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// LOGICAL UNIT RESET.
    LunReset,
    /// Reset of every logical unit that the initiator sees.
    TargetWarmReset,
    /// The same, and the end of every session of the target.
    TargetColdReset,
}

/// What came of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Managed {
    /// FUNCTION COMPLETE.
    Complete,
    /// There is no such task.
    NoSuchTask,
    /// INCORRECT LOGICAL UNIT NUMBER.
    NoSuchLun,
    /// The access list does not let the initiator do this.
    Unauthorized,
    /// FUNCTION REJECTED: a task may still be carried out.
    Rejected,
}

impl Managed {
    fn if_done(is_done: bool) -> Managed {
        if is_done { Managed::Complete } else { Managed::Rejected }
    }
}

impl<F: FrontEnd> State<F> {
    /// Why a function is not even begun; None: it may be.
    pub fn refuses(&self, function: Function, lun: u64) -> Option<Managed> {
        let is_of_one = !matches!(function, Function::TargetWarmReset | Function::TargetColdReset);
        if is_of_one && self.unit_at(lun).is_none() {
            return Some(Managed::NoSuchLun);
        }
        (!self.may_manage(function, lun)).then_some(Managed::Unauthorized)
    }

    /// The logical unit of a LUN field, whether it was used or not.
    fn unit_at(&self, field: u64) -> Option<Arc<Unit>> {
        self.luns.map().get(&lun::of_request(field)?).map(|v| v.unit.clone())
    }

    /// A task ends that may still be carried out elsewhere.
    pub(super) fn leave_indeterminate(&mut self, serial: u64) {
        if self.indeterminate.len() >= INDETERMINATE {
            self.indeterminate.pop_front();
        }
        self.indeterminate.push_back(serial);
    }

    /// The nexus of a LUN field, if it was used.
    fn nexus_at(&mut self, field: u64) -> Option<NexusId> {
        match self.luns.find(field) {
            Found::Unit(h) => Some(h.nexus.id()),
            _ => None,
        }
    }
}

/// Whether a function at this place in the order of its initiator acts on a task: on what was sent before it.
fn is_before(task: &Task, sequence: u32) -> bool {
    task.command.immediate || precedes(task.command.sequence, sequence)
}

impl<F: FrontEnd> ItNexus<F> {
    /// Carries out a function that was not refused, at this place in the order of its initiator.
    pub async fn manage(self: &Rc<Self>, function: Function, lun: u64, sequence: u32) -> Managed {
        match function {
            Function::AbortTask { tag } => self.abort_task(tag, lun).await,
            Function::ClearAca => Managed::Complete,
            Function::TargetWarmReset | Function::TargetColdReset => self.reset_target(sequence).await,
            Function::AbortTaskSet | Function::ClearTaskSet | Function::LunReset => {
                // Every command before it has arrived, or never will (RFC 7143 section 4.2.3.3).
                self.wait_until(|s| s.life() == Life::Over || s.front.has_received(sequence)).await;
                self.task_set(function, lun, sequence).await
            }
        }
    }

    /// ABORT TASK waits for the task.
    async fn abort_task(&self, tag: u32, lun: u64) -> Managed {
        let serials = {
            let mut state = self.state();
            let same = |t: &Task| t.command.tag == tag && t.command.lun == lun;
            if !state.tasks.values().any(same) {
                return Managed::NoSuchTask;
            }
            state.abort(same, Aborted::Silently, false)
        };
        let unit = self.state().unit_at(lun);
        Managed::if_done(self.are_over(&serials, unit.iter().any(is_elsewhere)).await)
    }

    /// Waits for the end of aborted tasks. False: one of them may still be carried out, so that the function was not
    /// performed (SAM-5 section 7).
    async fn are_over(&self, serials: &[u64], are_elsewhere: bool) -> bool {
        let ended = self.wait_for(serials);
        let in_time = match are_elsewhere {
            true => compio::time::timeout(CERTAINTY, ended).await.is_ok(),
            false => {
                ended.await;
                true
            }
        };
        in_time && !self.state().indeterminate.iter().any(|serial| serials.contains(serial))
    }

    /// ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET.
    async fn task_set(&self, function: Function, lun: u64, sequence: u32) -> Managed {
        let Some(unit) = self.state().unit_at(lun) else { return Managed::NoSuchLun };
        let which = Which::units([unit.clone()]);
        // First, so that what the reset ends elsewhere is not taken for an answer, or tried again.
        let own = self.abort_own(&which, sequence);
        let forwarded = self.forward(&which, function).await;
        let others = function == Function::AbortTaskSet || self.abort_others(which.clone()).await;
        let are_over = self.wait_for_own(&own, &which).await && others;
        // Also before FUNCTION REJECTED: tasks of other hosts have ended here without an answer, and the unit attention is all
        // that they hear of it (SAM-5 sections 5.14 and 7).
        match function {
            Function::AbortTaskSet => {}
            // Another session may have the place of this one, and what it reserved stays.
            _ if self.state().life() == Life::Over => {}
            Function::ClearTaskSet => {
                let nexus = self.state().nexus_at(lun);
                unit.lu.cleared(nexus);
            }
            _ => exec::reset(&unit).await,
        }
        Managed::if_done(forwarded && are_over)
    }

    /// Does the same at logical units elsewhere, and tells whether it was done there.
    async fn forward(&self, which: &Which, function: Function) -> bool {
        let Which::Units(units) = which else { return true };
        let function = match function {
            Function::ClearTaskSet => request::Function::ClearTaskSet,
            Function::LunReset | Function::TargetWarmReset | Function::TargetColdReset => {
                request::Function::LunReset
            }
            // Tasks are aborted there one by one.
            Function::AbortTask { .. } | Function::AbortTaskSet | Function::ClearAca => return true,
        };
        let ways = self.state().luns.ways(units);
        let mut done = true;
        for way in ways {
            done &= way.manage(function).await;
        }
        done
    }

    /// Marks the tasks of this session at some logical units that were sent before the function; their
    /// serials are what to wait for.
    fn abort_own(&self, which: &Which, sequence: u32) -> Vec<u64> {
        let mut state = self.state();
        let wait = state.front.waits_for_data();
        state.abort(|t| which.names_task(t) && is_before(t, sequence), Aborted::Silently, wait)
    }

    /// Waits for tasks of this session, and some time for data that was asked for: hosts may send none after
    /// the function without having negotiated FastAbort. False: one of them may still be carried out.
    async fn wait_for_own(&self, serials: &[u64], which: &Which) -> bool {
        if compio::time::timeout(PATIENCE, self.wait_for(serials)).await.is_err() {
            let own = |t: &Task| serials.contains(&t.serial);
            self.state().abort(own, Aborted::Silently, false);
        }
        self.are_over(serials, which.is_elsewhere()).await
    }

    /// Ends the tasks of other sessions. False: one of them may still be carried out.
    async fn abort_others(&self, which: Which) -> bool {
        let (shared, from) = self.origin();
        let tsih = self.state().tsih;
        let (is_elsewhere, indeterminate) = (which.is_elsewhere(), Indeterminate::default());
        let letter = |done| {
            let (which, from, indeterminate) = (which.clone(), from.clone(), indeterminate.clone());
            Letter::Abort { which, from, indeterminate, done }
        };
        let told = shared.registry.tell_all(Some(tsih), letter);
        let in_time = match is_elsewhere {
            true => compio::time::timeout(CERTAINTY, told).await.is_ok(),
            false => {
                told.await;
                true
            }
        };
        in_time && !indeterminate.load(Relaxed)
    }

    /// What a letter to other sessions needs: how to reach them, and whom it is from.
    pub(super) fn origin(&self) -> (Arc<Shared>, Arc<Info>) {
        let state = self.state();
        (state.shared.clone(), state.info.clone())
    }

    /// TARGET WARM RESET: every logical unit that this session can reach.
    async fn reset_target(&self, sequence: u32) -> Managed {
        let which = Which::units(self.state().luns.map().values().map(|v| v.unit.clone()));
        let own = self.abort_own(&which, sequence);
        let forwarded = self.forward(&which, Function::TargetWarmReset).await;
        let others = self.abort_others(which.clone()).await;
        let are_over = self.wait_for_own(&own, &which).await && others;
        let Which::Units(units) = which else { return Managed::Complete };
        for unit in units.iter() {
            if self.state().life() == Life::Over {
                return Managed::Complete;
            }
            exec::reset(unit).await;
            // Each of them tells all of its nexuses: others of this core come first.
            lunar_runtime::yield_now().await;
        }
        Managed::if_done(forwarded && are_over)
    }

    /// The rest of TARGET COLD RESET: every session of the target ends, this one too.
    pub async fn power_on(self: Rc<Self>) {
        let (shared, target) = {
            let state = self.state();
            (state.shared.clone(), state.info.target.clone())
        };
        F::flushed(&self).await;
        shared.registry.tell_each(|info| {
            (info.target == target)
                .then(|| Letter::End { why: "TARGET COLD RESET", done: flume::bounded(0).0 })
        });
    }

    /// Ends the tasks that another session has a say in.
    pub(super) async fn abort_for_others(
        self: &Rc<Self>,
        which: &Which,
        from: &Info,
        indeterminate: &Indeterminate,
    ) {
        self.recall(which, from);
        let (serials, concerns) = {
            let mut state = self.state();
            let concerns = state.is_concerned(which);
            state.report_termination(|t| which.names_task(t));
            let told = state.tells_aborted(which);
            let tells = |t: &Task| t.place.as_ref().is_some_and(|(_, nexus)| told.contains(nexus));
            let mut serials = state.abort(|t| which.names_task(t) && tells(t), Aborted::Told, false);
            serials.extend(state.abort(|t| which.names_task(t) && !tells(t), Aborted::Silently, false));
            (serials, concerns)
        };
        F::flush(self);
        if !self.are_over(&serials, false).await {
            indeterminate.store(true, Relaxed);
        }
        // Also without tasks: data of those that somebody else has ended a moment ago may be on its way.
        if concerns {
            F::flush(self);
            self.drain().await;
        }
    }

    /// Waits until no data of ended tasks is on its way: who is answered on another connection may use their memory for
    /// something else. What was begun later is of other tasks. An initiator that holds it up loses the connection, and
    /// with it the data.
    async fn drain(&self) {
        let (in_flight, life) = {
            let state = self.state();
            (state.front.in_flight_data(), state.life())
        };
        let patience = if life == Life::Over { AT_THE_END } else { PATIENCE };
        for data in in_flight {
            if !drains(&*data, patience).await {
                self.state().is_over("it held up the end of tasks that another session aborted");
                data.reset();
                self.state().front.stop_receiving();
            }
        }
    }
}

/// Whether all is at rest soon, or while what waits becomes less.
async fn drains(mover: &dyn InFlightData, patience: Duration) -> bool {
    let mut rest = std::pin::pin!(drained(mover));
    for _ in 0..TURNS {
        let waiting = mover.waiting();
        if compio::time::timeout(patience, rest.as_mut()).await.is_ok() {
            return true;
        }
        if mover.waiting() >= waiting {
            return false;
        }
    }
    false
}

/// RDMA Reads have ended that were begun before, and what they held back has been sent and has arrived.
async fn drained(mover: &dyn InFlightData) {
    let reads = mover.reads();
    look_until(|| mover.have_ended(reads)).await;
    let fence = mover.fence();
    look_until(|| mover.fence_done(fence)).await;
}

async fn look_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        compio::time::sleep(LOOK).await;
    }
}

/// Its tasks are carried out by another target, which may be away.
fn is_elsewhere(unit: &Arc<Unit>) -> bool {
    unit.passage().is_some() || unit.backend().stride().is_some()
}

impl Which {
    fn is_elsewhere(&self) -> bool {
        matches!(self, Which::Units(units) if units.iter().any(is_elsewhere))
    }

    /// A copy belongs to every nexus that it works through, too: who is preempted must not go on writing.
    fn names_task(&self, task: &Task) -> bool {
        let placed = task.place.as_ref().is_some_and(|(unit, nexus)| self.names(unit, *nexus));
        placed || matches!(self, Which::Nexuses(list) if task.reaches.iter().any(|n| list.contains(n)))
    }
}

impl<F: FrontEnd> State<F> {
    /// It has used one of these logical units, or ends and cannot tell any more.
    fn is_concerned(&mut self, which: &Which) -> bool {
        let is_over = self.life() == Life::Over;
        is_over || self.luns.used().any(|h| which.names(&h.unit, h.nexus.id()))
    }

    /// Reports to an initiator whose aborted tasks wait for no data which logical units lose its tasks (FastAbort, RFC 7143
    /// section 4.2.3.4).
    fn report_termination(&mut self, chosen: impl Fn(&Task) -> bool) {
        if self.front.waits_for_data() {
            return;
        }
        let lost = self.tasks.values().filter(|t| t.aborted.is_none() && chosen(t)).map(|t| t.command.lun);
        for lun in lost.collect::<BTreeSet<_>>() {
            self.front.report_termination(lun);
        }
    }

    /// The nexuses whose tasks, aborted by another nexus, are answered TASK ABORTED (TAS of the control mode
    /// page).
    fn tells_aborted(&mut self, which: &Which) -> BTreeSet<NexusId> {
        let places = self.tasks.values().filter(|t| which.names_task(t)).filter_map(|t| t.place.as_ref());
        let concerned: BTreeSet<NexusId> = places.map(|(_, nexus)| *nexus).collect();
        if concerned.is_empty() {
            return concerned;
        }
        let used = self.luns.used().filter(|h| concerned.contains(&h.nexus.id()));
        used.filter_map(|h| h.nexus.task_aborted_status().then_some(h.nexus.id())).collect()
    }
}
