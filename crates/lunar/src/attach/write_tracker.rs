//! A backend that flushes only after a write.

use lunar_block::{Backend, BackendInfo, BufResult, Extent, LocalBoxFuture, PipedResult, TryIo};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Tracks whether data must be flushed. A host that only read can thus detach from an unreachable target without an error.
pub struct WriteTracker {
    inner: Arc<dyn Backend>,
    /// Writes that have begun or ended.
    begun: AtomicU64,
    ended: AtomicU64,
    /// Ended writes that failed.
    failed: AtomicU64,
    /// The sum of `begun` and `ended` at the start of the last successful flush.
    stable: AtomicU64,
}

/// A write in progress; it ends when the guard is dropped.
struct WriteGuard<'a>(&'a WriteTracker);

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, SeqCst);
    }
}

impl WriteTracker {
    /// Wraps a backend. `dirty`: unflushed writes may exist.
    pub fn over(inner: Arc<dyn Backend>, dirty: bool) -> Arc<WriteTracker> {
        let before = u64::from(dirty);
        let (begun, ended) = (before.into(), before.into());
        Arc::new(WriteTracker { inner, begun, ended, failed: 0.into(), stable: 0.into() })
    }

    /// Writes in progress.
    pub fn waiting(&self) -> u64 {
        let ended = self.ended.load(SeqCst);
        self.begun.load(SeqCst).saturating_sub(ended)
    }

    /// Failed writes.
    pub fn failed(&self) -> u64 {
        self.failed.load(SeqCst)
    }

    fn written(&self) -> u64 {
        self.begun.load(SeqCst) + self.ended.load(SeqCst)
    }

    /// Counts a write. It counts twice, because a flush that began before the write ended does not cover it.
    async fn writing<T>(&self, write: LocalBoxFuture<'_, T>, is_stored: fn(&T) -> bool) -> T {
        self.begun.fetch_add(1, SeqCst);
        let _under = WriteGuard(self);
        let ended = write.await;
        if !is_stored(&ended) {
            self.failed.fetch_add(1, SeqCst);
        }
        ended
    }
}

impl Backend for WriteTracker {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    fn refresh(&self) -> bool {
        self.inner.refresh()
    }

    fn offer(&self, offered: bool) {
        self.inner.offer(offered);
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        self.inner.try_read(offset, buf)
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        let written = self.inner.try_write(offset, data);
        if let TryIo::Done(result) = &written {
            self.begun.fetch_add(1, SeqCst);
            self.ended.fetch_add(1, SeqCst);
            self.failed.fetch_add(u64::from(result.is_err()), SeqCst);
        }
        written
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.inner.read(offset, buf)
    }

    fn read_piped(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, PipedResult> {
        self.inner.read_piped(offset, buf)
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.writing(self.inner.write(offset, buf, fua), |ended| ended.0.is_ok()))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async {
            let written = self.written();
            if self.stable.load(SeqCst) >= written {
                return Ok(());
            }
            let flushed = self.inner.flush().await;
            if flushed.is_ok() {
                self.stable.fetch_max(written, SeqCst);
            }
            flushed
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.writing(self.inner.unmap(offset, len), Result::is_ok))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.writing(self.inner.write_zeroes(offset, len, unmap), Result::is_ok))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        self.inner.extent(offset, len)
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        self.inner.extents(offset, len, max)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_block::filter::{FilterOp, error};
    use lunar_block::{BackendKind, BackendSpec};

    /// A medium that cannot be flushed.
    fn broken() -> Arc<dyn Backend> {
        let memory = lunar_block::open(&BackendSpec::sized(BackendKind::Memory, 1 << 20)).unwrap();
        error(memory, FilterOp::Flush, 1.0, None)
    }

    #[test]
    fn writes_that_wait_or_fail_are_counted() {
        compio::runtime::Runtime::new().unwrap().block_on(async {
            let memory = || lunar_block::open(&BackendSpec::sized(BackendKind::Memory, 1 << 20)).unwrap();
            let disk = WriteTracker::over(memory(), false);
            let write = disk.write(0, Buf::zeroed(512), false);
            assert_eq!((disk.waiting(), disk.failed()), (0, 0), "the write was not polled");
            write.await.0.unwrap();
            assert_eq!((disk.waiting(), disk.failed()), (0, 0));
            let broken = WriteTracker::over(error(memory(), FilterOp::Write, 1.0, None), false);
            broken.write(0, Buf::zeroed(512), false).await.0.unwrap_err();
            assert_eq!((broken.waiting(), broken.failed()), (0, 1));
            drop(disk.writing(Box::pin(std::future::pending::<io::Result<()>>()), Result::is_ok));
            assert_eq!(disk.waiting(), 0);
        });
    }

    #[test]
    fn flush_without_a_write_sends_nothing() {
        compio::runtime::Runtime::new().unwrap().block_on(async {
            let disk = WriteTracker::over(broken(), false);
            disk.read(0, Buf::zeroed(512)).await.0.unwrap();
            disk.flush().await.unwrap();
            disk.write(0, Buf::zeroed(512), false).await.0.unwrap();
            disk.flush().await.unwrap_err();
            disk.flush().await.unwrap_err();
            let taken_over = WriteTracker::over(broken(), true);
            taken_over.flush().await.unwrap_err();
            let sound = WriteTracker::over(
                lunar_block::open(&BackendSpec::sized(BackendKind::Memory, 1 << 20)).unwrap(),
                false,
            );
            sound.unmap(0, 512).await.unwrap();
            assert!(sound.stable.load(SeqCst) < sound.written());
            sound.flush().await.unwrap();
            assert_eq!(sound.stable.load(SeqCst), sound.written());
        });
    }
}
