//! Backends around a backend: [`delay`], [`error`], [`rate`] and [`stats`]. They stack in any order.
//!
//! A filter is a [`Hook`]: what happens before and after an operation of the backend within.

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
use std::sync::Arc;
use std::time::Duration;

/// What a backend is asked to do, as far as filters tell it apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterOp {
    /// Bytes are read.
    Read,
    /// Bytes are written.
    Write,
    /// A range becomes zeros: unmap and write zeroes. No bytes are moved.
    Clear,
    /// Writes become stable.
    Flush,
}

/// What a filter adds to an operation. `bytes` are those that are moved.
trait Hook: Send + Sync {
    /// What the backend is, seen through the filter.
    fn facts(&self, inner: BackendInfo) -> BackendInfo {
        inner
    }

    /// Whether the operation may be tried on the spot.
    fn now(&self, _op: FilterOp, _bytes: u64) -> bool {
        true
    }

    /// It was allowed on the spot, but the backend would wait: what [`Hook::now`] took is given back.
    fn not_now(&self, _bytes: u64) {}

    /// How long it waits before the backend is asked, and whether it is asked at all.
    fn before(&self, _op: FilterOp, _bytes: u64) -> (Duration, io::Result<()>) {
        (Duration::ZERO, Ok(()))
    }

    /// How it ended.
    fn after(&self, _op: FilterOp, _bytes: u64, _result: &io::Result<()>) {}

    /// Counters and settings for people.
    fn describe(&self) -> Vec<(String, String)>;
}

/// A backend with a hook around each operation.
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

    fn on_the_spot(&self, op: FilterOp, bytes: u64, work: impl FnOnce() -> TryIo) -> TryIo {
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

impl<H: Hook> Backend for Filter<H> {
    fn facts(&self) -> BackendInfo {
        // Who finds a null backend may leave it out altogether, and the filter with it.
        BackendInfo { null: false, ..self.hook.facts(self.inner.facts()) }
    }

    fn refresh(&self) -> bool {
        self.inner.refresh()
    }

    fn missing(&self) -> Option<MissingMedium> {
        self.inner.missing()
    }

    fn device_block_size(&self) -> Option<u32> {
        self.inner.device_block_size()
    }

    fn read_now(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        let bytes = buf.len() as u64;
        self.on_the_spot(FilterOp::Read, bytes, || self.inner.read_now(offset, buf))
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> TryIo {
        self.on_the_spot(FilterOp::Write, data.len() as u64, || self.inner.write_now(offset, data))
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.moving(FilterOp::Read, buf, move |buf| self.inner.read(offset, buf)))
    }

    fn write(&self, offset: u64, buf: Buf, stable: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.moving(FilterOp::Write, buf, move |buf| self.inner.write(offset, buf, stable)))
    }

    fn max_atomic(&self) -> u32 {
        self.inner.max_atomic()
    }

    fn write_atomic(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(self.moving(FilterOp::Write, buf, move |buf| self.inner.write_atomic(offset, buf)))
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

    fn stride(&self) -> Option<usize> {
        self.inner.stride()
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        self.inner.extent(offset, len)
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        self.inner.extents(offset, len, most)
    }

    fn describe(&self) -> Vec<(String, String)> {
        let mut told = self.hook.describe();
        told.extend(self.inner.describe());
        told
    }
}
