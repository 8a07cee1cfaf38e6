//! A logical unit as storage.

mod backend;
mod compare_and_write;
mod disposition;
mod inspect;
mod lba_status;
mod properties;
mod queue;
mod retry;
mod session;
#[cfg(test)]
mod tests;
mod transferred;

use crate::session::Held;
use crate::{Command, CommandResult, Direction, Error, ErrorCode, Event, Session};
use lunar_block::range_lock::{RangeLock, RangeLocks};
use lunar_runtime::either;
use lunar_wire::scsi::cdb::Cdb;
use lunar_wire::scsi::lun::encode;
pub use properties::Properties;
use retry::perform;
pub(crate) use retry::{BusyRetry, List, perform_within};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
pub(crate) use transferred::with_buffer;

/// A logical unit of a session. It is a [`lunar_block::Backend`]. [`Lun::scsi`] sends any other command.
pub struct Lun {
    session: Session,
    /// The eight bytes of the LUN.
    lun: u64,
    number: u16,
    properties: Mutex<Properties>,
    /// The capacity in bytes. Every operation reads it, so it is outside the lock.
    capacity: AtomicU64,
    block_size: u32,
    transfer: usize,
    /// Whether the capacity has changed since the last call of `refresh`.
    changed: AtomicBool,
    /// Whether the target has rejected WRITE SAME.
    no_write_same: AtomicBool,
    /// The range locks of writes. A write of partial blocks locks exclusively. Several paths share them.
    ranges: OnceLock<Arc<RangeLocks>>,
    /// Keeps the identity pinned in the session.
    _held: Option<Held>,
    /// Carries no messages: the event task ends when this sender is dropped.
    _life: flume::Sender<()>,
}

impl Lun {
    /// Opens a logical unit of a session. Waits until it is ready, reads its properties, and pins its identity until
    /// the `Lun` is dropped.
    ///
    /// # Errors
    /// When there is no such logical unit, it is not ready in time, it is not a block device, or this session has
    /// pinned another identity.
    pub async fn open(session: &Session, number: u16) -> Result<Arc<Lun>, Error> {
        let inspected = Lun::inspect_and_hold(session, encode(number), number).await?;
        Ok(Lun::begin(session, number, inspected, session.events()))
    }

    /// Creates a `Lun` with known properties, which handles these events.
    fn begin(
        session: &Session,
        number: u16,
        (properties, held): (Properties, Option<Held>),
        events: flume::Receiver<Event>,
    ) -> Arc<Lun> {
        let (life, end) = flume::bounded(1);
        let lun = Arc::new(Lun {
            session: session.clone(),
            lun: encode(number),
            number,
            capacity: AtomicU64::new(properties.capacity()),
            block_size: properties.block_size,
            transfer: properties.transfer.min(16 << 20) as usize,
            properties: Mutex::new(properties),
            changed: AtomicBool::new(false),
            no_write_same: AtomicBool::new(false),
            ranges: OnceLock::new(),
            _held: held,
            _life: life,
        });
        lunar_runtime::spawn(heed(Arc::downgrade(&lun), events, end));
        lun
    }

    /// Reads the properties and pins the identity.
    async fn inspect_and_hold(
        session: &Session,
        lun: u64,
        number: u16,
    ) -> Result<(Properties, Option<Held>), Error> {
        loop {
            let before = session.info().recoveries;
            let properties =
                inspect::properties(session, lun).await.map_err(|e| e.during(format!("LUN {number}")))?;
            if !properties.is_block_device() || properties.block_size == 0 {
                let what = format!("LUN {number} is not a disk: device type {:02x}h", properties.device_type);
                return Err(Error::new(ErrorCode::InvalidArgument, what));
            }
            if properties.identity.is_empty() {
                return Ok((properties, None));
            }
            let held = session.hold(lun, properties.identity.clone()).await?;
            // Properties read on an earlier connection may belong to another logical unit.
            if session.info().recoveries == before {
                return Ok((properties, Some(held)));
            }
        }
    }

    /// Sets the range locks of writes. Call it before the first write. Later calls have no effect.
    pub(crate) fn share(&self, ranges: &Arc<RangeLocks>) {
        _ = self.ranges.set(ranges.clone());
    }

    fn ranges(&self) -> &Arc<RangeLocks> {
        self.ranges.get_or_init(Arc::default)
    }

    /// The session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The LUN, as a number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The eight bytes of the LUN.
    pub fn address(&self) -> u64 {
        self.lun
    }

