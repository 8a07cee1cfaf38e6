//! Task management (RFC 7143 section 11.5, SAM-5 section 7).

use super::carrier::Mover;
use super::connection::{Connection, Life, Session};
use super::luns::Found;
use super::out::Payload;
use super::task::{Aborted, Task};
use crate::fence;
use crate::registry::{Indeterminate, Letter, Which};
use crate::server::Shared;
use crate::session::Info;
use crate::{Unit, exec};
use lunar_proto::window::precedes;
use lunar_scsi::NexusId;
use lunar_wire::iscsi::request::Function;
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::{Bhs, lun, pdu};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Functions.
const ABORT_TASK: u8 = 1;
const ABORT_TASK_SET: u8 = 2;
const CLEAR_ACA: u8 = 3;
pub const CLEAR_TASK_SET: u8 = 4;
pub const LUN_RESET: u8 = 5;
pub const TARGET_WARM_RESET: u8 = 6;
pub const TARGET_COLD_RESET: u8 = 7;
const TASK_REASSIGN: u8 = 8;

/// Event of the asynchronous message that ends tasks (RFC 7143 section 11.9.1).
const TASK_TERMINATION: u8 = 5;

/// Functions of a session that may be unanswered at a time.
const MANAGING: usize = 16;
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

/// Responses.
const COMPLETE: u8 = 0;
const NO_SUCH_TASK: u8 = 1;
const NO_SUCH_LUN: u8 = 2;
const REASSIGN_UNSUPPORTED: u8 = 4;
const UNSUPPORTED: u8 = 5;
const UNAUTHORIZED: u8 = 6;
const REJECTED: u8 = 255;

impl Session {
    /// Takes a task management function. All but the plain refusals are answered once they are done.
    pub fn task_management(&mut self, header: &Bhs, _ahs: &[u8]) {
        let function = header.flags() & 0x7f;
        let refusal = match function {
            ABORT_TASK..=LUN_RESET if self.unit_at(header.lun()).is_none() => Some(NO_SUCH_LUN),
            ABORT_TASK if self.managing.contains(&header.word20()) => Some(REJECTED),
            _ if !self.may_manage(function, header.lun()) => Some(UNAUTHORIZED),
            ABORT_TASK..=TARGET_COLD_RESET => None,
            TASK_REASSIGN => Some(REASSIGN_UNSUPPORTED),
            _ => Some(UNSUPPORTED),
        };
        if let Some(response) = refusal {
            return self.reply(pdu::task_management_response(header.itt(), response), Payload::Empty);
        }
        if self.managing.len() >= MANAGING {
            return self.reject(RejectReason::TooManyImmediate, header, &[]);
        }
        let Some(conn) = self.conn.upgrade() else { return };
        self.managing.push(header.itt());
        let header = *header;
        let under_way = fence::enter(conn.fence.clone());
        lunar_runtime::spawn(async move {
            if let Some(_under_way) = under_way {
                conn.manage(header, function).await;
            }
        });
    }

    /// Answers a function that is done.
    fn managed(&mut self, itt: u32, response: u8) {
        self.managing.retain(|tag| *tag != itt);
        if self.life != Life::Over {
            self.reply(pdu::task_management_response(itt, response), Payload::Empty);
        }
    }

    /// The logical unit of a LUN field, whether it was used or not.
    fn unit_at(&self, field: u64) -> Option<Arc<Unit>> {
        self.luns.map().get(&lun::of_request(field)?).map(|v| v.unit.clone())
    }

