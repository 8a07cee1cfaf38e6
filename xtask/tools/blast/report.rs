//! The report: one line of names and numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::job::BlastJob;
use crate::session::{CommandCounters, CommandLatencies};

/// The kernel's USER_HZ, the unit of times in /proc/PID/stat.
const TICKS_PER_SECOND: f64 = 100.0;

/// All counters at one time.
#[derive(Debug)]
pub struct CounterSample {
    at: Instant,
    done: u64,
    /// Commands that ended with a status other than GOOD
    pub errors: u64,
    target_cpu_s: f64,
    client_cpu_s: f64,
}

impl CounterSample {
    /// Reads the counters of all sessions and the CPU time of both sides.
    pub fn take(target: Option<u32>, counters: &[Arc<CommandCounters>]) -> CounterSample {
        CounterSample {
            at: Instant::now(),
            done: counters.iter().map(|c| c.done.load(Ordering::Relaxed)).sum(),
            errors: counters.iter().map(|c| c.errors.load(Ordering::Relaxed)).sum(),
            target_cpu_s: target.map_or(0.0, |pid| cpu_s(&pid.to_string())),
            client_cpu_s: cpu_s("self"),
        }
    }
}

/// CPU time of a process in seconds, user and system; 0 when it is gone.
fn cpu_s(pid: &str) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = after_name.split(' ').skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum::<f64>();
    ticks / TICKS_PER_SECOND
}

/// The report of the time between two samples.
pub fn line(
    job: &BlastJob,
    before: &CounterSample,
    after: &CounterSample,
    times: &CommandLatencies,
) -> String {
    let seconds = (after.at - before.at).as_secs_f64();
    let done = (after.done - before.done) as f64;
    let target_cpu_s = after.target_cpu_s - before.target_cpu_s;
    let client_cpu_s = after.client_cpu_s - before.client_cpu_s;
    let per_io = |cpu_s: f64| cpu_s * 1e6 / done.max(1.0);
    let latency = &times.whole;
    let mut line = format!(
        "iops {:.0} mb_per_s {:.1} p50_us {:.1} p99_us {:.1} p999_us {:.1} max_us {:.1} errors {} \
         target_cpu_us_per_io {:.3} target_cpu_pct {:.0} client_cpu_us_per_io {:.3}",
        done / seconds,
        done * f64::from(job.bytes) / seconds / 1e6,
        latency.quantile_us(0.5),
        latency.quantile_us(0.99),
        latency.quantile_us(0.999),
        latency.quantile_us(1.0),
        after.errors,
        per_io(target_cpu_s),
        target_cpu_s / seconds * 100.0,
        per_io(client_cpu_s),
    );
    if job.first {
        let (byte, pdu) = (times.first.byte.quantile_us(0.5), times.first.pdu.quantile_us(0.5));
        line += &format!(" first_byte_us {byte:.1} first_pdu_us {pdu:.1}");
    }
    line
}
