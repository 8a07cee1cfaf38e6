//! Exports a backend as a block device of this host, `/dev/ublkbN`, with the kernel's ublk driver.
//!
//! The device survives the end of its process (Linux 6.1 and later). Its I/O waits until another process takes it
//! over with [`UblkDevice::recover`], and requests in flight are repeated.
//!
//! Everything here blocks, and must not be called on the thread of a core.

mod abi;
mod control;
mod queue;
mod request;

use crate::Error;
use abi::{Basic, DeviceInfo, Discard, Params, SECTOR_SHIFT, UblkCommand, attribute, feature, state};
use control::ControlDevice;
use lunar_block::{Backend, BackendInfo};
use lunar_runtime::Cores;
use queue::UblkQueue;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The maximum length of a read or write in bytes. Each tag has a buffer of this size, but only its used part
/// occupies memory.
const MAX_IO_BYTES: u32 = 512 << 10;
/// The maximum length of a discard in bytes.
const MAX_DISCARD_BYTES: u32 = 1 << 30;
/// The maximum length of a WRITE_ZEROES in bytes.
const MAX_ZEROES_BYTES: u32 = 32 << 20;
/// The physical block size of the device, as a power of two.
const PHYSICAL_SHIFT: u8 = 12;
/// How long the kernel may take to notice a dead process, and to create device nodes.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a stop waits for users to close the device.
const CLOSING: Duration = Duration::from_secs(3);

/// The options of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The number N of `/dev/ublkbN`. None means the first free one.
    pub id: Option<u32>,
    /// The number of queues, distributed over the cores. At least 1; the kernel creates no more than there are CPUs.
    pub queues: u16,
    /// The maximum number of requests in flight per queue, 1 to 4096.
    pub depth: u16,
    /// The logical block size in bytes: 512, 1024, 2048 or 4096.
    pub block_size: u32,
    /// Rejects writes, even if the backend accepts them.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { id: None, queues: 1, depth: 64, block_size: 512, read_only: false }
    }
}

/// A block device of this host. It is removed when this is dropped or stopped.
pub struct UblkDevice {
    id: u32,
    control: ControlDevice,
    backend: Arc<dyn Backend>,
    /// Receives the errors that ended tags. Disconnected when no tag is served.
    ended: flume::Receiver<io::Error>,
    failure: Option<io::Error>,
    block_size: u32,
    flags: u64,
    is_stopped: bool,
}

impl UblkDevice {
    /// Creates a device of a backend, served on these cores. It is usable when this returns. Its capacity is that of
    /// the backend, rounded down to whole blocks.
    ///
    /// # Errors
    /// Invalid options, no driver, no privileges, no io_uring, or an `id` in use.
    pub fn start(cores: &Cores, backend: Arc<dyn Backend>, options: &Options) -> Result<UblkDevice, Error> {
        let backend_info = backend.info();
        check(options, &backend_info)?;
        let mut control = ControlDevice::open()?;
        let info = control.add(wanted(options)).map_err(|e| not_added(options, e))?;
        // If it does not start, dropping `device` removes it.
        let mut device = UblkDevice::new(control, &info, backend, options.block_size);
        let alive = device.begin(cores, &info, params(options, &backend_info));
        alive.map_err(|e| device.refused("start the device", e, "see dmesg"))?;
        if !device.survives() {
            tracing::warn!(
                device.id,
                "this ublk device is lost if its process dies: recovery needs Linux 6.1"
            );
        }
        Ok(device)
    }

    /// Takes over the device `id` of a dead process, with the same backend, on these cores. Its waiting I/O
    /// continues. If this fails, the I/O keeps waiting.
    ///
    /// # Errors
    /// - The device does not exist, is still served, or cannot be recovered.
    /// - The backend is smaller than the device.
    pub fn recover(cores: &Cores, backend: Arc<dyn Backend>, id: u32) -> Result<UblkDevice, Error> {
        let mut control = ControlDevice::open()?;
        let info = orphan(&mut control, id)?;
        if info.flags & feature::USER_RECOVERY == 0 || info.state != state::QUIESCED {
            let hint = "remove the device, and attach the disk again";
            return Err(Error::new(
                block_path(id).display().to_string(),
                "cannot be recovered: the device was created without recovery, or never started",
                hint,
            ));
        }
        let fail = |what: &str, e| Error::refused(block_path(id).display().to_string(), what, e, "see dmesg");
        let params = control.params(id).map_err(|e| fail("read the parameters of the device", e))?;
        let (has, needs) = (backend.info().capacity, params.basic.sectors << SECTOR_SHIFT);
        if has < needs {
            let what = format!("the device has {needs} bytes, but the medium has only {has}");
            let subject = block_path(id).display().to_string();
            return Err(Error::new(subject, what, "use the medium that the device had before"));
        }
        while_busy(|| control.plain(UblkCommand::START_USER_RECOVERY, id, 0))
            .map_err(|e| fail("recover the device", e))?;
        let mut device = UblkDevice::new(control, &info, backend, 1 << params.basic.logical_shift);
        let alive = device.serve(cores, &info, UblkCommand::END_USER_RECOVERY);
        alive.map_err(|e| {
            // A later process may still recover the device, so dropping must not remove it.
            device.is_stopped = true;
            fail("recover the device", e)
        })?;
        Ok(device)
    }

