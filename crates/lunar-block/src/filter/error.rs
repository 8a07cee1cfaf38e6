//! A filter that fails operations.

use super::{Filter, FilterOp, Hook};
use crate::{Backend, BackendInfo, describe_row, random};
use rustix::io::Errno;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

struct ErrorFilter {
    op: FilterOp,
    rate: f64,
    seed: u64,
    asked: AtomicU64,
    failed: AtomicU64,
}

/// Fails a fraction of the operations `op` with EIO, without passing them on. `rate` is from 0.0 (none) to 1.0 (all),
/// clamped. [`FilterOp::Write`] includes [`FilterOp::Clear`]. With a `seed`, the same operations of a sequence fail
/// each time.
pub fn error(inner: Arc<dyn Backend>, op: FilterOp, rate: f64, seed: Option<u64>) -> Arc<dyn Backend> {
    let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    Filter::wrap(inner, ErrorFilter { op, rate, seed, asked: AtomicU64::new(0), failed: AtomicU64::new(0) })
}

impl ErrorFilter {
    fn hits(&self, op: FilterOp) -> bool {
        op == self.op || (op == FilterOp::Clear && self.op == FilterOp::Write)
    }

    /// Draws the random outcome of one operation.
    fn throw(&self) -> bool {
        let limit = (self.rate * 2f64.powi(64)) as u128;
        u128::from(random(self.seed, self.asked.fetch_add(1, Relaxed))) < limit
    }
}

impl Hook for ErrorFilter {
    fn info(&self, inner: BackendInfo) -> BackendInfo {
        // With write-through, callers would not flush, and no flush would fail.
        BackendInfo { write_through: inner.write_through && self.op != FilterOp::Flush, ..inner }
    }

    fn now(&self, op: FilterOp, _bytes: u64) -> bool {
        // Otherwise an operation that is tried inline and then repeated asynchronously would draw twice.
        !self.hits(op)
    }

    fn before(&self, op: FilterOp, _bytes: u64) -> (Duration, io::Result<()>) {
        if self.hits(op) && self.throw() {
            self.failed.fetch_add(1, Relaxed);
            return (Duration::ZERO, Err(Errno::IO.into()));
        }
        (Duration::ZERO, Ok(()))
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![
            describe_row("filter", "error"),
            describe_row("op", format!("{:?}", self.op).to_lowercase()),
            describe_row("rate", self.rate),
            describe_row("failed", self.failed.load(Relaxed)),
        ]
    }
}
