//! CPU time of processes and threads.

use crate::{Error, ErrorKind};
use rustix::time::{ClockId, clock_gettime};

/// CPU seconds of this process, all threads, user and system.
pub fn own() -> f64 {
    seconds(ClockId::ProcessCPUTime)
}

/// CPU seconds of the calling thread, user and system.
pub fn of_thread() -> f64 {
    seconds(ClockId::ThreadCPUTime)
}

fn seconds(clock: ClockId) -> f64 {
    let time = clock_gettime(clock);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// CPU seconds of another process, including threads that have ended (proc(5), stat: utime, stime).
///
/// # Errors
/// If the process does not exist.
pub fn of(pid: u32) -> Result<f64, Error> {
    let gone = || {
        Error::new(ErrorKind::System, format!("process {pid} does not exist"), "find the process with pgrep")
    };
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).map_err(|_| gone())?;
    ticks(&stat).map(|ticks| ticks as f64 / rustix::param::clock_ticks_per_second() as f64).ok_or_else(gone)
}

/// utime and stime are fields 14 and 15. Field 2, a name in parentheses, may contain any character.
fn ticks(stat: &str) -> Option<u64> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_with_odd_process_name_is_parsed() {
        let stat = "7 (a) b) c) S 1 2 3 4 5 6 7 8 9 10 120 30 0 0 20";
        assert_eq!(ticks(stat), Some(150));
        assert_eq!(ticks("7"), None);
    }

    #[test]
    fn own_cpu_time_grows_and_matches_proc() {
        let before = own();
        while own() < before + 0.05 {}
        let seconds = of(std::process::id()).expect("we are there");
        assert!((seconds - own()).abs() < 0.1, "{seconds} {}", own());
        assert_eq!(of(u32::MAX).unwrap_err().kind, ErrorKind::System);
    }
}
