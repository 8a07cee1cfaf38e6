//! Atomic writes of a file or device, with a [`Journal`](super::journal::Journal).
//!
//! No system call of Linux writes a megabyte atomically. The steps of a write are:
//!
//! 1. Sync the medium, so that the old sectors are stable, and read them.
//! 2. Open the record. If the range was written since step 1 began, wait for these writes and repeat step 1.
//! 3. Write and sync the record: the new bytes, and a checksum of each old sector.
//! 4. Reserve the space, write the medium, and sync it.
//! 5. Clear and sync the record.
//!
//! Other writes start only while no record is open. They check this after they have marked their regions as written,
//! because step 2 opens the record before it looks for marks. If step 4 fails, the old content of the changed sectors
//! is restored and synced before the record is cleared.

use super::FileBackend;
use super::in_flight::RegionIndices;
use super::journal::changed;
use super::space::cannot;
use super::watch::{invalidate_size, wait};
use crate::range_lock::RangeAccess;
use crate::{BufResult, MAX_ATOMIC, locked};
use lunar_runtime::Buf;
use rustix::fs::FallocateFlags;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst, fence};

/// The relation of a write to the record of an atomic write.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RecordRole {
    /// The write is the atomic write, or its undo.
    Owner,
    /// The write waits until no record is open.
    Other,
}

/// The state of the record. While it may be valid, no other write starts: a later replay would overwrite newer data.
#[derive(Default)]
pub(super) struct OpenRecord {
    is_open: AtomicBool,
    /// The old blocks of a failed write, and their offset.
    undo: Mutex<Option<(u64, Buf)>>,
}

impl OpenRecord {
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.is_open.load(SeqCst)
    }

    fn begin(&self) {
        self.is_open.store(true, SeqCst);
        // A writer marks its regions, then loads the flag: either it sees the flag, or the marks are seen from here on.
        fence(SeqCst);
    }

    fn end(&self) {
        *locked(&self.undo) = None;
        self.is_open.store(false, SeqCst);
    }

    /// Sets the state after a failed write.
    #[cfg(test)]
    pub(super) fn fail(&self, offset: u64, old: Buf) {
        self.begin();
        *locked(&self.undo) = Some((offset, old));
    }

    fn copy(&self) -> Option<(u64, Buf)> {
        locked(&self.undo).as_ref().map(|(offset, old)| {
            let copy = Buf::copy_of(old);
            (*offset, copy)
        })
    }
}

impl FileBackend {
    /// Executes an atomic write. A medium has at most one at a time.
    pub(super) async fn write_recorded(&self, offset: u64, buf: Buf) -> BufResult {
        let Some(journal) = self.journal.clone().filter(|_| buf.len() <= MAX_ATOMIC as usize) else {
            return (Err(io::ErrorKind::Unsupported.into()), buf);
        };
        let _turn = self.atomic.lock(0..1, RangeAccess::Exclusive).await;
        let old = match self.open_record(offset, buf.len()).await {
            Ok(old) => old,
            Err(e) => return (Err(e), buf),
        };
        let record = journal.record(offset, &old, &buf);
        let kept = lunar_runtime::blocking(move || journal.put(&record)).await;
        let (result, buf) = match kept {
            Ok(()) => self.write_or_undo(offset, buf, old).await,
            Err(e) => (Err(e), buf),
        };
        let ended = self.end_record().await;
        if let Err(e) = &ended {
            let len = buf.len();
            tracing::error!(
                name: "medium.error", error = %e, offset, len,
                "the medium rejects writes, because the journal record of an atomic write cannot be cleared; \
                 hint: check the disks of the medium and of the state folder, and restart"
            );
        }
        (result.and(ended), buf)
    }

    /// Opens the record. Returns the old blocks, which are stable.
    async fn open_record(&self, offset: u64, len: usize) -> io::Result<Buf> {
        self.end_record().await?;
        let regions = RegionIndices::of(offset, len as u64);
        let before = self.in_flight.before(regions);
        let old = self.stable_old(offset, len).await?;
        self.open.begin();
        if before.is_some_and(|before| self.in_flight.is_as_before(regions, before)) {
            return Ok(old);
        }
        drop(self.in_flight.still(regions).await);
        let old = self.stable_old(offset, len).await;
        if old.is_err() {
            self.open.end();
        }
        old
    }

    /// Makes the medium stable and returns the old blocks. After a power loss, the record must match each old or new sector.
    async fn stable_old(&self, offset: u64, len: usize) -> io::Result<Buf> {
        self.syncer.flush().await?;
        let (result, old) = self.read_all(offset, Buf::zeroed(len)).await;
        result.map(|()| old)
    }

