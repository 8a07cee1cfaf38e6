//! Reads and writes by io_uring, or by threads with the polling driver. Files in memory are read and written on the
//! spot, because io_uring would pass each operation to a kernel thread.

use super::in_flight::{InFlightWrite, InFlightWrites};
use super::medium::OpenFiles;
use super::watch::{invalidate_size, wait};
use crate::range_lock::RangeLock;
use compio::buf::{IntoInner, IoBuf};
use compio::driver::op::{ReadAt, WriteAt};
use compio::runtime::submit;
use lunar_runtime::{Buf, ThreadPermit, yield_now};
use rustix::io::{pread, pwrite};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::BufResult;

/// Bytes of a file in memory that are read or written before other tasks of the core run. A smaller step would leave
/// many writes begun and none complete when the file system is full.
const STEP: usize = 1 << 20;

/// The guards of an operation that changes the file.
#[derive(Default)]
pub(super) struct OpGuard {
    pub(super) _range: Option<RangeLock>,
    pub(super) _mark: Option<InFlightWrite<Arc<InFlightWrites>>>,
}

/// A reference to the open file, with the guards of an operation. Both last until the kernel has finished, even if
/// the caller is gone: only then may a read-modify-write of the same block read it.
#[derive(Clone)]
pub(super) struct FileHandle {
    files: Arc<OpenFiles>,
    /// Whether to use the descriptor with O_DSYNC, if there is one.
    through: bool,
    _held: Option<Arc<OpGuard>>,
    /// The thread permit, with the polling driver.
    _permit: Option<Arc<ThreadPermit>>,
}

impl FileHandle {
    pub(super) fn new(files: &Arc<OpenFiles>, through: bool, held: Option<OpGuard>) -> Self {
        FileHandle { files: files.clone(), through, _held: held.map(Arc::new), _permit: None }
    }

    /// A handle for reads.
    pub(super) fn reading(files: &Arc<OpenFiles>) -> Self {
        Self::new(files, false, None)
    }

    /// Waits for a thread permit if the operation needs one.
    async fn with_permit(self) -> FileHandle {
        if self.files.is_in_memory {
            return self;
        }
        FileHandle { _permit: ThreadPermit::for_file().await.map(Arc::new), ..self }
    }
}

impl AsFd for FileHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let through = self.files.through.as_ref().filter(|_| self.through);
        through.unwrap_or(&self.files.plain).as_fd()
    }
}

/// Fills the whole of `buf`; `UnexpectedEof` at an earlier end of the file.
pub(super) async fn read(handle: FileHandle, offset: u64, buf: Buf) -> BufResult {
    let whole = 0..buf.len();
    read_part(handle, offset, buf, whole).await
}

/// Fills a part of `buf`, which starts at `offset` of the file.
pub(super) async fn read_part(
    handle: FileHandle,
    offset: u64,
    mut buf: Buf,
    part: Range<usize>,
) -> BufResult {
    let handle = handle.with_permit().await;
    let mut at = part.start;
    while at < part.end {
        let result;
        (result, buf) = read_some(&handle, offset, buf, at..part.end).await;
        match step(result, io::ErrorKind::UnexpectedEof) {
            Ok(n) => at += n,
            Err(e) => return (Err(e), buf),
        }
    }
    (Ok(()), buf)
}

/// Reads a prefix of a part of `buf`.
async fn read_some(
    handle: &FileHandle,
    offset: u64,
    mut buf: Buf,
    part: Range<usize>,
) -> (io::Result<usize>, Buf) {
    let at = offset + part.start as u64;
    if handle.files.is_in_memory {
        let (end, is_last) = (part.end.min(part.start + STEP), part.len() <= STEP);
        let result = pread(handle, &mut buf[part.start..end], at);
        yield_unless(is_last).await;
        return (result.map_err(Into::into), buf);
    }
    let compio::BufResult(result, op) = submit(ReadAt::new(handle.clone(), at, buf.slice(part))).await;
    (result, op.into_inner().into_inner())
}

/// Writes a prefix of `buf[from..]`.
async fn write_some(handle: &FileHandle, offset: u64, buf: Buf, from: usize) -> (io::Result<usize>, Buf) {
    let at = offset + from as u64;
    if handle.files.is_in_memory {
        let (end, is_last) = (buf.len().min(from + STEP), buf.len() - from <= STEP);
        let result = pwrite(handle, &buf[from..end], at);
        yield_unless(is_last).await;
        return (result.map_err(Into::into), buf);
    }
    let compio::BufResult(result, op) = submit(WriteAt::new(handle.clone(), at, buf.slice(from..))).await;
    (result, op.into_inner().into_inner())
}

async fn yield_unless(is_last: bool) {
    if !is_last {
        yield_now().await;
    }
}

/// Writes the whole of `buf`. Calls `may` right before each step, because the file may have shrunk.
pub(super) async fn write(
    handle: FileHandle,
    offset: u64,
    mut buf: Buf,
    may: impl Fn() -> io::Result<()>,
) -> BufResult {
    let handle = wait(handle.with_permit()).await;
    let mut at = 0;
    while at < buf.len() {
        if at > 0 {
            invalidate_size();
        }
        if let Err(e) = may() {
            return (Err(e), buf);
        }
        let result;
        (result, buf) = write_some(&handle, offset, buf, at).await;
        match step(result, io::ErrorKind::WriteZero) {
            Ok(n) => at += n,
            Err(e) => return (Err(e), buf),
        }
    }
    (Ok(()), buf)
}

