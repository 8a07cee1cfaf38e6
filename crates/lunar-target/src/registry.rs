//! The sessions of the process on all cores: their identities, their mailboxes, and session reinstatement.

use crate::access::LunMap;
use crate::config::TargetLimits;
use crate::end_reason::EndReason;
use crate::fair_share::{self, AdmissionSlot, SourcePrefix};
use crate::initiator_totals::{InitiatorKey, InitiatorTable, InitiatorTotals};
use crate::session_key::SessionKey;
use crate::{LogicalUnit, LoginError, session_info::SessionInfo};
use lunar_scsi::{NexusId, TargetPort};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Maximum number of attempts of a login to find room, and the time between them.
const MAX_TRIES: u32 = 5;
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// A message to a session. The session answers by dropping `done`.
pub enum SessionMessage {
    /// Abort all tasks, and end the session.
    End {
        /// The reason for the end.
        reason: EndReason,
        /// Dropped when the session is over.
        done: DoneSender,
    },
    /// Abort tasks for a function of another session.
    Abort {
        /// The tasks to abort.
        scope: AbortScope,
        /// The session that requested the function. None: a session of another server.
        from: Option<Arc<SessionInfo>>,
        /// Set if a remote target may still execute one of the tasks.
        indeterminate: Indeterminate,
        /// Dropped when none of the tasks remains.
        done: DoneSender,
    },
    /// Finish the commands in flight, request a logout, and end the session.
    Stop {
        /// Dropped when the session is over.
        done: DoneSender,
    },
    /// The configuration has changed. These are the LUNs that the initiator sees now, and the ports of its target. None:
    /// its target was removed.
    Luns(Option<(Arc<LunMap>, Arc<[TargetPort]>)>),
    /// A logical unit has an asynchronous SCSI event. It is sent if the access rule enables events.
    Attention(Arc<LogicalUnit>),
}

/// Whether a remote target may still execute tasks that have ended here.
pub type Indeterminate = Arc<AtomicBool>;

/// A sender that never sends: dropping it is the signal.
pub type DoneSender = flume::Sender<()>;

/// The tasks that a function aborts.
#[derive(Clone)]
pub enum AbortScope {
    /// All tasks of some logical units, sorted by address ([`AbortScope::units`]).
    LogicalUnits(Arc<[Arc<LogicalUnit>]>),
    /// All tasks of some nexuses.
    Nexuses(Arc<[NexusId]>),
}

impl AbortScope {
    /// All tasks of these logical units.
    pub fn units(units: impl IntoIterator<Item = Arc<LogicalUnit>>) -> AbortScope {
        let mut units: Vec<_> = units.into_iter().collect();
        units.sort_by_key(Arc::as_ptr);
        units.dedup_by_key(|unit| Arc::as_ptr(unit));
        AbortScope::LogicalUnits(units.into())
    }

    /// Whether the scope covers tasks of this nexus with this logical unit.
    pub fn covers(&self, unit: &Arc<LogicalUnit>, nexus: NexusId) -> bool {
        match self {
            AbortScope::LogicalUnits(units) => {
                units.binary_search_by_key(&Arc::as_ptr(unit), Arc::as_ptr).is_ok()
            }
            AbortScope::Nexuses(list) => list.contains(&nexus),
        }
    }
}

struct SessionEntry {
    key: SessionKey,
    sender: flume::Sender<SessionMessage>,
    info: Arc<SessionInfo>,
    slot: AdmissionSlot,
    /// Where its counters remain.
    initiator: Option<InitiatorKey>,
}

impl SessionEntry {
    fn chosen((session_handle, entry): (&u16, &SessionEntry)) -> ChosenSession {
        (*session_handle, entry.sender.clone(), entry.info.clone())
    }
}

/// All sessions, by their handles.
#[derive(Default)]
pub struct Registry {
    table: Mutex<SessionTable>,
}

