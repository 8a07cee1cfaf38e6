//! An executor on virtual time. A seed decides the order of tasks that are ready, so that a run can be repeated.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// A process that can be paused. The cluster and the hosts have none.
pub type Process = Option<usize>;

struct SimulatedTask {
    process: Process,
    future: Pin<Box<dyn Future<Output = ()>>>,
}

/// Tasks, timers and processes.
#[derive(Clone)]
pub struct Executor(Rc<Inner>);

struct Inner {
    tasks: RefCell<BTreeMap<usize, SimulatedTask>>,
    next: Cell<usize>,
    ready: Arc<Mutex<BTreeSet<usize>>>,
    now: Cell<Duration>,
    timers: RefCell<BinaryHeap<Reverse<(Duration, usize)>>>,
    sleepers: RefCell<BTreeMap<usize, Waker>>,
    paused: RefCell<BTreeMap<usize, Duration>>,
    rng: RefCell<SmallRng>,
}

struct TaskWaker {
    task: usize,
    ready: Arc<Mutex<BTreeSet<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().unwrap().insert(self.task);
    }
}

impl Executor {
    pub fn new(seed: u64) -> Executor {
        Executor(Rc::new(Inner {
            tasks: RefCell::default(),
            next: Cell::new(0),
            ready: Arc::default(),
            now: Cell::default(),
            timers: RefCell::default(),
            sleepers: RefCell::default(),
            paused: RefCell::default(),
            rng: RefCell::new(SmallRng::seed_from_u64(seed)),
        }))
    }

    pub fn now(&self) -> Duration {
        self.0.now.get()
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.0.rng.borrow_mut().random_range(0..end)
    }

    pub fn spawn(&self, process: Process, future: impl Future<Output = ()> + 'static) {
        let task = self.number();
        self.0.tasks.borrow_mut().insert(task, SimulatedTask { process, future: Box::pin(future) });
        self.0.ready.lock().unwrap().insert(task);
    }

    fn number(&self) -> usize {
        self.0.next.set(self.0.next.get() + 1);
        self.0.next.get()
    }

    /// The tasks of a process do not run until then.
    pub fn pause(&self, process: usize, time: Duration) {
        self.0.paused.borrow_mut().insert(process, self.now() + time);
    }

    /// The tasks of a process end where they are.
    pub fn kill(&self, process: usize) {
        let killed: Vec<_> = {
            let mut tasks = self.0.tasks.borrow_mut();
            let of_process =
                tasks.iter().filter(|(_, task)| task.process == Some(process)).map(|(id, _)| *id);
            let of_process: Vec<_> = of_process.collect();
            of_process.iter().filter_map(|id| tasks.remove(id)).collect()
        };
        drop(killed);
    }

    pub fn is_paused(&self, process: usize) -> bool {
        self.0.paused.borrow().get(&process).is_some_and(|until| *until > self.now())
    }

    pub async fn sleep(&self, time: Duration) {
        self.sleep_until(self.now() + time).await;
    }

    pub async fn sleep_until(&self, at: Duration) {
        let (timer, inner) = (self.number(), &self.0);
        inner.timers.borrow_mut().push(Reverse((at, timer)));
        std::future::poll_fn(|context| {
            if inner.now.get() >= at {
                return Poll::Ready(());
            }
            inner.sleepers.borrow_mut().insert(timer, context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Drops all tasks, which own this executor.
    pub fn end(&self) {
        let tasks = std::mem::take(&mut *self.0.tasks.borrow_mut());
        drop(tasks);
        self.0.sleepers.borrow_mut().clear();
    }

    /// Runs all tasks until then.
    pub fn run_until(&self, end: Duration) {
        loop {
            while let Some(task) = self.pick() {
                self.poll(task);
            }
            let timer = self.0.timers.borrow().peek().map(|Reverse((at, _))| *at);
            let paused = self.0.paused.borrow();
            let resumed = paused.values().copied().filter(|at| *at > self.now()).min();
            drop(paused);
            let Some(next) = timer.into_iter().chain(resumed).min().filter(|at| *at <= end) else {
                return self.0.now.set(end);
            };
            self.0.now.set(next);
            self.wake_sleepers();
        }
    }

    fn wake_sleepers(&self) {
        loop {
            let mut timers = self.0.timers.borrow_mut();
            match timers.peek() {
                Some(Reverse((at, _))) if *at <= self.now() => {}
                _ => return,
            }
            let Some(Reverse((_, timer))) = timers.pop() else { return };
            drop(timers);
            if let Some(waker) = self.0.sleepers.borrow_mut().remove(&timer) {
                waker.wake();
            }
        }
    }

    fn pick(&self) -> Option<usize> {
        let mut ready = self.0.ready.lock().unwrap();
        let tasks = self.0.tasks.borrow();
        let mut may_run = Vec::with_capacity(ready.len());
        ready.retain(|task| {
            let found = tasks.get(task);
            if found.is_some_and(|task| !task.process.is_some_and(|process| self.is_paused(process))) {
                may_run.push(*task);
            }
            found.is_some()
        });
        if may_run.is_empty() {
            return None;
        }
        let task = may_run[self.below(may_run.len() as u64) as usize];
        ready.remove(&task);
        Some(task)
    }

    fn poll(&self, id: usize) {
        let Some(mut task) = self.0.tasks.borrow_mut().remove(&id) else { return };
        let waker = Waker::from(Arc::new(TaskWaker { task: id, ready: self.0.ready.clone() }));
        let is_over = task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        if !is_over {
            self.0.tasks.borrow_mut().insert(id, task);
        }
    }
}
