//! The admin queue of a controller, from its Connect to its end.

use super::aborts;
use super::admin_commands::{self, AdminOutcome};
use super::admin_state::{AdminState, NewAdminState};
use super::authenticate::ExchangeStep;
use super::begin::ReceivedCommand;
use super::capsule::{entry, place_of};
use super::connection::NvmeConnection;
use super::controllers::{Controller, ControllerGuard};
use super::error_log::ErrorPlace;
use super::identify::ABORTS;
use super::keep_alive;
use super::limits::MAX_QUEUE_LEN;
use super::namespaces::Namespaces;
use super::reauthenticate::{Reauthenticated, Reauthentication};
use crate::access::LoginContext;
use crate::core::data_in::DataIn;
use crate::core::nexus_ports;
use crate::end_reason::EndReason;
use crate::exec;
use crate::registry::{DoneSender, SessionMessage};
use crate::server_state::ServerState;
use crate::session_entry::{self, RegisteredSession};
use event_listener::Event;
use lunar_proto::nvme::{AsyncEvent, ControllerKind, PropertyChange};
use lunar_runtime::nvme::receive::{NvmePduHandler, NvmeReceiveError, ReceivedNvmePdu};
use lunar_runtime::{Buf, ReceiveStatus, SendPump};
use lunar_scsi::LuWatcher;
use lunar_wire::nvme::{NvmePdu, NvmePduError, NvmePduKind, NvmeStatus, fatal_error};
use std::cell::{Cell, RefCell, RefMut};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// How long the I/O queues of a stopping server may take to complete their commands.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The result of an Abort whose command was not aborted (dword 0 of the completion, bit 0).
const NOT_ABORTED: u64 = 1;

/// An admitted admin queue.
pub struct AdminParts {
    /// The registered session.
    pub entered: RegisteredSession,
    /// The context of the Connect.
    pub context: LoginContext,
    /// The controller.
    pub controller: ControllerGuard,
    /// Its kind.
    pub kind: ControllerKind,
}

/// An admin queue. It lives on one core.
pub struct AdminQueue {
    connection: Rc<NvmeConnection>,
    controller: Arc<Controller>,
    state: RefCell<AdminState>,
    end: Cell<Option<EndReason>>,
    /// The I/O queues of a disabled controller are ending. It may be enabled again only afterwards.
    is_disabling: Cell<bool>,
    /// A shutdown has begun, and others that the host requests meanwhile follow it.
    is_shutting_down: Cell<bool>,
    /// Aborts without a completion.
    aborts: Cell<u8>,
    reauthentication: Reauthentication,
    /// Dropped when the controller is over.
    waiting_for_end: RefCell<Vec<DoneSender>>,
}

/// Serves an admin queue to its end.
pub async fn run(
    shared: &Arc<ServerState>,
    connection: Rc<NvmeConnection>,
    parts: AdminParts,
    keep_alive_ms: u32,
) {
    let AdminParts { entered, context, controller: listed, kind, .. } = parts;
    let RegisteredSession { info, guard, messages, count, .. } = entered;
    let changed = Arc::new(Event::new());
    let namespaces = (kind == ControllerKind::Io).then(|| {
        let node = info.target.as_ref().and_then(|name| context.config.targets.get(name));
        let map = node.map(|node| context.lun_map(node, &info.initiator)).unwrap_or_default();
        let changed = changed.clone();
        let watcher: Arc<LuWatcher> = Arc::new(move || _ = changed.notify(usize::MAX));
        Namespaces::new(nexus_ports(shared, &info, &context), &map, watcher)
    });
    let queue = Rc::new(AdminQueue {
        connection: connection.clone(),
        controller: listed.controller().clone(),
        state: RefCell::new(AdminState::new(NewAdminState {
            shared: shared.clone(),
            context,
            info: info.clone(),
            controller: listed.controller().clone(),
            kind,
            max_queue_len: MAX_QUEUE_LEN as u16,
            keep_alive_ms,
            namespaces,
        })),
        end: Cell::default(),
        is_disabling: Cell::default(),
        is_shutting_down: Cell::default(),
        aborts: Cell::default(),
        reauthentication: Reauthentication::new(shared, listed.controller(), info.address),
        waiting_for_end: RefCell::default(),
    });
    listed.controller().hear();
    lunar_runtime::spawn(serve_messages(Rc::downgrade(&queue), messages));
    lunar_runtime::spawn(keep_alive::run(Rc::downgrade(&queue)));
    match kind {
        ControllerKind::Io => lunar_runtime::spawn(watch(Rc::downgrade(&queue), changed)),
        ControllerKind::Discovery => {
            lunar_runtime::spawn(watch_discovery(Rc::downgrade(&queue), shared.clone()))
        }
    }
    let received = queue.receive().await;
    if let Err(NvmeReceiveError::Pdu { error, header }) = &received {
        connection.terminate(*error, header);
    }
    let broken = received.err().map(|e| e.to_string());
    // Linux resets the connection after a shutdown.
    let shut_down = queue.state().properties.is_shut_down().then_some(EndReason::Logout);
    let end = queue.end.get().or(shut_down);
    session_entry::log_end(shared, &info, guard.session_handle, end, broken);
    queue.end_io_queues(EndReason::ControllerEnded).await;
    connection.linger_if_terminated().await;
    connection.close();
    let waiting = queue.waiting_for_end.take();
    // The order matters: those who wait for the end must find the places free.
    drop((queue, connection));
    drop((listed, guard, count));
    drop(waiting);
}

