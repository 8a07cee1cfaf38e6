//! Combines the results of the sessions of a job.

use super::JobClock;
use crate::job::{ArrivalProcess, Job};
use crate::outcome::{CpuTime, JobOutcome};
use crate::session_stats::SessionStats;
use std::time::Instant;

/// The result of a session.
pub struct SessionResult {
    /// Its index.
    pub index: usize,
    /// Its statistics.
    pub stats: SessionStats,
    /// Commands that failed.
    pub errors: u64,
    /// Commands that were due and did not start.
    pub backlog: u64,
    /// The end of its measured time: its last command, its deadline, or an early end.
    pub end: Instant,
    /// The reason, if it ended early.
    pub why: Option<String>,
}

/// Merges the results into one.
pub fn outcome(job: &Job, clock: JobClock, mut ended: Vec<SessionResult>, cpu: CpuTime) -> JobOutcome {
    ended.sort_unstable_by_key(|session| session.index);
    let end = ended.iter().map(|session| session.end).max().unwrap_or(clock.measured_from);
    let why = ended.iter_mut().find_map(|session| session.why.take());
    let mut sum = SessionStats::new(clock.measured_from, job.interval, job.pace != ArrivalProcess::Closed);
    ended.iter().for_each(|session| sum.merge(&session.stats));
    let (read, write) = sum.totals();
    let seconds = |end: Instant| end.saturating_duration_since(clock.measured_from).as_secs_f64();
    JobOutcome {
        elapsed_s: seconds(end),
        read,
        write,
        sessions: ended.iter().map(|session| session.stats.counts()).collect(),
        sessions_s: ended.iter().map(|session| seconds(session.end)).collect(),
        series: sum.series(end),
        cpu,
        load: None,
        errors: ended.iter().map(|session| session.errors).sum(),
        backlog: ended.iter().map(|session| session.backlog).sum(),
        late: sum.late(),
        ended_early: why,
    }
}
