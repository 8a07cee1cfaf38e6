//! Filters, which wrap a backend: [`delay`], [`error`], [`rate`] and [`stats`]. They stack in any order.
//!
//! A filter is a `Hook`, called before and after each operation of the wrapped backend.

mod delay;
mod error;
mod rate;
mod stats;

pub use delay::delay;
pub use error::error;
pub use rate::{RateLimit, rate};
pub use stats::{IoCounters, IoCounts, stats};

use crate::{Backend, BackendInfo, BufResult, Extent, LocalBoxFuture, MissingMedium, TryIo};
use lunar_runtime::Buf;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The kinds of operations that filters distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterOp {
    /// A read.
    Read,
    /// A write.
    Write,
    /// UNMAP or WRITE ZEROES, which transfer no bytes.
    Clear,
    /// A flush.
    Flush,
}

/// The behaviour of a filter. `bytes` is the transferred length.
trait Hook: Send + Sync {
    /// The properties of the filtered backend.
    fn info(&self, inner: BackendInfo) -> BackendInfo {
        inner
    }

    /// Whether the operation may be tried inline.
    fn now(&self, _op: FilterOp, _bytes: u64) -> bool {
        true
    }

    /// Returns the tokens that [`Hook::now`] took, because the backend would block.
    fn not_now(&self, _bytes: u64) {}

    /// The delay before the operation, and an error to return instead of it.
    fn before(&self, _op: FilterOp, _bytes: u64) -> (Duration, io::Result<()>) {
        (Duration::ZERO, Ok(()))
    }

    /// Called at the end of the operation.
    fn after(&self, _op: FilterOp, _bytes: u64, _result: &io::Result<()>) {}

    /// Counters and settings, as in [`Backend::describe`].
    fn describe(&self) -> Vec<(String, String)>;
}

/// A backend that calls a hook around each operation.
struct Filter<H> {
    inner: Arc<dyn Backend>,
    hook: H,
}

impl<H: Hook> Filter<H> {
    fn wrap(inner: Arc<dyn Backend>, hook: H) -> Arc<dyn Backend>
    where
        H: 'static,
    {
        Arc::new(Filter { inner, hook })
    }

    fn try_io(&self, op: FilterOp, bytes: u64, work: impl FnOnce() -> TryIo) -> TryIo {
        if !self.hook.now(op, bytes) {
            return TryIo::WouldWait;
        }
        let outcome = work();
        match &outcome {
            TryIo::Done(result) => self.hook.after(op, bytes, result),
            TryIo::WouldWait => self.hook.not_now(bytes),
        }
        outcome
    }

    async fn admit(&self, op: FilterOp, bytes: u64) -> io::Result<()> {
        let (wait, verdict) = self.hook.before(op, bytes);
        if !wait.is_zero() {
            compio::time::sleep(wait).await;
        }
        verdict
    }

    async fn moving<'a>(
        &'a self,
        op: FilterOp,
        buf: Buf,
        work: impl FnOnce(Buf) -> LocalBoxFuture<'a, BufResult>,
    ) -> BufResult {
        let bytes = buf.len() as u64;
        let (result, buf) = match self.admit(op, bytes).await {
            Ok(()) => work(buf).await,
            Err(e) => (Err(e), buf),
        };
        self.hook.after(op, bytes, &result);
        (result, buf)
    }

    async fn plain<'a>(
        &'a self,
        op: FilterOp,
        work: impl FnOnce() -> LocalBoxFuture<'a, io::Result<()>>,
    ) -> io::Result<()> {
        let result = match self.admit(op, 0).await {
            Ok(()) => work().await,
            Err(e) => Err(e),
        };
        self.hook.after(op, 0, &result);
        result
    }
}

impl<H: Hook> Filter<H> {
    /// A compare and swap is a write for the hook, and a read once it has found a difference.
    async fn comparing(&self, offset: u64, buf: Buf) -> io::Result<Option<usize>> {
        let bytes = buf.len() as u64 / 2;
        let result = match self.admit(FilterOp::Write, bytes).await {
            Ok(()) => self.inner.compare_and_swap(offset, buf).await,
            Err(e) => Err(e),
        };
        let (op, ended, found) = match result {
            Ok(None) => (FilterOp::Write, Ok(()), None),
            Ok(found) => (FilterOp::Read, Ok(()), found),
            Err(e) => (FilterOp::Write, Err(e), None),
        };
        self.hook.after(op, bytes, &ended);
        ended.map(|()| found)
    }
}

impl<H: Hook> Backend for Filter<H> {
    fn info(&self) -> BackendInfo {
        // Callers may skip a null backend, and with it the filter.
        BackendInfo { null: false, ..self.hook.info(self.inner.info()) }
    }

    fn refresh(&self) -> bool {
        self.inner.refresh()
    }

    fn missing(&self) -> Option<MissingMedium> {
        self.inner.missing()
    }

    fn open_mark(&self) -> Option<Weak<()>> {
        self.inner.open_mark()
    }

    fn device_block_size(&self) -> Option<u32> {
        self.inner.device_block_size()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        let bytes = buf.len() as u64;
        self.try_io(FilterOp::Read, bytes, || self.inner.try_read(offset, buf))
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        self.try_io(FilterOp::Write, data.len() as u64, || self.inner.try_write(offset, data))
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.moving(FilterOp::Read, buf, move |buf| self.inner.read(offset, buf)))
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.moving(FilterOp::Write, buf, move |buf| self.inner.write(offset, buf, fua)))
    }

    fn max_atomic(&self) -> u32 {
        self.inner.max_atomic()
    }

    fn write_atomic(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.moving(FilterOp::Write, buf, move |buf| self.inner.write_atomic(offset, buf)))
    }

    fn max_compare_and_swap(&self) -> u32 {
        self.inner.max_compare_and_swap()
    }

    fn compare_and_swap(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, io::Result<Option<usize>>> {
        Box::pin(self.comparing(offset, buf))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.plain(FilterOp::Flush, || self.inner.flush()))
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.plain(FilterOp::Clear, move || self.inner.unmap(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.plain(FilterOp::Clear, move || self.inner.write_zeroes(offset, len, unmap)))
    }

    fn is_unwritten(&self) -> bool {
        self.inner.is_unwritten()
    }

    fn preferred_read_size(&self) -> Option<usize> {
        self.inner.preferred_read_size()
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
        let mut rows = self.hook.describe();
        rows.extend(self.inner.describe());
        rows
    }
}
