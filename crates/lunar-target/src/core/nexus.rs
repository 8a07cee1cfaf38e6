//! An I_T nexus: what a session of any transport has of SCSI, on its core.

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

/// How far the life of a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionPhase {
    /// All commands are taken.
    Running,
    /// The initiator was asked to log out: no new commands.
    LoggingOut,
    /// Nothing more is taken.
    Ended,
}

/// What a login leaves to an I_T nexus.
pub struct NexusParams {
    /// What all sessions share.
    pub shared: Arc<ServerState>,
    /// Its view of the configuration.
    pub login_context: LoginContext,
    /// What is shown from outside.
    pub info: Arc<SessionInfo>,
    /// Its handle in the registry.
    pub tsih: u16,
}

/// An I_T nexus. Lives on one core, in an [`Rc`] that its tasks share.
pub struct ItNexus<F: FrontEnd> {
    state: RefCell<State<F>>,
    /// What is under way.
    fence: Arc<SessionFence>,
    pool: Pool,
    /// A task has ended or is aborted, a command has arrived, or life is over.
    changed: Event,
}

/// What changes of an I_T nexus.
pub struct State<F: FrontEnd> {
    pub(super) me: Weak<ItNexus<F>>,
    pub(super) front: F,
    pub(super) shared: Arc<ServerState>,
    pub(super) info: Arc<SessionInfo>,
    pub(super) login_context: LoginContext,
    pub(super) tsih: u16,
    pub(super) pool: Pool,
    pub(super) luns: NexusLuns,
    /// Commands that did not end on the spot, by tag.
    pub(super) tasks: HashMap<u32, Task>,
    /// Of the latest task.
    pub(super) serial: u64,
    /// Serials of tasks that have ended here and may still be carried out elsewhere; the oldest are forgotten.
    pub(super) indeterminate: VecDeque<u64>,
    /// Upper bits of the tag of the latest transfer.
    pub(super) transfer_base: u32,
    /// Requests for data that were sent.
    pub(super) requests: u64,
    /// It is looked whether data that were announced come.
    pub(super) is_data_timer_running: bool,
    /// What arrives now had arrived before a function of another session: no command ends on the spot, and these do not begin.
    pub(super) busy_scope: Option<AbortScope>,
    phase: SessionPhase,
    /// Why it ends, if it is not that the initiator closed the connection.
    end: Option<EndReason>,
    /// Those who wait for its end.
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

/// The owner of the memory of a session: its address, and its CHAP user. Everybody chooses the name of an initiator.
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
    /// That of a session which has logged in.
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

    /// Its state, for as long as nothing is waited for.
    #[inline]
    pub fn state(&self) -> RefMut<'_, State<F>> {
        self.state.borrow_mut()
    }

    /// What is under way.
    pub fn fence(&self) -> &Arc<SessionFence> {
        &self.fence
    }

    /// Begins to take what has come. None: another core has ended the session meanwhile, and it is over.
    #[inline]
    pub fn begin_receive(&self) -> Option<InFlightGuard<&SessionFence>> {
        let under_way = fence::enter(&*self.fence);
        if under_way.is_none() {
            self.state().end_with(EndReason::Reinstated);
        }
        under_way
    }

    /// Waits while so much waits to be sent by this pump that nothing more is to be received.
    pub async fn wait_for_room(&self, pump: &SendPump, is_full: impl Fn() -> bool) {
        let is_full = || pump.is_blocked() && is_full() && self.state().phase() != SessionPhase::Ended;
        while is_full() {
            let drained = pump.drained().listen();
            if is_full() {
                drained.await;
            }
        }
    }

    /// A connection was lost: the session is over.
    pub fn lost(&self) {
        self.state().end_with(EndReason::ConnectionLost);
        self.notify();
    }

    /// Its share of the buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Has those look again who wait for a change.
    pub fn notify(&self) {
        self.changed.notify(usize::MAX);
    }

    /// Waits until none of these tasks is left.
    pub async fn wait_for(&self, serials: &[u64]) {
        self.wait_until(|s| !s.tasks.values().any(|t| serials.contains(&t.serial))).await;
    }

    /// Waits until the state is as wanted; looks again whenever a task has ended or a command has arrived.
    pub async fn wait_until(&self, wanted: impl Fn(&State<F>) -> bool) {
        loop {
            let changed = self.changed.listen();
            if wanted(&self.state.borrow()) {
                return;
            }
            changed.await;
        }
    }

    /// Ends all tasks, waits for those that run, and ends every I_T_L nexus. Those who hear of the end take what was reserved
    /// for free.
    pub async fn end_tasks(&self) {
        let all = {
            let mut state = self.state();
            state.phase = SessionPhase::Ended;
            state.abort(|_| true, AbortResponse::None, false)
        };
        self.wait_for(&all).await;
        self.state().luns.close();
    }

    /// The session is over, for this reason unless there is another one; nothing more is received.
    pub(super) fn end(&self, reason: EndReason) {
        self.state().end_with(reason);
        self.notify();
        self.state.borrow().front.stop_receiving();
    }
}