    /// Removes the device `id` of a dead process. Its waiting I/O fails.
    ///
    /// # Errors
    /// The device does not exist, or is still served.
    pub fn remove(id: u32) -> Result<(), Error> {
        let mut control = ControlDevice::open()?;
        orphan(&mut control, id)?;
        let removed = control.plain(UblkCommand::STOP_DEV, id, 0).and_then(|()| delete(&mut control, id));
        removed.map_err(|e| {
            Error::refused(block_path(id).display().to_string(), "remove the device", e, "see dmesg")
        })
    }

    /// The number N of `/dev/ublkbN`.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The path of the block device.
    pub fn path(&self) -> PathBuf {
        block_path(self.id)
    }

    /// Whether it survives the end of this process and can be recovered.
    pub fn survives(&self) -> bool {
        self.flags & feature::USER_RECOVERY != 0
    }

    /// Whether a queue has failed, so that requests are no longer served. Stop the device then, so that waiting users
    /// get errors.
    pub fn has_failed(&mut self) -> bool {
        if self.failure.is_none() {
            self.failure = failure(&self.ended);
        }
        self.failure.is_some()
    }

    /// Whether it is mounted, or otherwise opened exclusively.
    pub fn is_in_use(&self) -> bool {
        let exclusive = OFlags::EXCL.bits() as i32;
        let opened = File::options().read(true).custom_flags(exclusive).open(self.path());
        opened.is_err_and(|e| e.kind() == io::ErrorKind::ResourceBusy)
    }

    /// Updates the capacity after that of the backend has changed.
    ///
    /// # Errors
    /// Before Linux 6.16, which cannot change the capacity.
    pub fn resize(&mut self) -> Result<(), Error> {
        let can = self.control.features().unwrap_or(0) & feature::UPDATE_SIZE != 0;
        let hint =
            "detach the disk and attach it again; Linux 6.16 can change the capacity of an attached disk";
        if !can {
            let what = "this kernel cannot change the capacity of a ublk device";
            return Err(Error::new(self.path().display().to_string(), what, hint));
        }
        let sectors = sectors(&self.backend.info(), self.block_size);
        let done = self.control.plain(UblkCommand::UPDATE_SIZE, self.id, sectors);
        done.map_err(|e| self.refused("change the capacity", e, hint))
    }

    /// Flushes the page cache and removes the device, even while it is in use (see [`UblkDevice::is_in_use`]): its
    /// users get errors from then on.
    ///
    /// # Errors
    /// When the flush fails, or the kernel does not release the device.
    pub fn stop(mut self) -> Result<(), Error> {
        self.end()
    }

    fn new(
        control: ControlDevice,
        info: &DeviceInfo,
        backend: Arc<dyn Backend>,
        block_size: u32,
    ) -> UblkDevice {
        let ended = flume::bounded(0).1;
        let (id, flags) = (info.id, info.flags);
        UblkDevice { id, control, backend, ended, failure: None, block_size, flags, is_stopped: false }
    }

    /// Starts a new device.
    fn begin(&mut self, cores: &Cores, info: &DeviceInfo, params: Params) -> io::Result<()> {
        self.control.set_params(self.id, params)?;
        self.serve(cores, info, UblkCommand::START_DEV)
    }

