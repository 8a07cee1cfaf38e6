//! Task management (SAM-5 section 7).

use super::front_end::{FrontEnd, InFlightData};
use super::function::{Function, FunctionRequest, ManagementResponse};
use super::lun_map::LunLookup;
use super::nexus::{ItNexus, NexusState, SessionPhase};
use super::task::{AbortResponse, Task, TaskLu};
use crate::end_reason::EndReason;
use crate::registry::{AbortScope, Indeterminate, SessionMessage};
use crate::session_info::SessionInfo;
use crate::{LogicalUnit, exec};
use lunar_proto::window::precedes;
use lunar_scsi::NexusId;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::lun;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Time that a function waits for the data of aborted tasks.
const DATA_TIMEOUT: Duration = Duration::from_secs(2);
/// The same for a session that ends. Such a session no longer knows which logical units it used, so the function
/// always waits for it.
const DATA_TIMEOUT_AT_END: Duration = Duration::from_millis(100);
/// Time that a function waits for tasks at a remote target. Open-iSCSI waits 15 s for ABORT TASK, so this is shorter.
const REMOTE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of times that a data timeout is extended for an initiator that makes progress.
const MAX_EXTENSIONS: usize = 5;
/// Interval at which data in flight are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

impl<F: FrontEnd> NexusState<F> {
    /// The response to a function that may not begin. None: it may begin.
    pub fn refuses(&self, function: Function, lun: u64) -> Option<ManagementResponse> {
        let is_of_one = !matches!(function, Function::TargetWarmReset | Function::TargetColdReset);
        if is_of_one && self.unit_at(lun).is_none() {
            return Some(ManagementResponse::NoSuchLun);
        }
        (!self.may_manage(function, lun)).then_some(ManagementResponse::Unauthorized)
    }

    /// The logical unit of a LUN field, whether the session has used it or not.
    fn unit_at(&self, field: u64) -> Option<Arc<LogicalUnit>> {
        self.lun_map().get(&lun::of_request(field)?).map(|v| v.unit.clone())
    }

    /// The nexus of a LUN field.
    fn nexus_at(&mut self, field: u64) -> Option<NexusId> {
        match self.luns_mut().find(field) {
            LunLookup::LogicalUnit(h) => Some(h.nexus().id()),
            _ => None,
        }
    }
}

/// The position of a function among the commands of its session.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionPosition {
    /// In the order of the initiator.
    pub sequence: u32,
    /// Tasks that had arrived before the function have lower serials.
    pub serial: u64,
}