    /// A task ends that may still be carried out elsewhere.
    pub fn leave_indeterminate(&mut self, serial: u64) {
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

impl Session {
    /// The CmdSN of an unseen command lies before that of the function, and no other command holds it.
    fn may_plug(&self, header: &Bhs) -> bool {
        let (itt, ref_cmd_sn) = (header.word20(), header.word(32));
        let free = self.held.get(&ref_cmd_sn).is_none_or(|h| h.itt() == itt);
        precedes(ref_cmd_sn, header.cmd_sn()) && free
    }
}

/// Whether a function with this CmdSN acts on a task: on what was sent before it.
fn is_before(task: &Task, cmd_sn: u32) -> bool {
    task.command.immediate || precedes(task.command.cmd_sn, cmd_sn)
}

impl Connection {
    async fn manage(self: Rc<Self>, header: Bhs, function: u8) {
        let response = match function {
            ABORT_TASK => self.abort_task(&header).await,
            CLEAR_ACA => COMPLETE,
            TARGET_WARM_RESET | TARGET_COLD_RESET => self.reset_target(&header, function).await,
            _ => {
                self.all_before(header.cmd_sn()).await;
                self.task_set(&header, function).await
            }
        };
        self.session.borrow_mut().managed(header.itt(), response);
        self.flush();
        if function == TARGET_COLD_RESET {
            self.power_on().await;
        }
    }

    /// Every command before this CmdSN has arrived, or never will (RFC 7143 section 4.2.3.3).
    async fn all_before(&self, cmd_sn: u32) {
        self.wait_until(|s| s.life == Life::Over || !precedes(s.window.exp_cmd_sn(), cmd_sn)).await;
    }

    /// ABORT TASK waits for the task; one that has not arrived is taken as received (RFC 7143 section 7.11).
    async fn abort_task(&self, header: &Bhs) -> u8 {
        let (itt, ref_cmd_sn) = (header.word20(), header.word(32));
        let serials = {
            let mut session = self.session.borrow_mut();
            let same = |t: &Task| t.command.itt == itt && t.command.lun == header.lun();
            if session.tasks.values().any(same) {
                session.abort(same, Aborted::Silently, false)
            } else if session.may_plug(header) && session.window.plug(ref_cmd_sn) {
                session.held.remove(&ref_cmd_sn);
                session.release_held(None);
                // Functions wait for what came before them, too.
                session.task_ended();
                return COMPLETE;
            } else {
                return NO_SUCH_TASK;
            }
        };
        let unit = self.session.borrow().unit_at(header.lun());
        response(self.are_over(&serials, unit.iter().any(is_elsewhere)).await)
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
        in_time && !self.session.borrow().indeterminate.iter().any(|serial| serials.contains(serial))
    }

    /// ABORT TASK SET, CLEAR TASK SET, LOGICAL UNIT RESET.
    async fn task_set(&self, header: &Bhs, function: u8) -> u8 {
        let Some(unit) = self.session.borrow().unit_at(header.lun()) else { return NO_SUCH_LUN };
        let which = Which::units([unit.clone()]);
        // First, so that what the reset ends elsewhere is not taken for an answer, or tried again.
        let own = self.abort_own(&which, header.cmd_sn());
        let forwarded = self.forward(&which, function).await;
        let others = function == ABORT_TASK_SET || self.abort_others(which.clone()).await;
        let are_over = self.wait_for_own(&own, &which).await && others;
        // Also before FUNCTION REJECTED: tasks of other hosts have ended here without an answer, and the unit attention is all
        // that they hear of it (SAM-5 sections 5.14 and 7).
        match function {
            ABORT_TASK_SET => {}
            // Another session may have the place of this one, and what it reserved stays.
            _ if self.session.borrow().life == Life::Over => {}
            CLEAR_TASK_SET => unit.lu.cleared(self.session.borrow_mut().nexus_at(header.lun())),
            _ => exec::reset(&unit).await,
        }
        response(forwarded && are_over)
    }

    /// Does the same at logical units elsewhere, and tells whether it was done there.
    async fn forward(&self, which: &Which, function: u8) -> bool {
        let Which::Units(units) = which else { return true };
        let function = match function {
            CLEAR_TASK_SET => Function::ClearTaskSet,
            LUN_RESET | TARGET_WARM_RESET | TARGET_COLD_RESET => Function::LunReset,
            // Tasks are aborted there one by one.
            _ => return true,
        };
        let ways = self.session.borrow_mut().luns.ways(units);
        let mut done = true;
        for way in ways {
            done &= way.manage(function).await;
        }
        done
    }

    /// Marks the tasks of this session at some logical units that were sent before the function; their
    /// serials are what to wait for.
    fn abort_own(&self, which: &Which, cmd_sn: u32) -> Vec<u64> {
        let mut session = self.session.borrow_mut();
        let wait = session.waits_for_data();
        session.abort(|t| which.names_task(t) && is_before(t, cmd_sn), Aborted::Silently, wait)
    }

    /// Waits for tasks of this session, and some time for data that was asked for: hosts may send none after
    /// the function without having negotiated FastAbort. False: one of them may still be carried out.
    async fn wait_for_own(&self, serials: &[u64], which: &Which) -> bool {
        if compio::time::timeout(PATIENCE, self.wait_for(serials)).await.is_err() {
            let own = |t: &Task| serials.contains(&t.serial);
            self.session.borrow_mut().abort(own, Aborted::Silently, false);
        }
        self.are_over(serials, which.is_elsewhere()).await
    }

    /// Ends the tasks of other sessions. False: one of them may still be carried out.
    async fn abort_others(&self, which: Which) -> bool {
        let (shared, from) = self.origin();
        let tsih = self.session.borrow().tsih;
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
    pub fn origin(&self) -> (Arc<Shared>, Arc<Info>) {
        let session = self.session.borrow();
        (session.shared.clone(), session.info.clone())
    }

    /// TARGET WARM RESET: every logical unit that this session can reach.
    async fn reset_target(&self, header: &Bhs, function: u8) -> u8 {
        let which = Which::units(self.session.borrow().luns.map().values().map(|v| v.unit.clone()));
        let own = self.abort_own(&which, header.cmd_sn());
        let forwarded = self.forward(&which, function).await;
        let others = self.abort_others(which.clone()).await;
        let are_over = self.wait_for_own(&own, &which).await && others;
        let Which::Units(units) = which else { return COMPLETE };
        for unit in units.iter() {
            if self.session.borrow().life == Life::Over {
                return COMPLETE;
            }
            exec::reset(unit).await;
            // Each of them tells all of its nexuses: others of this core come first.
            lunar_runtime::after_others().await;
        }
        response(forwarded && are_over)
    }

    /// The rest of TARGET COLD RESET: every session of the target ends, this one too.
    async fn power_on(self: Rc<Self>) {
        let (shared, target) = {
            let session = self.session.borrow();
            (session.shared.clone(), session.info.target.clone())
        };
        self.flushed().await;
        shared.registry.tell_each(|info| {
            (info.target == target)
                .then(|| Letter::End { why: "TARGET COLD RESET", done: flume::bounded(0).0 })
        });
    }

    /// Ends the tasks that another session has a say in.
    pub async fn abort_for_others(
        self: &Rc<Self>,
        which: &Which,
        from: &Info,
        indeterminate: &Indeterminate,
    ) {
        self.recall(which, from);
        let (serials, concerns) = {
            let mut session = self.session.borrow_mut();
            let concerns = session.is_concerned(which);
            session.announce_termination(|t| which.names_task(t));
            let told = session.tells_aborted(which);
            let tells = |t: &Task| t.place.as_ref().is_some_and(|(_, nexus)| told.contains(nexus));
            let mut serials = session.abort(|t| which.names_task(t) && tells(t), Aborted::Told, false);
            serials.extend(session.abort(|t| which.names_task(t) && !tells(t), Aborted::Silently, false));
            (serials, concerns)
        };
        self.flush();
        if !self.are_over(&serials, false).await {
            indeterminate.store(true, Relaxed);
        }
        // Also without tasks: data of those that somebody else has ended a moment ago may be on its way.
        if concerns {
            self.flush();
            self.come_to_rest().await;
        }
    }

    /// Waits until no data of ended tasks is on its way: who is answered on another connection may use their memory for
    /// something else. What was begun later is of other tasks. An initiator that holds it up loses the connection, and
    /// with it the data.
    async fn come_to_rest(&self) {
        let Some(mover) = self.session.borrow().out.mover() else { return };
        let patience = if self.session.borrow().life == Life::Over { AT_THE_END } else { PATIENCE };
        if !comes_to_rest(&*mover, patience).await {
            self.session.borrow_mut().is_over("it held up the end of tasks that another session aborted");
            mover.reset();
            self.close();
        }
    }
}

/// Whether all is at rest soon, or while what waits becomes less.
async fn comes_to_rest(mover: &dyn Mover, patience: Duration) -> bool {
    let mut rest = std::pin::pin!(at_rest(mover));
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
async fn at_rest(mover: &dyn Mover) {
    let coming = mover.coming();
    look_until(|| mover.has_come(coming)).await;
    let mark = mover.mark();
    look_until(|| mover.is_delivered(mark)).await;
}

async fn look_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        compio::time::sleep(LOOK).await;
    }
}

fn response(is_done: bool) -> u8 {
    if is_done { COMPLETE } else { REJECTED }
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

impl Session {
    /// It has used one of these logical units, or ends and cannot tell any more.
    fn is_concerned(&mut self, which: &Which) -> bool {
        let is_over = self.life == Life::Over;
        is_over || self.luns.used().any(|h| which.names(&h.unit, h.nexus.id()))
    }

    /// Tells an initiator that negotiated FastAbort which logical units lose its tasks (RFC 7143 section
    /// 4.2.3.4).
    fn announce_termination(&mut self, chosen: impl Fn(&Task) -> bool) {
        if self.waits_for_data() {
            return;
        }
        let lost = self.tasks.values().filter(|t| t.aborted.is_none() && chosen(t)).map(|t| t.command.lun);
        for lun in lost.collect::<BTreeSet<_>>() {
            self.announce(lun, TASK_TERMINATION, [0; 3], Vec::new());
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
