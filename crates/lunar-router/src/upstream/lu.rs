//! An upstream logical unit as a [`Backend`], usable on every core.
//!
//! Each core opens its own sessions, one over each path, with its first operation.

use super::context::LuContext;
use super::deferred::{DeferredErrors, LastReported};
use super::health::{CoreHealth, Health, combined};
use super::queue::UpstreamQueue;
use super::routed_path::{self, RoutedPath};
use super::scsi_error::with_scsi_error;
use super::{PathState, Upstream, UpstreamUrls, urls};
use crate::FoundLun;
use crate::Hops;
use crate::failover::{IoGate, IoPermit};
use crate::namespaces;
use lunar_block::{Backend, BackendInfo, BackendQueue, BufResult, Extent, LocalBoxFuture, describe_row};
use lunar_initiator::multipath::{self, Multipath, MultipathOptions, PathTotal, Times};
use lunar_initiator::nvme::NvmeUrl;
use lunar_initiator::{Error, ErrorCode, Lun, Url};
use lunar_runtime::{Buf, CoreLocal, Registration};
use lunar_target::ScsiError;
use lunar_wire::scsi::Sense;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The preferred length of one read in bytes: received data are forwarded during the next read.
const STRIDE: usize = 256 << 10;
/// The interval of path checks.
const CHECK: Duration = Duration::from_secs(5);

/// A logical unit of an upstream. Operations cover whole blocks, because cores do not serialize writes to parts of a
/// block.
pub struct UpstreamLu {
    here: CoreLocal<Weak<PerCoreUpstream>>,
    urls: UpstreamUrls,
    /// The time in which a lost NVMe controller may return before its commands fail.
    recovery: Duration,
    settings: MultipathOptions,
    context: Arc<LuContext>,
    all_cores: Arc<AllCores>,
    deferred: DeferredErrors,
    /// Whether a command that changes the medium was accepted.
    written: AtomicBool,
}

/// The per-core states of all cores that use it.
type AllCores = Mutex<Vec<Arc<PerCoreUpstream>>>;

/// The state of one core.
struct PerCoreUpstream {
    core: String,
    paths: Vec<Arc<dyn RoutedPath>>,
    joined: Arc<Multipath>,
    /// Whether there was a path.
    was_up: AtomicBool,
    last_reported: LastReported,
}

/// The status of one path of one core.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStatus {
    /// The URL, without secrets.
    pub url: String,
    /// The state. None while no core uses the path.
    pub state: Option<PathState>,
    /// The core of the path, by the name of its thread. None while no core uses it.
    pub core: Option<String>,
    /// The number of operations on it.
    pub in_flight: usize,
    /// The number of session recoveries.
    pub recoveries: u32,
    /// Its operations so far. None if they are not counted.
    pub total: Option<PathTotal>,
    /// The reason why it is not open.
    pub obstacle: Option<String>,
}

impl PathStatus {
    /// The status of an unused path.
    pub fn unused(url: impl Into<String>) -> PathStatus {
        PathStatus {
            url: url.into(),
            state: None,
            core: None,
            in_flight: 0,
            recoveries: 0,
            total: None,
            obstacle: None,
        }
    }
}

