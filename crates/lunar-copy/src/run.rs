//! The plan, the workers and the ledger of one copy.

use crate::ledger::{CopyProgress, PieceResult};
use crate::plan::{CopyPiece, CopyPlan};
use crate::reader::SourceReader;
use crate::work::{CopyWork, PieceTask};
use crate::{CopyErrorCause, CopyFailure, CopyJob, CopyOutcome, CopySource, GrowFn, StopFlag};
use compio::runtime::spawn;
use lunar_block::Backend;
use lunar_runtime::Buf;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest time between two checkpoints, while anything moves.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// Is told up to where all is stable, and what could not be read.
type CheckpointFn<'a> = &'a mut dyn FnMut(u64, &[Range<u64>]) -> io::Result<()>;

/// The checkpoints of one copy.
struct Checkpoints<'a> {
    every: Option<u64>,
    tell: CheckpointFn<'a>,
    told: u64,
    when: Instant,
    /// A flush has failed. Many tell that once, and know nothing of what is lost at the next.
    lost: bool,
}

/// Copies, and makes it stable. Every `every` bytes or few seconds, if at all, and when it ends early,
/// `checkpoint` is called with what is on stable storage: all bytes before an offset, except for ranges that
/// could not be read.
pub async fn copy(
    job: CopyJob,
    every: Option<u64>,
    mut checkpoint: impl FnMut(u64, &[Range<u64>]) -> io::Result<()>,
) -> CopyOutcome {
    let mut marks = Checkpoints {
        every,
        tell: &mut checkpoint,
        told: job.range.start,
        when: Instant::now(),
        lost: false,
    };
    let destination = job.destination.clone();
    let (mut ledger, complete) = run(job, Vec::new(), PieceTask::Copy, Some(&mut marks)).await;
    let flushed = destination.flush().await;
    let is_stable = flushed.is_ok() && !marks.lost;
    if let Err(e) = flushed {
        ledger.fail(CopyFailure::new(marks.told, CopyErrorCause::Flush(e)));
    }
    let stable = if is_stable { ledger.prefix() } else { marks.told };
    let bad = ledger.bad_before(if complete { u64::MAX } else { stable });
    let kept = if complete { Ok(()) } else { (marks.tell)(stable, &bad) };
    let failure = ledger.take_failure();
    // What ended it is to be told, not that nobody could write it down.
    let failure = failure.or_else(|| Some(CopyFailure::new(stable, CopyErrorCause::Checkpoint(kept.err()?))));
    CopyOutcome { stable, bad, complete: complete && failure.is_none(), failure }
}

/// Compares source and destination, except for the ranges in `leave`, which are in order. The failure of the
/// outcome tells the first byte that differs.
pub async fn verify(job: CopyJob, leave: &[Range<u64>]) -> CopyOutcome {
    let (mut ledger, complete) = run(job, leave.to_vec(), PieceTask::Compare, None).await;
    let failure = ledger.take_failure();
    let complete = complete && failure.is_none();
    CopyOutcome { stable: ledger.prefix(), bad: ledger.bad_before(u64::MAX), failure, complete }
}

/// Runs to the end, a failure or a stop; whether it was the end.
async fn run(
    job: CopyJob,
    leave: Vec<Range<u64>>,
    task: PieceTask,
    marks: Option<&mut Checkpoints<'_>>,
) -> (CopyProgress, bool) {
    let mut ledger = CopyProgress::new(job.range.start);
    let (stop, depth, destination) = (job.stop.clone(), job.style.depth, job.destination.clone());
    let nearer = job.offload.as_ref().filter(|_| task == PieceTask::Copy);
    let block = nearer.map_or(job.style.block, |offload| offload.piece());
    let plan = CopyPlan::new(job.source.clone(), without(&job.range, &leave), block);
    for range in leave {
        ledger.enter(PieceResult { range, bad: Vec::new(), failure: None });
    }
    let room = DestinationRoom { end: job.range.end, grow: job.grow };
    let work = CopyWork {
        reader: match job.source {
            CopySource::Disk(disk) => {
                Some(SourceReader { disk, skip_errors: job.style.skip_errors, meter: job.meter.clone() })
            }
            CopySource::Stream(_) => None,
        },
        destination: job.destination,
        style: job.style,
        zeroed: job.zeroed,
        offload: job.offload,
        by_hand: Cell::new(false),
        task,
        meter: job.meter,
    };
    let (pieces, inbox) = flume::bounded(1);
    let (ends, outbox) = flume::unbounded();
    let workers = crew(depth, Rc::new(work), &stop, &inbox, &ends);
    drop((inbox, ends));
    let planner = spawn(planner(plan, room, stop.clone(), pieces));
    settle(&outbox, &stop, &mut ledger, marks, &*destination).await;
    for worker in workers {
        worker.await.expect("workers end by themselves");
    }
    let end = planner.await.expect("the plan ends by itself").unwrap_or_else(|failure| {
        ledger.fail(failure);
        None
    });
    // A stop may have come after the last piece was planned, and before it was begun.
    let complete = end.is_some_and(|end| ledger.prefix() == end);
    (ledger, complete)
}

