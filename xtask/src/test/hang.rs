//! Analyses and kills hanging tests.

use std::fs;
use std::process::Stdio;

use crate::root;

/// The maximum number of lines for one program: the stacks of some threads.
const MAX_LINES: usize = 150;

/// Kills a program and its descendants; returns what its threads were doing.
pub fn end(pid: u32) -> Vec<String> {
    let details = stand(pid);
    let numbers: Vec<String> = descendants(&processes(), vec![pid]).iter().map(u32::to_string).collect();
    let kill = format!("kill -9 {}", numbers.join(" "));
    // Processes that have ended meanwhile do not matter.
    let _ = root::command("sh").args(["-c", &kill]).stderr(Stdio::null()).status();
    details
}

/// These processes and all their descendants.
fn descendants(processes: &[(u32, u32)], mut all: Vec<u32>) -> Vec<u32> {
    let mut next = 0;
    while let Some(parent) = all.get(next) {
        all.extend(children(processes, *parent));
        next += 1;
    }
    all
}

/// Every process and its parent.
fn processes() -> Vec<(u32, u32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain any character, including parentheses.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn children(processes: &[(u32, u32)], parent: u32) -> Vec<u32> {
    processes.iter().filter(|process| process.1 == parent).map(|process| process.0).collect()
}

/// The stacks of its threads if gdb is installed, otherwise their names (a test's thread has the name of the
/// test).
fn stand(pid: u32) -> Vec<String> {
    let mut gdb = root::command("gdb");
    gdb.args(["-batch", "-ex", "thread apply all backtrace", "-p", &pid.to_string()]);
    let said = gdb.stdin(Stdio::null()).output().map(|output| output.stdout).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let stacks: Vec<String> =
        said.lines().filter(|line| line.starts_with(['T', '#'])).take(MAX_LINES).map(str::to_owned).collect();
    if stacks.is_empty() { names(pid) } else { stacks }
}

fn names(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let name = |path: std::path::PathBuf| {
        let read = |what: &str| fs::read_to_string(path.join(what)).unwrap_or_default();
        format!("thread {} in {}", read("comm").trim(), read("wchan").trim())
    };
    tasks.map(|task| name(task.path())).take(MAX_LINES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_and_its_descendants_are_killed() {
        let mut shell = root::command("sh").args(["-c", "sh -c 'sleep 1000; :'; :"]).spawn().expect("sh");
        let inner = loop {
            let all = processes();
            let found =
                children(&all, shell.id()).first().and_then(|inner| children(&all, *inner).first().copied());
            if let Some(inner) = found {
                break inner;
            }
        };
        let details = end(shell.id());
        assert!(!details.is_empty());
        shell.wait().expect("the shell and its descendants end");
        // The innermost process is gone, or a zombie without a command line.
        let words = || fs::read(format!("/proc/{inner}/cmdline")).unwrap_or_default();
        while !words().is_empty() {
            std::thread::yield_now();
        }
        assert!(!names(std::process::id()).is_empty());
    }
}
