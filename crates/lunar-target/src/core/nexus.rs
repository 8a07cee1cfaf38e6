//! An I_T nexus: the SCSI state of a session of any transport. It lives on one core.

use super::data_out_requests::DataOutRequests;
use super::front_end::FrontEnd;
use super::function_state::{FunctionCount, IndeterminateTasks};
use super::lun_handle::LunHandle;
use super::lun_map::{LunLookup, NexusLuns};
use super::response_log::{LoggedResponse, ResponseLog};
use super::task::Task;
use super::task_table::TaskTable;
use crate::access::{LoginContext, LunMap};
use crate::end_reason::EndReason;
use crate::exec;
use crate::fair_share::SourcePrefix;
use crate::fence::{self, InFlightGuard, SessionFence};
use crate::lu_counters::OpClass;
use crate::registry::{AbortScope, DoneSender, SessionMessage};
use crate::server_state::ServerState;
use crate::session_entry;
use crate::session_info::SessionInfo;
use event_listener::Event;
use lunar_runtime::{Buf, Pool, SendPump};
use lunar_scsi::{CommandError, NamespaceView, NexusPorts, ReservationsView, TargetPort, TargetPorts};
use std::cell::{RefCell, RefMut};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

/// The phase of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPhase {
    /// The session accepts commands.
    Running,
    /// The initiator was asked to log out; no new commands are accepted.
    LoggingOut,
    /// The session accepts nothing.
    Ended,
}

/// The result of a login, from which an I_T nexus is created.
pub struct NexusParams {
    /// The state that all sessions share.
    pub shared: Arc<ServerState>,
    /// The context of its login.
    pub login_context: LoginContext,
    /// The part of the session that other cores see.
    pub info: Arc<SessionInfo>,
    /// Its handle in the registry.
    pub session_handle: u16,
}

/// An I_T nexus. It lives on one core, in an [`Rc`] that its tasks share.
pub struct ItNexus<F: FrontEnd> {
    state: RefCell<NexusState<F>>,
    /// Counts the commands that are being executed.
    fence: Arc<SessionFence>,
    pool: Pool,
    /// Notified when a task ends or is aborted, a command arrives, or the session ends.
    changed: Event,
    responses: Rc<ResponseLog>,
}

/// The mutable state of an I_T nexus.
pub struct NexusState<F: FrontEnd> {
    me: Weak<ItNexus<F>>,
    front: F,
    shared: Arc<ServerState>,
    info: Arc<SessionInfo>,
    login_context: LoginContext,
    session_handle: u16,
    pool: Pool,
    luns: NexusLuns,
    /// Commands that did not complete at once, by tag.
    tasks: TaskTable,
    /// Measures the latency of commands.
    responses: Rc<ResponseLog>,
    /// The LUN fields of commands that completed at once in the current receive.
    at_once: Vec<u64>,
    /// Tasks that the remote logical unit may still execute.
    indeterminate: IndeterminateTasks,
    /// Task management functions that have not ended.
    functions: FunctionCount,
    /// The requests for data of the tasks.
    requests: DataOutRequests,
    /// Set while received bytes are parsed that arrived before a task management function of another session, with
    /// its scope: commands within the scope end with BUSY, and no command completes at once.
    busy_scope: Option<AbortScope>,
    phase: SessionPhase,
    /// The reason for the end. None: the initiator closed the connection.
    end: Option<EndReason>,
    /// Dropped when the session is over.
    waiting_for_end: Vec<DoneSender>,
}

/// The path of a command to its logical unit.
pub(super) struct Route<'a> {
    /// The logical unit of its LUN field.
    pub lun: LunLookup<'a>,
    /// The session's share of the buffer pool.
    pub pool: &'a Pool,
    /// See [`NexusState::busy_scope`].
    pub busy_scope: Option<&'a AbortScope>,
}

/// The parts of the state that move data of tasks.
pub(super) struct TransferParts<'a, F> {
    /// The tasks.
    pub tasks: &'a mut TaskTable,
    /// The requests for data.
    pub requests: &'a mut DataOutRequests,
    /// The session of the transport.
    pub front: &'a mut F,
    /// The session's share of the buffer pool.
    pub pool: &'a Pool,
}

