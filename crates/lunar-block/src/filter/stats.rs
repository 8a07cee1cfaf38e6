//! A filter that counts operations.

use super::{Filter, FilterOp, Hook};
use crate::{Backend, describe_row};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Sets of counters. Each thread uses one, so that cores do not contend for a cache line.
const SHARDS: usize = 32;

/// Operation counters of a backend, sharded by thread.
#[derive(Default)]
pub struct IoCounters {
    shards: [Shard; SHARDS],
}

#[derive(Default)]
#[repr(align(128))]
struct Shard {
    reads: AtomicU64,
    writes: AtomicU64,
    unmaps: AtomicU64,
    flushes: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    errors: AtomicU64,
}

/// The sums of [`IoCounters`]. Operations are counted when they end, and bytes only when they succeed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Unmaps and write zeroes.
    pub unmaps: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Operations of any kind that failed.
    pub errors: u64,
}

/// Counts the operations of a backend in the returned counters.
pub fn stats(inner: Arc<dyn Backend>) -> (Arc<dyn Backend>, Arc<IoCounters>) {
    let counters = Arc::new(IoCounters::default());
    (Filter::wrap(inner, counters.clone()), counters)
}

impl IoCounters {
    /// The current sum over all threads.
    pub fn total(&self) -> IoCounts {
        let sum = |field: fn(&Shard) -> &AtomicU64| self.shards.iter().map(|s| field(s).load(Relaxed)).sum();
        IoCounts {
            reads: sum(|s| &s.reads),
            writes: sum(|s| &s.writes),
            unmaps: sum(|s| &s.unmaps),
            flushes: sum(|s| &s.flushes),
            read_bytes: sum(|s| &s.read_bytes),
            written_bytes: sum(|s| &s.written_bytes),
            errors: sum(|s| &s.errors),
        }
    }

    fn shard(&self) -> &Shard {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static MINE: usize = NEXT.fetch_add(1, Relaxed) % SHARDS);
        &self.shards[MINE.with(|mine| *mine)]
    }
}

impl Hook for Arc<IoCounters> {
    fn after(&self, op: FilterOp, bytes: u64, result: &io::Result<()>) {
        let shard = self.shard();
        let (count, moved) = match op {
            FilterOp::Read => (&shard.reads, Some(&shard.read_bytes)),
            FilterOp::Write => (&shard.writes, Some(&shard.written_bytes)),
            FilterOp::Clear => (&shard.unmaps, None),
            FilterOp::Flush => (&shard.flushes, None),
        };
        count.fetch_add(1, Relaxed);
        match (result, moved) {
            (Err(_), _) => shard.errors.fetch_add(1, Relaxed),
            (Ok(()), Some(moved)) => moved.fetch_add(bytes, Relaxed),
            (Ok(()), None) => 0,
        };
    }

    fn describe(&self) -> Vec<(String, String)> {
        let now = self.total();
        let rows = [
            ("reads", now.reads),
            ("writes", now.writes),
            ("unmaps", now.unmaps),
            ("flushes", now.flushes),
            ("read_bytes", now.read_bytes),
            ("written_bytes", now.written_bytes),
            ("errors", now.errors),
        ];
        let rows = rows.into_iter().map(|(name, value)| describe_row(name, value));
        std::iter::once(describe_row("filter", "stats")).chain(rows).collect()
    }
}
