//! The processing of one piece.

use crate::plan::{CopyPiece, PieceContent};
use crate::progress::PieceResult;
use crate::reader::SourceReader;
use crate::{CopyErrorCause, CopyFailure, CopyMeter, CopyStyle, ZeroPolicy, zeros};
use lunar_block::Backend;
use lunar_block::offload::Offload;
use lunar_runtime::Buf;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The attempts of an offload while its connection is lost.
const OFFLOADS: u32 = 3;

/// The state that workers share.
pub(crate) struct CopyWork {
    /// None if the source is a stream.
    pub(crate) reader: Option<SourceReader>,
    pub(crate) destination: Arc<dyn Backend>,
    pub(crate) style: CopyStyle,
    pub(crate) zeroed: bool,
    pub(crate) offload: Option<Arc<dyn Offload>>,
    /// Whether an offload failed, after which none is tried.
    pub(crate) by_hand: Cell<bool>,
    pub(crate) task: PieceTask,
    pub(crate) meter: Arc<CopyMeter>,
}

/// The task of the workers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PieceTask {
    Copy,
    Compare,
}

impl CopyWork {
    /// Processes one piece. `spare` is a buffer that a worker keeps between pieces.
    pub(crate) async fn perform(&self, piece: CopyPiece, spare: &mut Buf) -> PieceResult {
        let range = piece.range();
        let result = match self.task {
            PieceTask::Copy => self.copy(piece, spare).await,
            PieceTask::Compare => self.compare(piece, spare).await,
        };
        match result {
            Ok(bad) => {
                self.meter.done.add(range.end - range.start);
                PieceResult { range, bad, failure: None }
            }
            Err(failure) => PieceResult { range, bad: Vec::new(), failure: Some(failure) },
        }
    }

    async fn copy(&self, piece: CopyPiece, spare: &mut Buf) -> Result<Vec<Range<u64>>, CopyFailure> {
        let (offset, len) = (piece.offset, piece.len);
        match piece.content {
            PieceContent::Zeros => self.clear(offset, len).await?,
            PieceContent::Bytes(buf) => {
                self.meter.read.add(len);
                *spare = buf;
                self.store(offset, spare).await?;
            }
            PieceContent::Unread if self.offloaded(offset, len).await => {}
            PieceContent::Unread => return self.carry(offset, len, spare).await,
        }
        Ok(Vec::new())
    }

    /// Reads and writes a range block by block. A piece planned for an offload may have several blocks.
    async fn carry(&self, offset: u64, len: u64, spare: &mut Buf) -> Result<Vec<Range<u64>>, CopyFailure> {
        let (mut at, end, mut bad) = (offset, offset + len, Vec::new());
        while at < end {
            let len = (end - at).min(self.style.block - at % self.style.block);
            bad.extend(self.fetch(at, len, spare).await?);
            self.store(at, spare).await?;
            at += len;
        }
        Ok(bad)
    }

    /// Reads a range of the source into `spare` and returns its unreadable ranges.
    async fn fetch(&self, offset: u64, len: u64, spare: &mut Buf) -> Result<Vec<Range<u64>>, CopyFailure> {
        let Some(reader) = &self.reader else { return Ok(Vec::new()) };
        let (result, buf) = reader.read(offset, sized(spare, len)).await;
        *spare = buf;
        result
    }

    /// Whether an offload copied the range.
    async fn offloaded(&self, offset: u64, len: u64) -> bool {
        let Some(offload) = self.offload.as_ref().filter(|_| !self.by_hand.get()) else { return false };
        for _ in 0..OFFLOADS {
            match offload.copy(offset, len).await {
                Ok(()) => {
                    self.meter.offloaded.add(len);
                    return true;
                }
                // It is unknown whether the range was copied; copying the same bytes again is safe.
                Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {}
                Err(_) => break,
            }
        }
        self.by_hand.set(true);
        false
    }

    /// Writes `spare`, without zeros if they may be skipped.
    async fn store(&self, offset: u64, spare: &mut Buf) -> Result<(), CopyFailure> {
        if self.style.sparse == ZeroPolicy::Never {
            return self.write(offset, spare).await;
        }
        let runs = zeros::runs(spare);
        if let [(_, false)] = runs[..] {
            return self.write(offset, spare).await;
        }
        for (run, zero) in runs {
            let start = offset + run.start as u64;
            if zero {
                self.clear(start, run.len() as u64).await?;
                continue;
            }
            let mut part = Buf::copy_of(&spare[run]);
            self.write(start, &mut part).await?;
        }
        Ok(())
    }