fn lock(all_cores: &AllCores) -> MutexGuard<'_, Vec<Arc<PerCoreUpstream>>> {
    all_cores.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UpstreamLu {
    /// Creates a discovered logical unit. Nothing is opened yet, so it may be unreachable. Every session of every
    /// path must find the discovered identity.
    ///
    /// # Errors
    /// [`ErrorCode::InvalidArgument`] when it is not a block device; [`ErrorCode::IdentityMismatch`] when the
    /// configuration requires another identity, or it has several paths and no designator to compare them.
    pub fn open(
        upstream: &Upstream,
        target: &str,
        lun: u16,
        found: FoundLun,
    ) -> Result<Arc<UpstreamLu>, Error> {
        check(upstream, &found).map_err(|e| e.during(namespaces::lu_name(target, lun)))?;
        let (urls, longest) = urls::with_timeouts(upstream)?;
        let settings = MultipathOptions::default()
            .with_policy(upstream.policy)
            .with_check(CHECK)
            .with_queue(upstream.path_loss_timeout)
            .with_operation(longest.unwrap_or_default());
        Ok(Arc::new(UpstreamLu {
            here: CoreLocal::new(),
            urls,
            recovery: namespaces::recovery_timeout(upstream),
            settings,
            context: Arc::new(LuContext::new(upstream, target, lun, found)),
            all_cores: Arc::default(),
            deferred: DeferredErrors::default(),
            written: AtomicBool::new(false),
        }))
    }

    /// The health over all cores and paths.
    pub fn health(&self) -> Health {
        self.context.monitor.now()
    }

    /// Subscribes to changes of its health. At most 64 are queued.
    pub fn watch(&self) -> flume::Receiver<Health> {
        self.context.monitor.watch()
    }

    /// Receives an event when it was or may have been reset. A new session reports such a reset too.
    pub fn resets(&self) -> flume::Receiver<()> {
        self.context.resets.1.clone()
    }

    /// Records that it may have been reset while no session of this router was open.
    pub fn record_possible_reset(&self) {
        self.context.record_reset();
    }

    /// All paths of all cores, or those of the configuration while no core uses it.
    pub fn paths(&self) -> Vec<PathStatus> {
        let paths: Vec<PathStatus> =
            lock(&self.all_cores).iter().flat_map(|per_core| per_core.paths()).collect();
        if paths.is_empty() { self.urls.plain().into_iter().map(PathStatus::unused).collect() } else { paths }
    }

    /// The latency of each hop.
    pub fn hops(&self) -> Hops {
        let all = lock(&self.all_cores)
            .iter()
            .map(|per_core| per_core.joined.times())
            .fold(Times::default(), Times::and);
        Hops { queue: all.queue, upstream: all.service }
    }

    /// Its handle in each open session, for commands that each nexus must send, such as the registration of a key.
    pub fn luns(&self) -> Vec<Arc<Lun>> {
        lock(&self.all_cores)
            .iter()
            .flat_map(|per_core| per_core.paths.iter().filter_map(|path| path.opened_lun()))
            .collect()
    }

    /// Whether it is a namespace.
    pub(crate) fn is_namespace(&self) -> bool {
        matches!(self.urls, UpstreamUrls::Nvme(_))
    }

    /// The URLs of the namespace, or of its subsystem.
    pub(crate) fn namespace_urls(&self) -> Vec<NvmeUrl> {
        match &self.urls {
            UpstreamUrls::Scsi(_) => Vec::new(),
            UpstreamUrls::Nvme(urls) => urls.clone(),
        }
    }

    /// The state that all paths share.
    pub(crate) fn context(&self) -> &Arc<LuContext> {
        &self.context
    }

    /// Ends the controllers of a namespace: further commands come from new hosts, with identifiers of their own. No command
    /// may be running. Sessions of SCSI storage stay.
    pub(crate) fn renew_hosts(&self) {
        if !self.is_namespace() {
            return;
        }
        // Dropped outside of the lock, which the next update needs.
        let ended = std::mem::take(&mut *lock(&self.all_cores));
        drop(ended);
        update(&self.all_cores, &self.context);
    }

    /// The gate, in a failover pair.
    pub fn gate(&self) -> Option<&Arc<IoGate>> {
        self.context.gate.as_ref()
    }

    /// The paths to a SCSI target: portal, target, and LUN at the target.
    pub fn path_addresses(&self) -> Vec<(Url, String, u16)> {
        let UpstreamUrls::Scsi(urls) = &self.urls else { return Vec::new() };
        let target = |url: &Url| url.target.clone().unwrap_or_else(|| self.context.target.clone());
        urls.iter().map(|url| (url.clone(), target(url), url.lun.unwrap_or(self.context.lun))).collect()
    }

    /// The designators that it must have on every path. Empty if it has none.
    pub fn identity(&self) -> &[u8] {
        &self.context.found.designators
    }

    /// The name in messages.
    pub fn location(&self) -> String {
        let LuContext { upstream, target, lun, .. } = &*self.context;
        format!("{} (upstream {upstream})", namespaces::lu_name(target, *lun))
    }

    /// The paths of this core, for an admitted command.
    async fn enter(&self) -> io::Result<(Option<IoPermit>, Arc<PerCoreUpstream>)> {
        Ok((self.enter_gate()?, self.per_core().await?))
    }

    /// Admits a command in a failover pair. The result must live until the command has ended.
    pub(super) fn enter_gate(&self) -> io::Result<Option<IoPermit>> {
        let standby = || io::Error::from(ScsiError::from(Sense::NOT_READY_STANDBY));
        self.gate().map(|gate| gate.enter().ok_or_else(standby)).transpose()
    }

    /// Records that a command is about to change the medium.
    pub(super) fn writes(&self) {
        if !self.written.load(Relaxed) {
            self.written.store(true, Relaxed);
        }
    }

    /// Flushes. Returns deferred errors, including those of sessions of other cores.
    async fn flush_on(&self, per_core: &PerCoreUpstream) -> io::Result<()> {
        let flushed = per_core.joined.flush().await;
        flushed.inspect_err(|e| self.deferred.add_failed(e, &per_core.last_reported))?;
        let all_cores = lock(&self.all_cores);
        let heard = all_cores
            .iter()
            .flat_map(|per_core| &per_core.paths)
            .filter_map(|path| path.take_deferred_error());
        heard.for_each(|loss| self.deferred.add(loss));
        self.deferred.take_unreported(&per_core.last_reported).map_or(Ok(()), |e| Err(e.into()))
    }

    /// Adds the SCSI status to an error. In a failover pair, a reservation conflict is not the host's: the other
    /// router has taken over.
    pub(super) fn with_scsi_error(&self, e: io::Error) -> io::Error {
        let is_conflict = |e: &Error| e.code == ErrorCode::ReservationConflict;
        let conflict = Error::of(&e).is_some_and(is_conflict);
        match self.gate() {
            Some(gate) if conflict => {
                gate.shut();
                ScsiError::from(Sense::NOT_READY_TRANSITION).into()
            }
            _ => with_scsi_error(e),
        }
    }

    fn here(&self) -> Option<Arc<PerCoreUpstream>> {
        self.here.get()?.upgrade()
    }

    /// The paths of this core. Opens them at first use.
    async fn per_core(&self) -> io::Result<Arc<PerCoreUpstream>> {
        match self.here() {
            Some(per_core) => Ok(per_core),
            // Boxed, so that the common case does not carry this large future.
            None => Box::pin(self.settle()).await.map_err(|e| with_scsi_error(e.into())),
        }
    }

    async fn settle(&self) -> Result<Arc<PerCoreUpstream>, Error> {
        let paths = routed_path::begin(&self.urls, &self.context, self.recovery);
        let lun_paths = paths.iter().map(|path| path.clone() as Arc<dyn multipath::LunPath>).collect();
        let joined = Multipath::join(lun_paths, self.settings).await?;
        // Another operation may have opened the paths during the wait.
        if let Some(per_core) = self.here() {
            return Ok(per_core);
        }
        let core = std::thread::current().name().unwrap_or("a thread").to_owned();
        let per_core = Arc::new(PerCoreUpstream {
            core,
            paths,
            joined,
            was_up: AtomicBool::new(false),
            last_reported: self.deferred.since_now(),
        });
        let registration = self.here.register(Rc::new(Arc::downgrade(&per_core)));
        lock(&self.all_cores).push(per_core.clone());
        lunar_runtime::spawn(attend(registration, Arc::downgrade(&self.all_cores), self.context.clone()));
        Ok(per_core)
    }
}