impl FunctionPosition {
    /// Whether a function at this position applies to a task: only to those with lower CmdSNs (RFC 7143 section
    /// 11.5.1). An immediate command does not advance CmdSN, so it may have that of the function. The order of
    /// arrival then decides.
    fn is_after(self, task: &Task) -> bool {
        let command = task.command();
        let is_same = command.immediate && command.sequence == self.sequence;
        precedes(command.sequence, self.sequence) || (is_same && task.serial() < self.serial)
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Executes a function that has begun.
    pub(super) async fn manage(self: &Rc<Self>, request: FunctionRequest, serial: u64) -> ManagementResponse {
        let FunctionRequest { function, lun, sequence } = request;
        let position = FunctionPosition { sequence, serial };
        match function {
            Function::AbortTask { tag } => self.abort_task(tag, lun).await,
            Function::ClearAca => ManagementResponse::Complete,
            Function::TargetWarmReset | Function::TargetColdReset => self.reset_target(position).await,
            Function::AbortTaskSet | Function::ClearTaskSet | Function::LunReset => {
                // Every command before the function has arrived, or never will (RFC 7143 section 4.2.3.3).
                self.wait_until(|s| s.phase() == SessionPhase::Ended || s.front().has_received(sequence))
                    .await;
                self.task_set(function, lun, position).await
            }
        }
    }

    /// ABORT TASK, which waits for the end of the task.
    async fn abort_task(&self, tag: u32, field: u64) -> ManagementResponse {
        let serials = {
            let mut state = self.state();
            let same = |t: &Task| t.command().tag == tag && t.is_of_lun(field);
            if !state.tasks().values().any(same) {
                return ManagementResponse::NoSuchTask;
            }
            state.abort(same, AbortResponse::None, false)
        };
        let unit = self.state().unit_at(field);
        ManagementResponse::if_done(self.wait_until_over(&serials, unit.iter().any(is_elsewhere)).await)
    }

    /// Waits for the end of aborted tasks. False: a remote target may still execute one of them, so the function was
    /// not performed (SAM-5 section 7).
    async fn wait_until_over(&self, serials: &[u64], are_elsewhere: bool) -> bool {
        let ended = self.wait_for(serials);
        let in_time = match are_elsewhere {
            true => compio::time::timeout(REMOTE_TIMEOUT, ended).await.is_ok(),
            false => {
                ended.await;
                true
            }
        };
        in_time && !self.state().is_indeterminate(serials)
    }

    /// ABORT TASK SET, CLEAR TASK SET and LOGICAL UNIT RESET.
    async fn task_set(&self, function: Function, lun: u64, position: FunctionPosition) -> ManagementResponse {
        let Some(unit) = self.state().unit_at(lun) else { return ManagementResponse::NoSuchLun };
        let scope = AbortScope::units([unit.clone()]);
        // Abort own tasks first: a command that the remote reset ends must neither count as answered nor be retried.
        let own = self.abort_own(&scope, position);
        let forwarded = self.forward(&scope, function).await;
        let others = function == Function::AbortTaskSet || self.abort_others(scope.clone()).await;
        let are_over = self.wait_for_own(&own, &scope).await && others;
        let mut is_shared = true;
        // Do this before FUNCTION REJECTED too. Tasks of other hosts have ended here without a response, and the unit
        // attention is their only notice (SAM-5 sections 5.14 and 7).
        match function {
            Function::AbortTaskSet => {}
            // Another session may have replaced this one, and its reservations must stay.
            _ if self.state().phase() == SessionPhase::Ended => {}
            Function::ClearTaskSet => {
                let nexus = self.state().nexus_at(lun);
                is_shared = exec::clear_task_set(&unit, nexus).await.is_ok();
            }
            _ => is_shared = exec::reset(&unit).await.is_ok(),
        }
        ManagementResponse::if_done(forwarded && are_over && is_shared)
    }

    /// Performs the function at the remote logical units. Returns whether all of them performed it.
    async fn forward(&self, scope: &AbortScope, function: Function) -> bool {
        let AbortScope::LogicalUnits(units) = scope else { return true };
        let function = match function {
            Function::ClearTaskSet => TaskManagementFunction::ClearTaskSet,
            Function::LunReset | Function::TargetWarmReset | Function::TargetColdReset => {
                TaskManagementFunction::LunReset
            }
            // Aborts are forwarded task by task.
            Function::AbortTask { .. } | Function::AbortTaskSet | Function::ClearAca => return true,
        };
        let passthrough_nexuses = self.state().luns_mut().passthrough_nexuses(units);
        let mut done = true;
        for nexus in passthrough_nexuses {
            done &= nexus.manage(function).await;
        }
        done
    }

    /// Aborts the tasks of this session within the scope that were sent before the function. Returns the serials to
    /// wait for.
    fn abort_own(&self, scope: &AbortScope, position: FunctionPosition) -> Vec<u64> {
        let mut state = self.state();
        let wait = state.front().waits_for_data();
        state.abort(|t| scope.covers_task(t) && position.is_after(t), AbortResponse::None, wait)
    }

    /// Waits for tasks of this session. Waits only for a limited time for their requested data, because hosts may not
    /// send them after the function, although they must. False: a remote target may still execute one of the tasks.
    async fn wait_for_own(&self, serials: &[u64], scope: &AbortScope) -> bool {
        if compio::time::timeout(DATA_TIMEOUT, self.wait_for(serials)).await.is_err() {
            let own = |t: &Task| serials.contains(&t.serial());
            self.state().abort(own, AbortResponse::None, false);
        }
        self.wait_until_over(serials, scope.is_elsewhere()).await
    }

    /// Aborts the tasks of other sessions. False: a remote target may still execute one of them.
    async fn abort_others(&self, scope: AbortScope) -> bool {
        let from = self.state().info().clone();
        let (is_elsewhere, indeterminate) = (scope.is_elsewhere(), Indeterminate::default());
        let message = |done| {
            let (scope, from, indeterminate) = (scope.clone(), Some(from.clone()), indeterminate.clone());
            SessionMessage::Abort { scope, from, indeterminate, done }
        };
        let ended = self.broadcast_to_others(message);
        let in_time = match is_elsewhere {
            true => compio::time::timeout(REMOTE_TIMEOUT, ended).await.is_ok(),
            false => {
                ended.await;
                true
            }
        };
        in_time && !indeterminate.load(Relaxed)
    }

    /// TARGET WARM RESET: resets every logical unit that this session sees.
    async fn reset_target(&self, position: FunctionPosition) -> ManagementResponse {
        let scope = AbortScope::units(self.state().lun_map().values().map(|v| v.unit.clone()));
        let own = self.abort_own(&scope, position);
        let forwarded = self.forward(&scope, Function::TargetWarmReset).await;
        let others = self.abort_others(scope.clone()).await;
        let are_over = self.wait_for_own(&own, &scope).await && others;
        let AbortScope::LogicalUnits(units) = scope else { return ManagementResponse::Complete };
        let mut is_shared = true;
        for unit in units.iter() {
            if self.state().phase() == SessionPhase::Ended {
                return ManagementResponse::Complete;
            }
            is_shared &= exec::reset(unit).await.is_ok();
            // A reset notifies all nexuses of its logical unit, so let other work of this core run first.
            lunar_runtime::yield_now().await;
        }
        ManagementResponse::if_done(forwarded && are_over && is_shared)
    }

    /// The second part of TARGET COLD RESET: ends every session of the target, including this one.
    pub(super) async fn end_target_sessions(self: Rc<Self>) {
        let (shared, target) = {
            let state = self.state();
            (state.shared().clone(), state.info().target.clone())
        };
        F::flushed(&self).await;
        shared.registry.send_each(|info| {
            (info.target == target).then(|| SessionMessage::End {
                reason: EndReason::TargetColdReset,
                done: flume::bounded(0).0,
            })
        });
    }

    /// Aborts tasks of this session for a function of another session.
    pub(super) async fn abort_for_others(
        self: &Rc<Self>,
        scope: &AbortScope,
        from: Option<&SessionInfo>,
        indeterminate: &Indeterminate,
    ) {
        self.drain_received(scope, from);
        let (serials, concerns) = {
            let mut state = self.state();
            let concerns = state.is_concerned(scope);
            state.report_termination(|t| scope.covers_task(t));
            let nexuses = state.reports_aborted(scope);
            let is_reported = |t: &Task| t.lu().is_some_and(|lu| nexuses.contains(&lu.nexus()));
            let mut serials =
                state.abort(|t| scope.covers_task(t) && is_reported(t), AbortResponse::TaskAborted, false);
            serials.extend(state.abort(
                |t| scope.covers_task(t) && !is_reported(t),
                AbortResponse::None,
                false,
            ));
            (serials, concerns)
        };
        F::flush(self);
        if from.is_none() {
            self.wait_until(|state| !state.tasks().values().any(|t| t.may_change_medium(&serials))).await;
        } else if !self.wait_until_over(&serials, false).await {
            indeterminate.store(true, Relaxed);
        }
        // Drain even without tasks: data of tasks that ended a moment ago may be in flight.
        if concerns {
            F::flush(self);
            self.drain().await;
        }
    }

    /// Waits until no data of ended tasks are in flight. An initiator that receives the response on another
    /// connection may then reuse their memory. Data of later tasks do not count. If the initiator prevents this, its
    /// connection is reset, which discards the data.
    async fn drain(&self) {
        let (in_flight, phase) = {
            let state = self.state();
            (state.front().in_flight_data(), state.phase())
        };
        let timeout = if phase == SessionPhase::Ended { DATA_TIMEOUT_AT_END } else { DATA_TIMEOUT };
        for data in in_flight {
            if !drains(&*data, timeout).await {
                self.state().end_with(EndReason::AbortBlocked);
                data.reset();
                self.state().front().stop_receiving();
            }
        }
    }
}

/// Waits for the data in flight, as long as they decrease. False: they were not drained.
async fn drains(datamover: &dyn InFlightData, timeout: Duration) -> bool {
    let mut rest = std::pin::pin!(drained(datamover));
    for _ in 0..MAX_EXTENSIONS {
        let waiting = datamover.waiting();
        if compio::time::timeout(timeout, rest.as_mut()).await.is_ok() {
            return true;
        }
        if datamover.waiting() >= waiting {
            return false;
        }
    }
    false
}

/// Waits until the RDMA Reads so far have ended, and the responses that waited for them were sent and have arrived.
async fn drained(datamover: &dyn InFlightData) {
    let reads = datamover.reads();
    poll_until(|| datamover.have_ended(reads)).await;
    let fence = datamover.fence();
    poll_until(|| datamover.fence_done(fence)).await;
}

async fn poll_until(is_so: impl Fn() -> bool) {
    while !is_so() {
        compio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// Whether a remote target executes the tasks of a logical unit; it may be unreachable.
fn is_elsewhere(unit: &Arc<LogicalUnit>) -> bool {
    unit.passthrough().is_some() || unit.backend().info().remote
}

impl AbortScope {
    fn is_elsewhere(&self) -> bool {
        matches!(self, AbortScope::LogicalUnits(units) if units.iter().any(is_elsewhere))
    }

    /// Whether the scope covers a task. A copy also belongs to every nexus that it uses, because a preempted nexus
    /// must not continue to write.
    fn covers_task(&self, task: &Task) -> bool {
        let placed = task.lu().is_some_and(|lu| self.covers(lu.unit(), lu.nexus()));
        placed || matches!(self, AbortScope::Nexuses(list) if task.copies_through(list))
    }
}

impl<F: FrontEnd> NexusState<F> {
    /// Whether the session has used one of these logical units. A session that ends no longer knows, and counts as
    /// one that has.
    fn is_concerned(&mut self, scope: &AbortScope) -> bool {
        let is_over = self.phase() == SessionPhase::Ended;
        is_over || self.luns_mut().used().any(|h| scope.covers(h.unit(), h.nexus().id()))
    }

    /// Reports the logical units whose tasks are aborted to an initiator that need not send requested data.
    fn report_termination(&mut self, chosen: impl Fn(&Task) -> bool) {
        if self.front().waits_for_data() {
            return;
        }
        let lost = self.tasks().values().filter(|t| !t.is_aborted() && chosen(t)).map(|t| t.command().lun);
        for lun in lost.collect::<BTreeSet<_>>() {
            self.front_mut().report_termination(lun);
        }
    }

    /// The nexuses whose tasks end with TASK ABORTED when another nexus aborts them (TAS of the control mode page).
    fn reports_aborted(&mut self, scope: &AbortScope) -> BTreeSet<NexusId> {
        let lus = self.tasks().values().filter(|t| scope.covers_task(t)).filter_map(Task::lu);
        let concerned: BTreeSet<NexusId> = lus.map(TaskLu::nexus).collect();
        if concerned.is_empty() {
            return concerned;
        }
        let used = self.luns_mut().used().filter(|h| concerned.contains(&h.nexus().id()));
        used.filter_map(|h| h.nexus_mut().task_aborted_status().then_some(h.nexus().id())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::{BackendKind, BackendSpec};

    #[test]
    fn backend_states_whether_its_tasks_are_elsewhere() {
        let memory = lunar_block::open(&BackendSpec::sized(BackendKind::Memory, 1 << 20)).expect("memory");
        let local = Arc::new(LogicalUnit::new(exec::tests::lu(true), memory, None));
        let remote = exec::tests::refusing_after(0, &local);
        assert_eq!((is_elsewhere(&local), is_elsewhere(&remote)), (false, true));
        assert_eq!(remote.backend().preferred_read_size(), None);
    }
}
