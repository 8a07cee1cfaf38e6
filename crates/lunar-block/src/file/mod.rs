//! Files and block devices, with the page cache or O_DIRECT.
//!
//! One descriptor serves all cores. Every operation has its own reference to the open file, which therefore stays
//! open until the kernel has finished, even if the caller is gone.

mod atomic;
mod examine;
mod identity;
mod in_flight;
mod journal;
mod last_miss;
mod lock;
mod loops;
mod medium;
mod ops;
#[cfg(test)]
mod power;
mod queue;
mod read_write;
mod resident;
mod space;
mod sync;
pub mod users;
mod watch;

use crate::range_lock::RangeLocks;
use crate::{
    Backend, BackendInfo, BackendQueue, BackendSpec, BufResult, Extent, LocalBoxFuture, MAX_ATOMIC,
    MissingMedium, OpenError, TryIo, describe_row, format, within,
};
use atomic::RecordRole;
pub(crate) use examine::examine;
use in_flight::{InFlightWrites, RegionIndices};
use journal::WriteJournal;
use last_miss::LastMiss;
use lunar_runtime::{Buf, PipedBytes};
use medium::OpenMedium;
use read_write::inline;
use rustix::io::{ReadWriteFlags, pwritev2};
use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use sync::Syncer;
use watch::invalidate_size;

/// Inline attempts of a read before it takes the asynchronous path, which blocks writers.
const TRIES: u32 = 2;

/// A regular file or a block device.
pub(crate) struct FileBackend {
    medium: OpenMedium,
    capacity: AtomicU64,
    /// The optional operations that the kernel has not rejected for this file.
    can: FileFeatures,
    syncer: Arc<Syncer>,
    ranges: Arc<RangeLocks>,
    in_flight: Arc<InFlightWrites>,
    journal: Option<Arc<WriteJournal>>,
    /// Serializes atomic writes.
    atomic: Arc<RangeLocks>,
    /// The state of the record of the last atomic write.
    open: atomic::OpenRecord,
    misses: LastMiss,
    /// Operations of batches whose threads did not end them in time, and have not ended them since.
    late_operations: AtomicUsize,
    /// Called with the offset of an operation before a thread executes it.
    #[cfg(test)]
    before_transfer: Option<Box<dyn Fn(u64) + Send + Sync>>,
}

/// Optional operations. Each flag is cleared for good when the kernel reports that the file does not support it.
struct FileFeatures {
    try_read: AtomicBool,
    try_write: AtomicBool,
    cached_pages: AtomicBool,
    punch: AtomicBool,
    zero_range: AtomicBool,
}

impl FileBackend {
    pub(crate) fn open(spec: &BackendSpec) -> Result<FileBackend, OpenError> {
        let medium = OpenMedium::open(spec)?;
        if !spec.raw {
            format::check(spec, &medium.files.plain, medium.size)?;
        }
        let journal = medium.journal(spec)?;
        let cached = !medium.direct();
        let can = FileFeatures {
            try_read: AtomicBool::new(cached),
            try_write: AtomicBool::new(cached && !medium.read_only),
            cached_pages: AtomicBool::new(cached && spec.zero_copy),
            punch: AtomicBool::new(medium.can_punch()),
            zero_range: AtomicBool::new(true),
        };
        let files = medium.files.clone();
        let syncer = Arc::new(Syncer::new(move || rustix::fs::fdatasync(&files.plain)));
        let capacity = AtomicU64::new(medium.size);
        let (ranges, in_flight, atomic, open, misses) = Default::default();
        Ok(FileBackend {
            medium,
            capacity,
            can,
            syncer,
            ranges,
            in_flight,
            journal,
            atomic,
            open,
            misses,
            late_operations: AtomicUsize::new(0),
            #[cfg(test)]
            before_transfer: None,
        })
    }

    fn check(&self, offset: u64, len: u64) -> io::Result<()> {
        within(self.capacity.load(Relaxed), offset, len)
    }

    fn check_write(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.medium.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        self.still_there(offset, len)
    }
}

