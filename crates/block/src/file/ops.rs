//! Operations in the kernel: through the ring, or through the runtime's threads where there is none.

use super::medium::Files;
use crate::range::Hold;
use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::driver::op::{Asyncify, ReadAt, WriteAt};
use compio::runtime::submit;
use net::Buf;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::Finished;

/// A reference to the open file that an operation takes along, and the range it holds. Both last until the
/// kernel has finished, also when the one who asked has gone: only then may a neighbour read what it will
/// write back.
#[derive(Clone)]
pub(super) struct Handle {
    files: Arc<Files>,
    /// Of the two descriptors the one with O_DSYNC, where there is one.
    through: bool,
    _hold: Option<Arc<Hold>>,
}

impl Handle {
    pub(super) fn new(files: &Arc<Files>, through: bool, hold: Option<Hold>) -> Self {
        Handle { files: files.clone(), through, _hold: hold.map(Arc::new) }
    }

    /// For what changes nothing.
    pub(super) fn reading(files: &Arc<Files>) -> Self {
        Self::new(files, false, None)
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let through = self.files.through.as_ref().filter(|_| self.through);
        through.unwrap_or(&self.files.plain).as_fd()
    }
}

/// Fills the whole of `buf`; the end of the file before that is `UnexpectedEof`.
pub(super) async fn read(handle: Handle, offset: u64, mut buf: Buf) -> Finished {
    let mut at = 0;
    while at < buf.len() {
        let op = ReadAt::new(handle.clone(), offset + at as u64, buf.slice(at..));
        let BufResult(result, op) = submit(op).await;
        buf = op.into_inner().into_inner();
        match step(result, io::ErrorKind::UnexpectedEof) {
            Ok(n) => at += n,
            Err(e) => return (Err(e), buf),
        }
    }
    (Ok(()), buf)
}

/// Writes the whole of `buf`.
pub(super) async fn write(handle: Handle, offset: u64, mut buf: Buf) -> Finished {
    let mut at = 0;
    while at < buf.len() {
        let op = WriteAt::new(handle.clone(), offset + at as u64, buf.slice(at..));
        let BufResult(result, op) = submit(op).await;
        buf = op.into_inner().into_inner();
        match step(result, io::ErrorKind::WriteZero) {
            Ok(n) => at += n,
            Err(e) => return (Err(e), buf),
        }
    }
    (Ok(()), buf)
}

fn step(result: io::Result<usize>, nothing: io::ErrorKind) -> io::Result<usize> {
    match result {
        Ok(0) => Err(nothing.into()),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        other => other,
    }
}

/// Runs `work` on one of the runtime's threads: for calls that wait and that the ring does not offer.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let BufResult(result, op) = submit(Asyncify::new(move || BufResult(Ok(0), work()))).await;
    result?;
    op.into_inner()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::{Ranges, Share};
    use compio::driver::{DriverType, ProactorBuilder};
    use compio::runtime::RuntimeBuilder;
    use std::io::{PipeReader, pipe};
    use std::os::fd::OwnedFd;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};
    use std::time::Duration;

    fn is_free(ranges: &Arc<Ranges>) -> bool {
        let mut hold = pin!(ranges.hold(0..1, Share::Nothing));
        hold.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// An end of a pipe as a file that lets its readers wait as long as the other end is silent.
    fn silent(end: PipeReader) -> Arc<Files> {
        Arc::new(Files { plain: OwnedFd::from(end).into(), through: None })
    }

    #[test]
    fn a_range_is_held_until_the_kernel_is_done_with_it() {
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(DriverType::IoUring);
        let runtime = match RuntimeBuilder::new().with_proactor(proactor).build() {
            Ok(runtime) => runtime,
            Err(e) => return println!("skipped: io_uring: {e}"),
        };
        let (end, _writer) = pipe().expect("a pipe");
        let ranges = Arc::new(Ranges::default());
        runtime.block_on(async {
            let handle = Handle::new(&silent(end), false, Some(ranges.hold(0..1, Share::Nothing).await));
            // A pipe has no offsets; this one says so.
            let mut waiting = Box::pin(read(handle, u64::MAX, Buf::zeroed(1)));
            let once = std::future::poll_fn(|cx| Poll::Ready(waiting.as_mut().poll(cx).is_pending())).await;
            assert!(once && !is_free(&ranges), "it reads");
            drop(waiting);
            assert!(!is_free(&ranges), "who asked has gone, the kernel has not");
            while !is_free(&ranges) {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
        });
    }
}
