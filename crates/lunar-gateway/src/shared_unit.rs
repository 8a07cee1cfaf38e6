//! A logical unit that this server shares with the other members of its group: one member after the other, each with a
//! client of its own.

use crate::MemberId;
use crate::change::AccessChange;
use crate::member::{Lost, Member, Phase};
use crate::object::{MemberPort, SharedView};
use crate::rados_store::{Notified, RadosStore};
use crate::status::UnitRecord;
use crate::store::{FENCED, Store};
use crate::target_unit::{RemotePorts, TargetUnit, member_ports};
use crate::waiting::{on_thread, until};
use lunar_block::{ImageLease, LocalBoxFuture, RbdBackend, RbdLocation};
use lunar_runtime::{Cores, either, sleep_until, spawn};
use lunar_scsi::{AccessState, PendingCommit, PlanResult};
use lunar_target::{LogicalUnit, RemotePort, ScsiError, ServedSessions, SharingLost, StateSharing};
use lunar_wire::scsi::{Sense, Status};
use rustix::time::{ClockId, clock_gettime};
use std::collections::BTreeSet;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

/// The interval of [`Member::tick`], and of the attempts to join again.
const TICK: Duration = Duration::from_secs(1);

/// Time after which a unit whose object cannot be opened is unavailable.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);

/// The pause before a new member. It doubles as long as members cannot join.
const PAUSE: Duration = Duration::from_millis(100);
const MAX_DOUBLINGS: u32 = 8;

pub const BUSY: ScsiError = ScsiError { status: Status::Busy, sense: None };

type UnitMember = Member<RadosStore, TargetUnit>;

/// The place of this server among the members.
#[derive(Clone)]
pub struct GroupPlace {
    pub group: String,
    pub id: MemberId,
    /// The pool of the objects. None: that of the image.
    pub pool: Option<String>,
    /// See [`TargetUnit::will_refresh`].
    pub will_refresh: Arc<AtomicBool>,
    /// The objects whose state this process has held. It outlasts units that are defined again.
    pub held: Arc<Mutex<BTreeSet<String>>>,
    /// Users of clusters that have proved that they may fence.
    pub fencers: Arc<Mutex<BTreeSet<String>>>,
}

impl GroupPlace {
    /// Checks once for each user and cluster that it may fence. Otherwise this would show when another member is silent.
    async fn prove_fence(&self, store: &RadosStore, location: &RbdLocation) -> io::Result<()> {
        let user = format!("{:?}", (&location.cluster, &location.conf, &location.user));
        if self.fencers.lock().unwrap_or_else(PoisonError::into_inner).contains(&user) {
            return Ok(());
        }
        store.prove_fence().await?;
        self.fencers.lock().unwrap_or_else(PoisonError::into_inner).insert(user);
        Ok(())
    }

    fn has_held(&self, object: &str) -> bool {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).contains(object)
    }

    fn hold(&self, object: String) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(object);
    }
}

/// The member of a logical unit, and what outlasts it.
pub struct SharedUnit {
    place: GroupPlace,
    cores: Arc<Cores>,
    backend: Arc<RbdBackend>,
    member: RwLock<Option<Arc<UnitMember>>>,
    ports: Arc<RemotePorts>,
    pub record: Arc<UnitRecord>,
    /// Wakes the loop of the unit.
    wake: flume::Sender<()>,
    woken: flume::Receiver<()>,
    /// The unit is no longer served.
    ends: AtomicBool,
    /// It could not join again: its commands fail with NOT READY.
    is_unavailable: AtomicBool,
}

/// The right of the members of a unit to use its image.
struct Lease(Weak<SharedUnit>);

impl ImageLease for Lease {
    fn may_begin(&self) -> io::Result<()> {
        let shared = self.0.upgrade().filter(|shared| shared.may_serve());
        match shared.and_then(|shared| shared.member()) {
            // A silent member may still have operations of hosts that have come here.
            Some(member) if !member.has_round(now()) => Err(BUSY.into()),
            Some(member) if member.is_active() => Ok(()),
            // A command of several operations may meet the end of its access.
            Some(_) => Err(ScsiError::from(Sense::NOT_READY_STANDBY).into()),
            None => Err(io::Error::from_raw_os_error(FENCED)),
        }
    }

    fn has_late_operation(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        if let Some(member) = shared.member() {
            member.lose("an operation of the image has not ended in time");
            shared.wake();
        }
    }
}

/// Keeps a logical unit shared. Dropping it lets this server leave the group.
pub struct SharedUnitGuard(pub(crate) Arc<SharedUnit>);

impl Drop for SharedUnitGuard {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// A monotonic time that includes the time during which the machine was suspended.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}

impl StateSharing for SharedUnit {
    fn publish(&self, pending: PendingCommit) -> LocalBoxFuture<'_, Result<PlanResult, SharingLost>> {
        Box::pin(self.run(|member| async move { member.publish(pending).await }))
    }