impl Backend for FileBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            capacity: self.capacity.load(Relaxed),
            read_only: self.medium.read_only,
            unmap: self.can.punch.load(Relaxed),
            null: false,
            remote: false,
            write_through: false,
        }
    }

    fn refresh(&self) -> bool {
        // If the size cannot be read, the last known one stays valid: reads beyond the end fail anyway.
        match self.medium.size_now() {
            Ok(size) => self.capacity.swap(size, Relaxed) != size,
            Err(_) => false,
        }
    }

    fn missing(&self) -> Option<MissingMedium> {
        self.medium.missing()
    }

    fn open_mark(&self) -> Option<Weak<()>> {
        Some(Arc::downgrade(&self.medium.files.mark))
    }

    fn device_block_size(&self) -> Option<u32> {
        self.medium.block_size()
    }

    fn offer(&self, offered: bool) {
        self.medium.offer(offered);
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        if !self.can.try_read.load(Relaxed) {
            return TryIo::WouldWait;
        }
        let regions = RegionIndices::of(offset, buf.len() as u64);
        for _ in 0..TRIES {
            let Some(before) = self.in_flight.before_soon(regions) else { break };
            let outcome = self.read_once(offset, buf);
            let is_whole = self.in_flight.is_as_before(regions, before);
            if is_whole || !matches!(outcome, TryIo::Done(Ok(()))) {
                return outcome;
            }
        }
        TryIo::WouldWait
    }

    fn cached_pages(&self, offset: u64, len: usize) -> Option<PipedBytes> {
        if !self.can.cached_pages.load(Relaxed) || self.check(offset, len as u64).is_err() {
            return None;
        }
        self.take_cached_pages(offset, len)
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        if !self.can.try_write.load(Relaxed) {
            return TryIo::WouldWait;
        }
        let regions = RegionIndices::of(offset, data.len() as u64);
        let Some(_mark) = InFlightWrites::try_write(&*self.in_flight, regions) else {
            return TryIo::WouldWait;
        };
        if self.open.is_open() {
            return TryIo::WouldWait;
        }
        let checked = self.check_write(offset, data.len() as u64);
        inline(checked, data.len(), &self.can.try_write, io::ErrorKind::WriteZero, |at| {
            let rest = [IoSlice::new(&data[at..])];
            // A partial write is completed here, although it may block. A second execution of the command could be
            // rejected, with a part of the data written.
            let how = if at == 0 { self.medium.without_waiting() } else { ReadWriteFlags::empty() };
            if at > 0 {
                invalidate_size();
                self.still_there(offset, data.len() as u64)?;
            }
            Ok(pwritev2(&self.medium.files.plain, &rest, offset + at as u64, how)?)
        })
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            match self.check(offset, buf.len() as u64) {
                Ok(()) => self.read_all(offset, buf).await,
                Err(e) => (Err(e), buf),
            }
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            match self.check_write(offset, buf.len() as u64) {
                Ok(()) => self.write_all(offset, buf, fua, RecordRole::Other).await,
                Err(e) => (Err(e), buf),
            }
        })
    }

    fn queue(self: Arc<Self>) -> Option<Box<dyn BackendQueue>> {
        self.needs_queue().then(|| Box::new(queue::FileQueue::new(self)) as Box<dyn BackendQueue>)
    }

    fn max_atomic(&self) -> u32 {
        if self.journal.is_some() { MAX_ATOMIC } else { 0 }
    }

    fn write_atomic(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            match self.check_write(offset, buf.len() as u64) {
                Ok(()) => self.write_recorded(offset, buf).await,
                Err(e) => (Err(e), buf),
            }
        })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(self.syncer.flush())
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.write_zeroes(offset, len, true)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.check_write(offset, len)?;
            self.clear(offset, len, unmap).await
        })
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if !self.medium.direct() {
            self.missed();
            self.medium.will_need(offset, len);
        }
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(async move {
            self.check(offset, len)?;
            let found = self.find(offset, len, 1).await?;
            Ok(found.first().copied().unwrap_or(Extent { offset, len, mapped: true }))
        })
    }

    fn extents(&self, offset: u64, len: u64, max: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            self.check(offset, len)?;
            self.find(offset, len, max).await
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let mut rows = self.medium.describe();
        rows.push(describe_row("capacity", self.capacity.load(Relaxed)));
        rows.push(describe_row("unmap", self.can.punch.load(Relaxed)));
        rows
    }
}

#[cfg(test)]
mod tests;