    /// Starts the queues, each on its core. `command` ends when every tag has fetched its first request.
    fn serve(&mut self, cores: &Cores, info: &DeviceInfo, command: UblkCommand) -> io::Result<()> {
        let device = Arc::new(open_char(self.id)?);
        let as_ioctl = self.control.as_ioctl();
        let open =
            |number| Ok((usize::from(number), UblkQueue::open(device.clone(), number, info, as_ioctl)?));
        let queues: Vec<(usize, UblkQueue)> = (0..info.queues).map(open).collect::<io::Result<_>>()?;
        let (ending, ended) = flume::unbounded();
        self.ended = ended;
        for (number, queue) in queues {
            let (backend, ending) = (self.backend.clone(), ending.clone());
            cores.run_on(number % cores.count(), move || queue.run(&backend, &ending));
        }
        drop((device, ending));
        // If a tag cannot fetch, the command never ends.
        let give_up = || failure(&self.ended);
        self.control.plain_unless(command, self.id, std::process::id().into(), &give_up)
    }

    fn end(&mut self) -> Result<(), Error> {
        self.is_stopped = true;
        // Flush first: once the device is stopping, the kernel fails all further writes.
        let synced = self.sync();
        let stopped = self.control.plain(UblkCommand::STOP_DEV, self.id, 0);
        stopped.map_err(|e| self.refused("stop the device", e, "see dmesg"))?;
        if !self.served_no_more() {
            let hint = "the kernel stops the device when this process ends; remove the device then";
            return Err(Error::new(
                self.path().display().to_string(),
                "requests to the device have not ended in time",
                hint,
            ));
        }
        let id = self.id;
        delete(&mut self.control, id).map_err(|e| self.refused("remove the device", e, "see dmesg"))?;
        let lost = "the last writes may be lost: check the data on the device";
        synced.map_err(|e| self.refused("flush the page cache", e, lost))
    }

    /// Flushes the page cache. Skipped if a queue has failed, because it would block forever.
    fn sync(&mut self) -> io::Result<()> {
        if self.has_failed() {
            return self.failure.take().map_or(Ok(()), Err);
        }
        match File::open(self.path()).and_then(|device| device.sync_all()) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    /// Waits until the queues' tasks, which keep the device open, have ended. False after the time limit.
    fn served_no_more(&self) -> bool {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Err(e) = self.ended.recv_deadline(end) {
                return e == flume::RecvTimeoutError::Disconnected;
            }
        }
    }

    fn refused(&self, what: &str, e: io::Error, hint: &str) -> Error {
        Error::refused(self.path().display().to_string(), what, e, hint)
    }
}

impl Drop for UblkDevice {
    fn drop(&mut self) {
        if !self.is_stopped
            && let Err(e) = self.end()
        {
            tracing::warn!("{e}");
        }
    }
}

/// The first error of a tag that is no longer served. None while all are served.
fn failure(ended: &flume::Receiver<io::Error>) -> Option<io::Error> {
    match ended.try_recv() {
        Ok(e) => Some(e),
        Err(flume::TryRecvError::Empty) => None,
        Err(flume::TryRecvError::Disconnected) => Some(Errno::NODEV.into()),
    }
}

fn block_path(id: u32) -> PathBuf {
    format!("/dev/ublkb{id}").into()
}

fn check(options: &Options, backend_info: &BackendInfo) -> Result<(), Error> {
    let fail = |what: String, hint: &str| Err(Error::new("ublk device", what, hint));
    if !matches!(options.block_size, 512 | 1024 | 2048 | 4096) {
        let what = format!("logical blocks of {} bytes are not supported", options.block_size);
        return fail(what, "use a block size of 512, 1024, 2048 or 4096 bytes");
    }
    if options.queues == 0 || options.depth == 0 || options.depth > abi::MAX_DEPTH {
        let what = format!("{} queues of {} requests are not supported", options.queues, options.depth);
        return fail(what, "use at least 1 queue, of 1 to 4096 requests");
    }
    if sectors(backend_info, options.block_size) == 0 {
        let what = format!("the medium is smaller than one block of {} bytes", options.block_size);
        return fail(what, "use a larger medium");
    }
    Ok(())
}

/// The requested properties of a device. The driver clears unsupported flags.
fn wanted(options: &Options) -> DeviceInfo {
    DeviceInfo {
        queues: options.queues,
        depth: options.depth,
        max_io_bytes: MAX_IO_BYTES,
        id: options.id.unwrap_or(u32::MAX),
        flags: feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE,
        ..DeviceInfo::default()
    }
}

fn not_added(options: &Options, e: io::Error) -> Error {
    let hint = match (e.kind(), options.id) {
        (io::ErrorKind::AlreadyExists, _) => {
            "choose another device number, or recover or remove the device with this number"
        }
        (io::ErrorKind::PermissionDenied, _) => {
            "run this program as root (CAP_SYS_ADMIN), or export with NBD or FUSE"
        }
        (_, Some(_)) => "choose a smaller device number, or omit the number",
        (_, None) => "see dmesg; the driver's parameter ublks_max limits the number of devices",
    };
    let subject = options.id.map_or("ublk device".into(), |id| block_path(id).display().to_string());
    Error::refused(subject, "create the device", e, hint)
}

