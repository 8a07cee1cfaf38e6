//! The memory backend: sparse and volatile.

use crate::{
    Backend, BackendInfo, BufResult, Extent, LocalBoxFuture, MAX_ATOMIC, TryIo, describe_row, within,
};
use lunar_runtime::Buf;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The unit of allocation and of extents, in bytes.
const CHUNK: u64 = 64 * 1024;
/// The number of locks. Neighbouring chunks have different ones, so that cores seldom contend.
const SHARDS: u64 = 256;

type Chunks = HashMap<u64, Vec<u8>>;

/// A sparse disk in memory. Chunks that were never written, or only with zeros, take no space.
pub(crate) struct MemoryBackend {
    capacity: u64,
    shards: Vec<RwLock<Chunks>>,
}

/// The part of a request that lies in one chunk.
struct ChunkPart {
    chunk: u64,
    /// Bytes within the chunk.
    inner: Range<usize>,
    /// Bytes within the request.
    outer: Range<usize>,
}

fn parts(offset: u64, len: u64) -> impl Iterator<Item = ChunkPart> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done;
        let n = (len - done).min(CHUNK - at % CHUNK);
        let start = (at % CHUNK) as usize;
        let outer = done as usize..(done + n) as usize;
        done += n;
        (n > 0).then_some(ChunkPart { chunk: at / CHUNK, inner: start..start + n as usize, outer })
    })
}

/// A chunk of zeros, or `StorageFull`, so that a disk larger than the memory does not abort the process.
fn fresh() -> io::Result<Vec<u8>> {
    let mut chunk = Vec::new();
    chunk.try_reserve_exact(CHUNK as usize).map_err(|_| io::Error::from(io::ErrorKind::StorageFull))?;
    chunk.resize(CHUNK as usize, 0);
    Ok(chunk)
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|piece| *piece == ZEROS[..piece.len()])
}

impl MemoryBackend {
    pub(crate) fn new(capacity: u64) -> Self {
        MemoryBackend { capacity, shards: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }

    fn shard(&self, chunk: u64) -> RwLockReadGuard<'_, Chunks> {
        self.shards[(chunk % SHARDS) as usize].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard_mut(&self, chunk: u64) -> RwLockWriteGuard<'_, Chunks> {
        self.shards[(chunk % SHARDS) as usize].write().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        within(self.capacity, offset, buf.len() as u64)?;
        for part in parts(offset, buf.len() as u64) {
            match self.shard(part.chunk).get(&part.chunk) {
                Some(bytes) => buf[part.outer].copy_from_slice(&bytes[part.inner]),
                None => buf[part.outer].fill(0),
            }
        }
        Ok(())
    }

    fn store(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        within(self.capacity, offset, data.len() as u64)?;
        for part in parts(offset, data.len() as u64) {
            let piece = &data[part.outer];
            match self.shard_mut(part.chunk).entry(part.chunk) {
                Entry::Occupied(mut old) => old.get_mut()[part.inner].copy_from_slice(piece),
                Entry::Vacant(_) if is_zero(piece) => {}
                Entry::Vacant(free) => free.insert(fresh()?)[part.inner].copy_from_slice(piece),
            }
        }
        Ok(())
    }

    /// As [`MemoryBackend::store`], after all chunks are allocated.
    fn store_atomic(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        within(self.capacity, offset, data.len() as u64)?;
        for part in parts(offset, data.len() as u64) {
            if let Entry::Vacant(free) = self.shard_mut(part.chunk).entry(part.chunk)
                && !is_zero(&data[part.outer])
            {
                free.insert(fresh()?);
            }
        }
        self.store(offset, data)
    }

    fn clear(&self, offset: u64, len: u64) -> io::Result<()> {
        within(self.capacity, offset, len)?;
        if len / CHUNK > SHARDS {
            // Formatting unmaps a whole disk, so this walks the allocated chunks only.
            self.drop_whole(offset.div_ceil(CHUNK)..(offset + len) / CHUNK);
            let (head, tail) = (offset.next_multiple_of(CHUNK) - offset, (offset + len) % CHUNK);
            self.clear_parts(offset, head);
            self.clear_parts(offset + len - tail, tail);
        } else {
            self.clear_parts(offset, len);
        }
        Ok(())
    }

