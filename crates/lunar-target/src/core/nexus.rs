//! An I_T nexus: the SCSI state of a session of any transport, on its core.

use super::front_end::FrontEnd;
use super::lun_map::NexusLuns;
use super::task::{AbortResponse, Task};
use crate::access::LoginContext;
use crate::end_reason::EndReason;
use crate::exec;
use crate::fair_share::SourcePrefix;
use crate::fence::{self, InFlightGuard, SessionFence};
use crate::registry::{AbortScope, DoneSender};
use crate::server_state::ServerState;
use crate::session_info::SessionInfo;
use event_listener::Event;
use lunar_runtime::{Buf, Pool, SendPump};
use lunar_scsi::NexusPorts;
use std::cell::{RefCell, RefMut};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// The phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPhase {
    /// It takes commands.
    Running,
    /// The initiator was asked to log out: no new commands.
    LoggingOut,
    /// It takes nothing more.
    Ended,
}

/// The result of a login from which an I_T nexus is built.
pub struct NexusParams {
    /// The state that all sessions share.
    pub shared: Arc<ServerState>,
    /// The context of its login.
    pub login_context: LoginContext,
    /// What other cores and commands may see of the session.
    pub info: Arc<SessionInfo>,
    /// Its handle in the registry (in iSCSI TSIH).
    pub tsih: u16,
}

/// An I_T nexus. It lives on one core, in an [`Rc`] that its tasks share.
pub struct ItNexus<F: FrontEnd> {
    state: RefCell<State<F>>,
    /// Counts the commands that are being executed.
    fence: Arc<SessionFence>,
    pool: Pool,
    /// Notified when a task ends or is aborted, a command arrives, or the session ends.
    changed: Event,
}

/// The mutable state of an I_T nexus.
pub struct State<F: FrontEnd> {
    pub(super) me: Weak<ItNexus<F>>,
    pub(super) front: F,
    pub(super) shared: Arc<ServerState>,
    pub(super) info: Arc<SessionInfo>,
    pub(super) login_context: LoginContext,
    pub(super) tsih: u16,
    pub(super) pool: Pool,
    pub(super) luns: NexusLuns,
    /// Commands that did not complete at once, by tag.
    pub(super) tasks: HashMap<u32, Task>,
    /// The serial of the latest task.
    pub(super) serial: u64,
    /// Serials of tasks that have ended here and that the remote logical unit may still execute. The oldest are
    /// forgotten.
    pub(super) indeterminate: VecDeque<u64>,
    /// Task management functions that have not ended.
    pub(super) functions: usize,
    /// Upper bits of the tag of the latest transfer.
    pub(super) transfer_base: u32,
    /// Requests for data that were sent.
    pub(super) requests: u64,
    /// The timer for announced data runs.
    pub(super) is_data_timer_running: bool,
    /// What is parsed now arrived before a task management function of another session with this scope: commands
    /// within it end with BUSY, and no command completes at once.
    pub(super) busy_scope: Option<AbortScope>,
    phase: SessionPhase,
    /// The reason of the end; None: the initiator closed the connection.
    end: Option<EndReason>,
    /// Senders that are dropped when the session is over.
    pub(super) waiting_for_end: Vec<DoneSender>,
}

fn port_of(shared: &ServerState, info: &SessionInfo, login_context: &LoginContext) -> Arc<NexusPorts> {
    let target = info.target.as_ref().and_then(|t| login_context.config.targets.get(t));
    let groups = target.map(|t| t.portal_groups.iter()).unwrap_or_default();
    Arc::new(NexusPorts {
        initiator: info.initiator.clone(),
        isid: info.isid,
        user: info.user.clone().unwrap_or_default(),
        target: info.target.clone().unwrap_or_default(),
        tag: info.tag,
        ports: groups.flat_map(|tag| shared.target_ports(*tag)).collect(),
    })
}

/// The owner of a session's memory: its address and its CHAP account. The name of an initiator does not count, because
/// any initiator can claim it.
fn owner_of(info: &SessionInfo) -> String {
    let (user, origin) = (info.user.as_deref().unwrap_or_default(), SourcePrefix::from(info.address.ip()));
    format!("{origin} {user}")
}