/// Handles messages from other cores until the queue is over.
async fn serve_messages(queue: Weak<AdminQueue>, messages: flume::Receiver<SessionMessage>) {
    while let Ok(message) = messages.recv_async().await {
        let Some(queue) = queue.upgrade() else { return };
        match message {
            SessionMessage::End { reason, done } => queue.end_for(reason, done),
            // An admin queue has no tasks.
            SessionMessage::Abort { done, .. } => drop(done),
            SessionMessage::Stop { done } => lunar_runtime::spawn(async move {
                let _ = compio::time::timeout(STOP_TIMEOUT, queue.controller.without_queues()).await;
                queue.end_for(EndReason::ServerStop, done);
            }),
            SessionMessage::Luns(Some((map, _))) => {
                queue.state().replace(&map);
                queue.send_events();
            }
            SessionMessage::Luns(None) => queue.end(EndReason::AccessRemoved),
            SessionMessage::Attention(_) => queue.refresh(),
        }
    }
}

/// Reports changes of the namespaces.
async fn watch(queue: Weak<AdminQueue>, changed: Arc<Event>) {
    loop {
        let next = changed.listen();
        let Some(now) = queue.upgrade() else { return };
        now.refresh();
        drop(now);
        // The state is looked at once a minute too, so that the task of a queue that is over ends.
        let _ = compio::time::timeout(Duration::from_secs(60), next).await;
    }
}

/// Reports changes of the discovery log.
async fn watch_discovery(queue: Weak<AdminQueue>, shared: Arc<ServerState>) {
    use std::sync::atomic::Ordering::Relaxed;
    let mut known = shared.generation.load(Relaxed);
    loop {
        let next = shared.discovery_changed.listen();
        let Some(queue) = queue.upgrade() else { return };
        let now = shared.generation.load(Relaxed);
        if std::mem::replace(&mut known, now) != now {
            queue.state().events_mut().raise(AsyncEvent::DiscoveryChanged);
            queue.send_events();
        }
        drop(queue);
        let _ = compio::time::timeout(Duration::from_secs(60), next).await;
    }
}

