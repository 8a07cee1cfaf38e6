//! The workers of a session in one task, where its disk takes the commands of all of them in one queue: to wake a task for
//! each would cost more than the command itself.

use lunar_block::{BackendQueue, BufResult};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A worker, until it is done.
type Worker = Option<Pin<Box<dyn Future<Output = ()>>>>;

/// The commands of the workers, one at a time for each: its lane.
pub struct Lanes {
    queue: RefCell<Box<dyn BackendQueue>>,
    lanes: Vec<Lane>,
    /// How often the clock was asked.
    asked: Cell<u64>,
}

struct Lane {
    /// Its worker waits for a command, and for nothing else.
    is_flying: Cell<bool>,
    /// How often the clock had been asked when its command began.
    begun: Cell<u64>,
    ended: Cell<Option<(BufResult, Instant)>>,
}

impl Lanes {
    /// Lanes for so many workers.
    pub fn new(queue: Box<dyn BackendQueue>, workers: usize) -> Lanes {
        let lane = || Lane { is_flying: Cell::new(false), begun: Cell::new(0), ended: Cell::new(None) };
        let lanes = (0..workers).map(|_| lane()).collect();
        Lanes { queue: RefCell::new(queue), lanes, asked: Cell::new(0) }
    }

    /// Begins a command and waits for its end, and when that came.
    pub async fn transfer(
        &self,
        lane: usize,
        begin: impl FnOnce(&mut dyn BackendQueue),
    ) -> (BufResult, Instant) {
        begin(&mut **self.queue.borrow_mut());
        let lane = &self.lanes[lane];
        lane.is_flying.set(true);
        lane.begun.set(self.asked.get());
        poll_fn(|_| lane.ended.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Runs the workers, one for each lane, to their ends.
    pub async fn run(&self, mut workers: Vec<Worker>) {
        poll_fn(|cx| self.poll(&mut workers, cx)).await;
    }

    fn poll(&self, workers: &mut [Worker], cx: &mut Context<'_>) -> Poll<()> {
        // Who waits for something else may have been woken.
        for (lane, worker) in self.lanes.iter().zip(&mut *workers) {
            if !lane.is_flying.get() {
                go_on(worker, cx);
            }
        }
        let mut now = None;
        while let Poll::Ready((at, ended)) = self.next(cx) {
            let lane = &self.lanes[at];
            lane.is_flying.set(false);
            // What came together has one time; what began after that was asked has another.
            let is_old = lane.begun.get() < self.asked.get();
            let came = now.filter(|_| is_old).unwrap_or_else(|| self.ask());
            now = Some(came);
            lane.ended.set(Some((ended, came)));
            go_on(&mut workers[at], cx);
        }
        if workers.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn ask(&self) -> Instant {
        self.asked.set(self.asked.get() + 1);
        Instant::now()
    }

    fn next(&self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        self.queue.borrow_mut().poll_ended(cx)
    }
}

fn go_on(worker: &mut Worker, cx: &mut Context<'_>) {
    if worker.as_mut().is_some_and(|worker| worker.as_mut().poll(cx).is_ready()) {
        *worker = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compio::runtime::Runtime;
    use lunar_runtime::Buf;
    use std::rc::Rc;
    use std::time::Duration;

    /// Ends the latest command first, and remembers in which order.
    #[derive(Default)]
    struct Backwards {
        begun: Vec<(usize, Buf)>,
        seen: Rc<RefCell<Vec<usize>>>,
    }

    impl BackendQueue for Backwards {
        fn read(&mut self, lane: usize, _: u64, buf: Buf) {
            assert!(self.begun.iter().all(|(other, _)| *other != lane), "one at a time");
            self.begun.push((lane, buf));
        }

        fn write(&mut self, lane: usize, offset: u64, buf: Buf, _: bool) {
            self.read(lane, offset, buf);
        }

        fn poll_ended(&mut self, _: &mut Context<'_>) -> Poll<(usize, BufResult)> {
            let Some((lane, buf)) = self.begun.pop() else { return Poll::Pending };
            self.seen.borrow_mut().push(lane);
            Poll::Ready((lane, (Ok(()), buf)))
        }
    }

    #[test]
    fn every_worker_has_its_own_answers_and_may_wait_for_something_else() {
        let queue = Backwards::default();
        let seen = queue.seen.clone();
        let lanes = Rc::new(Lanes::new(Box::new(queue), 3));
        let worker = |lane: usize| -> Worker {
            let lanes = lanes.clone();
            Some(Box::pin(async move {
                for round in 0..4 {
                    if (lane + round).is_multiple_of(3) {
                        compio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let buf = Buf::zeroed(lane + 1);
                    let begun = Instant::now();
                    let ((result, buf), came) = lanes.transfer(lane, |queue| queue.read(lane, 0, buf)).await;
                    assert!(result.is_ok() && came > begun, "it came before it was asked for");
                    assert_eq!(buf.len(), lane + 1, "the buffer of another");
                }
            }))
        };
        let workers = (0..3).map(worker).collect();
        Runtime::new().expect("an event loop").block_on(lanes.run(workers));
        let count = |lane| seen.borrow().iter().filter(|seen| **seen == lane).count();
        assert_eq!([0, 1, 2].map(count), [4; 3]);
    }
}
