//! Backends for tests.

use crate::range_lock::{RangeAccess, RangeLock, RangeLocks};
use crate::{
    Backend, BackendInfo, BufResult, Extent, LocalBoxFuture, MissingMedium, TryIo, describe_row, locked,
    random, within,
};
use lunar_runtime::Buf;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// The unit of atomic writes of a disk, in bytes.
const SECTOR: u64 = 512;

/// A backend with a volatile write cache: power loss may lose writes that were neither flushed nor FUA.
///
/// The cache grows until a flush, so it is for tests only.
pub struct VolatileBackend {
    inner: Arc<dyn Backend>,
    cache: Mutex<Vec<CachedWrite>>,
    /// Serializes transfers from the cache to the medium.
    transfers: Arc<RangeLocks>,
}

/// A completed write that is not durable. Later writes overlay earlier ones.
#[derive(Clone)]
struct CachedWrite {
    offset: u64,
    data: CachedData,
}

#[derive(Clone)]
enum CachedData {
    Bytes(Vec<u8>),
    Zeros(u64),
}

impl CachedWrite {
    fn range(&self) -> Range<u64> {
        let len = match &self.data {
            CachedData::Bytes(bytes) => bytes.len() as u64,
            CachedData::Zeros(len) => *len,
        };
        self.offset..self.offset + len
    }

    fn overlaps(&self, other: &Range<u64>) -> bool {
        let mine = self.range();
        mine.start < other.end && other.start < mine.end
    }

    /// The part of it that lies within `other`, if any does.
    fn part(&self, other: Range<u64>) -> Option<CachedWrite> {
        let mine = self.range();
        let (start, end) = (mine.start.max(other.start), mine.end.min(other.end));
        let data = match &self.data {
            _ if start >= end => return None,
            CachedData::Bytes(bytes) => {
                CachedData::Bytes(bytes[(start - mine.start) as usize..(end - mine.start) as usize].to_vec())
            }
            CachedData::Zeros(_) => CachedData::Zeros(end - start),
        };
        Some(CachedWrite { offset: start, data })
    }

    /// The remains when `gone` is cut out.
    fn without(&self, gone: &Range<u64>) -> Vec<CachedWrite> {
        [self.part(0..gone.start), self.part(gone.end..u64::MAX)].into_iter().flatten().collect()
    }

    /// Overlays `buf`, which starts at `offset` and covers this write.
    fn lay_over(&self, offset: u64, buf: &mut [u8]) {
        let range = self.range();
        let place = &mut buf[(range.start - offset) as usize..(range.end - offset) as usize];
        match &self.data {
            CachedData::Bytes(bytes) => place.copy_from_slice(bytes),
            CachedData::Zeros(_) => place.fill(0),
        }
    }

    async fn store(&self, to: &dyn Backend) -> io::Result<()> {
        match &self.data {
            CachedData::Bytes(bytes) => {
                let buf = Buf::copy_of(bytes);
                to.write(self.offset, buf, false).await.0
            }
            CachedData::Zeros(len) => to.write_zeroes(self.offset, *len, true).await,
        }
    }

    /// Its sectors; zeros stay in one piece, because they may be many.
    fn sectors(&self) -> Vec<CachedWrite> {
        let range = self.range();
        match &self.data {
            CachedData::Zeros(_) => vec![self.clone()],
            CachedData::Bytes(_) => (range.start / SECTOR..range.end.div_ceil(SECTOR))
                .filter_map(|sector| self.part(sector * SECTOR..(sector + 1) * SECTOR))
                .collect(),
        }
    }
}

impl VolatileBackend {
    /// A volatile cache in front of `inner`.
    pub fn new(inner: Arc<dyn Backend>) -> Self {
        VolatileBackend { inner, cache: Mutex::default(), transfers: Arc::default() }
    }

    /// Simulates power loss and empties the cache. With a `seed`, a random half of the cached sectors reaches the
    /// medium, in any order; without, none does.
    ///
    /// # Errors
    /// Those of the medium for the sectors that survive.
    pub async fn lose(&self, seed: Option<u64>) -> io::Result<()> {
        let _transfer = self.alone().await;
        let lost = std::mem::take(&mut *locked(&self.cache));
        let Some(seed) = seed else { return Ok(()) };
        for (n, sector) in lost.iter().flat_map(CachedWrite::sectors).enumerate() {
            if random(seed, n as u64) & 1 == 0 {
                sector.store(&*self.inner).await?;
            }
        }
        Ok(())
    }

    async fn alone(&self) -> RangeLock {
        self.transfers.lock(0..1, RangeAccess::Exclusive).await
    }