/// The ports of the nexuses of a session.
pub fn nexus_ports(
    shared: &ServerState,
    info: &SessionInfo,
    login_context: &LoginContext,
) -> Arc<NexusPorts> {
    let target = info.target.as_ref().and_then(|t| login_context.config.targets.get(t));
    let (initiator, group) = (info.initiator_port(), info.portal_group_tag);
    let protocol = initiator.protocol();
    Arc::new(NexusPorts {
        initiator,
        user: info.user.clone().unwrap_or_default(),
        target: info.target.clone().unwrap_or_default(),
        own: target.map_or(TargetPort::new(protocol, group, None), |target| target.port(protocol, group)),
        ports: TargetPorts::new(target.map(|target| shared.target_ports(target)).unwrap_or_default()),
    })
}

/// The owner of a session's memory: its address and its CHAP account. The initiator name is not part of it, because
/// any initiator can claim a name.
fn owner_of(info: &SessionInfo) -> String {
    let (user, origin) = (info.user.as_deref().unwrap_or_default(), SourcePrefix::from(info.address.ip()));
    format!("{origin} {user}")
}

fn luns_of(shared: &ServerState, info: &SessionInfo, login_context: &LoginContext) -> NexusLuns {
    let target = info.target.as_ref().and_then(|t| login_context.config.targets.get(t));
    let map = target
        .filter(|_| !info.is_discovery())
        .map(|t| login_context.lun_map(t, &info.initiator))
        .unwrap_or_default();
    NexusLuns::new(Arc::new(map), nexus_ports(shared, info, login_context), info.nexuses.clone())
}

impl<F: FrontEnd> ItNexus<F> {
    /// The nexus of a logged-in session.
    pub fn new(params: NexusParams, front: F) -> Rc<ItNexus<F>> {
        let NexusParams { shared, login_context, info, session_handle } = params;
        let pool = shared.pool.share_of(&owner_of(&info));
        let responses = Rc::new(ResponseLog::new());
        Rc::new_cyclic(|me| ItNexus {
            fence: info.fence.clone(),
            pool: pool.clone(),
            changed: Event::new(),
            responses: responses.clone(),
            state: RefCell::new(NexusState {
                me: me.clone(),
                front,
                luns: luns_of(&shared, &info, &login_context),
                shared,
                info,
                login_context,
                session_handle,
                pool,
                tasks: TaskTable::default(),
                responses,
                at_once: Vec::new(),
                indeterminate: IndeterminateTasks::default(),
                functions: FunctionCount::default(),
                requests: DataOutRequests::default(),
                busy_scope: None,
                phase: SessionPhase::Running,
                end: None,
                waiting_for_end: Vec::new(),
            }),
        })
    }

    /// The mutable state. The borrow must end before the next await.
    #[inline]
    pub fn state(&self) -> RefMut<'_, NexusState<F>> {
        self.state.borrow_mut()
    }

    /// Counts the commands that are being executed.
    pub fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    /// Begins to parse received bytes. None: another core has ended the session.
    #[inline]
    pub fn begin_receive(&self) -> Option<InFlightGuard<&SessionFence>> {
        let in_flight = fence::enter(&*self.fence);
        match in_flight {
            Some(_) => self.responses.begin_receive(),
            None => self.state().end_with(EndReason::Reinstated),
        }
        in_flight
    }

    /// All received bytes are parsed.
    #[inline]
    pub fn end_receive(&self) {
        self.state().end_receive();
    }

    /// Measures the latency of commands.
    pub fn responses(&self) -> &Rc<ResponseLog> {
        &self.responses
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

    /// The session's share of the buffer pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Wakes all waiters.
    pub fn notify(&self) {
        self.changed.notify(usize::MAX);
    }

    /// Waits until these tasks have ended.
    pub async fn wait_for(&self, serials: &[u64]) {
        self.wait_until(|s| !s.tasks.values().any(|t| serials.contains(&t.serial()))).await;
    }

    /// Waits until `wanted` holds. It is checked whenever a task ends or a command arrives.
    pub async fn wait_until(&self, wanted: impl Fn(&NexusState<F>) -> bool) {
        loop {
            let changed = self.changed.listen();
            if wanted(&self.state.borrow()) {
                return;
            }
            changed.await;
        }
    }

    /// The shared state, and this session as the sender of messages to other sessions.
    pub(super) fn origin(&self) -> (Arc<ServerState>, Arc<SessionInfo>) {
        let state = self.state();
        (state.shared().clone(), state.info().clone())
    }

    /// Sends a message to every other session, and waits until all of them have dropped its `done`.
    pub(super) async fn broadcast_to_others(&self, message: impl Fn(DoneSender) -> SessionMessage) {
        let (shared, own) = {
            let state = self.state.borrow();
            (state.shared.clone(), state.session_handle)
        };
        shared.registry.broadcast(Some(own), message).await;
    }

    /// Ends the session and stops receiving. An earlier reason is kept.
    pub fn end(&self, reason: EndReason) {
        self.state().end_with(reason);
        self.notify();
        self.state.borrow().front.stop_receiving();
    }
}

