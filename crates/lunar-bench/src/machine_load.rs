//! The load that other processes put on the machine during a run.

use crate::document::JobRun;
use crate::outcome::MachineLoad;
use crate::text_report::count;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// The prefix of the note.
const NOTE_PREFIX: &str = "busy: ";
/// Other processes that use more than this share of the machine's cores are worth a note.
const NOTABLE: f64 = 0.05;
/// The kernel counts CPU time in ticks of ten milliseconds: shorter runs cannot be measured.
const SHORTEST: Duration = Duration::from_millis(100);
/// The parent of the threads of the kernel.
const KTHREADD: u32 = 2;

/// Measures the load of other processes from its creation on.
pub struct LoadMeter {
    target_pid: Option<u32>,
    start: Instant,
    before: Option<LoadReading>,
}

/// CPU time since the start of the machine, in ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LoadReading {
    /// Of all processes and threads of the kernel (proc(5), stat: user, nice, system).
    all: u64,
    /// Not available because the hypervisor ran something else (stat: steal).
    stolen: u64,
    /// Of this process, the target, their descendants, and the threads of the kernel, which work for everyone.
    own: u64,
    /// Cores of the machine.
    cores: usize,
}

impl LoadMeter {
    /// Starts a measurement. The process of the target and its descendants do not count as others.
    pub fn start(target_pid: Option<u32>) -> LoadMeter {
        LoadMeter { target_pid, before: read(target_pid), start: Instant::now() }
    }

    /// The load since the start; None if the time was too short, or /proc cannot be read.
    pub fn finish(&self) -> Option<MachineLoad> {
        let elapsed = self.start.elapsed();
        if elapsed < SHORTEST {
            return None;
        }
        Some(load(self.before?, read(self.target_pid)?, elapsed))
    }
}

fn load(before: LoadReading, now: LoadReading, elapsed: Duration) -> MachineLoad {
    let ticks = rustix::param::clock_ticks_per_second() as f64 * elapsed.as_secs_f64();
    let since = |now: u64, before: u64| now as f64 - before as f64;
    let others = since(now.all, before.all) - since(now.own, before.own);
    let stolen = since(now.stolen, before.stolen);
    // Ticks are coarse: the sum could exceed the machine.
    let used = |spent: f64| (spent / ticks).clamp(0.0, now.cores as f64);
    MachineLoad { others: used(others), stolen: used(stolen), cores: now.cores }
}

fn read(target_pid: Option<u32>) -> Option<LoadReading> {
    let (all, stolen, cores) = machine(&std::fs::read_to_string("/proc/stat").ok()?)?;
    let processes: HashMap<u32, ProcessTimes> = std::fs::read_dir("/proc")
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            Some((pid, process(&std::fs::read_to_string(entry.path().join("stat")).ok()?)?))
        })
        .collect();
    let roots = [Some(std::process::id()), target_pid, Some(KTHREADD)];
    let own = own(&processes, roots.into_iter().flatten());
    Some(LoadReading { all, stolen, own, cores })
}

/// The ticks of all processes, the stolen ticks, and the number of cores.
fn machine(stat: &str) -> Option<(u64, u64, usize)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let cores = stat.lines().filter(|line| line.starts_with("cpu")).count() - 1;
    Some((ticks.get(..3)?.iter().sum(), ticks.get(7).copied().unwrap_or(0), cores))
}

/// A process in proc(5), stat.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessTimes {
    parent: u32,
    /// Its ticks, and those of its children that ended.
    ticks: u64,
}

/// Fields 4 and 14 to 17; field 2, a name in parentheses, may contain any character.
fn process(stat: &str) -> Option<ProcessTimes> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(ProcessTimes { parent: fields.get(1)?.parse().ok()?, ticks })
}

/// The ticks of these processes and of all their descendants.
fn own(processes: &HashMap<u32, ProcessTimes>, roots: impl Iterator<Item = u32>) -> u64 {
    let mut family: HashSet<u32> = roots.collect();
    loop {
        let is_child = |(pid, process): &(&u32, &ProcessTimes)| {
            family.contains(&process.parent) && !family.contains(*pid)
        };
        let children: Vec<u32> = processes.iter().filter(is_child).map(|(pid, _)| *pid).collect();
        if children.is_empty() {
            break;
        }
        family.extend(children);
    }
    family.iter().filter_map(|pid| processes.get(pid)).map(|process| process.ticks).sum()
}

