//! Files and block devices, with the page cache or O_DIRECT.
//!
//! One descriptor serves all cores. Every operation has its own reference to the open file, which therefore stays
//! open until the kernel has finished, even if the caller is gone.

mod atomic;
mod examine;
mod identity;
mod in_flight;
mod journal;
mod lock;
mod loops;
mod medium;
mod ops;
#[cfg(test)]
mod power;
mod space;
mod sync;
pub mod users;
mod watch;

use crate::range_lock::{RangeAccess, RangeLocks};
use crate::{
    Backend, BackendInfo, BackendSpec, BufResult, Extent, LocalBoxFuture, MAX_ATOMIC, MissingMedium,
    OpenError, TryIo, describe_row, format, within,
};
pub(crate) use examine::examine;
use in_flight::{InFlightWrites, RegionIndices};
use journal::WriteJournal;
use lunar_runtime::Buf;
use medium::OpenMedium;
use ops::{FileHandle, OpGuard};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use sync::Syncer;
use watch::{look_again, wait};

/// Inline attempts of a read before it takes the asynchronous path, which blocks writers.
const TRIES: u32 = 2;
/// Bytes for which a read blocks writers at a time.
const ALONE: usize = 256 << 10;

/// A regular file or a block device.
pub(crate) struct FileBackend {
    medium: OpenMedium,
    capacity: AtomicU64,
    /// The optional operations that the kernel has not rejected for this file.
    can: FileFeatures,
    syncer: Arc<Syncer>,
    ranges: Arc<RangeLocks>,
    under_way: Arc<InFlightWrites>,
    journal: Option<Arc<WriteJournal>>,
    /// Serializes atomic writes.
    atomic: Arc<RangeLocks>,
    /// The state of the record of the last atomic write.
    open: atomic::OpenRecord,
}