impl AdminQueue {
    /// The state. The borrow must end before the next await.
    pub fn state(&self) -> RefMut<'_, AdminState> {
        self.state.borrow_mut()
    }

    /// The controller.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Ends the controller. An earlier reason is kept.
    pub fn end(&self, reason: EndReason) {
        self.end.set(self.end.get().or(Some(reason)));
        self.connection.stop_receiving();
    }

    fn end_for(&self, reason: EndReason, done: DoneSender) {
        self.waiting_for_end.borrow_mut().push(done);
        self.end(reason);
    }

    fn refresh(self: &Rc<Self>) {
        self.state().refresh();
        self.send_events();
    }

    /// Completes requests with the events that wait.
    fn send_events(self: &Rc<Self>) {
        let mut state = self.state();
        while let Some((id, event)) = state.events_mut().take_completion() {
            self.connection.complete(id, NvmeStatus::SUCCESS, event.result().into());
        }
        drop(state);
        SendPump::flush(&self.connection);
    }

    /// Ends the I/O queues, and waits until all of their commands have ended. Others cannot connect.
    async fn end_io_queues(&self, reason: EndReason) {
        self.controller.set_ready(false);
        let (shared, id) = (self.state().shared().clone(), self.controller.id());
        shared.registry.end(|info| info.is_queue_of(id), reason).await;
    }

    async fn receive(self: &Rc<Self>) -> Result<(), NvmeReceiveError> {
        let connection = &self.connection;
        let mut next = match connection.has_begun() {
            true => ReceiveStatus::Full,
            false => ReceiveStatus::More,
        };
        loop {
            SendPump::flush(connection);
            self.wait_for_room().await;
            let mut dispatcher = AdminDispatcher { queue: self };
            next = match next {
                ReceiveStatus::End => return Ok(()),
                ReceiveStatus::Full => connection.resume(&mut dispatcher)?,
                ReceiveStatus::More => {
                    connection.stream().readable().await?;
                    connection.receive(&mut dispatcher)?
                }
            };
        }
    }

    async fn wait_for_room(&self) {
        let pump = self.connection.send_pump();
        while pump.is_blocked() && self.connection.is_full() && self.end.get().is_none() {
            let drained = pump.drained().listen();
            if pump.is_blocked() && self.connection.is_full() {
                drained.await;
            }
        }
    }

    /// Carries out a change of the properties. A reset or a shutdown that runs looks at the configuration at its end, so that
    /// a host that changes it often begins no others.
    fn change(self: &Rc<Self>, change: PropertyChange) {
        let queue = self.clone();
        match change {
            PropertyChange::None => {}
            PropertyChange::Enable | PropertyChange::Disable if self.is_disabling.get() => {}
            PropertyChange::Enable => self.enable(),
            PropertyChange::Disable => {
                self.is_disabling.set(true);
                lunar_runtime::spawn(async move { queue.disable().await });
            }
            PropertyChange::Shutdown if self.is_shutting_down.replace(true) => {}
            PropertyChange::Shutdown => lunar_runtime::spawn(async move {
                while !queue.shut_down().await {}
                queue.is_shutting_down.set(false);
            }),
        }
    }

    /// Executes an Abort with this identifier. Its completion follows when the command is over, unless the host changes the state
    /// of the controller before that.
    fn abort(self: &Rc<Self>, id: u16, queue: u16, command: u16) {
        if self.aborts.get() > ABORTS {
            return self.connection.complete(id, NvmeStatus::ABORT_LIMIT_EXCEEDED, 0);
        }
        self.aborts.set(self.aborts.get() + 1);
        let (admin, sender) = (Rc::downgrade(self), self.controller.aborts_of(queue));
        let changes = self.state().properties.changes();
        lunar_runtime::spawn(async move {
            let is_aborted = aborts::abort(sender, command).await;
            let Some(admin) = admin.upgrade() else { return };
            admin.aborts.set(admin.aborts.get() - 1);
            if admin.state().properties.changes() == changes {
                let result = if is_aborted { 0 } else { NOT_ABORTED };
                admin.connection.complete(id, NvmeStatus::SUCCESS, result);
                SendPump::flush(&admin.connection);
            }
        });
    }

    /// Executes a command with which the host proves its secret again. Its completion follows.
    fn authenticate(self: &Rc<Self>, command: ReceivedCommand) {
        let (queue, id) = (self.clone(), command.sqe.id());
        lunar_runtime::spawn(async move {
            let Reauthenticated { executed, has_failed } = queue.reauthentication.execute(command).await;
            match executed {
                Ok(ExchangeStep::Sent) => queue.connection.complete(id, NvmeStatus::SUCCESS, 0),
                Ok(ExchangeStep::Message(data)) => {
                    // Bytes in memory: no file is read.
                    let _ = queue.connection.send_data(id, DataIn::Bytes(data), 0, true);
                }
                Err(status) => queue.connection.complete(id, status, 0),
            }
            SendPump::flush(&queue.connection);
            if has_failed {
                queue.end(EndReason::AuthenticationFailed);
            }
        });
    }

    fn enable(&self) {
        let mut state = self.state();
        state.properties.set_ready();
        self.controller.set_ready(state.kind() == ControllerKind::Io);
    }

    /// Ends the I/O queues, and enables the controller again if the host has asked for it meanwhile.
    async fn disable(&self) {
        self.end_io_queues(EndReason::ControllerEnded).await;
        let is_enabled = {
            let mut state = self.state();
            state.reset();
            state.properties.set_disabled()
        };
        self.is_disabling.set(false);
        if is_enabled {
            self.enable();
        }
    }

    /// Ends the I/O queues, and flushes the namespaces. Returns whether the host waits for no other shutdown.
    async fn shut_down(&self) -> bool {
        let changes = self.state().properties.changes();
        self.end_io_queues(EndReason::ControllerEnded).await;
        let units: Vec<_> = {
            let state = self.state();
            let all = state.namespaces().into_iter().flat_map(|all| all.iter());
            all.filter(|(_, one)| one.view.write_cache).map(|(_, one)| one.unit().clone()).collect()
        };
        for unit in &units {
            // A failed flush is logged, and the next one of a host reports it.
            let _ = exec::flush(unit).await;
        }
        self.state().properties.set_shut_down(changes)
    }
}

