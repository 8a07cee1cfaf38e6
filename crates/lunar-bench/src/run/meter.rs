//! Measures the CPU time of a run.

use crate::outcome::CpuTime;
use crate::{cpu, host};
use lunar_runtime::Cores;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The runs of this process.
struct RunCounter {
    /// Active runs.
    now: usize,
    /// Runs started so far.
    begun: u64,
}

static RUN_COUNTER: Mutex<RunCounter> = Mutex::new(RunCounter { now: 0, begun: 0 });

fn run_counter() -> MutexGuard<'static, RunCounter> {
    RUN_COUNTER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The time limit for event loops to report their CPU time.
const CLOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Measures the CPU time of one run. A single run is charged for the whole process, including helper threads of
/// the kernel. Concurrent runs are each charged for their own event loops, because helper threads cannot be
/// attributed.
pub struct CpuMeter<'a> {
    cores: &'a Cores,
    target_pid: Option<u32>,
    /// Whether other runs were active at its start.
    is_second: bool,
    /// The sequence number of the run, from 1.
    number: u64,
}

/// A reading of the clocks, in seconds.
#[derive(Clone, Copy)]
pub struct CpuReading {
    process: f64,
    /// None if an event loop did not respond.
    loops: Option<f64>,
    target: Option<f64>,
}

impl CpuMeter<'_> {
    /// Starts a run on these event loops; the run ends when the meter is dropped.
    pub fn new(cores: &Cores, target_pid: Option<u32>) -> CpuMeter<'_> {
        let mut runs = run_counter();
        let is_second = runs.now > 0;
        runs.now += 1;
        runs.begun += 1;
        CpuMeter { cores, target_pid, is_second, number: runs.begun }
    }

    /// The CPU time used so far.
    pub fn read(&self) -> CpuReading {
        let target = self.target_pid.and_then(|pid| cpu::of(pid).ok());
        CpuReading { process: cpu::own(), loops: self.loops(), target }
    }

    /// The CPU time used since a reading.
    pub fn since(&self, before: CpuReading) -> CpuTime {
        let now = self.read();
        let is_alone = !self.is_second && run_counter().begun == self.number;
        let since = |(now, before): (f64, f64)| now - before;
        let loops = now.loops.zip(before.loops).filter(|_| !is_alone).map(since);
        let client_s = loops.unwrap_or(now.process - before.process);
        CpuTime { client_s, target_s: now.target.zip(before.target).map(since), cores: host::cores() }
    }

    /// Sums the clocks of the event loop threads, which each loop reads itself.
    fn loops(&self) -> Option<f64> {
        let (sender, times) = flume::unbounded();
        for core in 0..self.cores.count() {
            let sender = sender.clone();
            self.cores.run_on(core, move || _ = sender.send(cpu::of_thread()));
        }
        drop(sender);
        let end = Instant::now() + CLOCK_TIMEOUT;
        let seconds: Vec<f64> = std::iter::from_fn(|| times.recv_deadline(end).ok()).collect();
        (seconds.len() == self.cores.count()).then(|| seconds.iter().sum())
    }
}

impl Drop for CpuMeter<'_> {
    fn drop(&mut self) {
        run_counter().now -= 1;
    }
}
