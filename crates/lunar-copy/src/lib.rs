//! Copying: a disk or a stream to a disk or a stream, with many requests in flight.
//!
//! A plan cuts the source into pieces; workers move them; a ledger knows up to where all is done.
//! [`copy`] goes to a disk, [`pour`] to a stream, [`verify`] compares.
//!
//! # Rules
//!
//! As many workers as requests in flight take piece after piece. A checkpoint flushes first, and then records up to where
//! everything is copied. `Offload` copies a piece nearer to the data: EXTENDED COPY between LUNs of one target, in
//! `lunar-initiator`. This is a crate of its own, because only the command uses it.

#![forbid(unsafe_code)]

mod ledger;
mod plan;
mod pour;
mod reader;
mod run;
mod stop;
mod work;
mod zeros;

pub use pour::pour;
pub use run::{copy, verify};
pub use stop::StopFlag;

use lunar_block::Backend;
#[cfg(doc)]
use lunar_block::offload::GRANULE;
use lunar_block::offload::Offload;
use lunar_runtime::Buf;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is read.
#[derive(Clone)]
pub enum CopySource {
    /// At any offset.
    Disk(Arc<dyn Backend>),
    /// Once, from its beginning; it ends when its sender does. A buffer has at most a block, and all but the
    /// last have a whole one.
    Stream(flume::Receiver<io::Result<Buf>>),
}

/// What becomes of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroPolicy {
    /// They become holes where the destination can have them.
    Auto,
    /// They are written like everything else.
    Never,
}

/// How it is done.
#[derive(Clone, Copy, Debug)]
pub struct CopyStyle {
    /// Bytes of one request, a multiple of [`GRANULE`].
    pub block: u64,
    /// Requests in flight.
    pub depth: usize,
    /// What becomes of zeros.
    pub sparse: ZeroPolicy,
    /// What the source's medium cannot give becomes zeros, and is told.
    pub skip_errors: bool,
}

/// A copy to a disk.
pub struct CopyJob {
    /// What is read.
    pub source: CopySource,
    /// Where it goes, to the same offsets.
    pub destination: Arc<dyn Backend>,
    /// Bytes to copy. A stream begins at the start, and its end is never reached by it: what goes beyond is
    /// [`CopyErrorCause::NoRoom`].
    pub range: Range<u64>,
    /// How.
    pub style: CopyStyle,
    /// The destination reads as zeros wherever it was not written.
    pub zeroed: bool,
    /// Makes the destination at least so many bytes long, for streams.
    pub grow: Option<GrowFn>,
    /// A way to have ranges copied by somebody nearer to them.
    pub offload: Option<Arc<dyn Offload>>,
    /// What has been done so far, for those who look on.
    pub meter: Arc<CopyMeter>,
    /// Ends it early. The copy sets it by itself when it fails.
    pub stop: Arc<StopFlag>,
}

/// Makes a destination at least so many bytes long.
pub type GrowFn = Box<dyn Fn(u64) -> io::Result<()>>;

/// How a copy ended.
#[derive(Debug)]
pub struct CopyOutcome {
    /// All bytes before this offset are done, and stable at the destination.
    pub stable: u64,
    /// What could not be read and was left out as zeros, in order.
    pub bad: Vec<Range<u64>>,
    /// Why it ended early, unless it was told to or reached the end.
    pub failure: Option<CopyFailure>,
    /// It reached the end.
    pub complete: bool,
}

/// What went wrong, and where.
#[derive(Debug, thiserror::Error)]
#[error("{cause} at offset {offset}")]
pub struct CopyFailure {
    /// First byte of the request that failed; of a difference, the first byte that differs.
    pub offset: u64,
    /// What it was.
    #[source]
    pub cause: CopyErrorCause,
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum CopyErrorCause {
    /// The source cannot be read.
    #[error("cannot read the source: {0}")]
    Read(#[source] io::Error),
    /// The destination cannot be written.
    #[error("cannot write the destination: {0}")]
    Write(#[source] io::Error),
    /// The destination cannot be read, to compare it.
    #[error("cannot read the destination: {0}")]
    ReadBack(#[source] io::Error),
    /// The destination cannot be made stable.
    #[error("cannot make the destination stable: {0}")]
    Flush(#[source] io::Error),
    /// The checkpoint failed.
    #[error("cannot keep how far it is: {0}")]
    Checkpoint(#[source] io::Error),
    /// The stream is longer than the destination.
    #[error("the source goes on beyond the end of the destination")]
    NoRoom,
    /// Source and destination differ.
    #[error("source and destination differ")]
    Differs,
    /// So many ranges could not be read that their list would grow without end.
    #[error("too many ranges of the source cannot be read")]
    TooManyBad,
}

impl CopyFailure {
    fn new(offset: u64, cause: CopyErrorCause) -> CopyFailure {
        CopyFailure { offset, cause }
    }

    /// A place of the source is damaged: such are what is left out, if errors are skipped.
    pub fn is_damage(&self) -> bool {
        matches!(&self.cause, CopyErrorCause::Read(e) if reader::is_damage(e))
    }
}

/// What has been done so far, in bytes. Counted while a copy runs, for those who look on.
#[derive(Default)]
pub struct CopyMeter {
    /// Dealt with, in whatever way.
    pub done: CopyCounter,
    /// Read from the source.
    pub read: CopyCounter,
    /// Written to the destination.
    pub written: CopyCounter,
    /// Made zeros at the destination without being written.
    pub zeroed: CopyCounter,
    /// Zeros that the destination had already.
    pub skipped: CopyCounter,
    /// Copied by [`Offload`].
    pub offloaded: CopyCounter,
}

/// A number that only grows.
#[derive(Default)]
pub struct CopyCounter(AtomicU64);

impl CopyCounter {
    /// What was counted so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    fn add(&self, bytes: u64) {
        self.0.fetch_add(bytes, Relaxed);
    }
}
