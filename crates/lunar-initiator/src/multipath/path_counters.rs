//! Counters of the operations of each path.

use lunar_runtime::latency::{LatencyCounter, LatencyTotal};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The kind of an operation, by which it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// A read of this many bytes.
    Read(usize),
    /// A write of this many bytes.
    Write(usize),
    /// Another operation, of which only errors are counted.
    Other,
}

/// The operations of a path so far. An operation that is retried on another path counts on each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathTotal {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Bytes of these writes.
    pub written_bytes: u64,
    /// Operations of all kinds that failed.
    pub errors: u64,
    /// The latencies of these reads and writes.
    pub latency: LatencyTotal,
}

impl PathTotal {
    /// Adds an operation that succeeded.
    pub fn add(&mut self, kind: OpKind, time: Duration) {
        match kind {
            OpKind::Read(len) => {
                (self.reads, self.read_bytes) = (self.reads + 1, self.read_bytes + len as u64)
            }
            OpKind::Write(len) => {
                (self.writes, self.written_bytes) = (self.writes + 1, self.written_bytes + len as u64);
            }
            OpKind::Other => return,
        }
        self.latency.add(time);
    }
}

/// A [`PathTotal`] that grows.
#[derive(Debug, Default)]
pub struct PathCounters {
    reads: AtomicU64,
    writes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
    latency: LatencyCounter,
}

impl PathCounters {
    /// Adds the result of one operation.
    pub fn add(&self, kind: OpKind, is_good: bool, time: Duration) {
        let mut one = PathTotal::default();
        match is_good {
            true => one.add(kind, time),
            false => one.errors = 1,
        }
        self.add_all(one);
    }

    /// Adds a total, which is cheaper than many single operations.
    pub fn add_all(&self, more: PathTotal) {
        self.reads.fetch_add(more.reads, Relaxed);
        self.writes.fetch_add(more.writes, Relaxed);
        self.read_bytes.fetch_add(more.read_bytes, Relaxed);
        self.written_bytes.fetch_add(more.written_bytes, Relaxed);
        self.errors.fetch_add(more.errors, Relaxed);
        self.latency.add_all(more.latency);
    }

    /// The total so far.
    pub fn total(&self) -> PathTotal {
        PathTotal {
            reads: self.reads.load(Relaxed),
            writes: self.writes.load(Relaxed),
            read_bytes: self.read_bytes.load(Relaxed),
            written_bytes: self.written_bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
            latency: self.latency.total(),
        }
    }
}
