//! Splits the source into pieces.

use crate::{CopyErrorCause, CopyFailure, CopySource};
use lunar_block::Backend;
use lunar_block::offload::GRANULE;
use lunar_runtime::Buf;
use std::collections::VecDeque;
use std::ops::Range;

/// The longest piece of zeros. A longer one would delay progress reports and stops, which happen between pieces.
const LONGEST_ZEROS: u64 = 64 << 20;

/// A range of the source and its content.
pub(crate) struct CopyPiece {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) content: PieceContent,
}

pub(crate) enum PieceContent {
    /// Data to read.
    Unread,
    /// Zeros.
    Zeros,
    /// Data that was read already.
    Bytes(Buf),
}

impl CopyPiece {
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.len
    }
}

/// The pieces of a source, in order.
pub(crate) struct CopyPlan {
    source: CopySource,
    ranges: VecDeque<Range<u64>>,
    /// The end of the extent that the next piece belongs to, and whether storage is allocated for it.
    extent: (u64, bool),
    block: u64,
    /// The end of all ranges; of a stream, that of the last piece so far.
    end: u64,
}

impl CopyPlan {
    /// The pieces within `ranges`, which are in order, of at most `block` bytes.
    pub(crate) fn new(source: CopySource, ranges: Vec<Range<u64>>, block: u64) -> CopyPlan {
        let end = match source {
            CopySource::Disk(_) => ranges.last().map_or(0, |range| range.end),
            CopySource::Stream(_) => ranges.first().map_or(0, |range| range.start),
        };
        CopyPlan { source, ranges: ranges.into(), extent: (0, true), block, end }
    }

    /// The end of the source, as far as known; final after the last piece.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    /// The next piece; None after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<CopyPiece>, CopyFailure> {
        while self.ranges.front().is_some_and(Range::is_empty) {
            self.ranges.pop_front();
        }
        let piece = match self.source.clone() {
            CopySource::Disk(disk) => self.stretch(&*disk).await,
            CopySource::Stream(stream) => match stream.recv_async().await {
                Err(flume::RecvError::Disconnected) => None,
                Ok(Err(e)) => return Err(CopyFailure::new(self.end, CopyErrorCause::Read(e))),
                Ok(Ok(buf)) => {
                    let (offset, len) = (self.end, buf.len() as u64);
                    Some(CopyPiece { offset, len, content: PieceContent::Bytes(buf) })
                }
            },
        };
        if let Some(piece) = &piece {
            self.end = self.end.max(piece.range().end);
        }
        Ok(piece)
    }

    async fn stretch(&mut self, disk: &dyn Backend) -> Option<CopyPiece> {
        let range = self.ranges.front()?.clone();
        let offset = range.start;
        if self.extent.0 <= offset {
            self.extent = extent(disk, range.clone()).await;
        }
        let (end, mapped) = self.extent;
        let max = if mapped { self.block - offset % self.block } else { LONGEST_ZEROS };
        let len = max.min(end.min(range.end) - offset);
        self.ranges.front_mut()?.start += len;
        Some(CopyPiece {
            offset,
            len,
            content: if mapped { PieceContent::Unread } else { PieceContent::Zeros },
        })
    }
}

/// The end of the extent at the start of `range`, and whether it is allocated, rounded to granules. Allocated extents
/// are rounded up, because data may end in zeros. Holes are rounded down.
async fn extent(disk: &dyn Backend, range: Range<u64>) -> (u64, bool) {
    let asked = range.end - range.start;
    // If the medium does not report extents, everything is read.
    let (len, mapped) = match disk.extent(range.start, asked).await {
        Ok(found) if found.len > 0 => (found.len.min(asked), found.mapped),
        _ => (GRANULE.min(asked), true),
    };
    let end = range.start + len;
    let zeros = if end == range.end { end } else { end - end % GRANULE };
    match !mapped && zeros > range.start {
        true => (zeros, false),
        false => (end.next_multiple_of(GRANULE).min(range.end), true),
    }
}
