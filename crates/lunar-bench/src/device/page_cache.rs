//! Emulates the page cache for sequential streams: several large requests in flight, as read-ahead or
//! write-behind, whatever the size of the caller's requests.

use async_lock::Mutex;
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Bytes of a request to the disk.
pub const PIECE: usize = 512 << 10;
/// The maximum number of requests in flight.
pub const MAX_IN_FLIGHT: usize = 4;

/// A disk behind a small page cache, for one sequential stream at a time. An acknowledged write is in flight,
/// and complete after a flush. The cache holds only a few pieces, and drops them when the reader seeks or
/// restarts: repeated reads reach the disk again.
pub struct PageCacheDisk {
    disk: Arc<dyn Backend>,
    state: Mutex<State>,
}

/// A pending request.
struct InFlightPiece {
    offset: u64,
    len: usize,
    end: flume::Receiver<BufResult>,
}

#[derive(Default)]
struct State {
    /// The piece that is being read, and its offset.
    current: Option<(u64, Buf)>,
    /// The pieces after it, in order.
    ahead: VecDeque<InFlightPiece>,
    /// The next offset of a sequential reader.
    next: u64,
    /// The piece that is being filled, and its offset.
    filling: Option<(u64, Buf)>,
    /// Pieces being written.
    behind: VecDeque<InFlightPiece>,
    free: Vec<Buf>,
}

impl InFlightPiece {
    fn contains(&self, at: u64) -> bool {
        (self.offset..self.offset + self.len as u64).contains(&at)
    }

    async fn wait(self) -> BufResult {
        self.end.recv_async().await.unwrap_or_else(|_| {
            (
                Err(io::Error::other("the internal task of a read or write ended without a result")),
                Buf::zeroed(0),
            )
        })
    }
}

impl State {
    fn buffer(&mut self, len: usize) -> Buf {
        let mut buf =
            self.free.pop().filter(|buf| buf.capacity() >= PIECE).unwrap_or_else(|| Buf::zeroed(PIECE));
        buf.set_visible(len);
        buf
    }

    /// Drops all data that was read.
    fn invalidate(&mut self) {
        self.free.extend(self.current.take().map(|(_, buf)| buf));
        self.ahead.clear();
    }
}

impl PageCacheDisk {
    /// Creates a cache on top of a disk.
    pub fn new(disk: Arc<dyn Backend>) -> PageCacheDisk {
        PageCacheDisk { disk, state: Mutex::default() }
    }

    fn submit(&self, write: bool, offset: u64, buf: Buf) -> InFlightPiece {
        let (disk, len) = (self.disk.clone(), buf.len());
        let (done, end) = flume::bounded(1);
        let work = async move {
            let finished = match write {
                true => disk.write(offset, buf, false).await,
                false => disk.read(offset, buf).await,
            };
            // The reader may have gone away.
            let _ = done.send(finished);
        };
        lunar_runtime::spawn(work);
        InFlightPiece { offset, len, end }
    }

    /// Makes the piece that contains a byte the current one.
    async fn fetch(&self, state: &mut State, at: u64) -> io::Result<()> {
        let contains = |(offset, buf): &(u64, Buf)| (*offset..offset + buf.len() as u64).contains(&at);
        if state.current.as_ref().is_some_and(contains) {
            return Ok(());
        }
        if let Some((_, buf)) = state.current.take() {
            state.free.push(buf);
        }
        if !state.ahead.front().is_some_and(|piece| piece.contains(at)) {
            state.ahead.clear();
        }
        self.read_ahead(state, at);
        let Some(piece) = state.ahead.pop_front() else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the read is beyond the end of the target",
            ));
        };
        let offset = piece.offset;
        let (result, buf) = piece.wait().await;
        result?;
        state.current = Some((offset, buf));
        self.read_ahead(state, at);
        Ok(())
    }

    /// Requests what follows the last requested piece, or what starts at `at`.
    fn read_ahead(&self, state: &mut State, at: u64) {
        let capacity = self.disk.info().capacity;
        let behind = state.current.as_ref().map_or(at, |(offset, buf)| offset + buf.len() as u64);
        let mut next = state.ahead.back().map_or(behind, |piece| piece.offset + piece.len as u64);
        while state.ahead.len() < MAX_IN_FLIGHT && next < capacity {
            let buf = state.buffer((capacity - next).min(PIECE as u64) as usize);
            let piece = self.submit(false, next, buf);
            next += piece.len as u64;
            state.ahead.push_back(piece);
        }
    }

    async fn take(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock().await;
        if state.filling.is_some() || !state.behind.is_empty() {
            self.drain(&mut state).await?;
        }
        if offset != state.next {
            state.invalidate();
        }
        state.next = offset + buf.len() as u64;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            self.fetch(&mut state, at).await?;
            let Some((start, piece)) = &state.current else { continue };
            let from = (at - start) as usize;
            let len = (buf.len() - done).min(piece.len() - from);
            buf[done..done + len].copy_from_slice(&piece[from..from + len]);
            done += len;
        }
        Ok(())
    }

    async fn put(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock().await;
        state.invalidate();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            if state.filling.as_ref().is_some_and(|(start, buf)| start + buf.len() as u64 != at) {
                self.send(&mut state).await?;
            }
            let (start, mut buf) = match state.filling.take() {
                Some(filling) => filling,
                None => (at, state.buffer(0)),
            };
            let (filled, len) = (buf.len(), (bytes.len() - done).min(PIECE - buf.len()));
            buf.set_visible(filled + len);
            buf[filled..].copy_from_slice(&bytes[done..done + len]);
            done += len;
            let full = buf.len() == PIECE;
            state.filling = Some((start, buf));
            if full {
                self.send(&mut state).await?;
            }
        }
        Ok(())
    }

    /// Sends the piece that is being filled, once few enough are in flight.
    async fn send(&self, state: &mut State) -> io::Result<()> {
        while state.behind.len() >= MAX_IN_FLIGHT {
            self.wait_oldest(state).await?;
        }
        if let Some((offset, buf)) = state.filling.take() {
            let piece = self.submit(true, offset, buf);
            state.behind.push_back(piece);
        }
        Ok(())
    }

    async fn wait_oldest(&self, state: &mut State) -> io::Result<()> {
        let Some(piece) = state.behind.pop_front() else { return Ok(()) };
        let (result, buf) = piece.wait().await;
        state.free.push(buf);
        result
    }

    /// Waits until all writes are complete.
    async fn drain(&self, state: &mut State) -> io::Result<()> {
        self.send(state).await?;
        while !state.behind.is_empty() {
            self.wait_oldest(state).await?;
        }
        Ok(())
    }
}

