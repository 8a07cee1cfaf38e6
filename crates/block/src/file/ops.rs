//! Operations in the kernel: through the ring, or through the runtime's threads where there is none.

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

/// A reference to the open file that an operation takes along, and the range it holds. Both last until the kernel
/// has finished, also when the one who asked has gone: only then may a neighbour read what it will write back.
#[derive(Clone)]
pub(super) struct Handle {
    file: Arc<std::fs::File>,
    _hold: Option<Arc<Hold>>,
}

impl Handle {
    pub(super) fn free(file: &Arc<std::fs::File>) -> Self {
        Handle { file: file.clone(), _hold: None }
    }

    pub(super) fn held(file: &Arc<std::fs::File>, hold: Hold) -> Self {
        Handle { file: file.clone(), _hold: Some(Arc::new(hold)) }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
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
