//! The upstream I_T nexus of one host nexus.

use super::queue::{AbortableCommand, CommandKind, CommandQueue};
use super::stale::StaleSessions;
use super::status::{HostLu, NexusStatus};
use super::{PassthroughInner, PassthroughSpec, reply};
use crate::isids::RouterIsids;
use crate::upstream::is_about_luns;
use event_listener::Event as Notifier;
use lunar_block::LocalBoxFuture;
use lunar_initiator::command::{is_repeatable_on_blocks, only_reads, only_reads_on_blocks};
use lunar_initiator::{
    Command, CommandId, CommandResult, Completion, Direction, Error, Event, IDENTITY_LEN, LateWrites,
    Options, Pending, Session, SessionHooks, Url,
};
use lunar_runtime::Buf;
use lunar_scsi::{InitiatorPort, NexusPorts};
use lunar_target::{
    CommandFate, PassthroughCommand, PassthroughData, PassthroughNexus, PassthroughQueue, PassthroughResponse,
};
use lunar_wire::scsi::cdb;
use lunar_wire::scsi::inquiry;
use lunar_wire::scsi::lun;
use lunar_wire::scsi::op;
use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction};
use sha2::{Digest, Sha256};
use std::cell::{Cell, Ref, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// The pauses between rounds of login attempts: the first one, which doubles each time, and the maximum.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LAST_PAUSE: Duration = Duration::from_secs(8);
/// The time limit of an identity check.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval of checks of lost sessions.
const LOST_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Function complete.
const COMPLETE: u8 = 0;
/// ILLEGAL REQUEST, INVALID FIELD IN CDB: the sense key and the additional sense code.
const NO_SUCH_PAGE: (u8, u8) = (5, 0x24);

/// The key of an upstream nexus: the instance, the host nexus, and the paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    instance: String,
    port: NexusPorts,
    paths: Vec<String>,
}

impl Key {
    pub fn of(spec: &PassthroughSpec, port: &NexusPorts) -> Key {
        let paths = spec.paths.iter().map(|(url, _)| url.plain()).collect();
        let instance = format!("{}/{}", spec.router, spec.upstream);
        Key { instance, port: port.clone(), paths }
    }

    /// An ISID in the random format (RFC 7143 section 11.12.5), derived from the nexus.
    pub fn isid(&self) -> [u8; 6] {
        let port = &self.port;
        let mut hash = Sha256::new();
        let name = port.initiator.name();
        let isid = match &port.initiator {
            InitiatorPort::Iscsi { isid, .. } => *isid,
            InitiatorPort::Srp(_) | InitiatorPort::Nvme { .. } => [0; 6],
        };
        for part in [self.instance.as_bytes(), name.as_bytes(), &isid, port.target.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        hash.update(port.own.portal_group_tag.to_be_bytes());
        // Without a user nothing is hashed, so that such a nexus keeps its ISID.
        hash.update(&port.user);
        let hash = hash.finalize();
        [0x80, hash[0], hash[1], hash[2], hash[3], hash[4]]
    }
}

/// An upstream nexus, with one session at a time.
pub struct UpstreamNexus {
    status: Arc<NexusStatus>,
    session: RefCell<Option<Session>>,
    /// Logical units whose identity was verified on this session.
    seen: RefCell<HashMap<u64, Vec<u8>>>,
    /// A lost session of each path, while the target may still execute its commands. It reconnects by itself. Only
    /// [`keep`] changes this.
    lost: RefCell<Vec<Option<Session>>>,
    /// The time since which there is no session.
    down: Cell<Option<Instant>>,
    /// The path of the session, and the number of its connection.
    path: Cell<usize>,
    connection: Cell<u64>,
    /// Notified when there is a session, and when a command is aborted.
    notifier: Notifier,
}

impl UpstreamNexus {
    pub fn start(spec: &PassthroughSpec, key: &Key) -> Rc<UpstreamNexus> {
        let isid = key.isid();
        let paths = spec.paths.iter().map(|(url, options)| (url.clone(), options.clone().with_isid(isid)));
        let nexus = Rc::new(UpstreamNexus {
            status: NexusStatus::begin(spec, &key.port),
            session: RefCell::default(),
            seen: RefCell::default(),
            lost: RefCell::new(spec.paths.iter().map(|_| None).collect()),
            down: Cell::new(Some(Instant::now())),
            path: Cell::new(0),
            connection: Cell::new(0),
            notifier: Notifier::new(),
        });
        lunar_runtime::spawn(keep(Rc::downgrade(&nexus), paths.collect(), spec.isids.clone()));
        nexus
    }