impl<F: FrontEnd> State<F> {
    /// The session of its transport.
    #[inline]
    pub fn front(&self) -> &F {
        &self.front
    }

    /// The same, to change.
    #[inline]
    pub fn front_mut(&mut self) -> &mut F {
        &mut self.front
    }

    /// Its nexus, unless that is gone.
    pub fn nexus(&self) -> Option<Rc<ItNexus<F>>> {
        self.me.upgrade()
    }

    /// What is shown from outside.
    #[inline]
    pub fn info(&self) -> &Arc<SessionInfo> {
        &self.info
    }

    /// Its view of the configuration.
    pub fn login_context(&self) -> &LoginContext {
        &self.login_context
    }

    /// Its share of the buffers.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// A buffer for data that have no place: one beyond the pool's limit per connection, so that receiving never waits for
    /// memory that only further receiving can free.
    pub fn buffer(&self, len: usize) -> Buf {
        exec::buffer_without_waiting(&self.pool, len)
    }

    /// How far its life has come.
    #[inline]
    pub fn phase(&self) -> SessionPhase {
        self.phase
    }

    /// No new commands from here on.
    pub(super) fn begin_logout(&mut self) {
        if self.phase == SessionPhase::Running {
            self.phase = SessionPhase::LoggingOut;
        }
    }

    /// Takes nothing more; the first reason is the one that counts.
    pub fn end_with(&mut self, reason: EndReason) {
        self.phase = SessionPhase::Ended;
        self.set_end_reason(reason);
    }

    /// Why it ends.
    pub fn end_reason(&self) -> Option<EndReason> {
        self.end
    }

    /// This is why it will end, unless there is another reason.
    pub fn set_end_reason(&mut self, reason: EndReason) {
        self.end.get_or_insert(reason);
    }

    /// Takes those who wait for the end.
    pub fn take_waiting_for_end(&mut self) -> Vec<DoneSender> {
        std::mem::take(&mut self.waiting_for_end)
    }

    /// What arrives now comes behind a function of another session about these.
    pub fn busy_scope(&self) -> Option<&AbortScope> {
        self.busy_scope.as_ref()
    }

    /// Does something with what comes behind a function of another session about these.
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

    /// There is a task with this tag.
    #[inline]
    pub fn has_task(&self, tag: u32) -> bool {
        !self.tasks.is_empty() && self.tasks.contains_key(&tag)
    }

    /// Wakes those who wait for a change.
    pub fn notify(&self) {
        if let Some(nexus) = self.me.upgrade() {
            nexus.notify();
        }
    }

    /// So much waits to be sent that no more is taken. What is recalled is always taken.
    pub fn is_full(&self) -> bool {
        self.busy_scope.is_none() && self.front.is_full()
    }

    /// Marks tasks as aborted and gives the serials of all that were chosen, marked before or not: each has
    /// to be waited for. With `wait` those that wait for data end when what was asked for has come (RFC
    /// 7143 section 4.2.3.3), else at once.
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
                // One that has begun ends by itself.
                if !r.is_launched && (!wait || r.sequencer.is_complete()) {
                    idle.push((task.command.tag, how));
                }
            }
        }
        idle.into_iter().for_each(|(tag, how)| self.give_up(tag, how));
        self.notify();
        serials
    }

    /// Aborts the task with this tag, if there is one.
    pub fn abort_tag(&mut self, tag: u32, how: AbortResponse) {
        self.abort(|t| t.command.tag == tag, how, false);
    }
}
