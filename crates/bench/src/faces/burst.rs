//! How a kernel sends a large request to a block device: cut into pieces, all of them at once.

use super::stream::PIECE;
use block::{Backend, Facts, Finished, Future};
use compio::runtime::spawn;
use net::Buf;
use std::io;
use std::sync::{Arc, Mutex};

/// A disk whose requests of more than [`PIECE`] go out in pieces, and are over when the last one is.
///
/// The bytes of such requests stay behind: what is read is dropped, what is written is zeros. So nothing is
/// copied that a kernel, which pins the pages of the caller, would not copy. It is for measuring with zeros.
pub struct Burst {
    disk: Arc<dyn Backend>,
    /// Buffers of pieces, all zero as long as nothing is read.
    free: Mutex<Vec<Buf>>,
}

impl Burst {
    /// Before this disk.
    pub fn new(disk: Arc<dyn Backend>) -> Burst {
        Burst { disk, free: Mutex::default() }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Buf>> {
        self.free.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn buffer(&self, len: usize, write: bool) -> Buf {
        let mut buf = self.free().pop().unwrap_or_else(|| Buf::zeroed(PIECE));
        buf.set_visible(len);
        if write {
            buf.fill(0);
        }
        buf
    }

    async fn pieces(&self, offset: u64, len: usize, write: Option<bool>) -> io::Result<()> {
        let (done, ends) = flume::unbounded();
        for from in (0..len).step_by(PIECE) {
            let (disk, done) = (self.disk.clone(), done.clone());
            let buf = self.buffer(PIECE.min(len - from), write.is_some());
            let at = offset + from as u64;
            let piece = async move {
                let end = match write {
                    Some(stable) => disk.write(at, buf, stable).await,
                    None => disk.read(at, buf).await,
                };
                // Whoever waits for it may have given up.
                let _ = done.send(end);
            };
            spawn(piece).detach();
        }
        drop(done);
        let mut result = Ok(());
        while let Ok((end, buf)) = ends.recv_async().await {
            self.free().push(buf);
            result = result.and(end);
        }
        result
    }
}

impl Backend for Burst {
    fn facts(&self) -> Facts {
        self.disk.facts()
    }

    fn read(&self, offset: u64, buf: Buf) -> Future<'_, Finished> {
        if buf.len() <= PIECE {
            return self.disk.read(offset, buf);
        }
        Box::pin(async move { (self.pieces(offset, buf.len(), None).await, buf) })
    }

    fn write(&self, offset: u64, buf: Buf, stable: bool) -> Future<'_, Finished> {
        if buf.len() <= PIECE {
            return self.disk.write(offset, buf, stable);
        }
        Box::pin(async move { (self.pieces(offset, buf.len(), Some(stable)).await, buf) })
    }

    fn flush(&self) -> Future<'_, io::Result<()>> {
        self.disk.flush()
    }

    fn unmap(&self, offset: u64, len: u64) -> Future<'_, io::Result<()>> {
        self.disk.unmap(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> Future<'_, io::Result<()>> {
        self.disk.write_zeroes(offset, len, unmap)
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.disk.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faces::testing::{Probe, on_a_core};

    #[test]
    fn a_large_request_is_cut_and_its_pieces_fly_together() {
        let probe = Probe::new(8 << 20);
        let burst = Burst::new(probe.clone());
        on_a_core(move || async move {
            burst.write(4096, Buf::zeroed((2 << 20) + 4096), false).await.0.expect("written");
            burst.read(0, Buf::zeroed(PIECE)).await.0.expect("read");
            burst.read(4 << 20, Buf::zeroed(PIECE * 2)).await.0.expect("read");
        });
        let mut writes = probe.writes();
        writes.sort_unstable();
        let piece = PIECE as u64;
        let at = |n: u64| (4096 + n * piece, PIECE);
        assert_eq!(writes, [at(0), at(1), at(2), at(3), (4096 + 4 * piece, 4096)]);
        assert_eq!(probe.reads().len(), 3);
        assert_eq!(probe.most_at_once(), 5);
    }

    #[test]
    fn one_failed_piece_fails_the_request() {
        let probe = Probe::new(1 << 20);
        let burst = Burst::new(probe.clone());
        on_a_core(move || async move {
            let end = burst.read(512 << 10, Buf::zeroed(1 << 20)).await;
            assert!(end.0.is_err(), "half of it lies behind the end");
            assert_eq!(end.1.len(), 1 << 20);
        });
    }
}
