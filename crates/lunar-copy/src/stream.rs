//! Copying to a stream: in order, with reads ahead of it.

use crate::plan::{CopyPiece, CopyPlan, PieceContent};
use crate::progress::{CopyProgress, PieceResult};
use crate::reader::SourceReader;
use crate::work::sized;
use crate::{CopyFailure, CopyMeter, CopyOutcome, CopySource, CopyStyle, StopFlag};
use compio::runtime::{JoinHandle, spawn};
use lunar_runtime::Buf;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A read-ahead in progress and its range.
type ReadAhead = (Range<u64>, JoinHandle<(Result<Vec<Range<u64>>, CopyFailure>, Buf)>);

/// Sends the bytes of `range` of the source to `out`, in order. `stable` of the outcome is the sent offset;
/// durability is up to the receiver. Ends early when the receiver is gone.
pub async fn stream(
    source: CopySource,
    range: Range<u64>,
    style: CopyStyle,
    out: flume::Sender<Buf>,
    meter: Arc<CopyMeter>,
    stop: Arc<StopFlag>,
) -> CopyOutcome {
    let mut stream = StreamCopy {
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
        progress: CopyProgress::new(range.start),
    };
    let ended = stop.or(stream.run(&out)).await.unwrap_or(Ok(false));
    let progress = &mut stream.progress;
    let complete = ended.unwrap_or_else(|failure| {
        progress.fail(failure);
        false
    });
    let failure = progress.take_failure();
    CopyOutcome {
        stable: progress.prefix(),
        bad: progress.bad_before(u64::MAX),
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
    progress: CopyProgress,
}

impl StreamCopy {
    /// Sends everything; true at the end of the source.
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
            let (result, buf) = read.await.expect("no read is cancelled");
            let bad = result?;
            let sent = buf.len() as u64;
            if !self.send(buf, range.end - range.start - sent, out).await {
                return Ok(false);
            }
            self.meter.done.add(range.end - range.start);
            if !self.progress.enter(PieceResult { range, bad, failure: None }) {
                return Ok(false);
            }
        }
    }

    /// Sends bytes and the zeros after them; false if the receiver is gone.
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

    /// Starts to read a piece. Zeros are not read; they are generated when they are sent.
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