impl Backend for PageCacheDisk {
    fn info(&self) -> BackendInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move { (self.take(offset, &mut buf).await, buf) })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        Box::pin(async move {
            let mut result = self.put(offset, &buf).await;
            if fua && result.is_ok() {
                result = self.flush().await;
            }
            (result, buf)
        })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.drain(&mut *self.state.lock().await).await?;
            self.disk.flush().await
        })
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.state.lock().await.invalidate();
            self.flush().await?;
            self.disk.unmap(offset, len).await
        })
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async move {
            self.state.lock().await.invalidate();
            self.flush().await?;
            self.disk.write_zeroes(offset, len, unmap).await
        })
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.disk.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RecordingDisk, run_on_core};

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 7) as u8).collect()
    }

    #[test]
    fn small_sequential_reads_become_large_requests() {
        let probe = RecordingDisk::new(3 << 20);
        probe.set(&pattern(3 << 20));
        let (page_cache, requested) = (PageCacheDisk::new(probe.clone()), probe.clone());
        run_on_core(move || async move {
            let mut got = Vec::new();
            for at in (0..(3 << 20) - 4096).step_by(1000) {
                let (result, buf) = page_cache.read(at as u64, Buf::zeroed(1000)).await;
                result.expect("read");
                got.extend_from_slice(&buf);
            }
            assert!(got == pattern(got.len()));
            // A seek starts a new stream.
            let (result, buf) = page_cache.read(1234, Buf::zeroed(5000)).await;
            result.expect("read");
            assert!(buf[..] == pattern(1 << 20)[1234..6234]);
            assert!(page_cache.read((3 << 20) - 10, Buf::zeroed(20)).await.0.is_err(), "past the end");
        });
        let reads = requested.reads();
        assert!(reads[..6].iter().all(|read| read.1 == PIECE), "{reads:?}");
        assert!(requested.max_in_flight() >= MAX_IN_FLIGHT, "{}", requested.max_in_flight());
    }

    #[test]
    fn restarted_reader_reaches_the_disk_again() {
        let probe = RecordingDisk::new(PIECE);
        let (page_cache, requested) = (PageCacheDisk::new(probe.clone()), probe.clone());
        run_on_core(move || async move {
            for _ in 0..3 {
                for at in (0..PIECE as u64).step_by(65536) {
                    page_cache.read(at, Buf::zeroed(65536)).await.0.expect("read");
                }
            }
        });
        assert_eq!(requested.reads(), [(0, PIECE); 3]);
    }

    #[test]
    fn small_sequential_writes_become_large_requests() {
        let probe = RecordingDisk::new(4 << 20);
        let (page_cache, requested) = (PageCacheDisk::new(probe.clone()), probe.clone());
        run_on_core(move || async move {
            let bytes = pattern(3 << 20);
            for (n, block) in bytes.chunks(3000).enumerate() {
                let buf = Buf::copy_of(block);
                page_cache.write(n as u64 * 3000, buf, false).await.0.expect("written");
            }
            // A reader finds data that is not on the disk yet.
            let (result, buf) = page_cache.read((3 << 20) - 100, Buf::zeroed(100)).await;
            result.expect("read");
            assert!(buf[..] == bytes[(3 << 20) - 100..]);
            page_cache.write(4000, Buf::zeroed(10), false).await.0.expect("written");
            page_cache.flush().await.expect("flushed");
        });
        let mut expected = pattern(3 << 20);
        expected[4000..4010].fill(0);
        assert!(requested.bytes()[..3 << 20] == expected[..]);
        assert_eq!(requested.flushes(), 1);
        let writes = requested.writes();
        assert_eq!((writes.len(), writes[0]), (7, (0, PIECE)), "{writes:?}");
        assert!(requested.max_in_flight() >= MAX_IN_FLIGHT);
    }

    #[test]
    fn failed_write_behind_is_reported_at_flush() {
        let probe = RecordingDisk::new(1 << 20);
        let page_cache = PageCacheDisk::new(probe);
        run_on_core(move || async move {
            page_cache.write(1 << 20, Buf::zeroed(4096), false).await.0.expect("accepted");
            assert!(page_cache.flush().await.is_err());
        });
    }
}