    fn install(&self, session: Session, path: usize) {
        self.seen.borrow_mut().clear();
        self.status.take(path);
        self.session.replace(Some(session));
        self.path.set(path);
        self.connection.set(self.connection.get() + 1);
        self.down.set(None);
        self.notifier.notify(usize::MAX);
    }

    /// The current session.
    pub fn current_session(&self) -> Option<Ref<'_, Session>> {
        Ref::filter_map(self.session.borrow(), Option::as_ref).ok()
    }

    /// The path of the current session, or of the last one.
    pub fn path(&self) -> usize {
        self.path.get()
    }

    /// The number of the current connection, or of the last one.
    pub fn connection(&self) -> u64 {
        self.connection.get()
    }

    /// Wakes waiting commands.
    pub fn ring(&self) {
        self.notifier.notify(usize::MAX);
    }

    /// Removes the lost session of this path, unless the target may still execute its commands.
    async fn remove(&self, path: usize, lost: Instant) {
        self.status.record_loss();
        self.down.set(Some(lost));
        let session = self.session.replace(None);
        self.lost.borrow_mut()[path].clone_from(&session);
        let Some(session) = session else { return };
        if session.oldest_orphan(None).await.is_none() {
            self.lost.borrow_mut()[path] = None;
        }
    }

    /// The lost session of this path, once it has recovered.
    ///
    /// # Errors
    /// When it has not recovered: a second session of the same nexus would end it.
    async fn come_back(&self, path: usize) -> Option<Result<Session, Error>> {
        // It stays in `lost` meanwhile, so that a reset reaches it.
        let session = self.lost.borrow()[path].clone()?;
        if !session.info().connected && session.oldest_orphan(None).await.is_some() {
            let what = "the upstream target may still execute commands of a lost session";
            return Some(Err(Error::new(lunar_initiator::ErrorCode::ConnectionLost, what)));
        }
        self.lost.borrow_mut()[path] = None;
        session.info().connected.then_some(Ok(session))
    }

    /// Handles a login of a session. The login ended lost sessions at the same target port, because all paths have
    /// one ISID.
    async fn handle_login(&self, session: &Session) {
        for lost in self.all_lost() {
            lost.record_reinstatement(session).await;
        }
        self.close_ended().await;
    }

    /// Closes lost sessions whose commands have all ended. If one reconnected at the portal group of the current
    /// session, it would end that session.
    async fn close_ended(&self) {
        let paths = self.lost.borrow().len();
        for path in 0..paths {
            let Some(session) = self.lost.borrow()[path].clone() else { continue };
            if session.oldest_orphan(None).await.is_none() {
                self.lost.borrow_mut()[path] = None;
                lunar_runtime::spawn(async move { session.close().await });
            }
        }
    }

    fn all_lost(&self) -> Vec<Session> {
        self.lost.borrow().iter().flatten().cloned().collect()
    }

    /// Handles a reset of the logical unit by a request sent at this time.
    async fn handle_reset(&self, lun: u64, at: Instant) {
        for session in self.all_lost() {
            session.record_reset(lun, at).await;
        }
    }

    /// Waits for a session. None when `is_over`, or when there has been no session for too long.
    async fn session(&self, path_loss_timeout: Duration, is_over: impl Fn() -> bool) -> Option<Session> {
        loop {
            let rings = self.notifier.listen();
            if is_over() {
                return None;
            }
            if let Some(session) = self.session.borrow().clone() {
                return Some(session);
            }
            let since = self.down.get().unwrap_or_else(Instant::now);
            let left = path_loss_timeout.checked_sub(since.elapsed()).filter(|left| !left.is_zero())?;
            // The loop checks again, with or without a timeout.
            _ = compio::time::timeout(left, rings).await;
        }
    }