/// The bytes of one system call. `nothing`: the error if there are none.
pub(super) fn step(result: io::Result<usize>, nothing: io::ErrorKind) -> io::Result<usize> {
    match result {
        Ok(0) => Err(nothing.into()),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range_lock::{RangeAccess, RangeLocks};
    use compio::driver::{DriverType, ProactorBuilder};
    use compio::runtime::RuntimeBuilder;
    use std::io::{PipeReader, pipe};
    use std::os::fd::OwnedFd;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    fn is_free(ranges: &Arc<RangeLocks>) -> bool {
        let mut hold = pin!(ranges.lock(0..1, RangeAccess::Exclusive));
        hold.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// A pipe as a file. Its reads block while the other end is silent.
    fn silent(end: PipeReader) -> Arc<OpenFiles> {
        Arc::new(OpenFiles {
            plain: OwnedFd::from(end).into(),
            through: None,
            claim: None,
            is_in_memory: false,
            mark: Arc::default(),
        })
    }

    fn held(files: &Arc<OpenFiles>, range: RangeLock) -> FileHandle {
        FileHandle::new(files, false, Some(OpGuard { _range: Some(range), _mark: None }))
    }

    #[test]
    fn range_is_held_until_the_kernel_is_done_with_it() {
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(DriverType::IoUring);
        let runtime = match RuntimeBuilder::new().with_proactor(proactor).build() {
            Ok(runtime) => runtime,
            Err(e) => return println!("skipped: io_uring: {e}"),
        };
        let (end, _writer) = pipe().expect("a pipe");
        let ranges = Arc::new(RangeLocks::default());
        runtime.block_on(async {
            let handle = held(&silent(end), ranges.lock(0..1, RangeAccess::Exclusive).await);
            // Offset -1 reads from a pipe, which has no offsets.
            let mut waiting = Box::pin(read(handle, u64::MAX, Buf::zeroed(1)));
            let once = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
            assert!(once && !is_free(&ranges), "it reads");
            drop(waiting);
            assert!(!is_free(&ranges), "the caller is gone, but the kernel still reads");
            while !is_free(&ranges) {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }

    /// With the polling driver, reads and writes wait for a thread permit, as all blocking calls do.
    #[test]
    fn without_a_ring_a_read_waits_for_its_turn() {
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(DriverType::Poll);
        let runtime = RuntimeBuilder::new().with_proactor(proactor).build().expect("a runtime");
        let zero = std::fs::File::open("/dev/zero").expect("zeros");
        let files = Arc::new(OpenFiles {
            plain: zero,
            through: None,
            claim: None,
            is_in_memory: false,
            mark: Arc::default(),
        });
        let once = async |waiting: &mut Pin<Box<dyn Future<Output = BufResult>>>| {
            std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_ready())).await
        };
        runtime.block_on(async {
            let mut permits = Vec::new();
            for _ in 0..lunar_runtime::threads::AT_ONCE {
                permits.push(ThreadPermit::wait().await);
            }
            let mut waiting: Pin<Box<dyn Future<Output = BufResult>>> =
                Box::pin(read(FileHandle::reading(&files), 0, Buf::zeroed(1)));
            for _ in 0..20 {
                assert!(!once(&mut waiting).await, "all permits are taken");
                compio::time::sleep(Duration::from_millis(1)).await;
            }
            permits.pop();
            waiting.await.0.expect("zeros");
            let begun = read(FileHandle::reading(&files), 0, Buf::zeroed(1)).await;
            begun.0.expect("the permit was returned");
        });
    }

    /// Polls a future without an event loop until it ends. Returns the number of polls.
    fn polls<T>(work: impl Future<Output = T>) -> (T, usize) {
        let mut work = pin!(work);
        for polls in 1..100 {
            if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return (done, polls);
            }
        }
        panic!("it waits for the kernel");
    }

    #[test]
    fn file_in_memory_is_accessed_in_steps_without_event_loop() {
        let path = std::env::temp_dir().join(format!("lunar-steps-{}", std::process::id()));
        let options =
            std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path);
        let plain = options.expect("a file");
        let files = Arc::new(OpenFiles {
            plain,
            through: None,
            claim: None,
            is_in_memory: true,
            mark: Arc::default(),
        });
        let handle = || FileHandle::reading(&files);
        let len = 2 * STEP + 512;
        let mut data = Buf::zeroed(len);
        data.iter_mut().zip((0..=250u8).cycle()).for_each(|(byte, n)| *byte = n);
        let checks = std::cell::Cell::new(0);
        let may = || {
            checks.set(checks.get() + 1);
            Ok(())
        };
        let ((result, data), times) = polls(write(handle(), 512, data, may));
        result.expect("written");
        assert_eq!((times, checks.get()), (3, 3), "others run between steps, and the size is checked again");
        let ((result, read_back), times) = polls(read(handle(), 512, Buf::zeroed(len)));
        result.expect("read");
        assert!(times == 3 && read_back[..] == data[..]);
        let ((result, _), _) = polls(read(handle(), 1024, Buf::zeroed(len)));
        assert_eq!(result.expect_err("beyond the end").kind(), io::ErrorKind::UnexpectedEof);
        std::fs::remove_file(path).expect("a file");
    }
}