#[derive(Default)]
struct SessionTable {
    sessions: BTreeMap<u16, SessionEntry>,
    initiators: InitiatorTable,
    /// The latest handle. The next one differs, so that a handle is not reused soon.
    last: u16,
}

/// The request of a login to register a session.
pub struct RegisterRequest {
    /// The I_T nexus of the session.
    pub key: SessionKey,
    /// The earlier sessions that end first.
    pub replaces: Replaced,
    /// Sends messages to the session.
    pub sender: flume::Sender<SessionMessage>,
    /// The facts that `lunar session` shows.
    pub info: Arc<SessionInfo>,
}

/// The earlier sessions that a login replaces.
#[derive(Clone, Copy, Debug)]
pub enum Replaced {
    /// The session with the same key, for a login that names this handle. 0: a new session.
    Session(u16),
    /// All channels with the same key (SRP), or all queues of the controller with the same key (NVMe).
    Channels,
    /// None: the session is a further channel (SRP) or queue (NVMe).
    Nothing,
}

impl RegisterRequest {
    fn replaces(&self, entry: &SessionEntry) -> bool {
        match self.replaces {
            Replaced::Session(_) | Replaced::Channels => entry.key == self.key,
            Replaced::Nothing => false,
        }
    }
}

/// A session in the registry. Dropping it removes the session.
pub struct SessionGuard {
    registry: Arc<Registry>,
    info: Arc<SessionInfo>,
    /// The handle of the session.
    pub session_handle: u16,
    /// The number of sessions that it replaced.
    pub replaced: usize,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.registry.lock().remove(self.session_handle, &self.info);
    }
}

enum RegisterStep {
    Registered(u16),
    /// These sessions must end first.
    ReplaceFirst(Vec<ChosenSession>),
}

/// A session that is to end: its handle, its mailbox and the facts about it.
pub type ChosenSession = (u16, flume::Sender<SessionMessage>, Arc<SessionInfo>);

/// The time that a replaced session has for an orderly end, before and after its fence is closed. A stalled core does
/// not manage it.
const END_TIMEOUT: Duration = Duration::from_millis(250);
/// Interval at which the fences are checked for work in progress.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// Closes the fences of sessions that do not end. Resolves to false when none of them has work in progress.
async fn fence_unresponsive(sessions: &[(u16, Arc<SessionInfo>)]) -> bool {
    let fences = || sessions.iter().map(|(_, info)| &info.fence);
    compio::time::sleep(END_TIMEOUT).await;
    fences().for_each(|fence| fence.close());
    while !fences().all(|fence| fence.is_quiet()) {
        compio::time::sleep(CHECK_INTERVAL).await;
    }
    compio::time::sleep(END_TIMEOUT).await;
    false
}

/// Sessions that were asked to end.
struct EndingSessions {
    sessions: Vec<(u16, Arc<SessionInfo>)>,
    ended: flume::Receiver<()>,
}