/// A note if other processes kept the machine busy during some of these runs.
pub fn note(runs: &[JobRun]) -> Option<String> {
    let loads = || runs.iter().filter_map(|run| Some((run, run.outcome.load?)));
    let is_busy = |load: &MachineLoad| load.others.max(load.stolen) > NOTABLE * load.cores as f64;
    let busy = loads().filter(|(_, load)| is_busy(load)).count();
    let (run, most) = loads().max_by(|(_, a), (_, b)| a.total().total_cmp(&b.total()))?;
    if busy == 0 {
        return None;
    }
    let during = match runs.len() {
        1 => "the run".to_owned(),
        many => format!("{busy} of {}, at most during {}", count(many, "run"), run.label),
    };
    let stolen = match most.stolen > 0.0 {
        true => format!(", and the hypervisor withheld {:.2},", most.stolen),
        false => String::new(),
    };
    Some(format!(
        "{NOTE_PREFIX}other processes used {:.2} of {}{stolen} during {during}. A target on this machine counts as \
         another process unless --target-pid names it.",
        most.others,
        count(most.cores, "core"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;
    use std::process::{Command, Stdio};
    use std::thread;

    #[test]
    fn ticks_of_machine_and_process_are_parsed() {
        let stat = "cpu  10 20 30 400 5 6 7 8 0 0\ncpu0 1 2 3 4\ncpu1 1 2 3 4\nintr 1\n";
        assert_eq!(machine(stat), Some((60, 8, 2)));
        assert_eq!(machine("cpu  1 2\n"), None);
        let line = "7 (a) b) c) S 42 2 3 4 5 6 7 8 9 10 120 30 5 6 20";
        assert_eq!(process(line), Some(ProcessTimes { parent: 42, ticks: 161 }));
        assert_eq!(process("7 (a) S 1"), None);
    }

    #[test]
    fn descendants_and_kernel_threads_are_not_others() {
        let process = |pid: u32, parent: u32, ticks: u64| (pid, ProcessTimes { parent, ticks });
        let all = [
            process(1, 0, 1000),
            process(2, 0, 1),
            process(3, 2, 10),
            process(40, 1, 100),
            process(41, 40, 200),
            process(42, 41, 400),
            process(50, 1, 5000),
        ];
        assert_eq!(own(&all.into(), [40, 2, 999].into_iter()), 711);
        let before = LoadReading { all: 1000, stolen: 0, own: 500, cores: 4 };
        let now = LoadReading { all: 1400, stolen: 50, own: 700, cores: 4 };
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        let expected = MachineLoad { others: 100.0 / ticks, stolen: 25.0 / ticks, cores: 4 };
        assert_eq!(load(before, now, Duration::from_secs(2)), expected);
    }

    #[test]
    fn busy_machine_is_noted_and_quiet_one_is_not() {
        let run = |label: &str, others, stolen| {
            let mut run = sample::run(label, 4096, true, 1e8, 0.0);
            run.outcome.load = Some(MachineLoad { others, stolen, cores: 2 });
            run
        };
        assert_eq!(note(&[run("a", 0.09, 0.09)]), None);
        assert_eq!(note(&[sample::run("old", 4096, true, 1e8, 0.0)]), None);
        let one = note(&[run("a", 0.84, 0.0)]).expect("a note");
        assert!(
            one.starts_with("busy: other processes used 0.84 of 2 cores during the run. A target"),
            "{one}"
        );
        let some = note(&[run("a", 0.3, 0.0), run("b", 0.0, 0.0), run("c", 0.5, 0.25)]).expect("a note");
        let expected =
            "used 0.50 of 2 cores, and the hypervisor withheld 0.25, during 2 of 3 runs, at most during c.";
        assert!(some.contains(expected), "{some}");
    }

    /// The shell ends at once, so that its loop is no descendant of this process.
    #[test]
    fn load_of_another_process_is_measured() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "(while :; do :; done) >/dev/null & echo $!"]).stderr(Stdio::null());
        let said = shell.output().expect("a shell").stdout;
        let pid = String::from_utf8(said).expect("text").trim().parse().expect("a process id");
        let pid = rustix::process::Pid::from_raw(pid).expect("a process id");
        let meter = LoadMeter::start(None);
        thread::sleep(Duration::from_millis(600));
        let load = meter.finish();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it runs");
        assert!(load.is_some_and(|load| load.others > 0.0 && load.cores > 0), "{load:?}");
    }
}
