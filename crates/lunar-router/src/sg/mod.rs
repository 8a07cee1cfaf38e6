//! SCSI pass-through to a device of this host: `/dev/sgN`.
//!
//! This uses the asynchronous interface of the kernel's sg driver, version 3. A write submits a command, a read
//! returns a completion, and one thread for each device does both, so that no event loop blocks. SG_IO on worker
//! threads would be simpler, but wrong in two ways. Commands could overtake each other between the threads, which a
//! tape cannot tolerate. And if a process is stopped and continued during SG_IO (by a debugger or a container
//! freezer), the kernel restarts the call and sends the command again. A write to sg has either sent the command or
//! not. The price: the driver accepts writes only with the credentials that opened the device, and at most 16
//! commands at a time. `/dev/bsg` has only SG_IO.
//!
//! The kernel cannot abort a single command. ABORT TASK ends commands that are queued here, and waits for the others,
//! at most until their time limits. LOGICAL UNIT RESET is the kernel's.
//!
//! All host nexuses share the one I_T nexus of this host, so the device server handles reservations.

mod driver;
mod ioctl;
mod open;
mod properties;
mod table;
#[cfg(test)]
mod tests;
mod translate;
mod worker;

use crate::FoundLun;
use driver::{SgDriver, SgIo};
use ioctl::ScsiId;
use lunar_block::{LocalBoxFuture, describe_row};
use lunar_scsi::NexusPorts;
use lunar_target::{
    CommandFate, PassthroughCommand, PassthroughData, PassthroughLu, PassthroughNexus, PassthroughResponse,
};
use lunar_wire::scsi::TaskManagementFunction;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use translate::SubstituteResponse;
use worker::{CancelScope, Request, SgCounters, SgJob, SgWorker};

/// The maximum number of commands that an open sg device has in the kernel (SG_MAX_QUEUE).
const MAX_QUEUE: usize = 16;

/// A SCSI device of this host. After a removal, a newly opened device may replace it ([`Device::replace`]), and
/// existing nexuses use that one.
pub struct Device(Arc<Slot>);

/// The current device at a path.
struct Slot {
    path: PathBuf,
    next_nexus: AtomicU64,
    /// None after [`Device::close`].
    now: Mutex<Option<Arc<OpenSgDevice>>>,
}

/// An open device.
struct OpenSgDevice {
    scsi_id: ScsiId,
    max_transfer: usize,
    depth: usize,
    driver: Arc<dyn SgDriver>,
    requests: Option<flume::Sender<Request>>,
    counters: Arc<SgCounters>,
}

impl Device {
    /// Opens a device, until this and everything created from it is dropped.
    ///
    /// # Errors
    /// The error of the system, with a hint; `Unsupported` when it is not an sg device, or its driver is too old.
    pub fn open(path: &Path) -> io::Result<Arc<Device>> {
        let found = open::open(path)?;
        Device::start(path, found.scsi_id, found.max_transfer, Arc::new(found.node))
    }

    fn start(
        path: &Path,
        scsi_id: ScsiId,
        max_transfer: usize,
        driver: Arc<dyn SgDriver>,
    ) -> io::Result<Arc<Device>> {
        let depth = usize::try_from(scsi_id.queue_depth).unwrap_or(1).clamp(1, MAX_QUEUE);
        let (requests, asked) = flume::unbounded();
        let counters = Arc::<SgCounters>::default();
        let worker = SgWorker::new(driver.clone(), asked, counters.clone(), depth, max_transfer);
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        std::thread::Builder::new().name(name).spawn(move || worker.run())?;
        let requests = Some(requests);
        let open = OpenSgDevice { scsi_id, max_transfer, depth, driver, requests, counters };
        let (next_nexus, now) = (AtomicU64::new(0), Mutex::new(Some(Arc::new(open))));
        Ok(Arc::new(Device(Arc::new(Slot { path: path.to_owned(), next_nexus, now }))))
    }

    /// Whether it was removed from the host. A device that returns must be opened again.
    pub fn is_gone(&self) -> bool {
        self.0.now().is_none_or(|open| open.counters.gone.load(Relaxed))
    }

    /// Closes a removed device. The kernel does not reuse its number while it is open.
    pub fn close(&self) {
        *self.0.lock() = None;
    }

    /// Redirects all nexuses to `other`, which was opened at the same path.
    pub fn replace(&self, other: &Device) {
        let open = other.0.now();
        *self.0.lock() = open;
    }

    /// The properties that the device reports, without write protection and thin provisioning, which hosts read from
    /// the device.
    ///
    /// # Errors
    /// When the device does not respond to an INQUIRY.
    pub async fn properties(&self) -> io::Result<FoundLun> {
        properties::read(&self.nexus()).await
    }

    /// Creates a nexus with the device, for a host nexus or for the router itself.
    pub fn nexus(&self) -> impl PassthroughNexus + use<> {
        SgNexus { slot: self.0.clone(), number: self.0.next_nexus.fetch_add(1, Relaxed) }
    }
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<OpenSgDevice>>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Option<Arc<OpenSgDevice>> {
        self.lock().clone()
    }
}