fn luns_of(shared: &ServerState, info: &SessionInfo, login_context: &LoginContext) -> NexusLuns {
    let target = info.target.as_ref().and_then(|t| login_context.config.targets.get(t));
    let map = target
        .filter(|_| !info.discovery)
        .map(|t| login_context.lun_map(t, &info.initiator))
        .unwrap_or_default();
    NexusLuns::new(Arc::new(map), port_of(shared, info, login_context), info.nexuses.clone())
}

impl<F: FrontEnd> ItNexus<F> {
    /// The nexus of a session that has logged in.
    pub fn new(params: NexusParams, front: F) -> Rc<ItNexus<F>> {
        let NexusParams { shared, login_context, info, tsih } = params;
        let pool = shared.pool.share_of(&owner_of(&info));
        Rc::new_cyclic(|me| ItNexus {
            fence: info.fence.clone(),
            pool: pool.clone(),
            changed: Event::new(),
            state: RefCell::new(State {
                me: me.clone(),
                front,
                luns: luns_of(&shared, &info, &login_context),
                shared,
                info,
                login_context,
                tsih,
                pool,
                tasks: HashMap::new(),
                serial: 0,
                indeterminate: VecDeque::new(),
                functions: 0,
                transfer_base: 0,
                requests: 0,
                is_data_timer_running: false,
                busy_scope: None,
                phase: SessionPhase::Running,
                end: None,
                waiting_for_end: Vec::new(),
            }),
        })
    }

    /// Its state. The borrow must end before anything is awaited.
    #[inline]
    pub fn state(&self) -> RefMut<'_, State<F>> {
        self.state.borrow_mut()
    }

    /// Counts the commands that are being executed.
    pub fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    /// Begins to parse what was received. None: another core has ended the session.
    #[inline]
    pub fn begin_receive(&self) -> Option<InFlightGuard<&SessionFence>> {
        let under_way = fence::enter(&*self.fence);
        if under_way.is_none() {
            self.state().end_with(EndReason::Reinstated);
        }
        under_way
    }

    /// Waits while the send queue is too long to receive more.
    pub async fn wait_for_room(&self, pump: &SendPump, is_full: impl Fn() -> bool) {
        let is_full = || pump.is_blocked() && is_full() && self.state().phase() != SessionPhase::Ended;
        while is_full() {
            let drained = pump.drained().listen();
            if is_full() {
                drained.await;
            }
        }
    }

    /// Ends the session because its connection was lost.
    pub fn lost(&self) {
        self.state().end_with(EndReason::ConnectionLost);
        self.notify();
    }

    /// Its share of the buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Wakes all that wait for a change.
    pub fn notify(&self) {
        self.changed.notify(usize::MAX);
    }

    /// Waits until these tasks have ended.
    pub async fn wait_for(&self, serials: &[u64]) {
        self.wait_until(|s| !s.tasks.values().any(|t| serials.contains(&t.serial))).await;
    }

    /// Waits until the state is as wanted. It checks whenever a task ends or a command arrives.
    pub async fn wait_until(&self, wanted: impl Fn(&State<F>) -> bool) {
        loop {
            let changed = self.changed.listen();
            if wanted(&self.state.borrow()) {
                return;
            }
            changed.await;
        }
    }

    /// Aborts all tasks, waits for those that execute, and closes every I_T_L nexus. Only then may others learn of the
    /// end: they take what was reserved as free.
    pub async fn end_tasks(&self) {
        let all = {
            let mut state = self.state();
            state.phase = SessionPhase::Ended;
            state.abort(|_| true, AbortResponse::None, false)
        };
        self.wait_for(&all).await;
        self.state().luns.close();
    }

    /// Aborts the tasks of one connection without a response, and waits for those that execute.
    pub async fn end_tasks_of(&self, connection: u16) {
        let of_it = |task: &Task| task.command.connection == connection;
        let aborted = self.state().abort(of_it, AbortResponse::None, false);
        self.wait_for(&aborted).await;
    }

    /// Ends the session and stops receiving. An earlier reason is kept.
    pub fn end(&self, reason: EndReason) {
        self.state().end_with(reason);
        self.notify();
        self.state.borrow().front.stop_receiving();
    }
}

