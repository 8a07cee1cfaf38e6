//! Splits large requests like the kernel does for a block device, with all pieces in flight at once.

use super::page_cache::PIECE;
use flume::Receiver;
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A disk that splits requests of more than [`PIECE`]. A request ends with its last piece.
pub struct RequestSplitter {
    disk: Arc<dyn Backend>,
    /// Whether data is copied between the caller's buffer and those of the pieces.
    is_carrying: bool,
    /// Free buffers for pieces.
    free: Mutex<Vec<Buf>>,
    /// Free buffers of zeros, for writes without the data.
    zeros: Mutex<Vec<Buf>>,
}

/// The result of a piece: its offset in the caller's buffer, and the result of the disk.
type PieceResult = (usize, BufResult);

impl RequestSplitter {
    /// Splits with all data.
    pub fn new(disk: Arc<dyn Backend>) -> RequestSplitter {
        RequestSplitter { disk, is_carrying: true, free: Mutex::default(), zeros: Mutex::default() }
    }

    /// Splits without the data, for measurements only: read data is dropped, written data is zeros. A kernel
    /// pins the pages of the caller and copies nothing, so copying would distort the result.
    pub fn without_data(disk: Arc<dyn Backend>) -> RequestSplitter {
        RequestSplitter { is_carrying: false, ..RequestSplitter::new(disk) }
    }

    /// The free buffers for reads or writes.
    fn free(&self, is_written: bool) -> MutexGuard<'_, Vec<Buf>> {
        let list = if is_written && !self.is_carrying { &self.zeros } else { &self.free };
        list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn piece(&self, bytes: &[u8], is_written: bool) -> Buf {
        let mut buf = self.free(is_written).pop().unwrap_or_else(|| Buf::zeroed(PIECE));
        buf.set_visible(bytes.len());
        if is_written && self.is_carrying {
            buf.copy_from_slice(bytes);
        }
        buf
    }

    async fn read_pieces(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let ends = self.submit(offset, bytes, None);
        self.all(ends, bytes.len(), false, |from, piece| {
            if self.is_carrying {
                bytes[from..from + piece.len()].copy_from_slice(piece);
            }
        })
        .await
    }

    async fn write_pieces(&self, offset: u64, bytes: &[u8], fua: bool) -> io::Result<()> {
        let ends = self.submit(offset, bytes, Some(fua));
        self.all(ends, bytes.len(), true, |_, _| {}).await
    }

    /// Submits all pieces: reads, or writes with or without FUA.
    fn submit(&self, offset: u64, bytes: &[u8], write: Option<bool>) -> Receiver<PieceResult> {
        let (done, ends) = flume::unbounded();
        for (n, part) in bytes.chunks(PIECE).enumerate() {
            let (disk, done, buf) = (self.disk.clone(), done.clone(), self.piece(part, write.is_some()));
            let from = n * PIECE;
            let at = offset + from as u64;
            let piece = async move {
                let end = match write {
                    Some(fua) => disk.write(at, buf, fua).await,
                    None => disk.read(at, buf).await,
                };
                // The caller may have gone away.
                let _ = done.send((from, end));
            };
            lunar_runtime::spawn(piece);
        }
        ends
    }

    /// Waits for all pieces of a request of `len` bytes; `good` receives those that succeeded.
    async fn all(
        &self,
        ends: Receiver<PieceResult>,
        len: usize,
        is_written: bool,
        mut good: impl FnMut(usize, &[u8]),
    ) -> io::Result<()> {
        let (mut result, mut came) = (Ok(()), 0);
        while let Ok((from, (end, buf))) = ends.recv_async().await {
            came += buf.len();
            if end.is_ok() {
                good(from, &buf);
            }
            self.free(is_written).push(buf);
            result = result.and(end);
        }
        match came == len {
            true => result,
            false => result.and(Err(io::Error::other(
                "internal error: one part of a long read or write ended without a result",
            ))),
        }
    }
}

impl Backend for RequestSplitter {
    fn info(&self) -> BackendInfo {
        self.disk.info()
    }

    fn read(&self, offset: u64, mut buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        if buf.len() <= PIECE {
            return self.disk.read(offset, buf);
        }
        Box::pin(async move { (self.read_pieces(offset, &mut buf).await, buf) })
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        if buf.len() <= PIECE {
            return self.disk.write(offset, buf, fua);
        }
        Box::pin(async move { (self.write_pieces(offset, &buf, fua).await, buf) })
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.disk.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{RecordingDisk, run_on_core};

    fn pattern(len: usize) -> Buf {
        let mut buf = Buf::zeroed(len);
        buf.iter_mut().zip((0..=250u8).cycle()).for_each(|(byte, n)| *byte = n);
        buf
    }

    #[test]
    fn large_request_is_split_with_all_pieces_in_flight() {
        for make in [RequestSplitter::new, RequestSplitter::without_data] {
            let probe = RecordingDisk::new(8 << 20);
            let request_splitter = make(probe.clone());
            run_on_core(move || async move {
                request_splitter.write(4096, Buf::zeroed((2 << 20) + 4096), false).await.0.expect("written");
                request_splitter.read(0, Buf::zeroed(PIECE)).await.0.expect("read");
                request_splitter.read(4 << 20, Buf::zeroed(PIECE * 2)).await.0.expect("read");
            });
            let mut writes = probe.writes();
            writes.sort_unstable();
            let piece = PIECE as u64;
            let at = |n: u64| (4096 + n * piece, PIECE);
            assert_eq!(writes, [at(0), at(1), at(2), at(3), (4096 + 4 * piece, 4096)]);
            assert_eq!(probe.reads().len(), 3);
            assert_eq!(probe.max_in_flight(), 5);
        }
    }

    #[test]
    fn splitter_moves_all_data_unless_created_without() {
        let len = 3 * PIECE + 512;
        for (make, arrives) in
            [(RequestSplitter::new as fn(_) -> _, true), (RequestSplitter::without_data, false)]
        {
            let probe = RecordingDisk::new(4 << 20);
            probe.set(&[0xee; 4 << 20]);
            let request_splitter = make(probe.clone());
            run_on_core(move || async move {
                // Its buffers must not serve the write.
                request_splitter.read(2 << 20, Buf::zeroed(len)).await.0.expect("read");
                request_splitter.write(512, pattern(len), false).await.0.expect("written");
                let (result, buf) = request_splitter.read(512, Buf::zeroed(len)).await;
                result.expect("read");
                assert_eq!(buf[..] == pattern(len)[..], arrives);
            });
            let bytes = probe.bytes();
            assert_eq!(bytes[512..512 + len] == pattern(len)[..], arrives);
            assert_eq!(bytes[512..512 + len].iter().all(|byte| *byte == 0), !arrives);
            assert!(bytes[..512].iter().chain(&bytes[512 + len..]).all(|byte| *byte == 0xee));
        }
    }

    #[test]
    fn failed_piece_fails_the_request() {
        let probe = RecordingDisk::new(1 << 20);
        let request_splitter = RequestSplitter::new(probe.clone());
        run_on_core(move || async move {
            let end = request_splitter.read(512 << 10, Buf::zeroed(1 << 20)).await;
            assert!(end.0.is_err(), "half of it is past the end");
            assert_eq!(end.1.len(), 1 << 20);
            let end = request_splitter.write(512 << 10, Buf::zeroed(1 << 20), false).await;
            assert!(end.0.is_err(), "half of it is past the end");
        });
    }
}