    async fn write(&self, offset: u64, spare: &mut Buf) -> Result<(), CopyFailure> {
        let (result, buf) = self.destination.write(offset, take(spare), false).await;
        *spare = buf;
        result.map_err(|e| CopyFailure::new(offset, CopyErrorCause::Write(e)))?;
        self.meter.written.add(spare.len() as u64);
        Ok(())
    }

    /// Zeroes a range.
    async fn clear(&self, offset: u64, len: u64) -> Result<(), CopyFailure> {
        if self.style.sparse == ZeroPolicy::Never {
            return self.write_zeros(offset, len).await;
        }
        if self.zeroed {
            self.meter.skipped.add(len);
            return Ok(());
        }
        let unmap = self.destination.info().unmap;
        match self.destination.write_zeroes(offset, len, unmap).await {
            Ok(()) => {
                self.meter.zeroed.add(len);
                Ok(())
            }
            Err(e) if e.kind() == io::ErrorKind::Unsupported => self.write_zeros(offset, len).await,
            Err(e) => Err(CopyFailure::new(offset, CopyErrorCause::Write(e))),
        }
    }

    async fn write_zeros(&self, offset: u64, len: u64) -> Result<(), CopyFailure> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let mut zeros = Buf::zeroed((end - at).min(self.style.block) as usize);
            self.write(at, &mut zeros).await?;
            at += zeros.len() as u64;
        }
        Ok(())
    }

    async fn compare(&self, piece: CopyPiece, spare: &mut Buf) -> Result<Vec<Range<u64>>, CopyFailure> {
        let bad = match piece.content {
            PieceContent::Zeros => {
                return self.compare_zeros(piece.range(), spare).await.map(|()| Vec::new());
            }
            PieceContent::Bytes(buf) => {
                *spare = buf;
                Vec::new()
            }
            PieceContent::Unread => self.fetch(piece.offset, piece.len, spare).await?,
        };
        let there = self.read_back(piece.offset, Buf::zeroed(spare.len())).await?;
        if spare[..] != there[..] {
            return Err(differs(piece.offset, spare, &there));
        }
        Ok(bad)
    }

    /// A hole of the source must be a hole or zeros in the destination.
    async fn compare_zeros(&self, range: Range<u64>, spare: &mut Buf) -> Result<(), CopyFailure> {
        let mut at = range.start;
        while at < range.end {
            let rest = range.end - at;
            let len = match self.destination.extent(at, rest).await {
                Ok(found) if !found.mapped && found.len > 0 => found.len.min(rest),
                Ok(found) if found.len > 0 => self.zeros_there(at, found.len.min(rest), spare).await?,
                _ => self.zeros_there(at, rest, spare).await?,
            };
            at += len;
        }
        Ok(())
    }

    /// Reads back at most one block of a range, checks that it is zeros, and returns its length.
    async fn zeros_there(&self, offset: u64, len: u64, spare: &mut Buf) -> Result<u64, CopyFailure> {
        let len = len.min(self.style.block);
        *spare = self.read_back(offset, sized(spare, len)).await?;
        match zeros::is_zero(spare) {
            true => Ok(len),
            false => Err(differs(offset, spare, &vec![0; spare.len()])),
        }
    }

    async fn read_back(&self, offset: u64, buf: Buf) -> Result<Buf, CopyFailure> {
        let (result, buf) = self.destination.read(offset, buf).await;
        result.map(|()| buf).map_err(|e| CopyFailure::new(offset, CopyErrorCause::ReadBack(e)))
    }
}

/// The first differing byte of two different slices of the same length.
fn differs(offset: u64, one: &[u8], other: &[u8]) -> CopyFailure {
    let equal = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    CopyFailure::new(offset + equal as u64, CopyErrorCause::Differs)
}

fn take(buf: &mut Buf) -> Buf {
    std::mem::replace(buf, Buf::zeroed(0))
}

/// The spare buffer, or a new one if it is too small, with `len` bytes of any content.
pub(crate) fn sized(spare: &mut Buf, len: u64) -> Buf {
    let mut buf = take(spare);
    if buf.capacity() < len as usize {
        buf = Buf::zeroed(len as usize);
    }
    buf.set_visible(len as usize);
    buf
}
