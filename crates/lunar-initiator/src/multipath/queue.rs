//! Many concurrent reads and writes over several paths. An operation needs a future of its own only if no path is
//! usable or its path fails.

use super::path_counters::OpKind;
use super::{LunPath, Multipath, PathState, PathTotal, path};
use crate::slow_path::SlowPath;
use lunar_block::{BackendQueue, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use lunar_runtime::latency::LatencyTotal;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A read or a write, on any path.
#[derive(Clone, Copy, Debug)]
pub enum BlockIo {
    Read { offset: u64 },
    Write { offset: u64, fua: bool },
}

impl BlockIo {
    pub fn on(self, path: &dyn LunPath, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        match self {
            BlockIo::Read { offset } => path.read(offset, buf),
            BlockIo::Write { offset, fua } => path.write(offset, buf, fua),
        }
    }

    /// Its kind, with `len` bytes.
    pub fn kind(self, len: usize) -> OpKind {
        match self {
            BlockIo::Read { .. } => OpKind::Read(len),
            BlockIo::Write { .. } => OpKind::Write(len),
        }
    }

    fn begin(self, queue: &mut dyn BackendQueue, lane: usize, buf: Buf) {
        match self {
            BlockIo::Read { offset } => queue.read(lane, offset, buf),
            BlockIo::Write { offset, fua } => queue.write(lane, offset, buf, fua),
        }
    }
}

/// The queued reads and writes of one owner.
pub struct PathQueue {
    joined: Arc<Multipath>,
    /// The queue of each path, opened at the first use.
    queues: Vec<Option<Box<dyn BackendQueue>>>,
    /// The operations on paths, by lane.
    sent: Vec<Option<SentIo>>,
    slow: SlowPath,
    clock: Clock,
    /// The service times of completed operations that are not reported yet.
    served: LatencyTotal,
    /// The operations of each path that are not reported yet.
    ended: Vec<PathTotal>,
}

struct SentIo {
    job: BlockIo,
    /// The path.
    at: usize,
    started_at: Instant,
}

/// The kind of work between two waits.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Beginning,
    Ending,
}

/// A clock for the work between two waits. It is read once when operations start and once when they complete.
struct Clock(Option<(Phase, Instant)>);

impl Clock {
    fn now(&mut self, phase: Phase) -> Instant {
        if let Some((_, now)) = self.0.filter(|(asked, _)| *asked == phase) {
            return now;
        }
        let now = Instant::now();
        self.0 = Some((phase, now));
        now
    }
}

impl PathQueue {
    pub fn new(joined: Arc<Multipath>) -> PathQueue {
        let queues = joined.lun_paths.iter().map(|_| None).collect();
        let ended = vec![PathTotal::default(); joined.lun_paths.len()];
        PathQueue {
            joined,
            queues,
            sent: Vec::new(),
            slow: SlowPath::default(),
            clock: Clock(None),
            served: LatencyTotal::default(),
            ended,
        }
    }

    fn begin(&mut self, lane: usize, job: BlockIo, buf: Buf) {
        let Some(at) = self.joined.paths.take() else { return self.search(lane, job, buf) };
        if self.queues[at].is_none() {
            self.queues[at] = self.joined.lun_paths[at].clone().queue();
        }
        let Some(queue) = &mut self.queues[at] else {
            self.joined.paths.give_back(at);
            return self.search(lane, job, buf);
        };
        job.begin(&mut **queue, lane, buf);
        if lane >= self.sent.len() {
            self.sent.resize_with(lane + 1, || None);
        }
        self.sent[lane] = Some(SentIo { job, at, started_at: self.clock.now(Phase::Beginning) });
    }

    /// Runs an operation with a future, which waits for a path.
    fn search(&mut self, lane: usize, job: BlockIo, buf: Buf) {
        let joined = self.joined.clone();
        self.slow.begin(lane, async move { joined.run_io(job, buf).await });
    }

    /// Retries an operation on another path after its path has failed.
    fn leave(&mut self, lane: usize, sent: SentIo, state: PathState, e: io::Error, buf: Buf) {
        let joined = self.joined.clone();
        self.slow.begin(lane, async move {
            let SentIo { job, at, started_at } = sent;
            match joined.leave(at, state, e, started_at).await {
                Err(e) => (Err(e), buf),
                Ok(()) => joined.run_io_since(started_at, job, buf).await,
            }
        });
    }

    /// Reports completed operations. None of them waited for a path.
    fn report(&mut self) {
        for (ended, counters) in self.ended.iter_mut().zip(&self.joined.counters) {
            if *ended != PathTotal::default() {
                counters.add_all(std::mem::take(ended));
            }
        }
        let served = std::mem::take(&mut self.served);
        if served.count > 0 {
            self.joined.queued.add_all(LatencyTotal { count: served.count, ..LatencyTotal::default() });
            self.joined.served.add_all(served);
        }
    }

    /// The result of an operation on a path. None if the operation is retried.
    fn end(&mut self, lane: usize, (result, buf): BufResult) -> Option<BufResult> {
        let sent = self.sent[lane].take().expect("a completed lane has an operation");
        self.joined.paths.give_back(sent.at);
        let fault = result.as_ref().err().and_then(path::fault);
        let time = self.clock.now(Phase::Ending) - sent.started_at;
        let ended = &mut self.ended[sent.at];
        match result.is_ok() {
            true => ended.add(sent.job.kind(buf.len()), time),
            false => ended.errors += 1,
        }
        match (result, fault) {
            (Err(e), Some(state)) => {
                self.leave(lane, sent, state, e, buf);
                None
            }
            (result, _) => {
                self.served.add(time);
                Some((result, buf))
            }
        }
    }
}

impl BackendQueue for PathQueue {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        self.begin(lane, BlockIo::Read { offset }, buf);
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        self.begin(lane, BlockIo::Write { offset, fua }, buf);
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        for at in 0..self.queues.len() {
            while let Some(queue) = &mut self.queues[at]
                && let Poll::Ready((lane, finished)) = queue.poll_ended(cx)
            {
                if let Some(finished) = self.end(lane, finished) {
                    return Poll::Ready((lane, finished));
                }
            }
        }
        self.clock = Clock(None);
        self.report();
        self.slow.poll(cx)
    }
}

impl Drop for PathQueue {
    fn drop(&mut self) {
        self.report();
        self.sent.iter().flatten().for_each(|sent| self.joined.paths.give_back(sent.at));
    }
}