    fn add(&self, offset: u64, data: CachedData) -> io::Result<()> {
        let cached = CachedWrite { offset, data };
        let (range, info) = (cached.range(), self.inner.info());
        if info.read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        within(info.capacity, range.start, range.end - range.start)?;
        locked(&self.cache).push(cached);
        Ok(())
    }

    /// The cached writes of a range. Taken before the medium is read, because a flush may be moving them.
    fn over(&self, range: Range<u64>) -> Vec<CachedWrite> {
        locked(&self.cache).iter().filter_map(|cached| cached.part(range.clone())).collect()
    }

    /// Writes through and removes overlapped data from the cache.
    async fn write_through(&self, offset: u64, buf: Buf) -> BufResult {
        let _transfer = self.alone().await;
        let range = offset..offset + buf.len() as u64;
        let (result, buf) = self.inner.write(offset, buf, true).await;
        if result.is_ok() {
            let mut cache = locked(&self.cache);
            let older = cache.drain(..).flat_map(|cached| match cached.overlaps(&range) {
                true => cached.without(&range),
                false => vec![cached],
            });
            *cache = older.collect::<Vec<_>>();
        }
        (result, buf)
    }
}

impl Backend for VolatileBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo { null: false, write_through: false, ..self.inner.info() }
    }

    fn refresh(&self) -> bool {
        self.inner.refresh()
    }

    fn missing(&self) -> Option<MissingMedium> {
        self.inner.missing()
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        let over = self.over(offset..offset.saturating_add(buf.len() as u64));
        let outcome = self.inner.try_read(offset, buf);
        if matches!(outcome, TryIo::Done(Ok(()))) {
            over.iter().for_each(|cached| cached.lay_over(offset, buf));
        }
        outcome
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        TryIo::Done(self.add(offset, CachedData::Bytes(data.to_vec())))
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let over = self.over(offset..offset.saturating_add(buf.len() as u64));
            let (result, mut buf) = self.inner.read(offset, buf).await;
            if result.is_ok() {
                over.iter().for_each(|cached| cached.lay_over(offset, &mut buf));
            }
            (result, buf)
        })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            match fua {
                true => self.write_through(offset, buf).await,
                false => (self.add(offset, CachedData::Bytes(buf.to_vec())), buf),
            }
        })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            let _transfer = self.alone().await;
            let cached = locked(&self.cache).clone();
            for one in &cached {
                one.store(&*self.inner).await?;
            }
            self.inner.flush().await?;
            locked(&self.cache).drain(..cached.len());
            Ok(())
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.write_zeroes(offset, len, true)
    }

    fn write_zeroes(&self, offset: u64, len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(self.add(offset, CachedData::Zeros(len))))
    }

    fn prefetch(&self, offset: u64, len: u64) {
        self.inner.prefetch(offset, len);
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        // Cached ranges count as mapped; before the first one, the medium knows.
        let cached = locked(&self.cache)
            .iter()
            .filter_map(|one| one.part(offset..offset.saturating_add(len)))
            .map(|one| one.range())
            .min_by_key(|range| range.start);
        match cached {
            Some(range) if range.start == offset => {
                let extent = Extent { offset, len: range.end - offset, mapped: true };
                Box::pin(std::future::ready(Ok(extent)))
            }
            Some(range) => self.inner.extent(offset, range.start - offset),
            None => self.inner.extent(offset, len),
        }
    }

    fn describe(&self) -> Vec<(String, String)> {
        let cached = locked(&self.cache).len();
        let mut rows = vec![describe_row("filter", "lossy"), describe_row("cached_writes", cached)];
        rows.extend(self.inner.describe());
        rows
    }
}

/// A backend that compares and swaps by a function of offset and data, in blocks of at most 4096 bytes. The wrapped
/// backend does all else.
pub struct ComparingBackend<F> {
    inner: Arc<dyn Backend>,
    compare: F,
}

impl<F: Fn(u64, &[u8]) -> io::Result<Option<usize>> + Send + Sync> ComparingBackend<F> {
    /// Wraps a backend.
    pub fn new(inner: Arc<dyn Backend>, compare: F) -> ComparingBackend<F> {
        ComparingBackend { inner, compare }
    }
}

impl<F: Fn(u64, &[u8]) -> io::Result<Option<usize>> + Send + Sync> Backend for ComparingBackend<F> {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        self.inner.write(offset, buf, fua)
    }

    fn max_compare_and_swap(&self) -> u32 {
        4096
    }

    fn compare_and_swap(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, io::Result<Option<usize>>> {
        Box::pin(std::future::ready((self.compare)(offset, &buf)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.inner.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.inner.describe()
    }
}