    fn clear_parts(&self, offset: u64, len: u64) {
        for part in parts(offset, len) {
            let mut shard = self.shard_mut(part.chunk);
            if part.inner.len() as u64 == CHUNK {
                shard.remove(&part.chunk);
            } else if let Some(bytes) = shard.get_mut(&part.chunk) {
                bytes[part.inner].fill(0);
            }
        }
    }

    fn drop_whole(&self, chunks: Range<u64>) {
        for first in 0..SHARDS {
            self.shard_mut(first).retain(|chunk, _| !chunks.contains(chunk));
        }
    }

    fn find(&self, offset: u64, len: u64) -> io::Result<Extent> {
        within(self.capacity, offset, len)?;
        let mapped = |chunk: u64| self.shard(chunk).contains_key(&chunk);
        let first = mapped(offset / CHUNK);
        // Checks a bounded number of chunks: the caller continues where the extent ends.
        let same = parts(offset, len).take(4096).take_while(|part| mapped(part.chunk) == first);
        let found = same.last().map_or(0, |part| part.outer.end as u64);
        Ok(Extent { offset, len: found, mapped: first })
    }
}

impl Backend for MemoryBackend {
    fn info(&self) -> BackendInfo {
        BackendInfo {
            capacity: self.capacity,
            read_only: false,
            unmap: true,
            null: false,
            remote: false,
            write_through: true,
        }
    }

    fn try_read(&self, offset: u64, buf: &mut [u8]) -> TryIo {
        TryIo::Done(self.load(offset, buf))
    }

    fn try_write(&self, offset: u64, data: &[u8]) -> TryIo {
        TryIo::Done(self.store(offset, data))
    }

    fn read(&self, offset: u64, mut buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((self.load(offset, &mut buf), buf)))
    }

    fn write(&self, offset: u64, buf: Buf, _stable: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((self.store(offset, &buf), buf)))
    }

    fn max_atomic(&self) -> u32 {
        MAX_ATOMIC
    }

    fn write_atomic(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(std::future::ready((self.store_atomic(offset, &buf), buf)))
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(std::future::ready(self.clear(offset, len)))
    }

    fn write_zeroes(&self, offset: u64, len: u64, _unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.unmap(offset, len)
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        Box::pin(std::future::ready(self.find(offset, len)))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let chunks: usize = (0..SHARDS).map(|first| self.shard(first).len()).sum();
        vec![
            describe_row("backend", "memory"),
            describe_row("capacity", self.capacity),
            describe_row("allocated_bytes", chunks as u64 * CHUNK),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(disk: &MemoryBackend) -> u64 {
        disk.describe()[2].1.parse().expect("a number")
    }

    #[test]
    fn zeros_take_no_space_and_unmap_gives_it_back() {
        let disk = MemoryBackend::new(1 << 40);
        disk.store(CHUNK - 100, &[0; 4096]).expect("store");
        assert_eq!(allocated(&disk), 0);
        disk.store(CHUNK - 100, &[7; 4096]).expect("store");
        assert_eq!(allocated(&disk), 2 * CHUNK);
        disk.clear(1, CHUNK).expect("clear");
        assert_eq!(allocated(&disk), 2 * CHUNK);
        disk.clear(0, 1 << 40).expect("clear");
        assert_eq!(allocated(&disk), 0);
    }

    #[test]
    fn large_clear_keeps_the_neighbours() {
        let disk = MemoryBackend::new(1 << 40);
        let end = (SHARDS + 8) * CHUNK + 500;
        disk.store(99, &[1; 2]).expect("store");
        disk.store(end - 1, &[2; 2]).expect("store");
        disk.clear(100, end - 100).expect("clear");
        let mut seen = [9; 4];
        disk.load(98, &mut seen).expect("load");
        assert_eq!(seen, [0, 1, 0, 0]);
        disk.load(end - 2, &mut seen).expect("load");
        assert_eq!(seen, [0, 0, 2, 0]);
    }
}
