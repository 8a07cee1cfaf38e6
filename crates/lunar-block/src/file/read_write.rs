//! Reads and writes: inline in the page cache, or asynchronous, with read-modify-write of partial blocks.

use super::FileBackend;
use super::atomic::RecordRole;
use super::in_flight::{InFlightWrites, RegionIndices};
use super::ops::{self, FileHandle, OpGuard};
use super::resident;
use super::watch::wait;
use crate::range_lock::RangeAccess;
use crate::{BufResult, TryIo};
use lunar_runtime::{Buf, PipedBytes};
use rustix::io::{Errno, preadv2};
use std::io::{self, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Bytes for which a read blocks writers at a time.
const ALONE: usize = 256 << 10;
/// Bytes between two positions at which pages are checked for their data.
const PROBE_STEP: usize = 64 << 10;

impl FileBackend {
    #[inline]
    pub(super) fn read_once(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        let checked = self.check(offset, buf.len() as u64);
        let read = inline(checked, buf.len(), &self.can.try_read, io::ErrorKind::UnexpectedEof, |at| {
            let mut rest = [IoSliceMut::new(&mut buf[at..])];
            Ok(preadv2(
                &self.medium.files.plain,
                &mut rest,
                offset + at as u64,
                self.medium.without_waiting(),
            )?)
        });
        if matches!(read, TryIo::WouldWait) {
            self.missed();
        }
        read
    }

    /// Records that data of this file may be on their way.
    pub(super) fn missed(&self) {
        if self.can.cached_pages.load(Relaxed) {
            self.misses.record();
        }
    }

    /// References to pages whose data are in the page cache, so that the caller does not wait.
    pub(super) fn take_cached_pages(&self, offset: u64, len: usize) -> Option<PipedBytes> {
        if !self.can.try_read.load(Relaxed) {
            return None;
        }
        let file = &self.medium.files.plain;
        match resident::is_resident(file, offset, len as u64) {
            Ok(true) => {}
            Ok(false) => {
                self.missed();
                return None;
            }
            Err(_) => {
                self.can.cached_pages.store(false, Relaxed);
                return None;
            }
        }
        // Pages are in the cache before their data are. One request to a device fills many at a time, so a few of them
        // represent the others. A wrong guess costs the wait for the device.
        let has_data = |at| matches!(self.read_once(at, &mut [0]), TryIo::Done(Ok(())));
        let all = probes(offset, len, self.misses.is_recent()).all(has_data);
        all.then(|| PipedBytes::take(file, offset, len)).flatten()
    }

    pub(super) async fn read_all(&self, offset: u64, mut buf: Buf) -> BufResult {
        self.missed();
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
        let before = self.in_flight.before(regions);
        let (result, buf) = ops::read(FileHandle::reading(&self.medium.files), offset, buf).await;
        if result.is_err() || before.is_some_and(|before| self.in_flight.is_as_before(regions, before)) {
            return (result, buf);
        }
        self.read_alone(offset, buf).await
    }

    /// Reads in parts of [`ALONE`] bytes, and blocks writers during each part.
    async fn read_alone(&self, offset: u64, mut buf: Buf) -> BufResult {
        let (mut result, mut at, len) = (Ok(()), 0, buf.len());
        while result.is_ok() && at < len {
            let part = at..len.min(at + ALONE);
            let _still = self.in_flight.still(RegionIndices::of(offset + at as u64, part.len() as u64)).await;
            at = part.end;
            (result, buf) = ops::read_part(FileHandle::reading(&self.medium.files), offset, buf, part).await;
        }
        (result, buf)
    }

    pub(super) async fn write_all(&self, offset: u64, buf: Buf, fua: bool, role: RecordRole) -> BufResult {
        let (result, buf) = match self.medium.is_aligned(offset, buf.len()) {
            true => {
                let len = buf.len() as u64;
                match self.handle(offset, len, RangeAccess::Shared, fua, role).await {
                    Ok(handle) => ops::write(handle, offset, buf, || self.still_there(offset, len)).await,
                    Err(e) => (Err(e), buf),
                }
            }
            false => (self.write_around(offset, &buf, fua, role).await, buf),
        };
        let result = match result {
            Ok(()) if fua => self.settle().await,
            other => other,
        };
        (result, buf)
    }

    /// Completes a FUA write after its bytes were written.
    pub(super) async fn settle(&self) -> io::Result<()> {
        match self.medium.files.through {
            Some(_) => self.syncer.verdict(),
            None => self.syncer.flush().await,
        }
    }

    /// A direct write of partial blocks: a read-modify-write that locks its blocks exclusively.
    async fn write_around(&self, offset: u64, data: &[u8], fua: bool, role: RecordRole) -> io::Result<()> {
        let whole = self.medium.widen(offset, data.len() as u64);
        let len = whole.end - whole.start;
        let handle = self.handle(whole.start, len, RangeAccess::Exclusive, fua, role).await?;
        let read = FileHandle::reading(&self.medium.files);
        let (result, mut bounce) = wait(ops::read(read, whole.start, Buf::zeroed(len as usize))).await;
        result?;
        let skip = (offset - whole.start) as usize;
        bounce[skip..skip + data.len()].copy_from_slice(data);
        let may = || self.still_there(whole.start, len);
        ops::write(handle, whole.start, bounce, may).await.0
    }

    /// A handle of the file with the lock for a write of this range. The page cache orders adjacent writes itself.
    /// Direct I/O needs the lock as soon as one write covers part of a block.
    pub(super) async fn handle(
        &self,
        offset: u64,
        len: u64,
        share: RangeAccess,
        fua: bool,
        role: RecordRole,
    ) -> io::Result<FileHandle> {
        let may_start = || role == RecordRole::Owner || !self.open.is_open();
        loop {
            if !may_start() {
                // Boxed, because the undo of an atomic write is itself a write.
                wait(Box::pin(self.no_record())).await?;
            }
            let range = match self.medium.direct() {
                true => Some(wait(self.ranges.lock(self.medium.widen(offset, len), share)).await),
                false => None,
            };
            let mark = wait(InFlightWrites::write(&self.in_flight, RegionIndices::of(offset, len))).await;
            // Checked again behind the mark: an atomic write opens its record before it looks for marks.
            if may_start() {
                let held = OpGuard { _range: range, _mark: Some(mark) };
                return Ok(FileHandle::new(&self.medium.files, fua, Some(held)));
            }
        }
    }
}

/// The positions at which a range of at least one byte is checked. If data of this file may be on their way: the ends,
/// and each step between them. Otherwise the last byte, where the read ahead of another program ends.
fn probes(offset: u64, len: usize, after_miss: bool) -> impl Iterator<Item = u64> {
    let last = offset + len as u64 - 1;
    let others = if after_miss { offset..last } else { 0..0 };
    std::iter::once(last).chain(others.step_by(PROBE_STEP))
}

/// Repeats `step`, each time from where the last one ended, until `len` bytes are done or it would block.
pub(super) fn inline(
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

    #[test]
    fn range_is_probed_at_its_ends_and_between_after_a_miss() {
        const KIB: u64 = 1 << 10;
        let cases: [(u64, u64, &[u64]); 4] = [
            (512, 1, &[512]),
            (512, 64 * KIB, &[64 * KIB + 511, 512]),
            (4 * KIB, 64 * KIB + 2, &[68 * KIB + 1, 4 * KIB, 68 * KIB]),
            (0, 256 * KIB, &[256 * KIB - 1, 0, 64 * KIB, 128 * KIB, 192 * KIB]),
        ];
        for (offset, len, expected) in cases {
            assert_eq!(
                probes(offset, len as usize, true).collect::<Vec<_>>(),
                expected,
                "{len} bytes at {offset}"
            );
            assert_eq!(probes(offset, len as usize, false).collect::<Vec<_>>(), expected[..1]);
        }
    }
}
