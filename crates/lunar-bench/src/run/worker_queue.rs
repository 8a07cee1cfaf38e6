//! Runs all workers of a session in one task, for disks that take the commands of all workers in one queue.
//! Waking a task for each completion would cost more than the command itself.

use lunar_block::{BackendQueue, BufResult};
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A worker; None after its end.
type Worker = Option<Pin<Box<dyn Future<Output = ()>>>>;

/// The commands of the workers: one slot for each worker, with at most one command.
pub struct WorkerQueue {
    queue: RefCell<Box<dyn BackendQueue>>,
    slots: Vec<WorkerSlot>,
    /// The number of clock reads.
    clock_reads: Cell<u64>,
}

struct WorkerSlot {
    /// Whether its worker waits only for its command.
    is_in_flight: Cell<bool>,
    /// The number of clock reads when its command was submitted.
    begun: Cell<u64>,
    ended: Cell<Option<(BufResult, Instant)>>,
}

impl WorkerQueue {
    /// Creates one slot for each worker.
    pub fn new(queue: Box<dyn BackendQueue>, workers: usize) -> WorkerQueue {
        let slot =
            || WorkerSlot { is_in_flight: Cell::new(false), begun: Cell::new(0), ended: Cell::new(None) };
        let slots = (0..workers).map(|_| slot()).collect();
        WorkerQueue { queue: RefCell::new(queue), slots, clock_reads: Cell::new(0) }
    }

    /// Submits a command, and returns its result and the time of its completion.
    pub async fn transfer(
        &self,
        slot: usize,
        begin: impl FnOnce(&mut dyn BackendQueue),
    ) -> (BufResult, Instant) {
        begin(&mut **self.queue.borrow_mut());
        let slot = &self.slots[slot];
        slot.is_in_flight.set(true);
        slot.begun.set(self.clock_reads.get());
        poll_fn(|_| slot.ended.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// Runs the workers, one for each slot, to their ends.
    pub async fn run(&self, mut workers: Vec<Worker>) {
        poll_fn(|cx| self.poll(&mut workers, cx)).await;
    }

    fn poll(&self, workers: &mut [Worker], cx: &mut Context<'_>) -> Poll<()> {
        // A worker that waits for something else may be ready.
        for (slot, worker) in self.slots.iter().zip(&mut *workers) {
            if !slot.is_in_flight.get() {
                poll_worker(worker, cx);
            }
        }
        let mut now = None;
        while let Poll::Ready((at, ended)) = self.next(cx) {
            let slot = &self.slots[at];
            slot.is_in_flight.set(false);
            // Completions of one poll share a clock reading, but a command submitted after that reading needs a
            // later one.
            let is_old = slot.begun.get() < self.clock_reads.get();
            let came = now.filter(|_| is_old).unwrap_or_else(|| self.now());
            now = Some(came);
            slot.ended.set(Some((ended, came)));
            poll_worker(&mut workers[at], cx);
        }
        if workers.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    }

    fn now(&self) -> Instant {
        self.clock_reads.set(self.clock_reads.get() + 1);
        Instant::now()
    }

    fn next(&self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        self.queue.borrow_mut().poll_ended(cx)
    }
}

fn poll_worker(worker: &mut Worker, cx: &mut Context<'_>) {
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

    /// Completes the latest command first, and records the order.
    #[derive(Default)]
    struct Backwards {
        begun: Vec<(usize, Buf)>,
        seen: Rc<RefCell<Vec<usize>>>,
    }

    impl BackendQueue for Backwards {
        fn read(&mut self, slot: usize, _: u64, buf: Buf) {
            assert!(self.begun.iter().all(|(other, _)| *other != slot), "one command per slot");
            self.begun.push((slot, buf));
        }

        fn write(&mut self, slot: usize, offset: u64, buf: Buf, _: bool) {
            self.read(slot, offset, buf);
        }

        fn poll_ended(&mut self, _: &mut Context<'_>) -> Poll<(usize, BufResult)> {
            let Some((slot, buf)) = self.begun.pop() else { return Poll::Pending };
            self.seen.borrow_mut().push(slot);
            Poll::Ready((slot, (Ok(()), buf)))
        }
    }

    #[test]
    fn workers_get_their_own_results_and_may_also_sleep() {
        let queue = Backwards::default();
        let seen = queue.seen.clone();
        let slots = Rc::new(WorkerQueue::new(Box::new(queue), 3));
        let worker = |slot: usize| -> Worker {
            let slots = slots.clone();
            Some(Box::pin(async move {
                for round in 0..4 {
                    if (slot + round).is_multiple_of(3) {
                        compio::time::sleep(Duration::from_millis(1)).await;
                    }
                    let buf = Buf::zeroed(slot + 1);
                    let started_at = Instant::now();
                    let ((result, buf), came) = slots.transfer(slot, |queue| queue.read(slot, 0, buf)).await;
                    assert!(
                        result.is_ok() && came > started_at,
                        "the completion is later than the submission"
                    );
                    assert_eq!(buf.len(), slot + 1, "the buffer of this worker");
                }
            }))
        };
        let workers = (0..3).map(worker).collect();
        Runtime::new().expect("an event loop").block_on(slots.run(workers));
        let count = |slot| seen.borrow().iter().filter(|seen| **seen == slot).count();
        assert_eq!([0, 1, 2].map(count), [4; 3]);
    }
}