/// The capacity in sectors, rounded down to whole blocks.
fn sectors(backend_info: &BackendInfo, block_size: u32) -> u64 {
    let block = u64::from(block_size);
    (backend_info.capacity / block * block) >> SECTOR_SHIFT
}

fn params(options: &Options, backend_info: &BackendInfo) -> Params {
    // Announced even if the medium has no cache: the device cannot announce it later if one is enabled.
    let mut attributes = attribute::VOLATILE_CACHE | attribute::FUA;
    if options.read_only || backend_info.read_only {
        attributes |= attribute::READ_ONLY;
    }
    let basic = Basic {
        attributes,
        logical_shift: options.block_size.trailing_zeros() as u8,
        physical_shift: PHYSICAL_SHIFT,
        optimal_shift: MAX_IO_BYTES.trailing_zeros() as u8,
        minimum_shift: PHYSICAL_SHIFT,
        max_sectors: MAX_IO_BYTES >> SECTOR_SHIFT,
        sectors: sectors(backend_info, options.block_size),
        ..Basic::default()
    };
    let discard = Discard {
        granularity: 1 << PHYSICAL_SHIFT,
        max_discard_sectors: if backend_info.unmap { MAX_DISCARD_BYTES >> SECTOR_SHIFT } else { 0 },
        max_zeroes_sectors: MAX_ZEROES_BYTES >> SECTOR_SHIFT,
        max_segments: 1,
        ..Discard::default()
    };
    let types = abi::PARAM_BASIC | abi::PARAM_DISCARD;
    Params { len: size_of::<Params>() as u32, types, basic, discard, pad: 0 }
}

/// Opens the character device, as soon as it exists and no other process has it open.
fn open_char(id: u32) -> io::Result<File> {
    let path = format!("/dev/ublkc{id}");
    let opened = while_busy(|| File::options().read(true).write(true).open(&path));
    opened.map_err(|e| io::Error::new(e.kind(), format!("cannot open {path}: {e}")))
}

/// Repeats a call while it fails with `ResourceBusy` or `NotFound`, until the time limit.
fn while_busy<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let end = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(e) if is_busy(&e) && Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            other => return other,
        }
    }
}

fn is_busy(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::NotFound)
}

/// Returns the properties of a device of a dead process, as soon as the kernel has noticed its end.
fn orphan(control: &mut ControlDevice, id: u32) -> Result<DeviceInfo, Error> {
    let subject = block_path(id).display().to_string();
    let end = Instant::now() + PATIENCE;
    loop {
        let found = control.info(id);
        let info = found.map_err(|e| {
            Error::refused(&subject, "find the device", e, "list the devices with `ls /dev/ublkb*`")
        })?;
        if info.state != state::LIVE {
            return Ok(info);
        }
        // An exiting process no longer has an executable.
        let is_served = std::fs::read_link(format!("/proc/{}/exe", info.pid)).is_ok();
        if is_served || Instant::now() > end {
            let what = format!("the device is in use: process {} serves its requests", info.pid);
            return Err(Error::new(subject, what, "end that process first"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Deletes a stopped device, without waiting for its users. While a user has it open, such as a mounted file system,
/// its number stays in use.
fn delete(control: &mut ControlDevice, id: u32) -> io::Result<()> {
    let end = Instant::now() + CLOSING;
    let give_up = || (Instant::now() > end).then(|| io::Error::other("another process has the device open"));
    match control.plain_unless(UblkCommand::DEL_DEV, id, 0, &give_up) {
        Err(e) if e.kind() == io::ErrorKind::TimedOut => {
            tracing::info!(
                id,
                "ublk device removed; its number becomes free when the last process closes the device"
            );
            Ok(())
        }
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_that_fails_is_a_failure_of_the_device() {
        let (ending, ended) = flume::unbounded();
        assert!(failure(&ended).is_none(), "all tags are served");
        ending.send(Errno::NOMEM.into()).expect("an open channel");
        let why = failure(&ended).and_then(|e| e.raw_os_error());
        assert_eq!(why, Some(Errno::NOMEM.raw_os_error()));
        drop(ending);
        let why = failure(&ended).and_then(|e| e.raw_os_error());
        assert_eq!(why, Some(Errno::NODEV.raw_os_error()), "all tasks have ended");
    }
}
