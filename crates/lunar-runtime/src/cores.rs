//! One thread and one event loop per core. A closure sent to a core starts local tasks there.
//!
//! A loop that ends drops its tasks. A destructor that runs then may spawn another task. That task is dropped and
//! never runs.

use crate::busy_poll::BusyPoll;
use crate::threads::THREADS;
use crate::{memory, timer};
use compio::driver::{DriverType, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::cell::Cell;
use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Context;
use std::thread::JoinHandle;
use std::time::Duration;

/// Capacity of a loop's queue of wake-ups from other cores. A waker that finds it full waits, and its wake-up may be
/// lost: the runtime wakes the loop before there is room, and not again.
pub(crate) const WAKES: usize = 1 << 14;

/// Number of tasks that run between two checks for wake-ups: about one batch of commands.
const TASKS: usize = 256;
/// Number of such checks between two polls for completions. A poll is a system call.
const ROUNDS: usize = 8;

/// Work for a core; None ends its loop.
type CoreJob = Option<Box<dyn FnOnce() + Send>>;

/// The event loops. Dropping this ends them.
pub struct Cores {
    cpus: Vec<usize>,
    /// The number of placements on each core.
    taken: Arc<[AtomicUsize]>,
    jobs: Vec<flume::Sender<CoreJob>>,
    busy_poll_us: Arc<AtomicU64>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Cores {
    /// Starts one loop on each of these CPUs.
    ///
    /// # Errors
    /// When a thread cannot be started, or neither io_uring nor polling works.
    pub fn start(cpus: &[usize]) -> io::Result<Cores> {
        let mut cores = Cores::none(cpus)?;
        for &cpu in cpus {
            cores.add(format!("core {cpu}"), Some(cpu))?;
        }
        Ok(cores)
    }

    fn none(cpus: &[usize]) -> io::Result<Cores> {
        timer::start()?;
        let taken = cpus.iter().map(|_| AtomicUsize::new(0)).collect();
        Ok(Cores {
            cpus: cpus.to_vec(),
            taken,
            jobs: Vec::new(),
            busy_poll_us: Arc::default(),
            threads: Mutex::default(),
        })
    }

    /// Starts one more loop, on this CPU or on any.
    fn add(&mut self, name: String, cpu: Option<usize>) -> io::Result<()> {
        let (jobs, inbox) = flume::unbounded::<CoreJob>();
        let (started, result) = flume::bounded(1);
        let busy_poll = BusyPoll::new(self.busy_poll_us.clone());
        let body = move || match runtime(cpu) {
            Ok(rt) => {
                let _ = started.send(Ok(rt.driver_type()));
                // A separate task: `block_on` polls its own future at each event.
                let jobs = rt.spawn(async move {
                    while let Ok(Some(job)) = inbox.recv_async().await {
                        job();
                    }
                });
                rt.spawn(memory::tidy()).detach();
                let end = catch_unwind(AssertUnwindSafe(|| run(&rt, jobs, busy_poll)));
                // While a panic unwinds, tasks would not be dropped, and their waiters would wait forever.
                ENDS.set(true);
                drop(rt);
                end.unwrap_or_else(|panic| resume_unwind(panic));
            }
            Err(e) => drop(started.send(Err(e))),
        };
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        self.threads().push(thread);
        let driver =
            result.recv().map_err(|_| io::Error::other("the thread of an event loop panicked"))??;
        tracing::debug!(cpu, ?driver, "event loop started");
        self.jobs.push(jobs);
        Ok(())
    }

    /// Starts one loop, on the CPU where the caller runs.
    ///
    /// # Errors
    /// As [`Cores::start`].
    pub fn one() -> io::Result<Cores> {
        Cores::start(&[rustix::thread::sched_getcpu()])
    }

    /// Starts one loop, on a thread that is bound to no CPU: for a process whose other threads do most of the work. The
    /// caller may be bound to one, as a thread of a loop is.
    ///
    /// # Errors
    /// As [`Cores::start`].
    pub fn unbound() -> io::Result<Cores> {
        let mut cores = Cores::none(&[0])?;
        cores.add("event loop".into(), None)?;
        Ok(cores)
    }

    /// The number of event loops.
    pub fn count(&self) -> usize {
        self.jobs.len()
    }

    /// Sets how long an event loop looks for work, after the last receive, before it sleeps. A response to a request that
    /// arrives meanwhile needs no wake-up of the thread. The loop uses its whole core meanwhile. Zero, the default, means
    /// that it sleeps at once.
    pub fn set_busy_poll(&self, time: Duration) {
        self.busy_poll_us.store(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Assigns a long-lived object to a core: the least loaded one, and among these the one on `cpu`.
    pub fn place(&self, cpu: Option<usize>) -> CorePlacement {
        let cores = self.cpus.iter().zip(self.taken.iter()).enumerate();
        let best = cores.min_by_key(|(_, (at, taken))| (taken.load(Relaxed), Some(**at) != cpu));
        let core = best.map_or(0, |(core, _)| core);
        self.taken[core].fetch_add(1, Relaxed);
        CorePlacement { core, taken: self.taken.clone() }
    }

    /// The CPU of each event loop, and the number of its placements.
    pub fn placements(&self) -> Vec<(usize, usize)> {
        self.cpus.iter().zip(self.taken.iter()).map(|(cpu, taken)| (*cpu, taken.load(Relaxed))).collect()
    }

    /// Runs a closure on a core's thread, inside its event loop.
    pub fn run_on(&self, core: usize, job: impl FnOnce() + Send + 'static) {
        send(&self.jobs[core], Some(Box::new(job)));
    }

    /// Runs a future on a core and blocks until it is done. Must not be called on one of the cores.
    ///
    /// # Errors
    /// When the core's loop ends first.
    pub fn wait<T: Send + 'static, W: Future<Output = T> + 'static>(
        &self,
        core: usize,
        work: impl FnOnce() -> W + Send + 'static,
    ) -> io::Result<T> {
        self.start_on(core, work).recv().map_err(|_| io::Error::other("the thread of an event loop panicked"))
    }

    /// Runs a future on a core. The result arrives on the returned channel, which is closed without one if the core ends
    /// before the future. Dropping the channel does not cancel the future.
    pub fn start_on<T: Send + 'static, W: Future<Output = T> + 'static>(
        &self,
        core: usize,
        work: impl FnOnce() -> W + Send + 'static,
    ) -> flume::Receiver<T> {
        let (done, end) = flume::bounded(1);
        self.run_on(core, move || {
            let work = Box::pin(work());
            // Sending fails if the caller no longer waits.
            crate::spawn(async move { drop(done.send(work.await)) });
        });
        end
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Ends all loops, drops their tasks, and joins the threads. Must not be called on one of the cores.
    pub fn stop(&self) {
        self.end_loops();
        for t in self.threads().drain(..) {
            let _ = t.join();
        }
    }

    fn end_loops(&self) {
        self.jobs.iter().for_each(|jobs| send(jobs, None));
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        // A loop may hold the last handle. It cannot join itself, so it ends when it reads the message.
        self.end_loops();
    }
}

thread_local! {
    /// The loop of this thread has ended and drops its tasks.
    static ENDS: Cell<bool> = const { Cell::new(false) };
}

/// Starts a detached task on this core. A destructor that runs while a loop of [`Cores`] ends may call it too; the
/// task is then dropped. (compio would add it to the list that it is dropping, whose memory may move.)
pub fn spawn<F: Future + 'static>(task: F) {
    if ENDS.get() {
        return;
    }
    if const { size_of::<F>() > LARGE } {
        compio::runtime::spawn(Box::pin(task)).detach();
    } else {
        compio::runtime::spawn(task).detach();
    }
}

/// A task larger than this many bytes is boxed before it is passed to compio. About 15 functions of compio move the
/// task. Without optimization, each keeps a copy in its frame, and the copies overflow the stack of a thread.
const LARGE: usize = 4096;

/// Sends a job, or the end, to a loop. A loop that has ended ignores it: the process is ending.
fn send(jobs: &flume::Sender<CoreJob>, job: CoreJob) {
    let send = || drop(jobs.send(job));
    if std::thread::panicking() {
        // compio aborts the process, without a message, when a panicking thread wakes one of its tasks.
        std::thread::scope(|scope| drop(scope.spawn(send).join()));
    } else {
        send();
    }
}

/// An assignment to a core, ended on drop.
pub struct CorePlacement {
    core: usize,
    taken: Arc<[AtomicUsize]>,
}

impl CorePlacement {
    /// The index of the core.
    pub fn core(&self) -> usize {
        self.core
    }
}

impl Drop for CorePlacement {
    fn drop(&mut self) {
        self.taken[self.core].fetch_sub(1, Relaxed);
        memory::freed();
    }
}

/// Runs an event loop until this task has ended.
///
/// compio's own loop waits with a zero timeout while tasks are ready. io_uring then arms and cancels a timer, and in
/// a virtual machine each costs as much as ten commands. A loop that was woken beforehand does not wait.
fn run<T>(rt: &Runtime, task: compio::runtime::JoinHandle<T>, mut busy_poll: BusyPoll) {
    rt.enter(|| {
        let waker = rt.waker();
        let mut context = Context::from_waker(&waker);
        let mut task = pin!(task);
        while task.as_mut().poll(&mut context).is_pending() {
            if (0..ROUNDS).all(|_| rt.run()) || busy_poll.lasts() {
                waker.wake_by_ref();
            }
            rt.poll();
        }
    });
}

/// The CPUs of this process: those of its first thread, since a thread of a loop has only its own.
fn of_process() -> io::Result<CpuSet> {
    let first = Pid::from_raw(std::process::id() as i32);
    Ok(sched_getaffinity(first)?)
}

/// The number of CPUs that this process may use, on whatever thread the caller runs.
pub fn processors() -> usize {
    of_process().map_or(1, |cpus| (cpus.count() as usize).max(1))
}

/// Lets this thread run on all CPUs of the process: a new thread has those of the thread that started it.
fn unbind() {
    if let Err(e) = of_process().and_then(|cpus| Ok(sched_setaffinity(None, &cpus)?)) {
        tracing::debug!("an event loop stays on the CPUs of the thread that started it: {e}");
    }
}

/// An event loop: io_uring with deferred task work, plain io_uring on older kernels, polling where io_uring
/// is forbidden (as in default containers).
fn runtime(cpu: Option<usize>) -> io::Result<Runtime> {
    if cpu.is_none() {
        unbind();
    }
    let mut deferred = ProactorBuilder::new();
    deferred.defer_taskrun(true).taskrun_flag(true).single_issuer(true);
    let mut polling = ProactorBuilder::new();
    polling.driver_type(DriverType::Poll);
    let mut last = None;
    for mut proactor in [deferred, ProactorBuilder::new(), polling] {
        proactor.thread_pool_limit(THREADS);
        let mut builder = RuntimeBuilder::new();
        builder
            .with_proactor(proactor)
            .thread_affinity(HashSet::from_iter(cpu))
            .sync_queue_size(WAKES)
            .event_interval(TASKS);
        match builder.build() {
            Ok(rt) => return Ok(rt),
            Err(e) => last = Some(e),
        }
    }
    Err(last.expect("three attempts"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use std::task::Poll;
    use std::time::Duration;

    #[test]
    fn job_runs_inside_the_loop_of_its_core() {
        let cores = Cores::start(&[0, 0]).expect("event loops");
        let (tx, rx) = flume::bounded(1);
        cores.run_on(1, move || {
            crate::spawn(async move {
                compio::time::sleep(Duration::from_millis(1)).await;
                tx.send(std::thread::current().name().map(str::to_owned)).expect("somebody waits");
            });
        });
        assert_eq!(rx.recv().expect("an answer").as_deref(), Some("core 0"));
        cores.stop();
    }

    #[test]
    fn busy_poll_delays_no_timer_and_no_job() {
        let cores = Cores::start(&[0]).expect("an event loop");
        cores.set_busy_poll(Duration::from_secs(3_600));
        let (tx, rx) = flume::bounded(2);
        for wait_ms in [1, 0] {
            let tx = tx.clone();
            cores.run_on(0, move || {
                crate::begin_batch();
                crate::spawn(async move {
                    compio::time::sleep(Duration::from_millis(wait_ms)).await;
                    tx.send(wait_ms).expect("the test waits");
                });
            });
            assert_eq!(rx.recv().expect("an answer"), wait_ms);
        }
        cores.stop();
    }

    #[test]
    fn panicking_thread_ends_its_loops_and_not_the_process() {
        let panicked = std::thread::spawn(|| {
            let cores = Cores::start(&[0]).expect("an event loop");
            cores.wait(0, || async {}).expect("it runs");
            std::thread::sleep(Duration::from_millis(20)); // time for the loop to become idle
            std::panic::resume_unwind(Box::new("as asked"));
        });
        assert!(panicked.join().is_err());
    }

    /// Spawns a task while it is dropped, as the rest of a connection does that flushes.
    struct BeginsAnother(flume::Sender<()>);

    impl Drop for BeginsAnother {
        fn drop(&mut self) {
            crate::spawn(async {});
            let _ = self.0.send(());
        }
    }

    #[test]
    fn task_that_spawns_while_dropped_ends_with_its_loop() {
        let (sender, heard) = flume::unbounded();
        let cores = Cores::start(&[0]).expect("an event loop");
        let begun = cores.wait(0, move || async move {
            for _ in 0..200 {
                let mine = BeginsAnother(sender.clone());
                crate::spawn(async move {
                    std::future::pending::<()>().await;
                    drop(mine);
                });
            }
        });
        begun.expect("they began");
        cores.end_loops();
        let ends: Vec<_> = cores.threads().drain(..).map(JoinHandle::join).collect();
        assert!(ends.iter().all(Result::is_ok), "{ends:?}");
        assert_eq!(heard.into_iter().count(), 200, "every task was dropped");
    }

    #[test]
    fn busy_tasks_do_not_starve_io() {
        let cores = Cores::start(&[0]).expect("an event loop");
        let took = cores.wait(0, || async {
            let goes_on = Rc::new(Cell::new(true));
            for _ in 0..2 * TASKS {
                let goes_on = goes_on.clone();
                crate::spawn(async move {
                    while goes_on.get() {
                        again().await;
                    }
                });
            }
            let listener = crate::Listener::bind("127.0.0.1:0".parse().unwrap()).expect("a listener");
            let address = listener.local_addr().expect("an address");
            let listener = crate::Listener::new(listener).expect("on this core");
            let coming = compio::runtime::spawn(async move { listener.accept().await.map(drop) });
            compio::time::sleep(Duration::from_millis(5)).await;
            drop(crate::Stream::connect(address).await.expect("a connection"));
            coming.await.expect("a task").expect("it is accepted");
            goes_on.set(false);
        });
        took.expect("it ends");
        cores.stop();
    }

    /// Yields once, and stays ready.
    async fn again() {
        let mut is_first = true;
        std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if std::mem::take(&mut is_first) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    #[test]
    fn placement_prefers_the_least_loaded_then_the_near_core() {
        let cpu = rustix::thread::sched_getcpu();
        let cores = Cores::start(&[1022, cpu, 1023]).expect("event loops");
        let first = cores.place(Some(cpu));
        let others = [cores.place(Some(cpu)), cores.place(None)];
        assert_eq!((first.core(), others.each_ref().map(CorePlacement::core)), (1, [0, 2]));
        assert_eq!(cores.placements(), [(1022, 1), (cpu, 1), (1023, 1)]);
        assert_eq!(cores.place(Some(cpu)).core(), 1, "each core has one placement");
        drop(others);
        assert_eq!(cores.place(Some(cpu)).core(), 0, "the dropped placements no longer count");
        cores.stop();
    }

    #[test]
    fn unbound_loop_has_the_cpus_of_the_process() {
        let allowed = || sched_getaffinity(None).expect("an affinity");
        let bound = Cores::one().expect("an event loop");
        let started = bound.wait(0, move || async move { (allowed(), Cores::unbound(), processors()) });
        let (of_bound, unbound, count) = started.expect("an end");
        let unbound = unbound.expect("an event loop");
        let found = unbound.wait(0, move || async move { allowed() }).expect("an end");
        assert_eq!((of_bound.count(), &found), (1, &of_process().expect("an affinity")));
        assert_eq!(count, found.count() as usize);
        bound.stop();
        unbound.stop();
    }

    #[test]
    fn end_of_a_future_can_be_waited_for() {
        let cores = Cores::one().expect("an event loop");
        let here = || async { std::thread::current().name().map(str::to_owned) };
        assert!(cores.wait(0, here).expect("an end").is_some_and(|name| name.starts_with("core ")));
        cores.stop();
        assert!(cores.wait(0, here).is_err(), "the loop has ended");
    }

    /// A boxed task is moved as a pointer. Unboxed, its copies in the frames of compio exceed the 2 MiB stack without
    /// optimization.
    #[test]
    fn large_task_fits_the_stack_of_a_core() {
        let cores = Cores::one().expect("an event loop");
        let sum = cores.wait(0, || async {
            let large = [1u8; 192 << 10];
            compio::time::sleep(std::time::Duration::ZERO).await;
            large.iter().map(|byte| usize::from(*byte)).sum::<usize>()
        });
        assert_eq!(sum.expect("the core runs"), 192 << 10);
    }
}
