//! A namespace as storage.

mod backend;
mod blocks;
mod compare_and_write;
mod path;
mod perform;
mod queue;
mod reservations;
mod zeroes;

use super::controller::NvmeController;
use super::host_queue::MAX_TRANSFER;
use super::namespace_identity::{self, NamespaceProperties};
use crate::{Error, ErrorCode, Event, time_limit};
use lunar_block::range_lock::RangeLocks;
use lunar_runtime::either;
use lunar_wire::nvme::{IdentifyController, IdentifyNamespace};
pub use reservations::{NvmeRegistrant, NvmeReservations, ReservationChange};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// ONCS bit 3: Write Zeroes.
const WRITE_ZEROES: u16 = 1 << 3;

/// FUSES bit 0: Compare and Write.
const COMPARE_AND_WRITE: u16 = 1;
/// NLB has 16 bits, and is 0-based.
const MAX_BLOCKS: u64 = 1 << 16;

/// Interval of the checks of a namespace whose controller does not report changes.
const CHECK_INTERVAL: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 5000 });
/// The pause before another attempt to read properties that have changed.
const RETRY_PAUSE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });

/// A namespace of a controller. It is a [`lunar_block::Backend`].
pub struct NvmeNamespace {
    controller: NvmeController,
    id: u32,
    properties: Mutex<NamespaceProperties>,
    /// The capacity in bytes. Every operation reads it, so it is outside the lock.
    capacity: AtomicU64,
    block_size: u32,
    /// The most data of one command, in bytes: whole blocks. It may change with each connection.
    transfer: AtomicUsize,
    features: NamespaceFeatures,
    /// The controller has rejected Write Zeroes, although it lists the command.
    rejects_zeroes: AtomicBool,
    /// Whether the properties have changed since the last call of `refresh`.
    changed: AtomicBool,
    /// The error of all operations while the number leads to another namespace.
    replaced: Mutex<Option<Error>>,
    /// Whether there is one. Every operation reads it, so it is outside the lock.
    is_replaced: AtomicBool,
    /// The range locks of writes. Several paths share them.
    ranges: OnceLock<Arc<RangeLocks>>,
    /// Carries no messages: the task that heeds changes ends when this sender is dropped.
    _life: flume::Sender<()>,
}

/// Commands and units that the controller supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NamespaceFeatures {
    write_zeroes: bool,
    /// The most blocks of a fused Compare and Write; 0 without it.
    compare_blocks: u32,
}

impl NamespaceFeatures {
    fn of(identify: &IdentifyController, properties: &NamespaceProperties) -> NamespaceFeatures {
        // NACWU counts if NSFEAT bit 1 says so.
        let has_own_units = properties.identify.features & 2 != 0;
        let unit = if has_own_units { properties.identify.atomic_compare } else { identify.atomic_compare };
        let is_fused = identify.fused & COMPARE_AND_WRITE != 0;
        NamespaceFeatures {
            write_zeroes: identify.commands & WRITE_ZEROES != 0,
            compare_blocks: if is_fused { u32::from(unit) + 1 } else { 0 },
        }
    }
}

impl NvmeNamespace {
    /// Opens a namespace of a controller. After a lost connection, its commands are only sent if its identity is the same.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when there is no such namespace; [`ErrorCode::InvalidArgument`] when its format is not
    /// supported.
    pub async fn open(controller: &NvmeController, id: u32) -> Result<Arc<NvmeNamespace>, Error> {
        let changes = controller.events();
        let properties = inspect(controller, id).await?;
        controller.pin(id, properties.identity.clone());
        let info = controller.info();
        let block_size = properties.block_size();
        let (life, end) = flume::bounded(1);
        let namespace = Arc::new(NvmeNamespace {
            controller: controller.clone(),
            id,
            capacity: AtomicU64::new(properties.capacity),
            block_size,
            transfer: AtomicUsize::new(transfer(info.max_transfer, block_size)),
            features: NamespaceFeatures::of(&info.identify, &properties),
            rejects_zeroes: AtomicBool::new(false),
            properties: Mutex::new(properties),
            changed: AtomicBool::new(false),
            replaced: Mutex::default(),
            is_replaced: AtomicBool::new(false),
            ranges: OnceLock::new(),
            _life: life,
        });
        lunar_runtime::spawn(heed(Arc::downgrade(&namespace), changes, end));
        Ok(namespace)
    }

    /// The controller.
    pub fn controller(&self) -> &NvmeController {
        &self.controller
    }

