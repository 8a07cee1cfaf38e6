//! The controllers of all subsystems: what their queues, which run on several cores, share.

use super::abort_request::{AbortRequest, AbortSender};
use super::error_log::{ErrorLog, ErrorPlace};
use event_listener::Event;
use lunar_scsi::InitiatorPort;
use lunar_wire::nvme::{ErrorEntry, NvmeStatus};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest identifier of a controller: those above are reserved.
const MAX_ID: u16 = 0xffef;
/// The servers of one subsystem may not use the same identifiers, because hosts reject the second controller. The remainder
/// of an identifier is that of its portal group, which differs between servers: routers of a pair have tags of their own, and
/// the tag of gateway `n` begins at 256 times `n`.
const ID_CLASSES: u16 = 31;

/// A host: its name and its identifier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeHost {
    /// HOSTNQN.
    pub name: String,
    /// HOSTID.
    pub id: [u8; 16],
}

impl NvmeHost {
    /// Its initiator port.
    pub fn port(&self) -> InitiatorPort {
        InitiatorPort::Nvme { name: self.name.clone(), id: self.id }
    }
}

/// A controller.
#[derive(Debug)]
pub struct Controller {
    id: u16,
    subsystem: String,
    host: NvmeHost,
    portal_group_tag: u16,
    /// The number of I/O queues that the host may connect.
    max_queues: AtomicU16,
    /// The I/O queues, and where each takes requests to abort its commands.
    queues: Mutex<BTreeMap<u16, AbortSender>>,
    /// Whether it is enabled, so that I/O queues can connect.
    is_ready: AtomicBool,
    /// Whether the host has sent something since the last check.
    is_heard: AtomicBool,
    /// Notified when an I/O queue has ended.
    changed: Event,
    errors: Mutex<ErrorLog>,
}

impl Controller {
    /// CNTLID.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// NQN of its subsystem.
    pub fn subsystem(&self) -> &str {
        &self.subsystem
    }

    /// The portal group of its queues, whose access states it reports.
    pub fn portal_group_tag(&self) -> u16 {
        self.portal_group_tag
    }

    /// Its host.
    pub fn host(&self) -> &NvmeHost {
        &self.host
    }

    /// Records that the host has sent something.
    #[inline]
    pub fn hear(&self) {
        // Most often it is set already: then the cache line stays shared.
        if !self.is_heard.load(Relaxed) {
            self.is_heard.store(true, Relaxed);
        }
    }

    /// Whether the host has sent something since the last call.
    pub fn take_heard(&self) -> bool {
        self.is_heard.swap(false, Relaxed)
    }

    /// Admits I/O queues, or no more.
    pub fn set_ready(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Relaxed);
    }

    /// Sets the number of I/O queues.
    pub fn set_max_queues(&self, max: u16) {
        self.max_queues.store(max, Relaxed);
    }

    /// The number of I/O queues.
    pub fn max_queues(&self) -> u16 {
        self.max_queues.load(Relaxed)
    }

    fn queues(&self) -> MutexGuard<'_, BTreeMap<u16, AbortSender>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a command of a queue to the error log. Returns its status, which refers the host to the log (MORE).
    #[cold]
    pub fn log_error(&self, queue: u16, command: u16, status: NvmeStatus, place: ErrorPlace) -> NvmeStatus {
        self.error_log().add(queue, command, status, place);
        NvmeStatus { more: true, ..status }
    }

    /// The error log, the newest entry first.
    pub fn errors(&self) -> Vec<ErrorEntry> {
        self.error_log().entries()
    }

    fn error_log(&self) -> MutexGuard<'_, ErrorLog> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where an I/O queue takes requests to abort its commands. None: it is not connected.
    pub fn aborts_of(&self, queue: u16) -> Option<AbortSender> {
        self.queues().get(&queue).cloned()
    }

    /// Whether I/O queues are connected.
    pub fn has_queues(&self) -> bool {
        !self.queues().is_empty()
    }

    /// Waits until no I/O queue is connected.
    pub async fn without_queues(&self) {
        while self.has_queues() {
            let changed = self.changed.listen();
            if self.has_queues() {
                changed.await;
            }
        }
    }
}

/// The reason for which an I/O queue cannot connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueRefusal {
    /// The controller is not enabled.
    NotReady,
    /// The number of the queue is too high.
    TooHigh,
    /// The queue is connected.
    InUse,
}

/// The place of an I/O queue. Dropping it releases the place.
pub struct QueueGuard {
    controller: Arc<Controller>,
    queue: u16,
    aborts: flume::Receiver<AbortRequest>,
}

impl QueueGuard {
    /// Whether an I/O queue could take its place.
    ///
    /// # Errors
    /// The reason for which the queue cannot connect.
    pub fn check(controller: &Controller, queue: u16) -> Result<(), QueueRefusal> {
        if !controller.is_ready.load(Relaxed) {
            return Err(QueueRefusal::NotReady);
        }
        if queue == 0 || queue > controller.max_queues() {
            return Err(QueueRefusal::TooHigh);
        }
        if controller.queues().contains_key(&queue) { Err(QueueRefusal::InUse) } else { Ok(()) }
    }

