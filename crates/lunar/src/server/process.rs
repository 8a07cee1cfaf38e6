//! CPU time, memory and file descriptors of this process, as the kernel reports them.

use lunar_admin::metrics::ProcessMetrics;
use rustix::process::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The process. Figures that the kernel does not report are 0.
pub fn metrics() -> ProcessMetrics {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or_default();
    ProcessMetrics {
        cpu_s: cpu_s(Path::new("/proc/self")).unwrap_or_default(),
        resident_bytes: pages * rustix::param::page_size() as u64,
        open_fds: fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
        max_fds: getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX),
    }
}

/// The CPU time of the threads of this process in seconds, by name.
pub fn threads() -> BTreeMap<String, f64> {
    let mut times: BTreeMap<String, f64> = BTreeMap::new();
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let Ok(name) = fs::read_to_string(thread.path().join("comm")) else { continue };
        *times.entry(name.trim_end().to_owned()).or_default() += cpu_s(&thread.path()).unwrap_or_default();
    }
    times
}

/// The CPU time of a process or thread in seconds.
fn cpu_s(folder: &Path) -> Option<f64> {
    let stat = fs::read_to_string(folder.join("stat")).ok()?;
    let ticks = ticks(&stat)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// `utime` and `stime` of a line of `stat` (proc(5)). The name before them may have spaces and parentheses.
fn ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).take(2);
    Some(times.next()?.parse::<u64>().ok()? + times.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_follow_name_with_parentheses() {
        let stat = "7 (core 1) x) S 1 7 7 0 -1 4194624 99 0 0 0 250 30 0 0 20 0 9 0 100 1 2";
        assert_eq!(ticks(stat), Some(280));
        assert_eq!(ticks("7 (core"), None);
    }

    #[test]
    fn own_process_has_memory_and_files() {
        let metrics = metrics();
        assert!(metrics.resident_bytes > 0 && metrics.open_fds > 2 && metrics.max_fds >= metrics.open_fds);
        assert!(!threads().is_empty());
    }
}
