//! A queue of a device. Each tag is a task on the event loop of the queue's core. It fetches a request, executes it, and
//! then commits the result and fetches the next request in one operation.
#![allow(unsafe_code)]

use super::abi::{self, DeviceInfo, IoCommand, IoDescriptor, UblkCommand};
use super::request;
use compio::BufResult;
use compio::driver::{Decision, IourOpCode, OpEntry, PollOpCode};
use io_uring::{opcode, types};
use lunar_block::Backend;
use lunar_runtime::{Buf, begin_batch};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::Poll;
use zerocopy::IntoBytes;

/// The mapping in which the driver writes the requests of a queue, one entry per tag.
struct RequestMap {
    at: NonNull<c_void>,
    bytes: usize,
    depth: u16,
}

// SAFETY: the mapping is not bound to a thread, and is only read.
unsafe impl Send for RequestMap {}
// SAFETY: as above; the driver writes an entry only while its tag has no request.
unsafe impl Sync for RequestMap {}

impl RequestMap {
    fn map(device: &File, queue: u16, depth: u16) -> io::Result<RequestMap> {
        let bytes =
            (usize::from(depth) * size_of::<IoDescriptor>()).next_multiple_of(rustix::param::page_size());
        let offset = abi::requests_offset(queue);
        // SAFETY: this creates a new mapping, at an address that the kernel chooses.
        let at =
            unsafe { mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, device, offset)? };
        let at = NonNull::new(at).ok_or(io::ErrorKind::InvalidData)?;
        Ok(RequestMap { at, bytes, depth })
    }

    /// Returns the current request of a tag.
    fn get(&self, tag: u16) -> IoDescriptor {
        assert!(tag < self.depth);
        // SAFETY: within the mapping, whose start is page-aligned. The driver may write it, so the read is volatile.
        // Every bit pattern is a valid descriptor.
        unsafe { self.at.cast::<IoDescriptor>().add(usize::from(tag)).read_volatile() }
    }
}

impl Drop for RequestMap {
    fn drop(&mut self) {
        // SAFETY: `map` created it with this length, and no reference to it is left.
        if let Err(e) = unsafe { munmap(self.at.as_ptr(), self.bytes) } {
            tracing::warn!("cannot unmap the request descriptors of a ublk queue: {e}");
        }
    }
}

/// A queue of an open device.
pub(super) struct UblkQueue {
    device: Arc<File>,
    requests: RequestMap,
    number: u16,
    depth: u16,
    max_io_bytes: usize,
    as_ioctl: bool,
}

impl UblkQueue {
    /// Opens the queue `number` of the device behind `/dev/ublkcN`.
    pub fn open(device: Arc<File>, number: u16, info: &DeviceInfo, as_ioctl: bool) -> io::Result<UblkQueue> {
        let requests = RequestMap::map(&device, number, info.depth)?;
        let max_io_bytes = info.max_io_bytes as usize;
        Ok(UblkQueue { device, requests, number, depth: info.depth, max_io_bytes, as_ioctl })
    }

    /// Starts the tasks on the current event loop, since the driver accepts the commands of a queue from one thread
    /// only. A task that fails sends its error to `ended`. The last task drops `ended`.
    pub fn run(self, backend: &Arc<dyn Backend>, ended: &flume::Sender<io::Error>) {
        let queue = Arc::new(self);
        for tag in 0..queue.depth {
            let (queue, backend, ended) = (queue.clone(), backend.clone(), ended.clone());
            lunar_runtime::spawn(async move {
                if let Err(e) = serve(queue, tag, &*backend).await {
                    tracing::error!(tag, "ublk request slot failed and is no longer served: {e}");
                    // The receiver may be gone.
                    let _ = ended.send(e);
                }
            });
        }
    }
}

/// Serves one tag until the device is stopped.
async fn serve(queue: Arc<UblkQueue>, tag: u16, backend: &dyn Backend) -> io::Result<()> {
    let mut buf = Buf::zeroed(queue.max_io_bytes);
    let (mut command, mut result) = (UblkCommand::FETCH, 0);
    loop {
        let (answer, back) = exchange(&queue, tag, command, result, buf).await;
        match answer {
            Ok(0) => begin_batch(),
            Ok(other) => {
                return Err(io::Error::other(format!(
                    "the ublk driver returned the unexpected result {other}"
                )));
            }
            Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => return Ok(()),
            Err(e) => return Err(e),
        }
        let request = queue.requests.get(tag);
        (result, buf) = request::perform(backend, &request, back).await;
        // The driver may copy a request of the maximum length into the buffer.
        if buf.capacity() < queue.max_io_bytes {
            (result, buf) = (-Errno::IO.raw_os_error(), Buf::zeroed(queue.max_io_bytes));
        }
        command = UblkCommand::COMMIT_AND_FETCH;
    }
}

/// A pending command of a tag. It owns the buffer that the driver copies from and to.
struct TagCommand {
    queue: Arc<UblkQueue>,
    code: u32,
    inner: IoCommand,
    buf: Buf,
}

/// Submits a command with the result of the previous request. Returns the driver's result and the buffer.
async fn exchange(
    queue: &Arc<UblkQueue>,
    tag: u16,
    command: UblkCommand,
    result: i32,
    mut buf: Buf,
) -> (io::Result<usize>, Buf) {
    buf.set_visible(queue.max_io_bytes);
    let inner = IoCommand { queue: queue.number, tag, result, addr: buf.as_mut_ptr() as u64 };
    let code = command.code(queue.as_ioctl);
    let BufResult(answer, done) =
        compio::runtime::submit(TagCommand { queue: queue.clone(), code, inner, buf }).await;
    (answer, done.buf)
}

// SAFETY: the operation owns the file and the buffer that the entry refers to. Moving the operation does not change the
// buffer's address, and the runtime keeps the operation until the kernel has completed it.
unsafe impl IourOpCode for TagCommand {
    type Control = ();

    fn create_entry(&mut self, (): &mut ()) -> OpEntry {
        let fd = types::Fd(self.queue.device.as_raw_fd());
        let mut inner = [0; size_of::<IoCommand>()];
        inner.copy_from_slice(self.inner.as_bytes());
        opcode::UringCmd16::new(fd, self.code).cmd(inner).build().into()
    }
}

// SAFETY: it polls no descriptor.
unsafe impl PollOpCode for TagCommand {
    type Control = ();

    fn pre_submit(&mut self, (): &mut ()) -> io::Result<Decision> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "ublk needs an event loop with io_uring"))
    }

    fn operate(&mut self, (): &mut ()) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