    /// Clears the record of the last atomic write, so that other writes may start.
    pub(super) async fn no_record(&self) -> io::Result<()> {
        if !self.open.is_open() {
            return Ok(());
        }
        let _turn = self.atomic.lock(0..1, RangeAccess::Exclusive).await;
        self.end_record().await
    }

    /// Restores the old blocks if the write failed, then clears the record.
    async fn end_record(&self) -> io::Result<()> {
        let Some(journal) = self.journal.clone().filter(|_| self.open.is_open()) else { return Ok(()) };
        if let Some((offset, old)) = self.open.copy() {
            self.undo(offset, &old).await?;
            self.syncer.flush().await?;
        }
        lunar_runtime::blocking(move || journal.clear()).await?;
        self.open.end();
        Ok(())
    }

    /// Restores the old blocks that have changed. The others may be shared with another file, so writing them would need
    /// space. Blocks beyond the end of a file that became shorter are not restored.
    async fn undo(&self, offset: u64, old: &Buf) -> io::Result<()> {
        invalidate_size();
        self.refresh_size();
        let left = self.capacity.load(Relaxed).saturating_sub(offset).min(old.len() as u64) as usize;
        let (result, now) = wait(self.read_all(offset, Buf::zeroed(left))).await;
        result?;
        for changed in changed(&now, &old[..left]) {
            let part = Buf::copy_of(&old[changed.clone()]);
            wait(self.write_all(offset + changed.start as u64, part, false, RecordRole::Owner)).await.0?;
        }
        Ok(())
    }

    /// Writes the new blocks. After a failure, the old blocks are kept for the undo.
    async fn write_or_undo(&self, offset: u64, buf: Buf, old: Buf) -> BufResult {
        invalidate_size();
        if let Err(e) = wait(self.reserve(offset, buf.len() as u64)).await {
            return (Err(e), buf);
        }
        let (result, buf) = self.write_all(offset, buf, true, RecordRole::Owner).await;
        if result.is_err() {
            *locked(&self.open.undo) = Some((offset, old));
        }
        (result, buf)
    }

    /// Reserves the space for the write, on file systems that can.
    async fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        if self.medium.is_device() {
            return Ok(());
        }
        let found = rustix::fs::fstatfs(&self.medium.files.plain)?;
        if !has_room(found.f_type as u32, found.f_bavail.saturating_mul(found.f_bsize as u64), len) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        for flags in [FallocateFlags::UNSHARE_RANGE, FallocateFlags::empty()] {
            let all = offset..offset + len;
            match wait(self.allocate(flags | FallocateFlags::KEEP_SIZE, &all, RecordRole::Owner)).await {
                Err(e) if cannot(&e) || e.kind() == io::ErrorKind::InvalidInput => {}
                other => other?,
            }
        }
        Ok(())
    }
}

/// The magic numbers of file systems that allocate a new block for each write: btrfs (`linux/magic.h`), OpenZFS,
/// bcachefs.
const COPY_ON_WRITE: [u32; 3] = [0x9123_683e, 0x2fc1_2fc1, 0xca45_1a4e];

/// Whether there is space for the write and its undo. On a copy-on-write file system, both need it.
fn has_room(file_system: u32, free: u64, len: u64) -> bool {
    !COPY_ON_WRITE.contains(&file_system) || free >= 2 * len
}

#[cfg(test)]
mod tests {
    use super::super::journal::SECTOR;
    use super::*;

    #[test]
    fn undo_has_room_where_each_write_is_a_copy() {
        const EXT4: u32 = 0xef53;
        for (file_system, free, is_enough) in
            [(EXT4, 0, true), (COPY_ON_WRITE[0], 8191, false), (COPY_ON_WRITE[0], 8192, true)]
        {
            assert_eq!(has_room(file_system, free, 4096), is_enough, "{file_system:x} {free}");
        }
    }

    #[test]
    fn sectors_that_have_changed_are_found() {
        let old = [1; 5 * SECTOR - 12];
        assert_eq!(changed(&old, &old), []);
        assert_eq!(changed(&[2; 5 * SECTOR - 12], &old).first(), Some(&(0..old.len())));
        let mut now = old;
        [0, 2 * SECTOR + 5, 3 * SECTOR, 5 * SECTOR - 13].iter().for_each(|at| now[*at] = 2);
        assert_eq!(changed(&now, &old), [0..SECTOR, 2 * SECTOR..old.len()]);
        now[3 * SECTOR] = 1;
        assert_eq!(changed(&now, &old), [0..SECTOR, 2 * SECTOR..3 * SECTOR, 4 * SECTOR..old.len()]);
    }
}
