//! Zeros, holes and allocation.

use super::atomic::RecordRole;
use super::watch::wait;
use super::{FileBackend, ops};
use crate::Extent;
use crate::range_lock::RangeAccess;
use lunar_runtime::Buf;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering::Relaxed;

/// Bytes of one write of zeros, if no better operation is available.
const ZEROS: u64 = 1 << 20;

impl FileBackend {
    /// Zeroes a range; with `unmap`, frees its space if possible.
    pub(super) async fn clear(&self, offset: u64, len: u64, unmap: bool) -> io::Result<()> {
        let whole = self.medium.narrow(offset, len);
        if whole.is_empty() {
            return self.write_zeros(offset..offset + len).await;
        }
        self.write_zeros(offset..whole.start).await?;
        self.clear_whole(whole.clone(), unmap).await?;
        self.write_zeros(whole.end..offset + len).await
    }

    async fn clear_whole(&self, range: Range<u64>, unmap: bool) -> io::Result<()> {
        let methods = [
            (FallocateFlags::PUNCH_HOLE, &self.can.punch),
            (FallocateFlags::ZERO_RANGE, &self.can.zero_range),
        ];
        for (flags, can) in methods.into_iter().skip(usize::from(!unmap)) {
            if !can.load(Relaxed) {
                continue;
            }
            match wait(self.allocate(flags | FallocateFlags::KEEP_SIZE, &range, RecordRole::Other)).await {
                Err(e) if cannot(&e) => can.store(false, Relaxed),
                other => return other,
            }
        }
        self.write_zeros(range).await
    }

    pub(super) async fn allocate(
        &self,
        flags: FallocateFlags,
        range: &Range<u64>,
        role: RecordRole,
    ) -> io::Result<()> {
        let (offset, len) = (range.start, range.end - range.start);
        let handle = self.handle(offset, len, RangeAccess::Shared, false, role).await?;
        self.still_there(offset, len)?;
        lunar_runtime::blocking(move || {
            loop {
                match rustix::fs::fallocate(handle.as_fd(), flags, offset, len) {
                    Err(Errno::INTR) => {}
                    other => return other.map_err(io::Error::from),
                }
            }
        })
        .await
    }

    async fn write_zeros(&self, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        let mut zeros = Buf::zeroed((range.end - at).min(ZEROS) as usize);
        while at < range.end {
            zeros.set_visible((range.end - at).min(ZEROS) as usize);
            let result;
            (result, zeros) = wait(self.write_all(at, zeros, false, RecordRole::Other)).await;
            result?;
            at += zeros.len() as u64;
        }
        Ok(())
    }

    /// The extents from `offset` on, at most `max` of them, in one call on a thread, because it may block.
    pub(super) async fn find(&self, offset: u64, len: u64, max: usize) -> io::Result<Vec<Extent>> {
        let handle = ops::FileHandle::reading(&self.medium.files);
        let (mut at, end) = (offset, offset.saturating_add(len));
        let next = move || {
            let extent = (at < end).then(|| extent(handle.as_fd(), at, end - at))?;
            at += extent.len;
            Some(extent)
        };
        lunar_runtime::blocking(move || Ok(std::iter::from_fn(next).take(max).collect())).await
    }
}

/// The extent at `offset`. If the file system does not report extents, everything counts as allocated.
fn extent(file: BorrowedFd<'_>, offset: u64, len: u64) -> Extent {
    let seek = |to| rustix::fs::seek(file, to);
    let (until, mapped) = match seek(SeekFrom::Data(offset)) {
        Ok(data) if data > offset => (data, false),
        Ok(_) => (seek(SeekFrom::Hole(offset)).unwrap_or(u64::MAX), true),
        Err(Errno::NXIO) => (u64::MAX, false),
        Err(_) => (u64::MAX, true),
    };
    // A concurrent hole punch at `offset` is possible; an extent of length 0 would loop forever.
    match len.min(until.saturating_sub(offset)) {
        0 => Extent { offset, len, mapped: true },
        found => Extent { offset, len: found, mapped },
    }
}

/// Whether the operation is unsupported, rather than failed.
pub(super) fn cannot(e: &io::Error) -> bool {
    let refusals = [Errno::OPNOTSUPP, Errno::NOSYS, Errno::NODEV];
    refusals.iter().any(|refusal| e.raw_os_error() == Some(refusal.raw_os_error()))
}
