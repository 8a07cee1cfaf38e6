//! A queue for disks without one. Each lane has a future for all of its operations, so that an operation allocates
//! nothing.

use lunar_block::{Backend, BackendQueue, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use std::cell::Cell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

enum Operation {
    Read(u64, Buf),
    Write(u64, Buf, bool),
}

/// The operation of a lane, or its result.
#[derive(Default)]
struct LaneSlot {
    begun: Cell<Option<Operation>>,
    ended: Cell<Option<BufResult>>,
}

struct LaneWork {
    slot: Rc<LaneSlot>,
    work: LocalBoxFuture<'static, ()>,
    waker: Waker,
}

/// The operations of the lanes of one session.
pub struct FutureQueue {
    lanes: Vec<LaneWork>,
    /// The results of operations that ended when they began.
    ended: VecDeque<(usize, BufResult)>,
    /// Lanes to poll.
    ready: VecDeque<usize>,
    woken: Arc<WokenLanes>,
}

impl FutureQueue {
    pub fn new(disk: &Arc<dyn Backend>, lanes: usize) -> FutureQueue {
        let woken = Arc::<WokenLanes>::default();
        let lane = |lane| {
            let slot = Rc::<LaneSlot>::default();
            let waker = Arc::new(LaneWaker { lane, woken: woken.clone() }).into();
            LaneWork { work: Box::pin(perform(disk.clone(), slot.clone())), slot, waker }
        };
        let (ended, ready) = (VecDeque::new(), VecDeque::new());
        FutureQueue { lanes: (0..lanes).map(lane).collect(), ended, ready, woken }
    }

    /// Starts an operation at once: the caller has read the clock.
    fn begin(&mut self, lane: usize, operation: Operation) {
        self.lanes[lane].slot.begun.set(Some(operation));
        let ended = self.lanes[lane].poll().map(|ended| (lane, ended));
        self.ended.extend(ended);
    }
}

impl LaneWork {
    fn poll(&mut self) -> Option<BufResult> {
        let _ = self.work.as_mut().poll(&mut Context::from_waker(&self.waker));
        self.slot.ended.take()
    }
}

/// Performs the operations of a lane.
async fn perform(disk: Arc<dyn Backend>, slot: Rc<LaneSlot>) {
    loop {
        let operation = poll_fn(|_| slot.begun.take().map_or(Poll::Pending, Poll::Ready)).await;
        slot.ended.set(Some(match operation {
            Operation::Read(offset, buf) => disk.read(offset, buf).await,
            Operation::Write(offset, buf, fua) => disk.write(offset, buf, fua).await,
        }));
    }
}

impl BackendQueue for FutureQueue {
    fn read(&mut self, lane: usize, offset: u64, buf: Buf) {
        self.begin(lane, Operation::Read(offset, buf));
    }

    fn write(&mut self, lane: usize, offset: u64, buf: Buf, fua: bool) {
        self.begin(lane, Operation::Write(offset, buf, fua));
    }

    fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<(usize, BufResult)> {
        if let Some(ended) = self.ended.pop_front() {
            return Poll::Ready(ended);
        }
        if self.ready.is_empty() {
            self.woken.take(&mut self.ready, cx);
        }
        // A future that wakes itself is polled again in the next pass of the event loop.
        while let Some(lane) = self.ready.pop_front() {
            if let Some(ended) = self.lanes[lane].poll() {
                return Poll::Ready((lane, ended));
            }
        }
        Poll::Pending
    }
}

/// Lanes whose futures can make progress.
#[derive(Default)]
struct WokenLanes(Mutex<(VecDeque<usize>, Option<Waker>)>);

impl WokenLanes {
    /// Takes all lanes. The task is woken for later ones.
    fn take(&self, ready: &mut VecDeque<usize>, cx: &Context<'_>) {
        let mut woken = self.lock();
        std::mem::swap(&mut woken.0, ready);
        match &mut woken.1 {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }

    fn add(&self, lane: usize) -> Option<Waker> {
        let mut woken = self.lock();
        woken.0.push_back(lane);
        woken.1.take()
    }

    fn lock(&self) -> MutexGuard<'_, (VecDeque<usize>, Option<Waker>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct LaneWaker {
    lane: usize,
    woken: Arc<WokenLanes>,
}

impl Wake for LaneWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Outside the lock: waking may drop a task.
        if let Some(task) = self.woken.add(self.lane) {
            task.wake();
        }
    }
}