/// Optional operations. Each flag is cleared for good when the kernel reports that the file does not support it.
struct FileFeatures {
    try_read: AtomicBool,
    try_write: AtomicBool,
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
            punch: AtomicBool::new(medium.can_punch()),
            zero_range: AtomicBool::new(true),
        };
        let files = medium.files.clone();
        let syncer = Arc::new(Syncer::new(move || rustix::fs::fdatasync(&files.plain)));
        let capacity = AtomicU64::new(medium.size);
        let (ranges, under_way, atomic, open) = Default::default();
        Ok(FileBackend { medium, capacity, can, syncer, ranges, under_way, journal, atomic, open })
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

    #[inline]
    fn read_once(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        let checked = self.check(offset, buf.len() as u64);
        inline(checked, buf.len(), &self.can.try_read, io::ErrorKind::UnexpectedEof, |at| {
            let mut rest = [IoSliceMut::new(&mut buf[at..])];
            Ok(preadv2(&self.medium.files.plain, &mut rest, offset + at as u64, ReadWriteFlags::NOWAIT)?)
        })
    }

    async fn read_all(&self, offset: u64, mut buf: Buf) -> BufResult {
        if self.medium.is_aligned(offset, buf.len()) {
            return self.read_whole_blocks(offset, buf).await;
        }
        let whole = self.medium.widen(offset, buf.len() as u64);
        let bounce = Buf::zeroed((whole.end - whole.start) as usize);
        let (result, bounce) = self.read_whole_blocks(whole.start, bounce).await;
        if result.is_ok() {
            let skip = (offset - whole.start) as usize;
            let n = buf.len();
            buf.copy_from_slice(&bounce[skip..skip + n]);
        }
        (result, buf)
    }

    /// Returns each block as it was before or after a concurrent write.
    async fn read_whole_blocks(&self, offset: u64, buf: Buf) -> BufResult {
        let regions = RegionIndices::of(offset, buf.len() as u64);
        let before = self.under_way.before(regions);
        let (result, buf) = ops::read(FileHandle::reading(&self.medium.files), offset, buf).await;
        if result.is_err() || before.is_some_and(|before| self.under_way.is_as_before(regions, before)) {
            return (result, buf);
        }
        self.read_alone(offset, buf).await
    }

    /// Reads in parts of [`ALONE`] bytes, and blocks writers during each part.
    async fn read_alone(&self, offset: u64, mut buf: Buf) -> BufResult {
        let (mut result, mut at, len) = (Ok(()), 0, buf.len());
        while result.is_ok() && at < len {
            let part = at..len.min(at + ALONE);
            let _still = self.under_way.still(RegionIndices::of(offset + at as u64, part.len() as u64)).await;
            at = part.end;
            (result, buf) = ops::read_part(FileHandle::reading(&self.medium.files), offset, buf, part).await;
        }
        (result, buf)
    }

    async fn write_all(&self, offset: u64, buf: Buf, fua: bool) -> BufResult {
        let (result, buf) = match self.medium.is_aligned(offset, buf.len()) {
            true => {
                let len = buf.len() as u64;
                let handle = self.handle(offset, len, RangeAccess::Shared, fua).await;
                ops::write(handle, offset, buf, || self.still_there(offset, len)).await
            }
            false => self.write_around(offset, buf, fua).await,
        };
        let result = match result {
            Ok(()) if fua => self.settle().await,
            other => other,
        };
        (result, buf)
    }

    /// Completes a FUA write after its bytes were written.
    async fn settle(&self) -> io::Result<()> {
        match self.medium.files.through {
            Some(_) => self.syncer.verdict(),
            None => self.syncer.flush().await,
        }
    }

    /// A direct write of partial blocks: a read-modify-write that locks its blocks exclusively.
    async fn write_around(&self, offset: u64, buf: Buf, fua: bool) -> BufResult {
        let whole = self.medium.widen(offset, buf.len() as u64);
        let handle = self.handle(whole.start, whole.end - whole.start, RangeAccess::Exclusive, fua).await;
        let bounce = Buf::zeroed((whole.end - whole.start) as usize);
        let read = FileHandle::reading(&self.medium.files);
        let (mut result, mut bounce) = wait(ops::read(read, whole.start, bounce)).await;
        if result.is_ok() {
            let skip = (offset - whole.start) as usize;
            bounce[skip..skip + buf.len()].copy_from_slice(&buf);
            let may = || self.still_there(whole.start, whole.end - whole.start);
            (result, _) = ops::write(handle, whole.start, bounce, may).await;
        }
        (result, buf)
    }

    /// A handle of the file with the lock for a write of this range. The page cache orders adjacent writes itself.
    /// Direct I/O needs the lock as soon as one write covers part of a block.
    async fn handle(&self, offset: u64, len: u64, share: RangeAccess, fua: bool) -> FileHandle {
        let range = match self.medium.direct() {
            true => Some(wait(self.ranges.lock(self.medium.widen(offset, len), share)).await),
            false => None,
        };
        let mark = Some(wait(InFlightWrites::write(&self.under_way, RegionIndices::of(offset, len))).await);
        FileHandle::new(&self.medium.files, fua, Some(OpGuard { _range: range, _mark: mark }))
    }
}

