//! Runs other programs with a time limit.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// A program that a test needs.
#[derive(Clone, Copy, Debug)]
pub struct Tool {
    /// The name of the program.
    pub program: &'static str,
    /// The Debian package that contains it.
    pub package: &'static str,
}

/// Whether all tools are installed. If not, prints `skipped: needs ...`, which `cargo xtask test` counts.
pub fn have(tools: &[Tool]) -> bool {
    let missing: Vec<String> = tools
        .iter()
        .filter(|tool| !is_installed(tool.program))
        .map(|tool| format!("{} (apt-get install {})", tool.program, tool.package))
        .collect();
    if !missing.is_empty() {
        println!("skipped: needs {}", missing.join(", "));
    }
    missing.is_empty()
}

/// Whether a program is in PATH.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The result of a program.
#[derive(Debug)]
pub struct ToolOutput {
    /// The exit status. None: the program was killed at its time limit.
    pub status: Option<ExitStatus>,
    /// Its stdout, then its stderr.
    pub said: String,
}

impl ToolOutput {
    /// Whether it ended with status 0.
    pub fn ok(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

/// Runs a program, and kills it after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> ToolOutput {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let stdout = collect(child.stdout.take().expect("piped"));
    let stderr = collect(child.stderr.take().expect("piped"));
    let status = wait(&mut child, limit);
    let said = [stdout, stderr].map(|reader| reader.join().expect("a reader does not panic"));
    ToolOutput { status, said: said.concat() }
}

/// Runs a program that must succeed within a minute, and returns its output.
pub fn must(program: &str, arguments: &[&str]) -> String {
    let ran = run(Command::new(program).args(arguments), Duration::from_secs(60));
    assert!(ran.ok(), "{program} {}: {:?}\n{}", arguments.join(" "), ran.status, ran.said);
    ran.said
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = from.read_to_end(&mut bytes); // keeps the output before an error
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_ends_a_program_at_its_limit() {
        let ran = run(Command::new("sleep").arg("60"), Duration::from_millis(50));
        assert!(ran.status.is_none());
        let ran = run(Command::new("sh").args(["-c", "echo said; exit 3"]), Duration::from_secs(10));
        assert!(!ran.ok() && ran.said == "said\n");
    }

    #[test]
    fn missing_program_is_reported() {
        assert!(have(&[Tool { program: "sh", package: "dash" }]));
        assert!(!have(&[Tool { program: "no-such-program", package: "none" }]));
    }
}