    fn set_access(
        &self,
        groups: Vec<(u16, AccessState)>,
    ) -> LocalBoxFuture<'_, Result<PlanResult, SharingLost>> {
        Box::pin(self.run(move |member| async move { member.set_access(&groups).await }))
    }

    fn refresh(&self) -> LocalBoxFuture<'_, Result<bool, SharingLost>> {
        Box::pin(self.run(|member| async move {
            member.refresh().await?;
            Ok(member.may_decide(now()))
        }))
    }

    fn may_serve(&self) -> bool {
        let Some(member) = self.member() else { return false };
        if !member.serves() {
            return false;
        }
        let may = member.is_current(now()) && !self.backend.is_fenced();
        if !may {
            member.lose("the cluster has fenced this client, or the process was paused");
            self.wake();
        }
        may
    }

    fn may_decide(&self) -> bool {
        self.may_serve() && self.member().is_some_and(|member| member.may_decide(now()))
    }

    fn is_unavailable(&self) -> bool {
        // A member that serves decides by itself.
        self.is_unavailable.load(SeqCst) && !self.member().is_some_and(|member| member.serves())
    }

    fn until_fenced(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            // One that leaves in order has ended its tasks, and one that has not joined had none.
            let lost = |member: &Arc<UnitMember>| member.phase() == Phase::Lost && member.version() > 0;
            if let Some(member) = self.member().filter(lost) {
                until(|| member.is_fenced(now())).await;
            }
        })
    }

    fn remote_ports(&self) -> Arc<[RemotePort]> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl SharedUnit {
    /// Shares a logical unit that is not served yet. It joins in [`SharedUnit::live`].
    pub fn new(
        place: GroupPlace,
        cores: Arc<Cores>,
        unit: &Arc<LogicalUnit>,
        backend: Arc<RbdBackend>,
    ) -> Arc<SharedUnit> {
        let (wake, woken) = flume::bounded(1);
        let shared = Arc::new(SharedUnit {
            place,
            cores,
            backend,
            member: RwLock::default(),
            ports: Arc::new(RemotePorts::new(Arc::default())),
            record: Arc::new(UnitRecord::new()),
            wake: wake.clone(),
            woken,
            ends: AtomicBool::new(false),
            is_unavailable: AtomicBool::new(false),
        });
        // The channel is bounded: a message that is there already does the same.
        unit.lu.share(move || _ = wake.try_send(()));
        unit.lu.hold(true);
        shared.backend.serve_under(Lease(Arc::downgrade(&shared)));
        unit.share(shared.clone());
        shared
    }

    /// Runs an operation of the member in the event loop of the gateway, to its end, even if the caller no longer waits: a
    /// change that has reached the object must take effect here, too. The caller does not wait for a cluster that is away.
    async fn run<T: Send + 'static, F: Future<Output = Result<T, Lost>> + 'static>(
        &self,
        operation: impl FnOnce(Arc<UnitMember>) -> F + Send + 'static,
    ) -> Result<T, SharingLost> {
        let member = self.member().ok_or(SharingLost)?;
        let running = member.clone();
        let result = self.cores.start_on(0, move || operation(running));
        let ended = async { result.recv_async().await.ok()?.ok() };
        let lost = async {
            until(|| member.phase() == Phase::Lost).await;
            None
        };
        either(ended, lost).await.ok_or_else(|| {
            self.wake();
            SharingLost
        })
    }

    /// The number of this server in the group.
    pub fn id(&self) -> MemberId {
        self.place.id
    }

    pub fn image(&self) -> String {
        self.backend.location().to_string()
    }

    /// The name of the object. It depends on nothing but the image, so that all who serve it share its state.
    pub fn object(&self) -> String {
        format!("lunar.lu.{}", self.backend.identity())
    }

    pub fn member(&self) -> Option<Arc<UnitMember>> {
        self.member.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Begins a change of the access of a member. `None`: this server does not serve the unit.
    pub fn change_access(
        &self,
        id: MemberId,
        change: AccessChange,
    ) -> Option<flume::Receiver<Result<bool, Lost>>> {
        let member = self.member().filter(|member| member.phase() == Phase::Serving)?;
        Some(self.cores.start_on(0, move || async move {
            match change {
                AccessChange::Drain => member.drain(id, true).await.map(|()| true),
                AccessChange::Resume => member.drain(id, false).await.map(|()| true),
                AccessChange::Activate if member.group().access.active == Some(id) => Ok(true),
                AccessChange::Activate => member.activate(id).await,
            }
        }))
    }

    /// The members, ports and access that this server knows.
    pub fn group(&self) -> Option<Arc<SharedView>> {
        self.member().map(|member| member.group())
    }

    /// Whether one member at a time serves the unit.
    pub fn is_passive(&self) -> bool {
        self.backend.has_exclusive_lock()
    }

    /// Lets the server leave the group.
    pub fn end(&self) {
        self.ends.store(true, SeqCst);
        self.wake();
    }

    fn take_member(&self) -> Option<Arc<UnitMember>> {
        self.member.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn wake(&self) {
        _ = self.wake.try_send(());
    }

    /// One member after the other, until the unit is not served any more. Sessions end with their member.
    pub async fn live(self: Arc<Self>, unit: Weak<LogicalUnit>, sessions: ServedSessions) {
        let (mut last, mut failures) = (String::new(), 0);
        loop {
            let Some(served) = unit.upgrade() else { return };
            let result = self.serve(&served, &sessions).await;
            let former = self.member().filter(|member| member.version() > 0);
            if former.is_none() {
                drop(self.take_member());
            }
            // The member owns the unit, which owns this object.
            let Err(reason) = result else { return drop(self.take_member()) };
            self.record.failed(&reason);
            // One that has not joined has not used the image.
            if former.is_some() {
                (last, failures) = (String::new(), 0);
            }
            // A fault of the configuration would fill the log.
            if reason != last {
                let image = self.image();
                tracing::error!(name: "gateway.lost", image, reason, "the image is not served; its sessions end");
                last = reason;
            }
            if former.is_some() || !self.is_unavailable() {
                self.until_fenced().await;
                sessions.end(&served).await;
            }
            drop(self.take_member());
            let former = former.map(|member| member.store().addresses());
            while let Err(error) = self.renew(former.clone()).await {
                if self.is_ending() {
                    return;
                }
                tracing::debug!(image = self.image(), %error, "cannot open the image again; trying on");
                self.set_unavailable(&served, &sessions);
                sleep_until(Instant::now() + TICK).await;
            }
            // It has failed to join since it was served.
            if failures > 0 {
                self.set_unavailable(&served, &sessions);
            }
            drop(served);
            let pause = PAUSE * 2u32.pow(failures);
            failures = (failures + 1).min(MAX_DOUBLINGS);
            either(sleep_until(Instant::now() + pause), until(|| self.is_ending())).await;
        }
    }

    /// The other units of the target must not wait for this one.
    fn set_unavailable(&self, unit: &LogicalUnit, sessions: &ServedSessions) {
        unit.lu.set_unavailable(&sessions.own_tags());
        unit.lu.hold(false);
        self.is_unavailable.store(true, SeqCst);
    }

    fn is_ending(&self) -> bool {
        self.ends.load(SeqCst)
    }

    /// Opens the image with a new client, and fences the former one: none of its operations takes place after this.
    async fn renew(&self, former: Option<String>) -> io::Result<()> {
        let (backend, pool, name) = (self.backend.clone(), self.place.pool.clone(), self.object());
        on_thread(move || {
            backend.reopen().map_err(|e| io::Error::new(e.kind, e.what))?;
            let object = backend.shared_object(pool.as_deref(), &name)?;
            former.map_or(Ok(()), |former| object.blocklist(&former, crate::rados_store::FENCE_S))?;
            object.wait_for_latest_map()
        })
        .await
    }

    /// Serves with one member. An error is the reason for which it is lost.
    async fn serve(
        self: &Arc<Self>,
        unit: &Arc<LogicalUnit>,
        sessions: &ServedSessions,
    ) -> Result<(), String> {
        let ports = self.own_ports(unit, sessions).await;
        if self.is_ending() {
            return Ok(());
        }
        let (notified, notifications) = flume::unbounded();
        let store = self.open_store(unit, sessions, notified).await.map_err(|e| e.to_string())?;
        let incarnation = getrandom::u64().map_err(|e| e.to_string())?;
        let served = TargetUnit {
            unit: unit.clone(),
            sessions: sessions.clone(),
            id: self.place.id,
            ports: self.ports.clone(),
            will_refresh: self.place.will_refresh.clone(),
            is_passive: self.is_passive(),
            backend: self.backend.clone(),
            record: self.record.clone(),
        };
        let member = Arc::new(Member::new(
            &self.place.group,
            self.place.id,
            incarnation,
            ports,
            self.place.has_held(&self.object()),
            (store, served),
        ));
        *self.member.write().unwrap_or_else(PoisonError::into_inner) = Some(member.clone());
        spawn(acknowledge(Arc::downgrade(&member), notifications));
        // The first round begins after the first tick.
        member.tick(now()).map_err(|Lost(reason)| reason)?;
        spawn(supervise(Arc::downgrade(&member)));
        let (lost, reason) = flume::bounded(1);
        spawn(tick(Arc::downgrade(&member), lost));
        // Operations may wait for the cluster as long as it is away. A lost member does not wait for them.
        let lost = async { Err(Lost(reason.recv_async().await.unwrap_or_default())) };
        either(self.follow(unit, sessions, &member), lost).await.map_err(|Lost(reason)| reason)
    }

    /// Opens the object. The other units of the target do not wait for a storage server that is down.
    async fn open_store(
        &self,
        unit: &LogicalUnit,
        sessions: &ServedSessions,
        notified: flume::Sender<Notified>,
    ) -> io::Result<RadosStore> {
        let open = RadosStore::open(self.backend.clone(), self.place.pool.clone(), self.object(), notified);
        let mut open = pin!(open);
        let patience = async {
            sleep_until(Instant::now() + OPEN_PATIENCE).await;
            None
        };
        let store = match either(async { Some(open.as_mut().await) }, patience).await {
            Some(store) => store?,
            None => {
                let image = self.image();
                tracing::warn!(name: "gateway.waits", image, "the object of the image does not answer");
                self.set_unavailable(unit, sessions);
                open.await?
            }
        };
        self.place.prove_fence(&store, self.backend.location()).await?;
        Ok(store)
    }

    /// The target ports of this server for the unit. It waits until the configuration in force has the unit.
    async fn own_ports(&self, unit: &Arc<LogicalUnit>, sessions: &ServedSessions) -> Vec<MemberPort> {
        let mut ports = Vec::new();
        until(|| {
            ports = member_ports(sessions.own_ports(unit));
            !ports.is_empty() || self.is_ending()
        })
        .await;
        ports
    }

    /// Joins, and follows the nexuses and the ports of this server until the unit is not served any more.
    async fn follow(
        &self,
        unit: &Arc<LogicalUnit>,
        sessions: &ServedSessions,
        member: &Arc<UnitMember>,
    ) -> Result<(), Lost> {
        member.join().await?;
        self.is_unavailable.store(false, SeqCst);
        self.place.hold(self.object());
        self.record.joined();
        let (image, id, version) = (self.image(), self.place.id, member.version());
        tracing::info!(name: "gateway.joined", image, member = id, version, "serves the image");
        loop {
            if self.is_ending() {
                sessions.end(unit).await;
                return member.leave().await;
            }
            if let Some(pending) = unit.lu.follow_nexuses() {
                _ = member.publish(pending).await?;
            }
            let ports: Vec<MemberPort> = member_ports(sessions.own_ports(unit));
            if ports != member.ports() {
                member.set_ports(ports).await?;
            }
            let version = member.version();
            let woken = async { _ = self.woken.recv_async().await };
            either(woken, sleep_until(Instant::now() + TICK)).await;
            // The member that made the last change may have ended before it announced it.
            if version == member.version() {
                member.announced().await?;
            }
        }
    }
}

/// Handles the notifications of a member, until it is dropped or its watch fails.
async fn acknowledge(member: Weak<UnitMember>, notifications: flume::Receiver<Notified>) {
    while let Ok((notification, payload)) = notifications.recv_async().await {
        let Some(member) = member.upgrade() else { return };
        spawn(async move {
            let (following, (done, end)) = (member.clone(), flume::bounded::<()>(0));
            spawn(async move {
                following.notified(&payload).await;
                following.finish().await;
                drop(done);
            });
            let ended = async { _ = end.recv_async().await };
            either(ended, sleep_until(Instant::now() + crate::ACKNOWLEDGE_WITHIN)).await;
            if let Some(ack) = member.acknowledgement(now()) {
                // Without it, this member is fenced, which it learns by its next operation.
                _ = member.store().acknowledge(notification, ack).await;
                member.store().handled(&notification);
            }
        });
    }
    // Changes of others may be missing.
    member.upgrade().iter().for_each(|member| member.lose("the watch has failed"));
}

/// Lets the member ask the others, until it is lost or dropped.
async fn supervise(member: Weak<UnitMember>) {
    while let Some(member) = member.upgrade() {
        if member.supervise().await.is_err() {
            return;
        }
        drop(member);
        sleep_until(Instant::now() + TICK).await;
    }
}

/// Ticks until the member is lost or dropped. Sends the reason of a loss.
async fn tick(member: Weak<UnitMember>, lost: flume::Sender<String>) {
    let mut next = Instant::now();
    while let Some(member) = member.upgrade() {
        if let Err(Lost(reason)) = member.tick(now()) {
            _ = lost.try_send(reason);
            return;
        }
        // It may wait for the cluster, while ticks go on.
        spawn(async move {
            member.probe().await;
            _ = member.recover().await;
        });
        // After a pause there are no ticks to catch up.
        next = (next + TICK).max(Instant::now());
        sleep_until(next).await;
    }
}
