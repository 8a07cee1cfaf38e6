//! Many concurrent reads and writes over several paths. An operation needs no future of its own, unless there is no
//! path for it or its path fails.

use super::{LunPath, Multipath, State, path};
use crate::slow_path::SlowPath;
use lunar_block::{BackendQueue, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use lunar_runtime::latency::LatencyTotal;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A read or a write, on whichever path.
#[derive(Clone, Copy)]
pub enum BlockIo {
    Read { offset: u64 },
    Write { offset: u64, fua: bool },
}

impl BlockIo {
    pub fn on(self, way: &dyn LunPath, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        match self {
            BlockIo::Read { offset } => way.read(offset, buf),
            BlockIo::Write { offset, fua } => way.write(offset, buf, fua),
        }
    }

    fn begin(self, queue: &mut dyn BackendQueue, lane: usize, buf: Buf) {
        match self {
            BlockIo::Read { offset } => queue.read(lane, offset, buf),
            BlockIo::Write { offset, fua } => queue.write(lane, offset, buf, fua),
        }
    }
}

/// The reads and writes of one owner.
pub struct PathQueue {
    joined: Arc<Multipath>,
    /// The queue of each path, from its first use on.
    ways: Vec<Option<Box<dyn BackendQueue>>>,
    /// The operations on paths, by lane.
    sent: Vec<Option<SentIo>>,
    slow: SlowPath,
    clock: Clock,
    /// The service times of ended operations, until they are reported.
    served: LatencyTotal,
}

struct SentIo {
    job: BlockIo,
    /// The path.
    at: usize,
    since: Instant,
}

/// The phase between two waits.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Beginning,
    Ending,
}

/// A clock that is read once for all operations that begin, and once for all that end, between two waits.
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
        let ways = joined.ways.iter().map(|_| None).collect();
        PathQueue {
            joined,
            ways,
            sent: Vec::new(),
            slow: SlowPath::default(),
            clock: Clock(None),
            served: LatencyTotal::default(),
        }
    }

    fn begin(&mut self, lane: usize, job: BlockIo, buf: Buf) {
        let Some(at) = self.joined.paths.take() else { return self.search(lane, job, buf) };
        if self.ways[at].is_none() {
            self.ways[at] = self.joined.ways[at].clone().queue();
        }
        let Some(queue) = &mut self.ways[at] else {
            self.joined.paths.give_back(at);
            return self.search(lane, job, buf);
        };
        job.begin(&mut **queue, lane, buf);
        if lane >= self.sent.len() {
            self.sent.resize_with(lane + 1, || None);
        }
        self.sent[lane] = Some(SentIo { job, at, since: self.clock.now(Phase::Beginning) });
    }

    /// Waits for a path.
    fn search(&mut self, lane: usize, job: BlockIo, buf: Buf) {
        let joined = self.joined.clone();
        self.slow.begin(lane, async move { joined.run(buf, move |way, buf| job.on(way, buf)).await });
    }

    /// Retries an operation on another path after its path has failed.
    fn leave(&mut self, lane: usize, sent: SentIo, state: State, e: io::Error, buf: Buf) {
        let joined = self.joined.clone();
        self.slow.begin(lane, async move {
            let SentIo { job, at, since } = sent;
            match joined.leave(at, state, e, since).await {
                Err(e) => (Err(e), buf),
                Ok(()) => joined.run_since(since, buf, move |way, buf| job.on(way, buf)).await,
            }
        });
    }

    /// Reports the times of ended operations. None of them has waited for a path.
    fn report_times(&mut self) {
        let served = std::mem::take(&mut self.served);
        if served.count > 0 {
            self.joined.queued.add_all(LatencyTotal { count: served.count, ..LatencyTotal::default() });
            self.joined.served.add_all(served);
        }
    }

    /// The result of an operation on a path. None if it is retried.
    fn end(&mut self, lane: usize, (result, buf): BufResult) -> Option<BufResult> {
        let sent = self.sent[lane].take().expect("what has ended was sent");
        self.joined.paths.give_back(sent.at);
        let fault = result.as_ref().err().and_then(path::fault);
        match (result, fault) {
            (Err(e), Some(state)) => {
                self.leave(lane, sent, state, e, buf);
                None
            }
            (result, _) => {
                self.served.add(self.clock.now(Phase::Ending) - sent.since);
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
        for at in 0..self.ways.len() {
            while let Some(queue) = &mut self.ways[at]
                && let Poll::Ready((lane, finished)) = queue.poll_ended(cx)
            {
                if let Some(finished) = self.end(lane, finished) {
                    return Poll::Ready((lane, finished));
                }
            }
        }
        self.clock = Clock(None);
        self.report_times();
        self.slow.poll(cx)
    }
}

impl Drop for PathQueue {
    fn drop(&mut self) {
        self.report_times();
        self.sent.iter().flatten().for_each(|sent| self.joined.paths.give_back(sent.at));
    }
}