    /// The properties, as last read.
    pub fn properties(&self) -> Properties {
        self.properties.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// The block size in bytes.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Sends a CDB once, unchanged, and returns any status. It is not sent again after a lost connection.
    pub async fn scsi(&self, cdb: Cdb, data: Direction) -> CommandResult {
        let command = Command { repeatable: false, ..Command::new(self.lun, cdb, data) };
        self.session.submit(command).await
    }

    /// Sends a CDB with retries: while the logical unit is busy or becoming ready, and after a unit attention.
    ///
    /// # Errors
    /// The error of the logical unit, or the lack of a response. The buffer is returned in either case.
    pub async fn perform(&self, cdb: Cdb, data: Direction) -> CommandResult {
        perform(&self.session, self.lun, cdb, data).await
    }

    /// The same for a write that holds a range lock.
    fn perform_holding<'a>(
        &'a self,
        cdb: Cdb,
        data: Direction,
        hold: &'a RangeLock,
    ) -> impl Future<Output = CommandResult> + use<'a> {
        retry::perform_holding(&self.session, self.lun, cdb, data, Some(hold))
    }

    /// Reads the properties again, as after a unit attention, because not all targets report changes. If the identity
    /// has changed, the `Lun` accepts no more commands ([`Event::Changed`]).
    ///
    /// # Errors
    /// [`ErrorCode::IdentityMismatch`] when the identity has changed; the errors of the SCSI commands.
    pub async fn reload(&self) -> Result<(), Error> {
        self.take(inspect::properties(&self.session, self.lun).await?)
    }

    /// Stores new properties, if the change is permitted.
    fn take(&self, properties: Properties) -> Result<(), Error> {
        let before = self.properties.lock().unwrap_or_else(|e| e.into_inner()).identity.clone();
        if !before.is_empty() && properties.identity != before {
            return Err(self.session.expel(self.lun, properties.identity));
        }
        if properties.block_size != self.block_size {
            let what = format!(
                "the block size of LUN {} changed from {} to {} bytes",
                self.number, self.block_size, properties.block_size
            );
            return Err(Error::new(ErrorCode::IdentityMismatch, what));
        }
        let before = self.capacity.swap(properties.capacity(), Ordering::Relaxed);
        if before != properties.capacity() {
            tracing::info!(
                lun = self.number,
                before,
                now = properties.capacity(),
                "the capacity of the LUN changed"
            );
            self.changed.store(true, Ordering::Relaxed);
        }
        *self.properties.lock().unwrap_or_else(|e| e.into_inner()) = properties;
        Ok(())
    }
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Lun");
        shown.field("session", &self.session).field("number", &self.number).finish_non_exhaustive()
    }
}

/// Reads the properties of a logical unit of any device type.
///
/// # Errors
/// When there is no such logical unit, or it is not ready in time.
pub async fn properties(session: &Session, number: u16) -> Result<Properties, Error> {
    let read = inspect::properties(session, encode(number)).await;
    read.map_err(|e| e.during(format!("LUN {number}")))
}

/// The same for a logical unit that need not be ready. Without a medium, the medium's properties are 0.
///
/// # Errors
/// When there is no such logical unit, or it does not respond.
pub async fn inspect(session: &Session, number: u16) -> Result<Properties, Error> {
    let read = inspect::properties_if_ready(session, encode(number)).await;
    read.map_err(|e| e.during(format!("LUN {number}")))
}

/// Reads the properties again whenever the logical unit reports a change, until the `Lun` is dropped.
async fn heed(lun: Weak<Lun>, events: flume::Receiver<Event>, end: flume::Receiver<()>) {
    let dropped = async { _ = end.recv_async().await };
    either(dropped, keep_reading(&lun, &events)).await;
}

async fn keep_reading(lun: &Weak<Lun>, events: &flume::Receiver<Event>) {
    while let Ok(event) = events.recv_async().await {
        let Some((session, address)) = lun.upgrade().map(|lun| (lun.session.clone(), lun.lun)) else {
            return;
        };
        if !is_change(&event, address) {
            continue;
        }
        let read = inspect::properties(&session, address).await;
        let Some(lun) = lun.upgrade() else { return };
        if let Err(e) = read.and_then(|properties| lun.take(properties)) {
            tracing::warn!(lun = lun.number, "cannot read the changed properties of the LUN: {e}");
        }
    }
}

/// Whether an event may change the properties of this logical unit. A reset restores saved mode pages (SPC-5 section
/// 7.5.1), which may enable a write cache.
fn is_change(event: &Event, address: u64) -> bool {
    match event {
        Event::UnitAttention { lun, sense } => {
            *lun == address && matches!(sense.asc, 0x28 | 0x29 | 0x2a | 0x3f)
        }
        Event::Seen { lun } => *lun == address,
        Event::Connected => true,
        Event::Lost(_) | Event::GaveUp(_) | Event::Changed { .. } | Event::NamespacesChanged => false,
    }
}