impl PassthroughLu for Device {
    fn enter(&self, _port: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus> {
        Rc::new(self.nexus())
    }

    fn describe(&self) -> Vec<(String, String)> {
        let head = [("device", self.0.path.display().to_string()), ("gone", self.is_gone().to_string())];
        let open = self.0.now().map(|open| open.describe());
        let rows = head.into_iter().chain(open.into_iter().flatten());
        rows.map(|(name, value)| describe_row(name, value)).collect()
    }
}

impl OpenSgDevice {
    fn describe(&self) -> [(&'static str, String); 9] {
        let ScsiId { host, channel, target, lun, .. } = self.scsi_id;
        let count = |counter: &AtomicU64| counter.load(Relaxed).to_string();
        let counters = &self.counters;
        [
            ("address", format!("{host}:{channel}:{target}:{lun}")),
            ("device_type", self.device_type().to_string()),
            ("queue_depth", self.depth.to_string()),
            ("max_transfer_bytes", self.max_transfer.to_string()),
            ("commands", count(&counters.commands)),
            ("in_flight", count(&counters.in_flight)),
            ("refused", count(&counters.refused)),
            ("host_errors", count(&counters.host_errors)),
            ("resets", count(&counters.resets)),
        ]
    }

    /// Peripheral device type (SPC-5 section 6.6.2).
    fn device_type(&self) -> u8 {
        // 1Fh: unknown or no device type.
        u8::try_from(self.scsi_id.device_type).unwrap_or(0x1f)
    }

    fn ask(&self, request: Request) {
        // Without the thread the channel is closed, which the caller detects.
        if let Some(requests) = &self.requests {
            let _ = requests.send(request);
        }
        self.driver.wake();
    }

    fn sg_io(&self, cdb: &[u8], data: PassthroughData, first: bool) -> SgIo {
        let opcode = cdb.first().copied().unwrap_or(0);
        let limit = table::limit(self.device_type(), opcode);
        let timeout_ms = u32::try_from(limit.as_millis()).unwrap_or(u32::MAX);
        SgIo { cdb: cdb[..table::cdb_len(cdb)].into(), data, timeout_ms, first }
    }

    /// Ends commands that are not submitted yet. The channel closes when the others have completed.
    fn end(&self, which: CancelScope) -> flume::Receiver<Infallible> {
        let (mark, ended) = flume::bounded(0);
        self.ask(Request::End(which, mark));
        ended
    }

    /// As [`OpenSgDevice::end`], but waits for the others. Returns false if the device was removed without completing
    /// them.
    async fn ended(&self, which: CancelScope) -> bool {
        // Carries no messages: this returns an error when the sender is dropped.
        let _ = self.end(which).recv_async().await;
        !self.counters.gone.load(Relaxed)
    }

    async fn reset(&self, path: &Path) -> bool {
        self.end(CancelScope::All);
        self.counters.resets.fetch_add(1, Relaxed);
        let driver = self.driver.clone();
        let done = lunar_runtime::blocking(move || driver.reset()).await;
        if let Err(e) = &done {
            let hint = match e.kind() {
                io::ErrorKind::PermissionDenied => {
                    "give the server CAP_SYS_ADMIN and CAP_SYS_RAWIO, which a reset requires"
                }
                _ => "read the messages of the driver in the kernel log",
            };
            tracing::warn!(device = %path.display(), error = %e, hint, "cannot reset the SCSI device");
        }
        done.is_ok()
    }
}

impl Drop for OpenSgDevice {
    fn drop(&mut self) {
        self.requests = None;
        self.driver.wake();
    }
}

/// The commands of one I_T nexus.
struct SgNexus {
    slot: Arc<Slot>,
    number: u64,
}

impl PassthroughNexus for SgNexus {
    // Submitted here and not at the first poll of the future, so that commands keep their order.
    fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse> {
        let Some(device) = self.slot.now() else {
            return Box::pin(async { SubstituteResponse::GONE.reply() });
        };
        let first = command.attribute == lunar_wire::scsi::TaskAttribute::HeadOfQueue;
        let sg_io = device.sg_io(&command.cdb, command.data, first);
        let (reply, replied) = flume::bounded(1);
        let from = (self.number, command.tag);
        device.ask(Request::Run(SgJob { from, attribute: command.attribute, sg_io, reply }));
        Box::pin(
            async move { replied.recv_async().await.unwrap_or_else(|_| SubstituteResponse::GONE.reply()) },
        )
    }

    fn abort(&self, tag: u64) -> LocalBoxFuture<'_, CommandFate> {
        Box::pin(async move {
            let Some(device) = self.slot.now() else { return CommandFate::Indeterminate };
            match device.ended(CancelScope::Tag(self.number, tag)).await {
                true => CommandFate::Ended,
                false => CommandFate::Indeterminate,
            }
        })
    }

    fn manage(&self, function: TaskManagementFunction) -> LocalBoxFuture<'_, bool> {
        Box::pin(async move {
            let Some(device) = self.slot.now() else { return false };
            match function {
                TaskManagementFunction::AbortTaskSet => device.ended(CancelScope::Nexus(self.number)).await,
                TaskManagementFunction::ClearTaskSet => device.ended(CancelScope::All).await,
                // Commands that the reset ended complete on their own.
                TaskManagementFunction::LunReset => device.reset(&self.slot.path).await,
                _ => false,
            }
        })
    }
}

impl Drop for SgNexus {
    fn drop(&mut self) {
        if let Some(device) = self.slot.now() {
            device.end(CancelScope::Nexus(self.number));
        }
    }
}