    /// Takes the place of an I/O queue.
    ///
    /// # Errors
    /// The reason for which the queue cannot connect.
    pub fn new(controller: &Arc<Controller>, queue: u16) -> Result<QueueGuard, QueueRefusal> {
        QueueGuard::check(controller, queue)?;
        let (sender, aborts) = flume::unbounded();
        match controller.queues().entry(queue) {
            Entry::Occupied(_) => return Err(QueueRefusal::InUse),
            Entry::Vacant(place) => _ = place.insert(sender),
        }
        Ok(QueueGuard { controller: controller.clone(), queue, aborts })
    }

    /// The requests to abort commands of the queue. Their sender is dropped with the place.
    pub fn aborts(&self) -> flume::Receiver<AbortRequest> {
        self.aborts.clone()
    }

    /// The controller.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// The number of the queue.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Whether the controller is still enabled.
    pub fn is_ready(&self) -> bool {
        self.controller.is_ready.load(Relaxed)
    }
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.controller.queues().remove(&self.queue);
        self.controller.changed.notify(usize::MAX);
    }
}

/// All controllers, by identifier. Identifiers are unique in the server.
#[derive(Debug, Default)]
pub struct Controllers(Mutex<ControllerTable>);

#[derive(Debug)]
struct ControllerTable {
    last: u16,
    all: BTreeMap<u16, Arc<Controller>>,
}

/// Identifiers begin anywhere, so that after a restart a host does not find the controller of another one under that of its
/// own.
impl Default for ControllerTable {
    fn default() -> ControllerTable {
        let random = RandomState::new().hash_one(()) % u64::from(MAX_ID);
        ControllerTable { last: random as u16, all: BTreeMap::new() }
    }
}

impl Controllers {
    fn lock(&self) -> MutexGuard<'_, ControllerTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a controller of a portal group. None: there are too many.
    pub fn add(
        self: &Arc<Self>,
        subsystem: &str,
        host: NvmeHost,
        (portal_group_tag, max_queues): (u16, u16),
    ) -> Option<ControllerGuard> {
        let mut table = self.lock();
        let all = (table.last..MAX_ID).map(|id| id + 1).chain(1..=table.last);
        let mut own = all.filter(|id| id % ID_CLASSES == portal_group_tag % ID_CLASSES);
        let id = own.find(|id| !table.all.contains_key(id))?;
        let controller = Arc::new(Controller {
            id,
            subsystem: subsystem.into(),
            host,
            portal_group_tag,
            max_queues: AtomicU16::new(max_queues),
            queues: Mutex::default(),
            is_ready: AtomicBool::default(),
            is_heard: AtomicBool::default(),
            changed: Event::new(),
            errors: Mutex::default(),
        });
        table.last = id;
        table.all.insert(id, controller.clone());
        Some(ControllerGuard { controllers: self.clone(), controller })
    }

    /// The controller with this identifier.
    pub fn find(&self, id: u16) -> Option<Arc<Controller>> {
        self.lock().all.get(&id).cloned()
    }
}

/// A controller in the list of all. Dropping it removes the controller.
pub struct ControllerGuard {
    controllers: Arc<Controllers>,
    controller: Arc<Controller>,
}

impl ControllerGuard {
    /// The controller.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }
}

impl Drop for ControllerGuard {
    fn drop(&mut self) {
        self.controller.set_ready(false);
        self.controllers.lock().all.remove(&self.controller.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(controllers: &Arc<Controllers>, tag: u16) -> ControllerGuard {
        let host = NvmeHost { name: "nqn.2026-11.org.example:h".into(), id: [1; 16] };
        controllers.add("nqn.2026-11.org.example:s", host, (tag, 2)).expect("a controller")
    }

    #[test]
    fn identifiers_of_controllers_are_unique_and_reused_late() {
        let controllers = Arc::new(Controllers::default());
        controllers.lock().last = 0;
        let [one, two] = [(); 2].map(|()| add(&controllers, 1));
        assert_eq!([&one, &two].map(|guard| guard.controller().id()), [1, 32]);
        drop(one);
        assert!(controllers.find(1).is_none() && controllers.find(32).is_some());
        assert_eq!(add(&controllers, 1).controller().id(), 63);
        controllers.lock().last = MAX_ID;
        assert_eq!(add(&controllers, 1).controller().id(), 1);
    }

    #[test]
    fn identifiers_of_portal_groups_differ_everywhere() {
        // Those of the portal groups 1 and 2 of a pair, and of three gateways.
        let classes = [1, 2, 256 + 1, 512 + 1, 768 + 1].map(|tag| {
            let controllers = Arc::new(Controllers::default());
            let all = [(); 3].map(|()| add(&controllers, tag));
            all.map(|guard| guard.controller().id() % ID_CLASSES)
        });
        assert_eq!(classes, [[1; 3], [2; 3], [9; 3], [17; 3], [25; 3]]);
    }

    #[test]
    fn io_queue_needs_an_enabled_controller_and_a_free_place() {
        let controllers = Arc::new(Controllers::default());
        let guard = add(&controllers, 1);
        let controller = guard.controller();
        let connect = |queue| QueueGuard::new(controller, queue).map(|_| ()).err();
        assert_eq!(connect(1), Some(QueueRefusal::NotReady));
        controller.set_ready(true);
        assert_eq!([connect(0), connect(3)], [Some(QueueRefusal::TooHigh); 2]);
        let first = QueueGuard::new(controller, 1);
        assert_eq!([connect(1), connect(2)], [Some(QueueRefusal::InUse), None]);
        assert!(controller.has_queues());
        drop(first);
        assert!(!controller.has_queues());
    }
}