fn check(upstream: &Upstream, found: &FoundLun) -> Result<(), Error> {
    if found.block_size == 0 {
        let what = format!("device type {:02x}h is not a block device", found.kind);
        return Err(Error::new(ErrorCode::InvalidArgument, what)
            .with_hint("route the LUN with mode = \"passthrough\""));
    }
    if upstream.urls.count() > 1 && !upstream.urls.identify(&found.designators) {
        let what = "the LUN has several paths, but no identifier (VPD page 83h; UUID, NGUID or EUI64 of a namespace)";
        return Err(Error::new(ErrorCode::IdentityMismatch, what).with_hint("configure only one URL"));
    }
    let wanted = upstream.identity.as_deref();
    if let Some(wanted) = wanted.filter(|wanted| !lunar_initiator::is_named(&found.designators, wanted)) {
        let is =
            lunar_initiator::name_of(&found.designators).unwrap_or_else(|| "none (no designators)".into());
        return Err(Error::new(
            ErrorCode::IdentityMismatch,
            format!("the LUN has the identity {is}, but `identity` requires {wanted}"),
        ));
    }
    Ok(())
}

impl PerCoreUpstream {
    fn paths(&self) -> impl Iterator<Item = PathStatus> {
        let joined = self.joined.paths().into_iter().zip(self.joined.totals());
        self.paths.iter().zip(joined).map(|(path, ((url, state, in_flight), total))| PathStatus {
            url,
            state: Some(state),
            core: Some(self.core.clone()),
            in_flight,
            recoveries: path.recoveries(),
            total: Some(total),
            obstacle: path.obstacle().map(|e| e.what.clone()),
        })
    }

    fn condition(&self) -> CoreHealth {
        let outage = self.joined.outage();
        if outage.is_none() {
            self.was_up.store(true, Relaxed);
        }
        CoreHealth { outage, is_changed: self.joined.is_changed(), was_up: self.was_up.load(Relaxed) }
    }
}

