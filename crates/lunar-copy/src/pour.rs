//! Copying to a stream: in order, with reads ahead of it.

use crate::ledger::{CopyProgress, PieceResult};
use crate::plan::{CopyPiece, CopyPlan, PieceContent};
use crate::reader::SourceReader;
use crate::work::sized;
use crate::{CopyFailure, CopyMeter, CopyOutcome, CopySource, CopyStyle, StopFlag};
use compio::runtime::{JoinHandle, spawn};
use lunar_runtime::Buf;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A read that is ahead, and what it reads.
type ReadAhead = (Range<u64>, JoinHandle<(Result<Vec<Range<u64>>, CopyFailure>, Buf)>);

/// Sends the bytes of `range` of the source to `out`, in order. `stable` of the outcome is what was sent; the
/// receiver has to make it stable. It ends early when the receiver has gone.
pub async fn pour(
    source: CopySource,
    range: Range<u64>,
    style: CopyStyle,
    out: flume::Sender<Buf>,
    meter: Arc<CopyMeter>,
    stop: Arc<StopFlag>,
) -> CopyOutcome {
    let mut pour = StreamCopy {
        plan: CopyPlan::new(source.clone(), vec![range.clone()], style.block),
        reader: match source {
            CopySource::Disk(disk) => {
                Some(SourceReader { disk, skip_errors: style.skip_errors, meter: meter.clone() })
            }
            CopySource::Stream(_) => None,
        },
        ahead: VecDeque::new(),
        style,
        meter,
        ledger: CopyProgress::new(range.start),
    };
    let ended = stop.or(pour.run(&out)).await.unwrap_or(Ok(false));
    let ledger = &mut pour.ledger;
    let complete = ended.unwrap_or_else(|failure| {
        ledger.fail(failure);
        false
    });
    let failure = ledger.take_failure();
    CopyOutcome {
        stable: ledger.prefix(),
        bad: ledger.bad_before(u64::MAX),
        complete: complete && failure.is_none(),
        failure,
    }
}

struct StreamCopy {
    plan: CopyPlan,
    reader: Option<SourceReader>,
    ahead: VecDeque<ReadAhead>,
    style: CopyStyle,
    meter: Arc<CopyMeter>,
    ledger: CopyProgress,
}

impl StreamCopy {
    /// Whether it came to the end of the source.
    async fn run(&mut self, out: &flume::Sender<Buf>) -> Result<bool, CopyFailure> {
        let mut more = true;
        loop {
            while more && self.ahead.len() < self.style.depth {
                match self.plan.next().await? {
                    Some(piece) => self.begin(piece),
                    None => more = false,
                }
            }
            let Some((range, read)) = self.ahead.pop_front() else { return Ok(true) };
            let (result, buf) = read.await.expect("reads end by themselves");
            let bad = result?;
            let sent = buf.len() as u64;
            if !self.send(buf, range.end - range.start - sent, out).await {
                return Ok(false);
            }
            self.meter.done.add(range.end - range.start);
            if !self.ledger.enter(PieceResult { range, bad, failure: None }) {
                return Ok(false);
            }
        }
    }

    /// Sends bytes and the zeros after them; false if nobody takes them.
    async fn send(&self, buf: Buf, mut zeros: u64, out: &flume::Sender<Buf>) -> bool {
        self.meter.written.add(buf.len() as u64 + zeros);
        if !buf.is_empty() && out.send_async(buf).await.is_err() {
            return false;
        }
        while zeros > 0 {
            let len = zeros.min(self.style.block);
            if out.send_async(Buf::zeroed(len as usize)).await.is_err() {
                return false;
            }
            zeros -= len;
        }
        true
    }

    /// Begins to read a piece. Zeros are no bytes, and are made when their turn comes.
    fn begin(&mut self, piece: CopyPiece) {
        let (range, reader, meter) = (piece.range(), self.reader.clone(), self.meter.clone());
        let read = async move {
            match (piece.content, reader) {
                (PieceContent::Unread, Some(reader)) => {
                    reader.read(piece.offset, sized(&mut Buf::zeroed(0), piece.len)).await
                }
                (PieceContent::Bytes(buf), _) => {
                    meter.read.add(piece.len);
                    (Ok(Vec::new()), buf)
                }
                (PieceContent::Zeros | PieceContent::Unread, _) => (Ok(Vec::new()), Buf::zeroed(0)),
            }
        };
        self.ahead.push_back((range, spawn(read)));
    }
}