    /// Waits until no stale session of an earlier process is left. Returns false after the time limit, when
    /// `is_over`, or when the session has another connection.
    async fn end_stale_sessions(
        &self,
        stale: &Rc<StaleSessions>,
        (session, connection): (&Session, u64),
        is_over: impl Fn() -> bool,
    ) -> bool {
        let started_at = Instant::now();
        loop {
            let rings = self.notifier.listen();
            if stale.is_over() {
                return true;
            }
            let left =
                stale.path_loss_timeout().checked_sub(started_at.elapsed()).filter(|left| !left.is_zero());
            let Some(left) = left.filter(|_| !is_over() && self.connection.get() == connection) else {
                return false;
            };
            stale.end(session);
            // The loop checks again, with or without a timeout.
            _ = compio::time::timeout(left, rings).await;
        }
    }

    /// Whether a logical unit was found to have the expected identity on this session.
    fn is_verified(&self, lun: u64, identity: &Vec<u8>) -> bool {
        identity.is_empty() || self.seen.borrow().get(&lun) == Some(identity)
    }

    /// Whether a logical unit has the expected identity. None if it does not respond. INQUIRY does not clear unit
    /// attentions of the host.
    async fn check_identity(&self, session: &Session, lun: u64, spec: &PassthroughSpec) -> Option<bool> {
        let identity = &spec.identity;
        if self.is_verified(lun, identity) {
            return Some(true);
        }
        let page = Direction::In(Buf::zeroed(IDENTITY_LEN.into()));
        let command = Command::new(lun, cdb::inquiry(Some(0x83), IDENTITY_LEN), page);
        // Host commands have no time limit, but their aborts must not wait for this command.
        let (result, buf) = compio::time::timeout(IDENTITY_TIMEOUT, session.submit(command)).await.ok()?;
        let (completion, page) = result.ok().zip(buf)?;
        let now = identity_of(&completion, &page[..completion.transferred.min(page.len())])?;
        let is = now == *identity;
        if is {
            session.pin(lun, identity.clone());
            self.seen.borrow_mut().insert(lun, identity.clone());
        } else {
            self.status.log_change(lun, identity, &now);
        }
        Some(is)
    }

    /// Handles an event of the session.
    fn heed(&self, event: &Event) {
        match event {
            Event::Lost(_) => self.status.record_loss(),
            Event::Connected => {
                self.connection.set(self.connection.get() + 1);
                self.status.record_connection();
            }
            Event::Changed { lun, identity } => {
                let was = self.seen.borrow().get(lun).cloned().unwrap_or_default();
                self.status.log_change(*lun, &was, identity);
            }
            _ => {}
        }
    }
}

/// The identity of a logical unit by VPD page 83h. Without that page, it has no designators. None if there is no
/// logical unit (PERIPHERAL QUALIFIER, SPC-5 section 6.6.2), or it is busy.
fn identity_of(answer: &Completion, page: &[u8]) -> Option<Vec<u8>> {
    let is_there = inquiry::is_connected(page);
    let knows_no_page = answer.sense().is_some_and(|s| (s.key, s.asc) == NO_SUCH_PAGE);
    match answer.status {
        0 if is_there => Some(lunar_initiator::identity(page)),
        _ if knows_no_page => Some(Vec::new()),
        _ => None,
    }
}