    /// The identifier of the namespace (NSID).
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The properties, as last read.
    pub fn properties(&self) -> NamespaceProperties {
        self.properties.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the properties again. If the identity has changed, all operations fail until it is the same again.
    ///
    /// # Errors
    /// [`ErrorCode::IdentityMismatch`] when the identity has changed; those of Identify.
    pub async fn reload(&self) -> Result<(), Error> {
        let before = self.properties();
        let properties = match inspect(&self.controller, self.id).await {
            Ok(properties) if properties.identity == before.identity => properties,
            Ok(other) => return Err(self.replace(&before.identity.change_to(&other.identity))),
            // Another namespace, with a format that is not supported.
            Err(e) if e.code == ErrorCode::InvalidArgument => {
                return Err(self.replace(&format!("was {}: {}", before.identity, e.what)));
            }
            Err(e) => return Err(e),
        };
        self.is_replaced.store(false, Ordering::Relaxed);
        self.adopt_limit();
        let as_used = IdentifyNamespace { used: before.identify.used, ..properties.identify.clone() };
        // Each write may change the number of used blocks, which has no use here.
        if (NamespaceProperties { identify: as_used, ..properties.clone() }) != before {
            tracing::info!(namespace = self.id, capacity = properties.capacity, "the namespace has changed");
            self.capacity.store(properties.capacity, Ordering::Relaxed);
            self.changed.store(true, Ordering::Relaxed);
            *self.properties.lock().unwrap_or_else(PoisonError::into_inner) = properties;
        }
        Ok(())
    }

    /// Whether the properties must be read without an event. A lost controller has none, and its return is an event.
    fn must_check(&self, is_retry: bool) -> bool {
        let info = self.controller.info();
        info.connected && (is_retry || !info.reports_changes)
    }

    /// Reads the properties again, and returns the failure. Logs it, unless it is the one before.
    async fn reload_after(&self, before: Option<Error>) -> Option<Error> {
        let failure = self.reload().await.err();
        if let Some(e) = failure.as_ref().filter(|_| failure != before) {
            tracing::warn!(namespace = self.id, "cannot read the changed properties: {e}");
        }
        failure
    }

    /// Fails all operations from now on: the number leads to another namespace.
    fn replace(&self, change: &str) -> Error {
        let what = format!("namespace {} {change}", self.id);
        let error = Error::new(ErrorCode::IdentityMismatch, what);
        *self.replaced.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
        self.is_replaced.store(true, Ordering::Relaxed);
        error
    }
}

impl Drop for NvmeNamespace {
    fn drop(&mut self) {
        self.controller.unpin(self.id);
    }
}

impl fmt::Debug for NvmeNamespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("NvmeNamespace");
        shown.field("controller", &self.controller).field("id", &self.id).finish_non_exhaustive()
    }
}

/// The most data of one command in bytes: whole blocks, at least one, within the limit of the controller.
fn transfer(limit: Option<u64>, block_size: u32) -> usize {
    let limit = limit.unwrap_or(u64::MAX).min(MAX_TRANSFER as u64);
    let blocks = (limit / u64::from(block_size)).clamp(1, MAX_BLOCKS);
    (blocks * u64::from(block_size)) as usize
}

/// Reads the properties of a namespace.
///
/// # Errors
/// [`ErrorCode::NotFound`] when there is none; [`ErrorCode::InvalidArgument`] when its format is not supported; those of
/// Identify.
pub async fn inspect(controller: &NvmeController, id: u32) -> Result<NamespaceProperties, Error> {
    namespace_identity::read(|command| controller.admin(command), id).await
}

/// Whether a failure to read the properties may pass. Otherwise only a change of the controller helps.
fn may_pass(e: &Error) -> bool {
    !matches!(e.code, ErrorCode::NotFound | ErrorCode::IdentityMismatch)
}

/// Reads the properties again whenever they may have changed, until the namespace is dropped.
async fn heed(namespace: Weak<NvmeNamespace>, changes: flume::Receiver<Event>, end: flume::Receiver<()>) {
    let dropped = async { _ = end.recv_async().await };
    let read = async {
        let mut failure: Option<Error> = None;
        loop {
            let is_retry = failure.as_ref().is_some_and(may_pass);
            let pause = if is_retry { RETRY_PAUSE } else { CHECK_INTERVAL };
            let event = time_limit::within(pause, changes.recv_async()).await;
            let Some(namespace) = namespace.upgrade() else { return };
            let must_read = match event {
                // One reading is enough for all events so far.
                Some(Ok(event)) => {
                    changes.drain().chain([event]).any(|event| !matches!(event, Event::Lost(_)))
                }
                Some(Err(_)) => return,
                None => namespace.must_check(is_retry),
            };
            if must_read {
                failure = namespace.reload_after(failure).await;
            }
        }
    };
    either(dropped, read).await;
}
