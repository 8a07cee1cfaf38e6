//! Copies a disk or a stream to a disk or a stream, with many requests in flight.
//!
//! A plan splits the source into pieces, workers copy them, and the progress tracks the offset before which
//! everything is copied. [`copy`] writes to a disk, [`stream`] to a stream, and [`verify`] compares.
//!
//! # Rules
//!
//! There are as many workers as requests in flight. Each takes one piece after another. A checkpoint flushes first,
//! and then records the offset before which everything is copied. `Offload` copies a piece without a transfer through
//! this host: EXTENDED COPY between LUNs of one target, in `lunar-initiator`. This is a separate crate, because only
//! the command uses it.

#![forbid(unsafe_code)]

mod plan;
mod progress;
mod reader;
mod run;
mod stop;
mod stream;
mod work;
mod zeros;

pub use run::{copy, verify};
pub use stop::StopFlag;
pub use stream::stream;

use lunar_block::Backend;
#[cfg(doc)]
use lunar_block::offload::GRANULE;
use lunar_block::offload::Offload;
use lunar_runtime::Buf;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The source of a copy.
#[derive(Clone)]
pub enum CopySource {
    /// A disk, read at any offset.
    Disk(Arc<dyn Backend>),
    /// A stream, read once from its start; it ends with its sender. Every buffer is one block, except the last, which
    /// may be shorter.
    Stream(flume::Receiver<io::Result<Buf>>),
}

/// The handling of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPolicy {
    /// Holes where the destination supports them.
    Auto,
    /// Written like other data.
    Never,
}

/// The parameters of a copy.
#[derive(Clone, Copy, Debug)]
pub struct CopyStyle {
    /// Bytes of one request, a multiple of [`GRANULE`].
    pub block: u64,
    /// Requests in flight.
    pub depth: usize,
    /// The handling of zeros.
    pub sparse: ZeroPolicy,
    /// Replaces unreadable ranges of the source by zeros and reports them.
    pub skip_errors: bool,
}

/// A copy to a disk.
pub struct CopyJob {
    /// The source.
    pub source: CopySource,
    /// The destination; offsets stay the same.
    pub destination: Arc<dyn Backend>,
    /// The range to copy. A stream starts at its start; data beyond its end is [`CopyErrorCause::NoRoom`].
    pub range: Range<u64>,
    /// The parameters.
    pub style: CopyStyle,
    /// Whether unwritten ranges of the destination read as zeros.
    pub zeroed: bool,
    /// Grows the destination, for streams.
    pub grow: Option<GrowFn>,
    /// Offloads ranges to a copy manager (EXTENDED COPY).
    pub offload: Option<Arc<dyn Offload>>,
    /// The counters of the running copy.
    pub meter: Arc<CopyMeter>,
    /// Ends the copy early. The copy sets it when it fails.
    pub stop: Arc<StopFlag>,
}

/// Grows a destination to at least this many bytes.
pub type GrowFn = Box<dyn Fn(u64) -> io::Result<()>>;

/// The outcome of a copy.
#[derive(Debug)]
pub struct CopyOutcome {
    /// All bytes before this offset are copied and on stable storage.
    pub stable: u64,
    /// Unreadable ranges that were replaced by zeros, in order.
    pub bad: Vec<Range<u64>>,
    /// The failure that ended it, if any.
    pub failure: Option<CopyFailure>,
    /// Whether it reached the end.
    pub complete: bool,
}

/// A failure and its offset.
#[derive(Debug, thiserror::Error)]
#[error("{cause} at offset {offset}")]
pub struct CopyFailure {
    /// The first byte of the failed request; for a difference, the first byte that differs.
    pub offset: u64,
    /// The cause.
    #[source]
    pub cause: CopyErrorCause,
}

/// The cause of a failure.
#[derive(Debug, thiserror::Error)]
pub enum CopyErrorCause {
    /// Reading the source failed.
    #[error("cannot read the source: {0}")]
    Read(#[source] io::Error),
    /// Writing the destination failed.
    #[error("cannot write the destination: {0}")]
    Write(#[source] io::Error),
    /// Reading the destination back failed.
    #[error("cannot read the destination: {0}")]
    ReadBack(#[source] io::Error),
    /// Flushing the destination failed.
    #[error("cannot flush the destination: {0}")]
    Flush(#[source] io::Error),
    /// The checkpoint failed.
    #[error("cannot save the progress of the copy: {0}")]
    Checkpoint(#[source] io::Error),
    /// The stream is longer than the destination.
    #[error("the source has data beyond the end of the destination")]
    NoRoom,
    /// Source and destination differ.
    #[error("source and destination differ")]
    Differs,
    /// More unreadable ranges than the list may hold.
    #[error("the copy gave up after too many unreadable ranges of the source")]
    TooManyBad,
}

impl CopyFailure {
    fn new(offset: u64, cause: CopyErrorCause) -> CopyFailure {
        CopyFailure { offset, cause }
    }

    /// Whether a range of the source is damaged, which a copy may skip.
    pub fn is_damage(&self) -> bool {
        matches!(&self.cause, CopyErrorCause::Read(e) if reader::is_damage(e))
    }
}

/// Byte counters of a running copy.
#[derive(Default)]
pub struct CopyMeter {
    /// All bytes processed.
    pub done: CopyCounter,
    /// Read from the source.
    pub read: CopyCounter,
    /// Written to the destination.
    pub written: CopyCounter,
    /// Zeroed at the destination without a write.
    pub zeroed: CopyCounter,
    /// Zeros that the destination had already.
    pub skipped: CopyCounter,
    /// Copied by [`Offload`].
    pub offloaded: CopyCounter,
}

/// A monotonic counter.
#[derive(Default)]
pub struct CopyCounter(AtomicU64);

impl CopyCounter {
    /// The count so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }
}