/// Publishes the health when paths of a core change, and when an outage exceeds the time limit.
async fn attend(
    here: Registration<Weak<PerCoreUpstream>>,
    all_cores: Weak<AllCores>,
    context: Arc<LuContext>,
) {
    loop {
        let (changed, left) = {
            let (Some(per_core), Some(all_cores)) = (here.value().upgrade(), all_cores.upgrade()) else {
                return;
            };
            let changed = per_core.joined.state_change();
            update(&all_cores, &context);
            let gone = per_core.joined.outage().map(|since| since.elapsed());
            (
                changed,
                gone.filter(|gone| *gone < context.path_loss_timeout)
                    .map(|gone| context.path_loss_timeout - gone),
            )
        };
        match left {
            // Check after either.
            Some(left) => _ = compio::time::timeout(left, changed).await,
            None => changed.await,
        }
    }
}

fn update(all_cores: &AllCores, context: &LuContext) {
    let probe = || {
        let all: Vec<CoreHealth> = lock(all_cores).iter().map(|per_core| per_core.condition()).collect();
        combined(&all, context.path_loss_timeout, Instant::now())
    };
    let Some(health) = context.monitor.update(probe) else { return };
    let LuContext { router, upstream, target, lun, .. } = context;
    match health {
        Health::Up => {
            tracing::info!(name: "upstream.usable", router, upstream, target, lun, "the upstream LUN is usable again")
        }
        Health::Holding(_) => {
            tracing::warn!(name: "upstream.waits", router, upstream, target, lun, "no path to the upstream LUN works: commands wait")
        }
        Health::Lost(_) => {
            tracing::error!(
                name: "upstream.lost",
                router,
                upstream,
                target,
                lun,
                "no path to the upstream LUN recovered in time: commands fail"
            )
        }
        Health::Changed => {
            tracing::error!(
                name: "upstream.changed",
                router,
                upstream,
                target,
                lun,
                "every path leads to another logical unit: commands fail"
            );
        }
    }
}

impl Backend for UpstreamLu {
    fn info(&self) -> BackendInfo {
        self.context.info()
    }

    fn refresh(&self) -> bool {
        let all_cores = lock(&self.all_cores);
        let paths = all_cores.iter().flat_map(|per_core| &per_core.paths);
        paths
            .filter_map(|path| path.learned())
            .fold(false, |changed, info| self.context.learn(info) | changed)
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let (_inside, per_core) = match self.enter().await {
                Ok(entered) => entered,
                Err(e) => return (Err(e), buf),
            };
            let (result, buf) = per_core.joined.read(offset, buf).await;
            (result.map_err(|e| self.with_scsi_error(e)), buf)
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let (_inside, per_core) = match self.enter().await {
                Ok(entered) => entered,
                Err(e) => return (Err(e), buf),
            };
            self.writes();
            let (result, buf) = per_core.joined.write(offset, buf, fua).await;
            (result.map_err(|e| self.with_scsi_error(e)), buf)
        })
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        // A queue would keep the controllers of an earlier term.
        if self.is_namespace() && self.gate().is_some() {
            return None;
        }
        let queue = self.here()?.joined.clone().queue()?;
        Some(Box::new(UpstreamQueue::new(self, queue)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            if self.gate().is_some_and(|gate| !gate.is_open() && !gate.owes()) {
                return Ok(());
            }
            let (_inside, per_core) = self.enter().await?;
            self.flush_on(&per_core).await.map_err(|e| self.with_scsi_error(e))
        })
    }

    fn is_unwritten(&self) -> bool {
        !self.written.load(Relaxed)
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let (_inside, per_core) = self.enter().await?;
            self.writes();
            per_core.joined.unmap(offset, len).await.map_err(|e| self.with_scsi_error(e))
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let (_inside, per_core) = self.enter().await?;
            self.writes();
            per_core.joined.write_zeroes(offset, len, unmap).await.map_err(|e| self.with_scsi_error(e))
        })
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            let (_inside, per_core) = self.enter().await?;
            per_core.joined.extent(offset, len).await.map_err(|e| self.with_scsi_error(e))
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            let (_inside, per_core) = self.enter().await?;
            per_core.joined.extents(offset, len, max).await.map_err(|e| self.with_scsi_error(e))
        })
    }

    fn preferred_read_size(&self) -> Option<usize> {
        Some(STRIDE)
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![
            describe_row("kind", "routed"),
            describe_row("router", &self.context.router),
            describe_row("upstream", &self.context.upstream),
            describe_row("target", &self.context.target),
            describe_row("lun", self.context.lun),
        ]
    }
}