/// The handler of the PDUs of an admin queue.
struct AdminDispatcher<'a> {
    queue: &'a Rc<AdminQueue>,
}

impl AdminDispatcher<'_> {
    fn command(&mut self, header: &[u8], data: &[u8], intact: bool) -> Result<bool, NvmePduError> {
        let sqe = entry(header).ok_or(NvmePduError::of(fatal_error::SEQUENCE))?;
        let (queue, id) = (self.queue, sqe.id());
        queue.connection.take_entry();
        let executed = match (place_of(&sqe, data.len()), intact) {
            (Ok(_), false) => Err(NvmeStatus::TRANSIENT_TRANSPORT_ERROR),
            (Ok(place), true) => admin_commands::execute(&mut queue.state(), &sqe, place, data),
            (Err(status), _) => Err(status),
        };
        match executed {
            Ok(AdminOutcome::Done(result)) => queue.connection.complete(id, NvmeStatus::SUCCESS, result),
            Ok(AdminOutcome::Data(data)) => {
                // Bytes in memory: no file is read.
                let _ = queue.connection.send_data(id, DataIn::Bytes(data), 0, true);
            }
            Ok(AdminOutcome::Held) => {}
            Ok(AdminOutcome::Authenticate) => {
                queue.authenticate(ReceivedCommand { sqe, data: data.to_vec(), intact });
            }
            Ok(AdminOutcome::Abort { queue: of, id: command }) => queue.abort(id, of, command),
            Ok(AdminOutcome::Changed(change)) => {
                queue.change(change);
                queue.connection.complete(id, NvmeStatus::SUCCESS, 0);
            }
            Err(status) => {
                let place = ErrorPlace { namespace: sqe.namespace(), lba: 0 };
                let status = queue.controller.log_error(0, id, status, place);
                queue.connection.complete(id, status, 0);
            }
        }
        queue.send_events();
        Ok(true)
    }
}

impl NvmePduHandler for AdminDispatcher<'_> {
    fn place(&mut self, _: &NvmePdu, _: &[u8]) -> Option<(Buf, usize)> {
        None
    }

    fn buffer(&mut self, len: usize) -> Buf {
        Buf::zeroed(len)
    }

    fn is_full(&self) -> bool {
        self.queue.connection.is_full()
    }

    fn take(&mut self, received: ReceivedNvmePdu<'_>) -> Result<bool, NvmePduError> {
        if self.queue.end.get().is_some() {
            return Ok(false);
        }
        self.queue.controller.hear();
        let ReceivedNvmePdu { pdu, header, data, intact } = received;
        match pdu.kind {
            NvmePduKind::Command => self.command(header, data.bytes(), intact),
            NvmePduKind::HostTermRequest => {
                self.queue.end(EndReason::TerminatedByHost);
                Ok(false)
            }
            // An admin queue requests no data.
            _ => Err(NvmePduError::of(fatal_error::SEQUENCE)),
        }
    }
}