/// Asks sessions to end.
fn request_end(chosen: Vec<ChosenSession>, reason: EndReason) -> EndingSessions {
    let (done, ended) = flume::bounded(0);
    // Either the message arrives, or the session is gone. An unread message is dropped with the last sender, so none
    // of our senders may outlive the wait.
    let ask = |(session_handle, sender, info): ChosenSession| {
        let _ = sender.send(SessionMessage::End { reason, done: done.clone() });
        (session_handle, info)
    };
    EndingSessions { sessions: chosen.into_iter().map(ask).collect(), ended }
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        self.table.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Registers a session. Sessions that it replaces first end with all of their tasks (RFC 7143 section 6.3.5).
    /// `may_replace` is called before they end, and its error leaves them working.
    pub async fn register(
        self: &Arc<Self>,
        request: &RegisterRequest,
        limits: &TargetLimits,
        mut may_replace: impl FnMut(&[ChosenSession]) -> Result<(), LoginError>,
    ) -> Result<SessionGuard, LoginError> {
        let mut wanted = match request.replaces {
            Replaced::Session(session_handle) => session_handle,
            Replaced::Channels | Replaced::Nothing => 0,
        };
        let (mut kept, mut tries, mut replaced) = (None, 0, 0);
        loop {
            let step = self.try_register(request, wanted, kept, limits);
            if step.as_ref().is_err_and(|error| *error == LoginError::OutOfResources) && tries < MAX_TRIES {
                // Sessions whose peers have closed the connection end in a moment, and must not count.
                tries += 1;
                compio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            match step? {
                RegisterStep::Registered(session_handle) => {
                    let (registry, info) = (self.clone(), request.info.clone());
                    return Ok(SessionGuard { registry, info, session_handle, replaced });
                }
                RegisterStep::ReplaceFirst(old) => {
                    may_replace(&old)?;
                    replaced += old.len();
                    self.wait_for_end(request_end(old, EndReason::Reinstated)).await;
                    // A reinstated session keeps its handle.
                    kept = kept.or((wanted != 0).then_some(wanted));
                    wanted = 0;
                }
            }
        }
    }

    fn try_register(
        &self,
        request: &RegisterRequest,
        wanted: u16,
        kept: Option<u16>,
        limits: &TargetLimits,
    ) -> Result<RegisterStep, LoginError> {
        let mut table = self.lock();
        let replaced = || table.sessions.iter().filter(|(_, entry)| request.replaces(entry));
        match (wanted, replaced().next()) {
            (0, _) => {}
            (_, Some((session_handle, old))) if *session_handle == wanted => {
                if request.info.connection_id() != old.info.connection_id() {
                    return Err(LoginError::TooManyConnections);
                }
            }
            _ => return Err(LoginError::NoSuchSession),
        }
        // The limits are checked before a session ends for a login that they refuse.
        let slot = table.admission_slot(request, limits).ok_or(LoginError::OutOfResources)?;
        let replaced: Vec<_> = replaced().map(SessionEntry::chosen).collect();
        if !replaced.is_empty() {
            return Ok(RegisterStep::ReplaceFirst(replaced));
        }
        let kept = kept.filter(|t| !table.sessions.contains_key(t));
        let session_handle = kept.or_else(|| table.free_handle()).ok_or(LoginError::OutOfResources)?;
        let RegisterRequest { key, sender, info, .. } = request;
        let (key, sender, info) = (key.clone(), sender.clone(), info.clone());
        let initiator = table.initiators.begin(&info);
        let entry = SessionEntry { key, sender, info, slot, initiator };
        table.sessions.insert(session_handle, entry);
        table.last = session_handle;
        Ok(RegisterStep::Registered(session_handle))
    }

    /// Sends a message to every session except `except`, and waits until all of them have dropped its `done`.
    pub async fn broadcast(&self, except: Option<u16>, message: impl Fn(DoneSender) -> SessionMessage) {
        let (done, ended) = flume::bounded(0);
        let others: Vec<_> = {
            let table = self.lock();
            let chosen = table.sessions.iter().filter(|(session_handle, _)| Some(**session_handle) != except);
            chosen.map(|(_, entry)| entry.sender.clone()).collect()
        };
        for sender in others {
            let _ = sender.send(message(done.clone()));
        }
        drop(done);
        let _ = ended.recv_async().await;
    }

    /// Ends the chosen sessions, and waits until they are over. Returns their number.
    pub async fn end(&self, chosen: impl Fn(&SessionInfo) -> bool, reason: EndReason) -> usize {
        let chosen: Vec<_> = {
            let table = self.lock();
            let chosen = table.sessions.iter().filter(|(_, entry)| chosen(&entry.info));
            chosen.map(SessionEntry::chosen).collect()
        };
        let count = chosen.len();
        self.wait_for_end(request_end(chosen, reason)).await;
        count
    }

    /// Waits until sessions are over. The session of a stalled core counts as over when none of its commands can be
    /// executed anymore; this function then releases its resources.
    async fn wait_for_end(&self, EndingSessions { sessions, ended }: EndingSessions) {
        let is_over = async {
            _ = ended.recv_async().await;
            true
        };
        if lunar_runtime::either(is_over, fence_unresponsive(&sessions)).await {
            return;
        }
        for (session_handle, info) in &sessions {
            info.release_all();
            if self.lock().remove(*session_handle, info) {
                tracing::warn!(tsih = session_handle, initiator = %info.initiator, "replaced a session whose core does not respond");
            }
        }
    }

    /// Sends to each session the message that `message` returns for it, if any.
    pub fn send_each(&self, message: impl Fn(&SessionInfo) -> Option<SessionMessage>) {
        for entry in self.lock().sessions.values() {
            if let Some(l) = message(&entry.info) {
                let _ = entry.sender.send(l);
            }
        }
    }

    /// The facts about the session with this handle, if there is one.
    pub fn find(&self, session_handle: u16) -> Option<Arc<SessionInfo>> {
        self.lock().sessions.get(&session_handle).map(|e| e.info.clone())
    }

    /// The counts of initiators since the start, by target and name.
    pub fn initiators(&self) -> BTreeMap<InitiatorKey, InitiatorTotals> {
        let table = self.lock();
        let sessions = table.sessions.values();
        table.initiators.totals(sessions.filter_map(|entry| Some((entry.initiator.as_ref()?, &*entry.info))))
    }

    /// The facts about all sessions, by their handles.
    pub fn list(&self) -> Vec<(u16, Arc<SessionInfo>)> {
        self.lock().sessions.iter().map(|(session_handle, e)| (*session_handle, e.info.clone())).collect()
    }
}

impl SessionTable {
    /// Removes a session. False: the handle now belongs to a newer session.
    fn remove(&mut self, session_handle: u16, info: &Arc<SessionInfo>) -> bool {
        let is_it = self.sessions.get(&session_handle).is_some_and(|entry| Arc::ptr_eq(&entry.info, info));
        let Some(entry) = is_it.then(|| self.sessions.remove(&session_handle)).flatten() else {
            return false;
        };
        entry.initiator.iter().for_each(|key| self.initiators.end(key, &entry.info));
        true
    }

    /// A slot for the session of a login, if the limits and the share of its address allow it. The sessions that it
    /// replaces do not count. Discovery sessions take no slots from normal ones.
    fn admission_slot(&self, request: &RegisterRequest, limits: &TargetLimits) -> Option<AdmissionSlot> {
        let info = &request.info;
        let origin = SourcePrefix::from(info.address.ip());
        let (mut used, mut of_groups, mut of_name) = (0, fair_share::GroupCounts::default(), 0);
        // The limit on connections bounds the number of I/O queues, and their admin queues count as sessions.
        let kind = |info: &SessionInfo| (info.is_discovery(), info.is_io_queue());
        let stays = |e: &&SessionEntry| kind(&e.info) == kind(info) && !request.replaces(e);
        for other in self.sessions.values().filter(stays) {
            let counts = other.slot.counts_for(origin);
            // Without CHAP any initiator can claim a name.
            let is_same = (&other.info.initiator, &other.info.user) == (&info.initiator, &info.user);
            used += 1;
            of_groups.iter_mut().zip(counts).for_each(|(own, one)| *own += one);
            of_name += usize::from(is_same && (counts[0] > 0 || info.user.is_some()));
        }
        let (limit, per_name) = match kind(info) {
            (_, true) => (limits.connections, usize::MAX),
            (true, false) => (limits.discovery_sessions, usize::MAX),
            (false, false) => (limits.sessions, limits.sessions_per_initiator),
        };
        AdmissionSlot::new(origin, limit, used, of_groups).filter(|_| of_name < per_name)
    }

    fn free_handle(&self) -> Option<u16> {
        (self.last..u16::MAX).map(|t| t + 1).chain(1..=self.last).find(|t| !self.sessions.contains_key(t))
    }
}