/// Keeps a session over the first path that responds, while the nexus is in use.
async fn keep(nexus: Weak<UpstreamNexus>, paths: Vec<(Url, Options)>, isids: Option<Arc<RouterIsids>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        for (number, (url, options)) in paths.iter().enumerate() {
            if nexus.strong_count() == 0 {
                return;
            }
            let target = url.target.as_deref().unwrap_or_default();
            let back = match nexus.upgrade() {
                Some(nexus) => nexus.come_back(number).await,
                None => return,
            };
            let opened = match back {
                Some(back) => back,
                None => {
                    let nexus = isids.as_ref().zip(options.isid).map(|(isids, isid)| isids.nexus(isid));
                    let hooks = nexus.clone().map(|nexus| nexus as Arc<dyn SessionHooks>);
                    let mut options = options.clone();
                    options.hooks = hooks;
                    let opened = Session::open(url.portal.clone(), target, options).await;
                    opened.inspect(|session| nexus.iter().for_each(|nexus| nexus.is(session)))
                }
            };
            match opened {
                Ok(session) => {
                    let events = session.events();
                    // No reference is held meanwhile: the session ends with the host nexus.
                    match nexus.upgrade() {
                        Some(nexus) => {
                            nexus.handle_login(&session).await;
                            nexus.install(session, number);
                        }
                        None => return,
                    }
                    pause = FIRST_PAUSE;
                    let lost = until_it_is_lost(&nexus, &events).await;
                    if let Some(nexus) = nexus.upgrade() {
                        nexus.remove(number, lost).await;
                    }
                }
                Err(e) => {
                    tracing::debug!(target, portal = %url.portal, "cannot open a passthrough session: {e}")
                }
            }
        }
        compio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Waits until the session stops recovering or its last user is dropped. Returns the time when the connection was
/// lost.
async fn until_it_is_lost(nexus: &Weak<UpstreamNexus>, events: &flume::Receiver<Event>) -> Instant {
    let mut lost = None;
    while let Some(event) = next_event(nexus, events).await {
        nexus.upgrade().inspect(|nexus| nexus.heed(&event));
        match event {
            Event::Lost(_) => lost = lost.or_else(|| Some(Instant::now())),
            Event::Connected => lost = None,
            Event::GaveUp(_) => break,
            _ => {}
        }
    }
    lost.unwrap_or_else(Instant::now)
}

/// The next event of the current session. Meanwhile, checks lost sessions.
async fn next_event(nexus: &Weak<UpstreamNexus>, events: &flume::Receiver<Event>) -> Option<Event> {
    while nexus.upgrade().is_some_and(|nexus| !nexus.all_lost().is_empty()) {
        if let Ok(event) = compio::time::timeout(LOST_CHECK_INTERVAL, events.recv_async()).await {
            return event.ok();
        }
        if let Some(nexus) = nexus.upgrade() {
            nexus.close_ended().await;
        }
    }
    events.recv_async().await.ok()
}

/// A logical unit through an upstream nexus.
pub struct LuNexus {
    pub(super) shared: Arc<PassthroughInner>,
    pub(super) nexus: Rc<UpstreamNexus>,
    host_lu: Arc<HostLu>,
    pub(super) lun: u64,
    pub(super) stale: Rc<StaleSessions>,
    /// The commands that have a future.
    live: RefCell<HashMap<u64, CommandStage>>,
    /// The other commands.
    pub(super) queue: RefCell<CommandQueue>,
}

/// The progress of a command.
enum CommandStage {
    Waiting,
    /// Sent over this session with this id, and whether it may change anything.
    Sent(Session, CommandId, bool),
    Aborted,
}

impl LuNexus {
    pub fn new(shared: Arc<PassthroughInner>, nexus: Rc<UpstreamNexus>) -> LuNexus {
        let (lun, host_lu) = (lun::encode(shared.spec.lun), HostLu::new(nexus.status.clone()));
        shared.add(&host_lu);
        let stale = StaleSessions::new(shared.clone(), nexus.clone(), lun);
        LuNexus { shared, nexus, host_lu, lun, stale, live: RefCell::default(), queue: RefCell::default() }
    }

    async fn carry(&self, command: PassthroughCommand, take: Option<&dyn Fn(Buf)>) -> PassthroughResponse {
        let PassthroughCommand { tag, cdb, attribute, data } = command;
        let (direction, reads) = direction(data);
        let Ok(command) = Command::long(self.lun, &cdb, direction) else {
            return reply::failed(
                &lunar_initiator::Error::new(
                    lunar_initiator::ErrorCode::InvalidArgument,
                    "the CDB of the passthrough command has an invalid length",
                ),
                false,
            );
        };
        let command = self.prepared(command, attribute);
        let (repeatable, changes) = (command.repeatable, command.changes);
        let arrived = Instant::now();
        let is_over = || self.is_aborted(tag);
        let spec = &self.shared.spec;
        let Some(session) = self.nexus.session(spec.path_loss_timeout, is_over).await else {
            return reply::no_path();
        };
        let connection = self.nexus.connection();
        match self.nexus.check_identity(&session, self.lun, spec).await {
            Some(true) if !is_over() => {}
            Some(false) => {
                self.host_lu.is_changed.store(true, Relaxed);
                return reply::wrong_lu();
            }
            _ => return reply::no_path(),
        }
        // Reads never wait.
        if changes && !self.stale.is_over() {
            let has_none = self.nexus.end_stale_sessions(&self.stale, (&session, connection), is_over).await;
            // The host may have aborted the command in the same turn.
            if !has_none || is_over() {
                return reply::no_path();
            }
        }
        let sent = Instant::now();
        let pending = session.submit(command);
        self.live.borrow_mut().insert(tag, CommandStage::Sent(session.clone(), pending.id(), changes));
        let ((result, buf), taken) = result_of(pending, take).await;
        let queued = result.as_ref().map_or(Duration::ZERO, |c| c.queued);
        self.shared.hops.queue.add(sent - arrived + queued);
        self.shared.hops.upstream.add(sent.elapsed().saturating_sub(queued));
        self.response(Some(&session), CommandKind { reads, repeatable, changes }, (result, buf), taken)
    }

    /// The command with its task attribute, and the effects that it has on this type of device.
    pub(super) fn prepared(&self, mut command: Command, attribute: TaskAttribute) -> Command {
        command.attribute = attribute;
        // Commands that are safe to repeat on a disk may move a tape.
        command.repeatable = self.shared.spec.is_disk && is_repeatable_on_blocks(&command.cdb);
        let reads_alone = if self.shared.spec.is_disk { only_reads_on_blocks } else { only_reads };
        command.changes = !reads_alone(&command.cdb);
        command
    }

    /// The response to a command, of whose data `taken` bytes were taken before. A command that has failed has the
    /// session over which it was sent.
    pub(super) fn response(
        &self,
        session: Option<&Session>,
        kind: CommandKind,
        (result, buf): CommandResult,
        taken: usize,
    ) -> PassthroughResponse {
        match result {
            Ok(completion) => {
                self.host_lu.is_changed.store(false, Relaxed);
                if completion.sense().as_ref().is_some_and(is_about_luns) {
                    self.shared.spec.rediscover.notify(usize::MAX);
                }
                reply::answered(completion, buf.filter(|_| kind.reads), taken)
            }
            Err(e) => {
                let is_changed = e.code == lunar_initiator::ErrorCode::IdentityMismatch;
                self.host_lu.is_changed.fetch_or(is_changed, Relaxed);
                let fate = fate(session, kind.changes);
                PassthroughResponse { fate, ..reply::failed(&e, kind.repeatable) }
            }
        }
    }

    /// Whether a command waits for a session, or for a check of it.
    pub(super) fn has_waiting(&self) -> bool {
        self.live.borrow().values().any(|stage| matches!(stage, CommandStage::Waiting))
    }

    /// Whether the logical unit was found to have the expected identity on this session.
    pub(super) fn is_verified(&self) -> bool {
        self.nexus.is_verified(self.lun, &self.shared.spec.identity)
    }

    /// Publishes the number of commands in flight.
    pub(super) fn count(&self) {
        let in_flight = self.live.borrow().len() + self.queue.borrow().len();
        self.host_lu.in_flight.store(in_flight, Relaxed);
    }

    fn is_aborted(&self, tag: u64) -> bool {
        matches!(self.live.borrow().get(&tag), Some(CommandStage::Aborted))
    }

    async fn end(&self, tag: u64) -> CommandFate {
        let stage = self.live.borrow_mut().insert(tag, CommandStage::Aborted);
        self.nexus.notifier.notify(usize::MAX);
        let Some(CommandStage::Sent(session, id, changes)) = stage else { return CommandFate::Ended };
        abort(AbortableCommand { session, id, changes }).await
    }
}

/// Aborts a command that was sent.
async fn abort(AbortableCommand { session, id, changes }: AbortableCommand) -> CommandFate {
    let Err(e) = session.abort(id).await else { return CommandFate::Ended };
    // The next login as the same nexus ends the command. This does not wait for it.
    tracing::warn!(target = session.info().target, "cannot abort a passthrough command: {e}");
    session.reset_abandoned().await;
    if changes { CommandFate::Indeterminate } else { CommandFate::Ended }
}

/// The direction of the data, and whether it is Data-In.
pub fn direction(data: PassthroughData) -> (Direction, bool) {
    match data {
        PassthroughData::None => (Direction::None, false),
        PassthroughData::In(buf) => (Direction::In(buf), true),
        PassthroughData::Out(buf) => (Direction::Out(buf), false),
    }
}

/// Waits for the result of a command, and passes parts of its data to `take`. Also returns their length in bytes.
async fn result_of(pending: Pending, take: Option<&dyn Fn(Buf)>) -> (CommandResult, usize) {
    let Some(take) = take else { return (pending.await, 0) };
    let mut taken = 0;
    let count_and_take = |part: Buf| {
        taken += part.len();
        take(part);
    };
    let result = pending.in_parts(count_and_take).await;
    (result, taken)
}

/// The outcome of a command that failed on this session.
fn fate(session: Option<&Session>, changes: bool) -> CommandFate {
    let is_known = session.is_some_and(|session| {
        session.options().late_writes == LateWrites::Wait && session.info().orphans == 0
    });
    if is_known || !changes { CommandFate::Ended } else { CommandFate::Indeterminate }
}

impl PassthroughNexus for LuNexus {
    /// Only for disks: a READ that moves a tape is checked as a task before it begins.
    fn queue(&self) -> Option<&dyn PassthroughQueue> {
        self.shared.spec.is_disk.then_some(self)
    }

    fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
        self.submit_in_parts(command, None)
    }

    fn submit_in_parts<'a>(
        &'a self,
        command: PassthroughCommand,
        take: Option<&'a dyn Fn(Buf)>,
    ) -> LocalBoxFuture<'a, PassthroughResponse> {
        // If a read of a medium is repeated, its later bytes may follow earlier ones that were sent before. Other
        // commands return data that only make sense as a whole.
        let has_parts = self.shared.spec.is_disk && op::is_read(&command.cdb);
        let tag = command.tag;
        self.live.borrow_mut().insert(tag, CommandStage::Waiting);
        self.count();
        Box::pin(async move {
            let reply = self.carry(command, take.filter(|_| has_parts)).await;
            self.live.borrow_mut().remove(&tag);
            self.count();
            reply
        })
    }

    fn abort(&self, tag: u64) -> LocalBoxFuture<'_, CommandFate> {
        Box::pin(async move {
            let is_live = self.live.borrow().contains_key(&tag);
            if is_live {
                return self.end(tag).await;
            }
            let queued = self.queue.borrow().find(tag);
            match queued {
                Some(queued) => abort(queued).await,
                None => CommandFate::Ended,
            }
        })
    }

    fn manage(&self, function: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
        Box::pin(async move {
            let spec = &self.shared.spec;
            let Some(session) = self.nexus.session(spec.path_loss_timeout, || false).await else {
                return false;
            };
            // At another logical unit, the function would end tasks of other initiators.
            let is_meant = self.nexus.check_identity(&session, self.lun, spec).await == Some(true);
            let sent = Instant::now();
            let done =
                is_meant && session.manage(function, self.lun).await.is_ok_and(|code| code == COMPLETE);
            if done && function == TaskManagementFunction::LunReset {
                self.nexus.handle_reset(self.lun, sent).await;
            }
            done
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_scsi::{TargetPort, TargetPorts, TransportProtocol};

    #[test]
    fn another_user_is_another_nexus_upstream() {
        let isid = |user: &str| {
            let port = NexusPorts {
                initiator: InitiatorPort::Iscsi {
                    name: "iqn.2026-11.org.example:host".into(),
                    isid: [0x80, 0, 0, 0, 0, 1],
                },
                user: user.into(),
                target: "iqn.2026-11.org.example:disk".into(),
                own: TargetPort::new(TransportProtocol::Iscsi, 1, None),
                ports: TargetPorts::new([]),
            };
            Key { instance: "r1/a".into(), port, paths: Vec::new() }.isid()
        };
        assert!(isid("alice") != isid("bob") && isid("alice") != isid(""));
        assert_eq!(isid(""), isid(""));
    }
}