impl Backend for FileBackend {
    fn facts(&self) -> BackendInfo {
        BackendInfo {
            capacity: self.capacity.load(Relaxed),
            read_only: self.medium.read_only,
            unmap: self.can.punch.load(Relaxed),
            null: false,
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
            let Some(before) = self.under_way.before_soon(regions) else { break };
            let outcome = self.read_once(offset, buf);
            let is_whole = self.under_way.is_as_before(regions, before);
            if is_whole || !matches!(outcome, TryIo::Done(Ok(()))) {
                return outcome;
            }
        }
        TryIo::WouldWait
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        if !self.can.try_write.load(Relaxed) || self.open.is_open() {
            return TryIo::WouldWait;
        }
        let regions = RegionIndices::of(offset, data.len() as u64);
        let Some(_mark) = InFlightWrites::try_write(&*self.under_way, regions) else {
            return TryIo::WouldWait;
        };
        let checked = self.check_write(offset, data.len() as u64);
        inline(checked, data.len(), &self.can.try_write, io::ErrorKind::WriteZero, |at| {
            let rest = [IoSlice::new(&data[at..])];
            // A partial write is completed here, although it may block. A second execution of the command could be
            // rejected, with a part of the data written.
            let how = if at == 0 { ReadWriteFlags::NOWAIT } else { ReadWriteFlags::empty() };
            if at > 0 {
                look_again();
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
            let may = match wait(self.no_record()).await {
                Ok(()) => self.check_write(offset, buf.len() as u64),
                other => other,
            };
            match may {
                Ok(()) => self.write_all(offset, buf, fua).await,
                Err(e) => (Err(e), buf),
            }
        })
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
            wait(self.no_record()).await?;
            self.check_write(offset, len)?;
            self.clear(offset, len, unmap).await
        })
    }

    fn prefetch(&self, offset: u64, len: u64) {
        if !self.medium.direct() {
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

    fn extents(&self, offset: u64, len: u64, most: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        Box::pin(async move {
            self.check(offset, len)?;
            self.find(offset, len, most).await
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        let mut rows = self.medium.describe();
        rows.push(describe_row("capacity", self.capacity.load(Relaxed)));
        rows.push(describe_row("unmap", self.can.punch.load(Relaxed)));
        rows
    }
}

/// Repeats `step`, each time from where the last one ended, until `len` bytes are done or it would block.
fn inline(
    checked: io::Result<()>,
    len: usize,
    can: &AtomicBool,
    nothing: io::ErrorKind,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> TryIo {
    if checked.is_err() {
        return TryIo::Done(checked);
    }
    let mut at = 0;
    while at < len {
        match step(at).map_err(|e| (Errno::from_io_error(&e), e)) {
            Ok(0) => return TryIo::Done(Err(nothing.into())),
            Ok(n) => at += n,
            Err((Some(Errno::INTR), _)) => {}
            Err((Some(Errno::AGAIN), _)) => return TryIo::WouldWait,
            Err((Some(Errno::OPNOTSUPP), _)) => {
                can.store(false, Relaxed);
                return TryIo::WouldWait;
            }
            Err((_, e)) => return TryIo::Done(Err(e)),
        }
    }
    TryIo::Done(Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BackendKind;
    use rustix::fs::{FallocateFlags, OFlags, fcntl_getfl};
    use std::path::{Path, PathBuf};

    /// An open, unlinked file of one page.
    fn nameless() -> FileBackend {
        let path = std::env::temp_dir().join(format!(
            "lunar-block-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let spec = BackendSpec {
            kind: BackendKind::File,
            size: Some(4096),
            create: true,
            ..BackendSpec::path(&path)
        };
        let file = FileBackend::open(&spec).expect("a file");
        std::fs::remove_file(path).expect("its name");
        file
    }

    fn write(file: &FileBackend, fua: bool) -> io::Result<()> {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(file.write(0, Buf::zeroed(512), fua)).0
    }

    #[test]
    fn read_waits_for_an_overlapping_write() {
        let file = nameless();
        let mark = InFlightWrites::try_write(&*file.under_way, RegionIndices::of(0, 512));
        let mut buf = [0; 512];
        assert!(matches!(file.try_read(0, &mut buf), TryIo::WouldWait), "an inline read would be torn");
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let mut read = file.read(0, Buf::zeroed(512));
            for _ in 0..20 {
                let once = std::future::poll_fn(|cx| std::task::Poll::Ready(read.as_mut().poll(cx)));
                assert!(once.await.is_pending(), "a write is in flight");
                compio::time::sleep(std::time::Duration::from_millis(1)).await;
            }
            drop(mark);
            read.await.0.expect("the write has ended");
        });
        write(&file, false).expect("no reader is left");
    }

    /// Runs the test on a file with a journal directory. Both are removed at the end.
    fn with_journal(name: &str, test: impl AsyncFnOnce(&BackendSpec, FileBackend)) {
        with_journal_in(name, None, test);
    }

    /// As `with_journal`, with the records in `folder` if given.
    fn with_journal_in(name: &str, folder: Option<&Path>, test: impl AsyncFnOnce(&BackendSpec, FileBackend)) {
        let path = std::env::temp_dir().join(format!("lunar-{name}-{}", std::process::id()));
        let own = path.with_extension("records");
        std::fs::create_dir_all(&own).expect("a folder");
        let journal = Some(folder.unwrap_or(&own).to_path_buf());
        let spec = BackendSpec {
            kind: BackendKind::File,
            size: Some(1 << 16),
            create: true,
            journal,
            ..BackendSpec::path(&path)
        };
        let file = FileBackend::open(&spec).expect("a file");
        compio::runtime::Runtime::new().expect("a runtime").block_on(test(&spec, file));
        std::fs::remove_file(&path).expect("a file");
        std::fs::remove_dir_all(&own).expect("a folder");
    }

    fn of(byte: u8, len: usize) -> Buf {
        let mut buf = Buf::zeroed(len);
        buf.fill(byte);
        buf
    }

    #[test]
    fn atomic_write_ends_and_is_not_done_again() {
        with_journal("ends", async |spec, file| {
            file.write_atomic(512, of(1, 5000)).await.0.expect("written");
            file.write(512, of(2, 5000), true).await.0.expect("a later write");
            drop(file);
            let file = FileBackend::open(spec).expect("again");
            assert_eq!(file.read(512, Buf::zeroed(5000)).await.1[..], [2; 5000]);
        });
    }

    /// FUA writes go to a device that is always full.
    #[test]
    fn atomic_write_without_space_leaves_the_old_blocks() {
        with_journal("full", async |spec, mut file| {
            file.write(0, of(1, 8192), false).await.0.expect("written");
            let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
            file.syncer = Arc::new(Syncer::new(|| Ok(())));
            Arc::get_mut(&mut file.medium.files).expect("not shared").through = Some(full);
            let e = file.write_atomic(0, of(2, 8192)).await.0.expect_err("no space");
            assert_eq!(e.kind(), io::ErrorKind::StorageFull);
            drop(file);
            let file = FileBackend::open(spec).expect("again");
            assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [1; 8192]);
        });
    }

    /// For each sync of the file: its first byte, and whether a record is valid.
    type Syncs = Arc<std::sync::Mutex<Vec<(u8, bool)>>>;

    /// Records the syncs. `end` returns the result of each sync, by its number.
    fn watch_syncs(
        spec: &BackendSpec,
        file: &mut FileBackend,
        end: fn(usize, &WriteJournal) -> Result<(), Errno>,
    ) -> Syncs {
        let syncs = Syncs::default();
        let (path, seen) = (spec.path.clone(), syncs.clone());
        let journal = file.journal.clone().expect("a journal");
        file.syncer = Arc::new(Syncer::new(move || {
            let first = std::fs::read(&path).expect("a file")[0];
            let mut seen = crate::locked(&seen);
            seen.push((first, journal.is_pending().expect("readable")));
            end(seen.len(), &journal)
        }));
        syncs
    }

    #[test]
    fn unflushed_old_blocks_are_stable_before_the_record() {
        with_journal("unflushed", async |spec, mut file| {
            let syncs = watch_syncs(spec, &mut file, |_, _| Ok(()));
            file.write(0, of(1, 8192), false).await.0.expect("written");
            file.write_atomic(0, of(2, 8192)).await.0.expect("written");
            assert_eq!(crate::locked(&syncs).first(), Some(&(1, false)));
        });
    }

    #[test]
    fn record_that_is_not_cleared_stops_other_writes() {
        with_journal("not-cleared", async |spec, mut file| {
            // The second sync is that of the new blocks.
            _ = watch_syncs(spec, &mut file, |number, journal| {
                (number == 2).then(|| journal.reopen(false));
                Ok(())
            });
            Arc::get_mut(&mut file.medium.files).expect("not shared").through = None;
            file.write(0, of(1, 8192), false).await.0.expect("written");
            file.write_atomic(0, of(2, 8192)).await.0.expect_err("not cleared");
            assert!(matches!(file.try_write(0, &[1; 8192]), TryIo::WouldWait));
            file.write(0, of(1, 8192), true).await.0.expect_err("not cleared");
            file.write_zeroes(0, 8192, false).await.expect_err("not cleared");
            file.write_atomic(0, of(3, 8192)).await.0.expect_err("not cleared");
            file.journal.as_ref().expect("a journal").reopen(true);
            file.write(0, of(1, 8192), true).await.0.expect("cleared");
            assert!(!file.open.is_open());
            drop(file);
            let file = FileBackend::open(spec).expect("again");
            assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [1; 8192]);
        });
    }

    /// An atomic write whose record cannot be stored changes nothing, and blocks no other write.
    async fn has_no_record(file: &FileBackend) {
        file.write(0, of(1, 8192), false).await.0.expect("written");
        file.write_atomic(0, of(2, 8192)).await.0.expect_err("no space for its record");
        assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [1; 8192]);
        assert!(!file.open.is_open());
        file.write(0, of(3, 8192), true).await.0.expect("a plain write needs no record");
        file.write_zeroes(0, 4096, false).await.expect("zeros need no record");
    }

    #[test]
    fn record_without_space_stops_no_other_write() {
        use rustix::fs::{MemfdFlags, SealFlags};
        with_journal("no-record", async |_, file| {
            // As an empty file on a full file system: it can be truncated, but not extended.
            let full = rustix::fs::memfd_create("full", MemfdFlags::ALLOW_SEALING).expect("a file");
            rustix::fs::fcntl_add_seals(&full, SealFlags::GROW).expect("sealed");
            let path = file.journal.as_ref().expect("a journal").file_now();
            let number = std::os::fd::AsRawFd::as_raw_fd(&full);
            std::os::unix::fs::symlink(format!("/proc/self/fd/{number}"), path).expect("a link");
            has_no_record(&file).await;
        });
    }

    #[test]
    fn full_state_folder_stops_no_other_write() {
        let Some(folder) = Tmpfs::mount("full-state", "64k") else { return };
        let room = || std::fs::remove_file(folder.0.join("other"));
        with_journal_in("full-state", Some(&folder.0), async |_, file| {
            std::fs::write(folder.0.join("other"), [0; 1 << 17]).expect_err("the file system is full");
            has_no_record(&file).await;
            room().expect("removed");
            file.write_atomic(0, of(4, 8192)).await.0.expect("there is space again");
        });
    }

    fn shrink(spec: &BackendSpec) {
        let file = std::fs::OpenOptions::new().write(true).open(&spec.path).expect("a file");
        file.set_len(4096).expect("shorter");
    }

    fn size(spec: &BackendSpec) -> u64 {
        std::fs::metadata(&spec.path).expect("a file").len()
    }

    async fn poll_once<T>(work: &mut LocalBoxFuture<'_, T>) -> std::task::Poll<T> {
        std::future::poll_fn(|cx| std::task::Poll::Ready(work.as_mut().poll(cx))).await
    }

    /// Truncates the file while a write of 16 KiB waits for a reader. The write must fail without extending the file.
    async fn shrinks(
        spec: &BackendSpec,
        file: &FileBackend,
        is_waiting: impl Fn() -> bool,
        mut write: LocalBoxFuture<'_, io::Result<()>>,
    ) {
        let still = file.under_way.still(RegionIndices::of(0, 1 << 14)).await;
        let (mut polls, pause) = (0, std::time::Duration::from_millis(1));
        while polls < 20 || !is_waiting() {
            assert!(poll_once(&mut write).await.is_pending(), "a reader blocks the write");
            compio::time::sleep(pause).await;
            polls += 1;
        }
        shrink(spec);
        // Another write has checked the size just before the truncation.
        lunar_runtime::begin_batch();
        file.look_for_end();
        file.capacity.store(1 << 16, Relaxed);
        drop(still);
        assert_eq!(write.await.expect_err("beyond the end").kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(size(spec), 4096);
        assert!(!file.open.is_open());
    }

    #[test]
    fn write_that_waited_never_grows_a_file() {
        for kind in 0..5 {
            with_journal("waited", async |spec, file| {
                let file = &file;
                file.write(0, of(1, 1 << 14), false).await.0.expect("written");
                let write: LocalBoxFuture<'_, io::Result<()>> = match kind {
                    0 => Box::pin(async { file.write(0, of(2, 1 << 14), false).await.0 }),
                    1 => Box::pin(async { file.write(0, of(2, 1 << 14), true).await.0 }),
                    2 => Box::pin(async { file.write_atomic(0, of(2, 1 << 14)).await.0 }),
                    3 => file.write_zeroes(0, 1 << 14, false),
                    _ => file.unmap(0, 1 << 14),
                };
                let journal = file.journal.as_ref().expect("a journal");
                shrinks(spec, file, || kind != 2 || journal.is_pending().expect("readable"), write).await;
            });
        }
    }

    #[test]
    fn zeros_that_are_written_never_grow_a_file() {
        with_journal("zeros", async |spec, file| {
            [&file.can.punch, &file.can.zero_range].iter().for_each(|can| can.store(false, Relaxed));
            shrinks(spec, &file, || true, file.write_zeroes(0, 1 << 14, false)).await;
        });
    }

    /// With the polling driver, a write waits for a thread permit.
    #[test]
    fn write_that_waits_for_its_turn_never_grows_a_file() {
        use compio::driver::{DriverType, ProactorBuilder};
        let mut proactor = ProactorBuilder::new();
        proactor.driver_type(DriverType::Poll);
        let runtime = compio::runtime::RuntimeBuilder::new().with_proactor(proactor).build();
        let path = std::env::temp_dir().join(format!("lunar-turn-{}", std::process::id()));
        let spec = BackendSpec {
            kind: BackendKind::File,
            size: Some(1 << 16),
            create: true,
            ..BackendSpec::path(&path)
        };
        let file = FileBackend::open(&spec).expect("a file");
        runtime.expect("a runtime").block_on(async {
            let mut turns = Vec::new();
            for _ in 0..lunar_runtime::threads::AT_ONCE {
                turns.push(lunar_runtime::ThreadPermit::wait().await);
            }
            let mut write = file.write(0, of(2, 8192), false);
            assert!(poll_once(&mut write).await.is_pending(), "all permits are taken");
            shrink(&spec);
            drop(turns);
            assert_eq!(write.await.0.expect_err("beyond the end").kind(), io::ErrorKind::UnexpectedEof);
        });
        assert_eq!(size(&spec), 4096);
        std::fs::remove_file(path).expect("a file");
    }

    /// Undoes a failed atomic write of this range, whose old blocks were ones.
    async fn undo(file: &FileBackend, offset: u64, len: usize) -> io::Result<()> {
        let journal = file.journal.as_ref().expect("a journal");
        journal.put(&journal.record(offset, &of(1, len), &of(2, len))).expect("kept");
        file.open.fail(offset, of(1, len));
        file.no_record().await
    }

    #[test]
    fn undo_never_grows_a_file() {
        with_journal("undo-shrunk", async |spec, file| {
            file.write(0, of(2, 8192), false).await.0.expect("written");
            shrink(spec);
            for (offset, len) in [(0, 8192), (8192, 4096)] {
                undo(&file, offset, len).await.expect("the rest of the range is restored");
                assert!(!file.open.is_open() && size(spec) == 4096);
            }
            assert_eq!(std::fs::read(&spec.path).expect("a file"), [1; 4096]);
        });
    }

    /// Unchanged blocks may be shared with another file, and there may be no space for a copy of them.
    #[test]
    fn undo_writes_no_block_that_has_not_changed() {
        with_journal("undo-same", async |spec, mut file| {
            file.write(0, of(1, 8192), false).await.0.expect("written");
            let reads = std::fs::File::open(&spec.path).expect("a file");
            file.syncer = Arc::new(Syncer::new(|| Ok(())));
            Arc::get_mut(&mut file.medium.files).expect("not shared").plain = reads;
            undo(&file, 0, 8192).await.expect("undo has nothing to write");
            assert!(!file.open.is_open());
        });
    }

    /// The medium is a reflink copy of an image, on a file system with free space for half of it.
    fn fails_whole(folder: &Volume) {
        let records = folder.0.with_extension("records");
        std::fs::create_dir_all(&records).expect("a folder");
        let spec = BackendSpec { journal: Some(records.clone()), ..BackendSpec::path(folder.0.join("copy")) };
        std::fs::write(folder.0.join("first"), vec![1; 1 << 20]).expect("an image");
        let copy = std::fs::File::create(&spec.path).expect("a copy");
        let first = std::fs::File::open(folder.0.join("first")).expect("an image");
        rustix::fs::ioctl_ficlone(&copy, &first).expect("shared");
        copy.sync_all().expect("stable");
        let other = std::fs::File::create(folder.0.join("other")).expect("a file");
        let (mut at, mut step) = (0, 1 << 28);
        while step >= 4096 {
            match rustix::fs::fallocate(&other, FallocateFlags::empty(), at, step) {
                Ok(()) => at += step,
                Err(_) => step /= 2,
            }
        }
        other
            .set_len(at - (1 << 19))
            .and_then(|()| other.sync_all())
            .expect("free space for half of the image");
        drop((copy, first));
        let file = FileBackend::open(&spec).expect("a file");
        compio::runtime::Runtime::new().expect("a runtime").block_on(async {
            file.write_atomic(0, of(2, 1 << 20)).await.0.expect_err("no space");
            assert_eq!(file.read(0, Buf::zeroed(1 << 20)).await.1[..], [1; 1 << 20]);
            assert!(!file.open.is_open(), "other writes are not blocked");
        });
        std::fs::remove_dir_all(records).expect("a folder");
    }

    #[test]
    fn atomic_write_to_shared_blocks_is_whole_or_not_there() {
        for (program, package, options) in
            [("mkfs.xfs", "xfsprogs", &["-q", "-m", "reflink=1"][..]), ("mkfs.btrfs", "btrfs-progs", &["-q"])]
        {
            match Volume::mount(program, options) {
                Some(folder) => fails_whole(&folder),
                None => {
                    println!("skipped: needs root, loop devices and {program} (apt-get install {package})");
                }
            }
        }
    }

    /// A mounted file system with shared blocks (reflink); None if it cannot be created.
    struct Volume(PathBuf);

    impl Volume {
        fn mount(program: &str, options: &[&str]) -> Option<Volume> {
            let path = std::env::temp_dir().join(format!("lunar-{program}-{}.mount", std::process::id()));
            let image = path.with_extension("img");
            std::fs::create_dir_all(&path).expect("a folder");
            std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("an image");
            let folder = Volume(path);
            let run = |program, options: &[&str], paths: &[&Path]| {
                let _turn = crate::turns::turn();
                let ran = std::process::Command::new(program).args(options).args(paths).output();
                ran.is_ok_and(|ran| ran.status.success())
            };
            let is_mounted =
                run(program, options, &[&image]) && run("mount", &["-o", "loop"], &[&image, &folder.0]);
            is_mounted.then_some(folder)
        }
    }

    impl Drop for Volume {
        fn drop(&mut self) {
            let _turn = crate::turns::turn();
            _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
            _ = std::fs::remove_file(self.0.with_extension("img"));
            _ = std::fs::remove_dir(&self.0);
        }
    }

    /// A small tmpfs of its own. Without root, None, and the test is reported as skipped.
    struct Tmpfs(PathBuf);

    impl Tmpfs {
        fn mount(name: &str, size: &str) -> Option<Tmpfs> {
            let path = std::env::temp_dir().join(format!("lunar-{name}-{}.mount", std::process::id()));
            std::fs::create_dir_all(&path).expect("a folder");
            let folder = Tmpfs(path);
            let mut mount = std::process::Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&folder.0);
            let _turn = crate::turns::turn();
            if mount.output().is_ok_and(|ran| ran.status.success()) {
                return Some(folder);
            }
            println!("skipped: needs root and mount, for a small file system");
            None
        }
    }

    impl Drop for Tmpfs {
        fn drop(&mut self) {
            let _turn = crate::turns::turn();
            _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
            _ = std::fs::remove_dir(&self.0);
        }
    }

    /// A file of ones, after an atomic write of twos failed without space.
    async fn without_space(
        spec: &BackendSpec,
        file: &mut FileBackend,
        end: fn(usize, &WriteJournal) -> Result<(), Errno>,
    ) -> Syncs {
        file.write(0, of(1, 8192), false).await.0.expect("written");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
        let syncs = watch_syncs(spec, file, end);
        Arc::get_mut(&mut file.medium.files).expect("not shared").through = Some(full);
        file.write_atomic(0, of(2, 8192)).await.0.expect_err("no space");
        syncs
    }

    #[test]
    fn undo_is_stable_before_its_record_is_cleared() {
        with_journal("undo-stable", async |spec, mut file| {
            let syncs = without_space(spec, &mut file, |_, _| Ok(())).await;
            assert_eq!(*crate::locked(&syncs), [(1, false), (1, true)]);
            assert!(!file.journal.as_ref().expect("a journal").is_pending().expect("readable"));
        });
    }

    #[test]
    fn undo_that_fails_keeps_its_record() {
        with_journal("undo-fails", async |spec, mut file| {
            let end = |number, _: &WriteJournal| if number == 2 { Err(Errno::IO) } else { Ok(()) };
            without_space(spec, &mut file, end).await;
            assert!(file.journal.as_ref().expect("a journal").is_pending().expect("readable"));
            file.write(0, of(1, 8192), false).await.0.expect_err("the record is valid");
            drop(file);
            let file = FileBackend::open(spec).expect("again");
            assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [2; 8192]);
        });
    }

    #[test]
    fn medium_without_a_journal_writes_nothing_atomically() {
        let file = nameless();
        assert_eq!(file.max_atomic(), 0);
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        let e = runtime.block_on(file.write_atomic(0, Buf::zeroed(512))).0.expect_err("no journal");
        assert_eq!(e.kind(), io::ErrorKind::Unsupported);
    }

    fn broken() -> Arc<Syncer> {
        Arc::new(Syncer::new(|| Err(Errno::IO)))
    }

    #[test]
    fn fua_write_goes_through() {
        let file = nameless();
        let files = &file.medium.files;
        let Some(through) = &files.through else { return println!("skipped: no /proc") };
        let flags =
            [through, &files.plain].map(|file| fcntl_getfl(file).expect("flags").contains(OFlags::DSYNC));
        assert_eq!(flags, [true, false]);
        let chosen = |through| ops::FileHandle::new(files, through, None);
        use std::os::fd::{AsFd, AsRawFd};
        assert_eq!(chosen(true).as_fd().as_raw_fd(), through.as_raw_fd());
        assert_eq!(chosen(false).as_fd().as_raw_fd(), files.plain.as_raw_fd());
    }

    /// The kernel continues the write after the process is killed. No other process may lock the file before it ends.
    #[test]
    fn fua_write_with_o_direct_holds_its_range_lock() {
        let path = std::env::temp_dir().join(format!("lunar-block-direct-{}", std::process::id()));
        let spec = BackendSpec {
            kind: BackendKind::File,
            size: Some(4096),
            create: true,
            direct: true,
            ..BackendSpec::path(&path)
        };
        let Ok(file) = FileBackend::open(&spec) else { return println!("skipped: O_DIRECT") };
        use std::os::fd::AsFd;
        let handle = ops::FileHandle::new(&file.medium.files, true, None);
        // A reference as the kernel holds it during a write.
        let kept = handle.as_fd().try_clone_to_owned().expect("a descriptor");
        drop((handle, file));
        let refused = FileBackend::open(&spec).err().expect("the file is in use");
        assert_eq!(refused.kind, io::ErrorKind::ResourceBusy);
        drop(kept);
        assert!(FileBackend::open(&spec).is_ok());
        std::fs::remove_file(path).expect("its name");
    }

    #[test]
    fn fua_write_without_o_dsync_is_synced() {
        let mut file = nameless();
        file.syncer = broken();
        Arc::get_mut(&mut file.medium.files).expect("not shared").through = None;
        write(&file, false).expect("a write without FUA does not sync");
        assert_eq!(write(&file, true).expect_err("FUA syncs").raw_os_error(), Some(5));
    }

    #[test]
    fn failed_flush_makes_later_flushes_fail() {
        let mut file = nameless();
        file.syncer = broken();
        write(&file, true).expect("no sync has failed yet");
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(file.flush()).expect_err("lost");
        assert_eq!(write(&file, true).expect_err("lost").raw_os_error(), Some(5));
        write(&file, false).expect("a write without FUA does not sync");
    }
}
