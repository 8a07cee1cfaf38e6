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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

/// A logical unit of a session. It is a [`lunar_block::Backend`]; whatever else a logical unit can do goes through
/// [`Lun::scsi`].
pub struct Lun {
    session: Session,
    /// The eight bytes of its LUN.
    lun: u64,
    number: u16,
    properties: Mutex<Properties>,
    /// Capacity in bytes: looked at by every operation.
    capacity: AtomicU64,
    block_size: u32,
    transfer: usize,
    /// The capacity has changed since the last call of `refresh`.
    changed: AtomicBool,
    /// WRITE SAME is not there, as a refusal has shown.
    no_write_same: AtomicBool,
    /// Writes in progress: a write of parts of blocks is alone there. Several paths to it share them.
    ranges: OnceLock<Arc<RangeLocks>>,
    /// For as long as this is there the session holds it to its identity.
    _held: Option<Held>,
    /// Nothing is ever sent: the task that handles its events ends when this is dropped.
    _life: flume::Sender<()>,
}

impl Lun {
    /// Opens a logical unit of a session: waits until it is ready, reads what it is, and from then on holds
    /// it to its identity, until it is dropped.
    ///
    /// # Errors
    /// When there is no such logical unit, it is not ready in time, or is no block device; when this session holds it to
    /// another identity.
    pub async fn open(session: &Session, number: u16) -> Result<Arc<Lun>, Error> {
        let looked = Lun::look_and_hold(session, encode(number), number).await?;
        Ok(Lun::begin(session, number, looked, session.events()))
    }

    /// A logical unit with known properties; from now on it handles these events.
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

    /// Its properties, and the hold that pins its identity.
    async fn look_and_hold(
        session: &Session,
        lun: u64,
        number: u16,
    ) -> Result<(Properties, Option<Held>), Error> {
        loop {
            let before = session.facts().recoveries;
            let properties =
                inspect::properties(session, lun).await.map_err(|e| e.during(format!("LUN {number}")))?;
            if !properties.is_block_device() || properties.block_size == 0 {
                let what = format!("LUN {number} is no disk (device type {:02x}h)", properties.device_type);
                return Err(Error::new(ErrorCode::InvalidArgument, what));
            }
            if properties.identity.is_empty() {
                return Ok((properties, None));
            }
            let held = session.hold(lun, properties.identity.clone()).await?;
            // What was seen on another connection than this one may be another one by now.
            if session.facts().recoveries == before {
                return Ok((properties, Some(held)));
            }
        }
    }

    /// Its writes hold their bytes here. To be called before the first write; later calls have no effect.
    pub(crate) fn share(&self, ranges: &Arc<RangeLocks>) {
        _ = self.ranges.set(ranges.clone());
    }

    fn ranges(&self) -> &Arc<RangeLocks> {
        self.ranges.get_or_init(Arc::default)
    }

    /// Its session.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The eight bytes of its LUN.
    pub fn address(&self) -> u64 {
        self.lun
    }

    /// Its properties, as read last.
    pub fn properties(&self) -> Properties {
        self.properties.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// Bytes of a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Sends a CDB as it is, once; unit attentions and errors come back unchanged. Nor is it sent again
    /// after a lost connection.
    pub async fn scsi(&self, cdb: Cdb, data: Direction) -> CommandResult {
        let command = Command { repeatable: false, ..Command::new(self.lun, cdb, data) };
        self.session.submit(command).await
    }

    /// Sends a CDB as a host does: again where the logical unit was busy, becoming ready, or reported a
    /// unit attention.
    ///
    /// # Errors
    /// What the logical unit answers, or that there was no answer; with the buffer.
    pub async fn perform(&self, cdb: Cdb, data: Direction) -> CommandResult {
        perform(&self.session, self.lun, cdb, data).await
    }

    /// The same of what writes bytes that are held.
    fn perform_holding<'a>(
        &'a self,
        cdb: Cdb,
        data: Direction,
        hold: &'a RangeLock,
    ) -> impl Future<Output = CommandResult> + use<'a> {
        retry::perform_holding(&self.session, self.lun, cdb, data, Some(hold))
    }

    /// Reads its properties again.
    ///
    /// # Errors
    /// Those of the commands.
    pub async fn reload(&self) -> Result<(), Error> {
        self.take(inspect::properties(&self.session, self.lun).await?)
    }

    /// Reads what it is once more, as after a unit attention of a change: not all targets report one. One that is
    /// another logical unit takes no commands from then on ([`Event::Changed`]).
    ///
    /// # Errors
    /// [`ErrorCode::IdentityMismatch`] when it is another one; those of its commands.
    pub async fn read_again(&self) -> Result<(), Error> {
        self.take(inspect::properties(&self.session, self.lun).await?)
    }

    /// It is like this now, as far as it may be.
    fn take(&self, properties: Properties) -> Result<(), Error> {
        let before = self.properties.lock().unwrap_or_else(|e| e.into_inner()).identity.clone();
        if !before.is_empty() && properties.identity != before {
            return Err(self.session.expel(self.lun, properties.identity));
        }
        if properties.block_size != self.block_size {
            let what =
                format!("the block size changed from {} to {}", self.block_size, properties.block_size);
            return Err(Error::new(ErrorCode::IdentityMismatch, what));
        }
        let before = self.capacity.swap(properties.capacity(), Ordering::Relaxed);
        if before != properties.capacity() {
            tracing::info!(lun = self.number, before, now = properties.capacity(), "the capacity changed");
            self.changed.store(true, Ordering::Relaxed);
        }
        *self.properties.lock().unwrap_or_else(|e| e.into_inner()) = properties;
        Ok(())
    }
}

/// Reads what a logical unit of a session is, whatever kind of device it is.
///
/// # Errors
/// When there is no such logical unit, or it is not ready in time.
pub async fn properties(session: &Session, number: u16) -> Result<Properties, Error> {
    let read = inspect::properties(session, encode(number)).await;
    read.map_err(|e| e.during(format!("LUN {number}")))
}

/// The same of one that need not be ready: without a medium, its properties are 0.
///
/// # Errors
/// When there is no such logical unit, or it does not answer.
pub async fn inspect(session: &Session, number: u16) -> Result<Properties, Error> {
    let read = inspect::properties_if_ready(session, encode(number)).await;
    read.map_err(|e| e.during(format!("LUN {number}")))
}

/// Reads the properties again when the logical unit reports a change, until it is dropped: then also in the
/// middle of that.
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
            tracing::warn!(lun = lun.number, "cannot read what it is now: {e}");
        }
    }
}

/// What the logical unit at this address is like may have changed. A reset brings saved mode pages back (SPC-5 section
/// 7.5.1): a write cache that was off may be on.
fn is_change(event: &Event, address: u64) -> bool {
    match event {
        Event::Attention { lun, sense } => *lun == address && matches!(sense.asc, 0x28 | 0x29 | 0x2a | 0x3f),
        Event::Seen { lun } => *lun == address,
        Event::Connected => true,
        Event::Lost(_) | Event::GaveUp(_) | Event::Changed { .. } => false,
    }
}