/// Enters what ends, until the last worker has gone. What is done is written down now and then, and at once when
/// it is to stop: what is in flight then may take longer than anybody waits.
async fn settle(
    outbox: &flume::Receiver<PieceResult>,
    stop: &StopFlag,
    ledger: &mut CopyProgress,
    mut marks: Option<&mut Checkpoints<'_>>,
    destination: &dyn Backend,
) {
    let mut is_ending = false;
    loop {
        let next = match is_ending {
            true => Some(outbox.recv_async().await),
            false => stop.or(outbox.recv_async()).await,
        };
        let was_told = next.is_none();
        match next {
            Some(Ok(done)) => is_ending |= !ledger.enter(done),
            Some(Err(_)) => return,
            None => is_ending = true,
        }
        let prefix = ledger.prefix();
        if let Some(marks) = marks.as_deref_mut().filter(|m| m.due(prefix) || was_told && prefix > m.told)
            && let Err(failure) = marks.mark(ledger, destination).await
        {
            ledger.fail(failure);
            is_ending = true;
        }
        if is_ending {
            stop.stop();
        }
    }
}

type CopyWorker = compio::runtime::JoinHandle<()>;

fn crew(
    depth: usize,
    work: Rc<CopyWork>,
    stop: &Arc<StopFlag>,
    inbox: &flume::Receiver<CopyPiece>,
    ends: &flume::Sender<PieceResult>,
) -> Vec<CopyWorker> {
    let worker = |_| spawn(worker(work.clone(), stop.clone(), inbox.clone(), ends.clone()));
    (0..depth).map(worker).collect()
}

async fn worker(
    work: Rc<CopyWork>,
    stop: Arc<StopFlag>,
    pieces: flume::Receiver<CopyPiece>,
    ends: flume::Sender<PieceResult>,
) {
    let mut spare = Buf::zeroed(0);
    while let Ok(piece) = pieces.recv_async().await {
        // What was planned and not begun lies behind everything that was.
        if stop.is_set() {
            return;
        }
        if ends.send(work.perform(piece, &mut spare).await).is_err() {
            return;
        }
    }
}

/// Where the destination ends.
struct DestinationRoom {
    end: u64,
    grow: Option<GrowFn>,
}

impl DestinationRoom {
    fn make(&self, piece: &CopyPiece) -> Result<(), CopyFailure> {
        let end = piece.range().end;
        match &self.grow {
            Some(grow) => grow(end).map_err(|e| CopyFailure::new(piece.offset, CopyErrorCause::Write(e))),
            None if end > self.end => Err(CopyFailure::new(piece.offset, CopyErrorCause::NoRoom)),
            None => Ok(()),
        }
    }
}

/// Hands out pieces until the last, or a stop; the end of the source if it was found.
async fn planner(
    mut plan: CopyPlan,
    room: DestinationRoom,
    stop: Arc<StopFlag>,
    pieces: flume::Sender<CopyPiece>,
) -> Result<Option<u64>, CopyFailure> {
    loop {
        let Some(next) = stop.or(plan.next()).await else { return Ok(None) };
        let Some(piece) = next? else { return Ok(Some(plan.end())) };
        room.make(&piece)?;
        if pieces.send_async(piece).await.is_err() {
            return Ok(None);
        }
    }
}

impl Checkpoints<'_> {
    fn due(&self, prefix: u64) -> bool {
        let new = prefix - self.told;
        let Some(every) = self.every else { return false };
        new > 0 && (new >= every || self.when.elapsed() >= CHECKPOINT_EVERY)
    }

    async fn mark(&mut self, ledger: &CopyProgress, destination: &dyn Backend) -> Result<(), CopyFailure> {
        let prefix = ledger.prefix();
        if let Err(e) = destination.flush().await {
            self.lost = true;
            return Err(CopyFailure::new(self.told, CopyErrorCause::Flush(e)));
        }
        (self.tell)(prefix, &ledger.bad_before(prefix))
            .map_err(|e| CopyFailure::new(prefix, CopyErrorCause::Checkpoint(e)))?;
        (self.told, self.when) = (prefix, Instant::now());
        Ok(())
    }
}

/// What remains of a range without others, which are in order.
fn without(range: &Range<u64>, leave: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut start = range.start;
    let mut kept = Vec::new();
    for gap in leave {
        kept.push(start..gap.start.clamp(start, range.end));
        start = gap.end.clamp(start, range.end);
    }
    kept.push(start..range.end);
    kept
}