impl<F: FrontEnd> NexusState<F> {
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

    /// The nexus, unless it was dropped.
    pub fn nexus(&self) -> Option<Rc<ItNexus<F>>> {
        self.me.upgrade()
    }

    /// The part of the session that other cores see.
    #[inline]
    pub fn info(&self) -> &Arc<SessionInfo> {
        &self.info
    }

    /// The context of its login.
    pub fn login_context(&self) -> &LoginContext {
        &self.login_context
    }

    /// The session's share of the buffer pool.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The state that all sessions share.
    pub(super) fn shared(&self) -> &Arc<ServerState> {
        &self.shared
    }

    /// The LUNs that the initiator sees.
    pub(super) fn lun_map(&self) -> &Arc<LunMap> {
        self.luns.map()
    }

    /// The LUNs of the nexus.
    #[inline]
    pub(super) fn luns_mut(&mut self) -> &mut NexusLuns {
        &mut self.luns
    }

    /// Finds the logical unit of a command.
    #[inline]
    pub(super) fn route(&mut self, lun: u64) -> Route<'_> {
        Route { lun: self.luns.find(lun), pool: &self.pool, busy_scope: self.busy_scope.as_ref() }
    }

    /// The block size of the logical unit with this LUN field in bytes, as of its last command. None: the initiator does not see
    /// this LUN.
    #[inline]
    pub fn block_size(&mut self, lun: u64) -> Option<u32> {
        self.handle(lun).map(|handle| handle.block_size())
    }

    /// The logical unit with this LUN field as a namespace.
    pub fn namespace(&mut self, lun: u64) -> Option<NamespaceView> {
        self.handle(lun).map(|handle| handle.nexus().namespace())
    }

    /// The error with which one of these commands of the logical unit would fail now, whatever its CDB.
    pub fn refusal(&mut self, lun: u64, opcodes: [u8; 2]) -> Option<CommandError> {
        let nexus = self.handle(lun)?.nexus();
        opcodes.into_iter().find_map(|opcode| nexus.refusal(opcode))
    }

    /// The state of the reservations of the logical unit with this LUN field.
    pub fn reservations_of(&mut self, lun: u64) -> Option<ReservationsView> {
        self.handle(lun).map(|handle| handle.unit().lu.reservation_report())
    }

    #[inline]
    fn handle(&mut self, lun: u64) -> Option<&mut LunHandle> {
        match self.luns.find(lun) {
            LunLookup::LogicalUnit(handle) => Some(handle),
            LunLookup::WellKnown | LunLookup::Absent => None,
        }
    }

    /// Commands that did not complete at once, by tag.
    #[inline]
    pub(super) fn tasks(&self) -> &TaskTable {
        &self.tasks
    }

    /// The same, mutably.
    #[inline]
    pub(super) fn tasks_mut(&mut self) -> &mut TaskTable {
        &mut self.tasks
    }

    /// Adds a task.
    pub(super) fn insert_task(&mut self, task: Task) {
        if let Some(handle) = self.luns.known(task.command().lun) {
            handle.counters().begin_task();
        }
        self.tasks.insert(task);
    }

    /// The begin of the current receive.
    #[inline]
    pub(super) fn received_at(&self) -> Instant {
        self.responses.received()
    }

    /// Counts a command of a LUN field that completed at once, and the bytes that it read and wrote.
    #[inline]
    pub(super) fn count_at_once(&mut self, lun: u64, class: OpClass, (read, written): (u64, u64)) {
        let Some(handle) = self.luns.known(lun) else { return };
        handle.counters().count(class, read, written);
        if handle.add_at_once(class) {
            self.at_once.push(lun);
        }
    }

    /// Logs a response whose bytes are queued before the next flush.
    pub(super) fn log_response(&self, response: LoggedResponse) {
        self.responses.add(response);
    }

    /// All received bytes are parsed. The commands that completed at once share the time that it took.
    #[inline]
    fn end_receive(&mut self) {
        if !self.at_once.is_empty() {
            self.share_time();
        }
    }

    fn share_time(&mut self) {
        let ended = Instant::now();
        let took = ended.saturating_duration_since(self.received_at());
        let NexusState { luns, at_once, responses, .. } = self;
        let counts = at_once.iter().filter_map(|lun| luns.known(*lun).map(|handle| handle.at_once()));
        let all: u32 = counts.sum();
        let backend = took / all.max(1);
        for lun in at_once.drain(..) {
            let Some(handle) = luns.known(lun) else { continue };
            let counts = handle.take_at_once();
            for (class, count) in OpClass::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0) {
                let (counters, queue) = (handle.counters().shared().clone(), took - backend);
                responses.add(LoggedResponse { counters, class, count, queue, backend, ended });
            }
        }
    }

    /// The parts that move data of tasks.
    pub(super) fn transfer_parts(&mut self) -> TransferParts<'_, F> {
        let NexusState { tasks, requests, front, pool, .. } = self;
        TransferParts { tasks, requests, front, pool }
    }

    /// Counts the task management functions that have not ended.
    pub(super) fn functions_mut(&mut self) -> &mut FunctionCount {
        &mut self.functions
    }

    /// Records that a remote target may still execute this task, although it ends here.
    pub(super) fn leave_indeterminate(&mut self, serial: u64) {
        self.indeterminate.add(serial);
    }

    /// Whether a remote target may still execute one of these tasks, which have ended here.
    pub(super) fn is_indeterminate(&self, serials: &[u64]) -> bool {
        self.indeterminate.has_any_of(serials)
    }

    /// Logs the end of the session. `broken`: the error of its connection.
    pub(super) fn log_end(&self, broken: Option<String>) {
        session_entry::log_end(&self.shared, &self.info, self.session_handle, self.end, broken);
    }

    /// A buffer for data that have no place in a task. It may exceed the limit of the pool, because receiving must
    /// not wait for memory that only further receiving can free.
    pub fn buffer(&self, len: usize) -> Buf {
        exec::buffer_without_waiting(&self.pool, len)
    }

    /// The phase of the session.
    #[inline]
    pub fn phase(&self) -> SessionPhase {
        self.phase
    }

    /// Accepts no new commands from now on.
    pub(super) fn begin_logout(&mut self) {
        if self.phase == SessionPhase::Running {
            self.phase = SessionPhase::LoggingOut;
        }
    }

    /// Ends the session without a reason, or with the one that it has.
    pub(super) fn set_ended(&mut self) {
        self.phase = SessionPhase::Ended;
    }

    /// Ends the session. The first reason is kept.
    pub fn end_with(&mut self, reason: EndReason) {
        self.phase = SessionPhase::Ended;
        self.set_end_reason(reason);
    }

    /// The reason for the end.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.end
    }

    /// Records the reason for the end, unless there is one already.
    pub fn set_end_reason(&mut self, reason: EndReason) {
        self.end.get_or_insert(reason);
    }

    /// Drops this sender when the session is over.
    pub(super) fn notify_end(&mut self, done: DoneSender) {
        self.waiting_for_end.push(done);
    }

    /// Takes the senders that wait for the end.
    pub fn take_waiting_for_end(&mut self) -> Vec<DoneSender> {
        std::mem::take(&mut self.waiting_for_end)
    }

    /// The scope of another session's task management function, while bytes are parsed that arrived before it.
    pub fn busy_scope(&self) -> Option<&AbortScope> {
        self.busy_scope.as_ref()
    }

    /// Runs `work` on bytes that arrived before a task management function of another session with this scope.
    pub fn with_busy_scope<T>(
        &mut self,
        busy_scope: Option<AbortScope>,
        work: impl FnOnce(&mut Self) -> T,
    ) -> T {
        if busy_scope.is_some() {
            self.responses.begin_receive();
        }
        let outer = std::mem::replace(&mut self.busy_scope, busy_scope);
        let done = work(self);
        self.busy_scope = outer;
        done
    }

    /// Wakes all waiters.
    pub fn notify(&self) {
        if let Some(nexus) = self.me.upgrade() {
            nexus.notify();
        }
    }

    /// Whether the send queue is too long to receive more. Bytes that arrived before another session's function are
    /// always processed.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.busy_scope.is_none() && self.front.is_full()
    }
}