impl<F: FrontEnd> State<F> {
    /// The session of the transport.
    #[inline]
    pub fn front(&self) -> &F {
        &self.front
    }

    /// The session of the transport, mutably.
    #[inline]
    pub fn front_mut(&mut self) -> &mut F {
        &mut self.front
    }

    /// Its nexus, unless it is gone.
    pub fn nexus(&self) -> Option<Rc<ItNexus<F>>> {
        self.me.upgrade()
    }

    /// What other cores and commands may see of the session.
    #[inline]
    pub fn info(&self) -> &Arc<SessionInfo> {
        &self.info
    }

    /// The context of its login.
    pub fn login_context(&self) -> &LoginContext {
        &self.login_context
    }

    /// Its share of the buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A buffer for data without a place in a task. It may be beyond the limit of the pool: receiving must not wait
    /// for memory that only further receiving can free.
    pub fn buffer(&self, len: usize) -> Buf {
        exec::buffer_without_waiting(&self.pool, len)
    }

    /// The phase of the session.
    #[inline]
    pub fn phase(&self) -> SessionPhase {
        self.phase
    }

    /// Takes no new commands from here on.
    pub(super) fn begin_logout(&mut self) {
        if self.phase == SessionPhase::Running {
            self.phase = SessionPhase::LoggingOut;
        }
    }

    /// Ends the session. An earlier reason is kept.
    pub fn end_with(&mut self, reason: EndReason) {
        self.phase = SessionPhase::Ended;
        self.set_end_reason(reason);
    }

    /// The reason of the end.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.end
    }

    /// Records the reason of the end, unless there is one.
    pub fn set_end_reason(&mut self, reason: EndReason) {
        self.end.get_or_insert(reason);
    }

    /// Takes the senders that wait for the end.
    pub fn take_waiting_for_end(&mut self) -> Vec<DoneSender> {
        std::mem::take(&mut self.waiting_for_end)
    }

    /// The scope of the task management function of another session that comes before what is parsed now.
    pub fn busy_scope(&self) -> Option<&AbortScope> {
        self.busy_scope.as_ref()
    }

    /// Does `work` on what arrived before a task management function of another session.
    pub fn with_busy_scope<T>(
        &mut self,
        busy_scope: Option<AbortScope>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let outer = std::mem::replace(&mut self.busy_scope, busy_scope);
        let done = work(self);
        self.busy_scope = outer;
        done
    }

    /// Tasks that have not ended.
    pub fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// A task has this tag.
    #[inline]
    pub fn has_task(&self, tag: u32) -> bool {
        !self.tasks.is_empty() && self.tasks.contains_key(&tag)
    }

    /// Wakes all that wait for a change.
    pub fn notify(&self) {
        if let Some(nexus) = self.me.upgrade() {
            nexus.notify();
        }
    }

    /// The send queue is too long to receive more. What arrived before a function of another session is always taken.
    pub fn is_full(&self) -> bool {
        self.busy_scope.is_none() && self.front.is_full()
    }

    /// Aborts tasks. Returns the serials of all that match, aborted before or not: the caller has to wait for each.
    ///
    /// With `wait`, tasks that receive data end when all requested data have arrived (RFC 7143 section 4.2.3.3),
    /// otherwise at once.
    pub(super) fn abort(
        &mut self,
        scope: impl Fn(&Task) -> bool,
        how: AbortResponse,
        wait: bool,
    ) -> Vec<u64> {
        let (mut serials, mut idle) = (Vec::new(), Vec::new());
        for task in self.tasks.values_mut().filter(|t| scope(t)) {
            serials.push(task.serial);
            let how = *task.aborted.get_or_insert(how);
            if let Some(r) = &mut task.receiving {
                r.sequencer.stop();
                r.is_abandoned |= !wait;
                // A launched task ends by itself.
                if !r.is_launched && (!wait || r.sequencer.is_complete()) {
                    idle.push((task.command.tag, how));
                }
            }
        }
        idle.into_iter().for_each(|(tag, how)| self.end_aborted(tag, how));
        self.notify();
        serials
    }

    /// Aborts the task with this tag, if there is one.
    pub fn abort_tag(&mut self, tag: u32, how: AbortResponse) {
        self.abort(|t| t.command.tag == tag, how, false);
    }
}
