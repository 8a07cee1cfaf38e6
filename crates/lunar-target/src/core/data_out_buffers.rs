//! The buffers for the Data-Out of a command: one buffer for all data, or a few buffers that hold one chunk each and
//! are reused.

use lunar_runtime::{Buf, Pool};

/// Bytes of a chunk. A command of at most [`BUFFERS`] chunks has one buffer for all of its data.
pub const CHUNK_LEN: u32 = 1 << 20;
/// Maximum number of buffers of a chunked command: one is filled while the other is written.
pub const BUFFERS: u32 = 2;

/// A buffer, and the range of the command's data that it holds.
struct BufferRange {
    start: u32,
    end: u32,
    /// None while a segment is being placed in it.
    buf: Option<Buf>,
}

/// The buffers of a command. If there are none, its data are dropped.
#[derive(Default)]
pub struct DataOutBuffers {
    now: Option<BufferRange>,
    next: Option<BufferRange>,
    /// End of the last range.
    end: u32,
    /// Buffers in use, including those that are being written.
    buffer_count: u32,
}

impl DataOutBuffers {
    /// One buffer for the range that begins with the first byte. None: data are dropped.
    pub fn first(buf: Option<Buf>) -> DataOutBuffers {
        let mut buffers = DataOutBuffers::default();
        if let Some(buf) = buf {
            buffers.buffer_count = 1;
            buffers.push(buf.len() as u32, buf);
        }
        buffers
    }

    fn push(&mut self, end: u32, buf: Buf) {
        let range = BufferRange { start: self.end, end, buf: Some(buf) };
        self.end = end;
        match self.now {
            None => self.now = Some(range),
            Some(_) => self.next = Some(range),
        }
    }

    /// The range that contains this byte.
    fn of(&mut self, offset: u32) -> Option<&mut BufferRange> {
        let buffers = [&mut self.now, &mut self.next].into_iter().flatten();
        buffers.into_iter().find(|range| (range.start..range.end).contains(&offset))
    }

    /// Takes the buffer that contains all of these bytes, with the offset of the first in it.
    pub fn take_range(&mut self, offset: u32, len: u32) -> Option<(Buf, usize)> {
        let range = self.of(offset).filter(|range| len <= range.end - offset)?;
        let at = (offset - range.start) as usize;
        range.buf.take().map(|buf| (buf, at))
    }

    /// Returns a buffer in which a segment was placed. `offset`: the first byte of the segment.
    pub fn put_back(&mut self, offset: u32, buf: Buf) {
        if let Some(range) = self.of(offset) {
            range.buf = Some(buf);
        }
    }

    /// Copies a segment into the buffers. Bytes outside all ranges are dropped.
    pub fn copy(&mut self, offset: u32, data: &[u8]) {
        let Some(range) = self.of(offset) else { return };
        let at = (offset - range.start) as usize;
        let Some(buf) = &mut range.buf else { return };
        let n = data.len().min(buf.len().saturating_sub(at));
        buf[at..at + n].copy_from_slice(&data[..n]);
    }

    /// Counts the buffer against the pool, because the first data have arrived. False: the pool has no room.
    pub fn claim(&mut self) -> bool {
        self.now.as_mut().and_then(|range| range.buf.as_mut()).is_none_or(Buf::claim)
    }

    /// Whether all bytes of the oldest range have arrived. `arrived`: the end of the data without a gap.
    pub fn is_filled(&self, arrived: u32) -> bool {
        self.now.as_ref().is_some_and(|range| range.buf.is_some() && range.end <= arrived)
    }

    /// Takes the buffer of the oldest range.
    pub fn take(&mut self) -> Option<Buf> {
        let range = std::mem::replace(&mut self.now, self.next.take());
        range.and_then(|range| range.buf)
    }

    /// Reuses the buffer of a written chunk for the next range. `wanted`: bytes of the command.
    pub fn reuse(&mut self, mut buf: Buf, wanted: u32) {
        let end = wanted.min(self.end.saturating_add(CHUNK_LEN));
        let len = end.saturating_sub(self.end) as usize;
        if len == 0 {
            self.buffer_count -= 1;
            return;
        }
        if buf.capacity() < len {
            // A backend may keep the buffer, and return another one.
            buf = Buf::zeroed(len);
        }
        buf.set_visible(len);
        self.push(end, buf);
    }

    /// Takes one more buffer, if there are data for it and the pool has one.
    pub fn grow(&mut self, pool: &Pool, wanted: u32) {
        let end = wanted.min(self.end.saturating_add(CHUNK_LEN));
        if self.buffer_count == 0 || self.buffer_count == BUFFERS || end <= self.end {
            return;
        }
        if let Some(buf) = pool.try_get((end - self.end) as usize) {
            self.buffer_count += 1;
            self.push(end, buf);
        }
    }

    /// End of the last range.
    pub fn end(&self) -> u32 {
        self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANTED: u32 = 3 * CHUNK_LEN + 512;

    /// The lengths of the chunks that a command of [`WANTED`] bytes writes with this pool.
    fn lengths(pool: &Pool) -> Vec<usize> {
        let mut buffers = DataOutBuffers::first(pool.promise(CHUNK_LEN as usize));
        assert!(buffers.claim());
        buffers.grow(pool, WANTED);
        let mut lengths = Vec::new();
        while buffers.is_filled(buffers.end()) {
            let buf = buffers.take().expect("a filled buffer");
            lengths.push(buf.len());
            buffers.reuse(buf, WANTED);
            buffers.grow(pool, WANTED);
            assert!(pool.used() <= (BUFFERS * CHUNK_LEN) as usize);
        }
        lengths
    }

    #[test]
    fn buffers_alternate_until_last_chunk() {
        let pool = Pool::new(64 << 20);
        assert_eq!(lengths(&pool.share()), [CHUNK_LEN as usize, CHUNK_LEN as usize, CHUNK_LEN as usize, 512]);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn exhausted_pool_leaves_one_buffer() {
        let pool = Pool::new(0);
        let others: Vec<Buf> = std::iter::from_fn(|| pool.try_get(CHUNK_LEN as usize)).collect();
        let mut buffers = DataOutBuffers::first(pool.share().promise(CHUNK_LEN as usize));
        buffers.grow(&pool, WANTED);
        assert_eq!((buffers.buffer_count, buffers.end()), (1, CHUNK_LEN));
        drop(others);
        buffers.grow(&pool, WANTED);
        assert_eq!((buffers.buffer_count, buffers.end()), (2, 2 * CHUNK_LEN));
    }

    #[test]
    fn bytes_outside_of_ranges_are_dropped() {
        let pool = Pool::new(64 << 20);
        let mut buffers = DataOutBuffers::first(pool.try_get(CHUNK_LEN as usize));
        buffers.grow(&pool, WANTED);
        assert!(buffers.take_range(CHUNK_LEN - 512, 1024).is_none(), "a segment lies in one chunk");
        buffers.copy(2 * CHUNK_LEN, &[9; 512]);
        let (mut buf, at) = buffers.take_range(CHUNK_LEN + 512, 512).expect("a place");
        assert_eq!(at, 512);
        buf[at..at + 512].fill(7);
        assert!(buffers.is_filled(CHUNK_LEN));
        let first = buffers.take().expect("a filled buffer");
        assert!(!buffers.is_filled(2 * CHUNK_LEN), "a segment is landing there");
        buffers.put_back(CHUNK_LEN + 512, buf);
        let second = buffers.take().expect("a filled buffer");
        assert_eq!((first.len(), second[512]), (CHUNK_LEN as usize, 7));
    }
}
