//! The plan, the workers and the progress of one copy.

use crate::plan::{CopyPiece, CopyPlan};
use crate::progress::{CopyProgress, PieceResult};
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

/// The longest time between two checkpoints while data is copied.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);

/// The checkpoint callback: the stable offset and the unreadable ranges before it.
type CheckpointFn<'a> = &'a mut dyn FnMut(u64, &[Range<u64>]) -> io::Result<()>;

/// The checkpoints of one copy.
struct Checkpoints<'a> {
    every: Option<u64>,
    save: CheckpointFn<'a>,
    saved: u64,
    when: Instant,
    /// Whether a flush has failed. Many backends report a loss only once, so a later success proves nothing.
    lost: bool,
}

/// Copies and flushes. Calls `checkpoint` every `every` bytes or few seconds, if `every` is set, and when the copy
/// ends early. Its arguments are the offset before which everything is on stable storage, and the unreadable ranges.
pub async fn copy(
    job: CopyJob,
    every: Option<u64>,
    mut checkpoint: impl FnMut(u64, &[Range<u64>]) -> io::Result<()>,
) -> CopyOutcome {
    let mut marks = Checkpoints {
        every,
        save: &mut checkpoint,
        saved: job.range.start,
        when: Instant::now(),
        lost: false,
    };
    let destination = job.destination.clone();
    let (mut progress, complete) = run(job, Vec::new(), PieceTask::Copy, Some(&mut marks)).await;
    let flushed = destination.flush().await;
    let is_stable = flushed.is_ok() && !marks.lost;
    if let Err(e) = flushed {
        progress.fail(CopyFailure::new(marks.saved, CopyErrorCause::Flush(e)));
    }
    let stable = if is_stable { progress.prefix() } else { marks.saved };
    let bad = progress.bad_before(if complete { u64::MAX } else { stable });
    let kept = if complete { Ok(()) } else { (marks.save)(stable, &bad) };
    let failure = progress.take_failure();
    // The failure that ended the copy takes precedence over that of the checkpoint.
    let failure = failure.or_else(|| Some(CopyFailure::new(stable, CopyErrorCause::Checkpoint(kept.err()?))));
    CopyOutcome { stable, bad, complete: complete && failure.is_none(), failure }
}

/// Compares source and destination, except for the ordered ranges in `leave`. The failure of the outcome has the
/// first byte that differs.
pub async fn verify(job: CopyJob, leave: &[Range<u64>]) -> CopyOutcome {
    let (mut progress, complete) = run(job, leave.to_vec(), PieceTask::Compare, None).await;
    let failure = progress.take_failure();
    let complete = complete && failure.is_none();
    CopyOutcome { stable: progress.prefix(), bad: progress.bad_before(u64::MAX), failure, complete }
}

/// Runs until the end, a failure or a stop. Returns true at the end.
async fn run(
    job: CopyJob,
    leave: Vec<Range<u64>>,
    task: PieceTask,
    marks: Option<&mut Checkpoints<'_>>,
) -> (CopyProgress, bool) {
    let mut progress = CopyProgress::new(job.range.start);
    let (stop, depth, destination) = (job.stop.clone(), job.style.depth, job.destination.clone());
    let nearer = job.offload.as_ref().filter(|_| task == PieceTask::Copy);
    let block = nearer.map_or(job.style.block, |offload| offload.piece());
    let plan = CopyPlan::new(job.source.clone(), without(&job.range, &leave), block);
    for range in leave {
        progress.enter(PieceResult { range, bad: Vec::new(), failure: None });
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
    settle(&outbox, &stop, &mut progress, marks, &*destination).await;
    for worker in workers {
        worker.await.expect("no worker is cancelled");
    }
    let end = planner.await.expect("the planner is not cancelled").unwrap_or_else(|failure| {
        progress.fail(failure);
        None
    });
    // A stop may have come between planning and starting the last piece.
    let complete = end.is_some_and(|end| progress.prefix() == end);
    (progress, complete)
}

/// Records results until the last worker ends. Checkpoints are periodic, and immediate at a stop, because requests in
/// flight may take long.
async fn settle(
    outbox: &flume::Receiver<PieceResult>,
    stop: &StopFlag,
    progress: &mut CopyProgress,
    mut marks: Option<&mut Checkpoints<'_>>,
    destination: &dyn Backend,
) {
    let mut is_ending = false;
    loop {
        let next = match is_ending {
            true => Some(outbox.recv_async().await),
            false => stop.or(outbox.recv_async()).await,
        };
        let was_stopped = next.is_none();
        match next {
            Some(Ok(done)) => is_ending |= !progress.enter(done),
            Some(Err(_)) => return,
            None => is_ending = true,
        }
        let prefix = progress.prefix();
        if let Some(marks) = marks.as_deref_mut().filter(|m| m.due(prefix) || was_stopped && prefix > m.saved)
            && let Err(failure) = marks.mark(progress, destination).await
        {
            progress.fail(failure);
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
        // Unstarted pieces are behind all started ones.
        if stop.is_set() {
            return;
        }
        if ends.send(work.perform(piece, &mut spare).await).is_err() {
            return;
        }
    }
}

/// The end of the destination.
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

/// Distributes pieces until the last one or a stop; returns the end of the source if known.
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
        let new = prefix - self.saved;
        let Some(every) = self.every else { return false };
        new > 0 && (new >= every || self.when.elapsed() >= CHECKPOINT_EVERY)
    }

    async fn mark(&mut self, progress: &CopyProgress, destination: &dyn Backend) -> Result<(), CopyFailure> {
        let prefix = progress.prefix();
        if let Err(e) = destination.flush().await {
            self.lost = true;
            return Err(CopyFailure::new(self.saved, CopyErrorCause::Flush(e)));
        }
        (self.save)(prefix, &progress.bad_before(prefix))
            .map_err(|e| CopyFailure::new(prefix, CopyErrorCause::Checkpoint(e)))?;
        (self.saved, self.when) = (prefix, Instant::now());
        Ok(())
    }
}

/// A range without other, ordered ranges.
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
