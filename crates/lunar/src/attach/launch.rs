//! Starts the process of an attachment: this program, executed again. It reads its settings from stdin, because arguments
//! are visible to other users and settings may hold secrets. It reports the result in one line on stdout.

use super::process::{self, AttachObserver};
use super::{cannot, open_attached};
use crate::exit::{Exit, Failure};
use crate::{output, stderr};
use lunar_runtime::child;
use lunar_server::Diagnostic;
use lunar_server::attached::{Attached, Record};
use lunar_server::config::attachment::Attachment;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

/// The next process truncates a log that is larger than this, in bytes.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// The running program, even if its file was moved or deleted.
const RUNNING: &str = "/proc/self/exe";

/// The settings, as the process reads them from stdin.
#[derive(Serialize, Deserialize)]
struct LaunchRequest {
    attachment: Attachment,
    timeout: Option<Duration>,
}

/// A line that the process writes to stdout.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LaunchReply {
    /// A path could not be opened, and is tried again.
    Missing(String),
    /// The LUN is attached.
    Ready(Box<Record>),
    /// The LUN could not be attached.
    Failed {
        exit: u8,
        /// Fault and hint of each problem.
        problems: Vec<(String, Option<String>)>,
    },
}

/// Starts the process, and waits until the disk is attached.
///
/// # Errors
/// The failure that the process reports.
pub fn launch(attachment: Attachment, timeout: Option<Duration>) -> Result<Record, Failure> {
    let attached = open_attached()?;
    let name = attachment.name.clone();
    let handed = serde_json::to_string(&LaunchRequest { attachment, timeout });
    let handed = handed.map_err(|e| cannot("encode the settings", &io::Error::other(e)))?;
    let mut child = start(&name).map_err(|e| cannot("start a process", &e))?;
    // If the process is already gone, its missing reply is reported below.
    _ = child.stdin.take().map(|mut stdin| stdin.write_all(handed.as_bytes()));
    let lines = child
        .stdout
        .take()
        .into_iter()
        .flat_map(|stdout| BufReader::new(stdout).lines().map_while(Result::ok));
    for line in lines {
        match serde_json::from_str(&line) {
            Ok(LaunchReply::Missing(why)) => {
                output::stderr_line(format_args!("warning: {why}; trying again"))
            }
            Ok(LaunchReply::Ready(record)) => return Ok(*record),
            Ok(LaunchReply::Failed { exit, problems }) => {
                _ = child.wait();
                let problem = |(what, hint)| Diagnostic { hint, ..Diagnostic::new(what, "") };
                let problems = problems.into_iter().map(problem).collect();
                return Err(Failure { exit: Exit::of(exit), problems });
            }
            Err(_) => break,
        }
    }
    Err(unexpected_exit(&mut child, &attached, &name))
}

/// Redirects stderr to the log. True: the log did not exist before.
fn log_to(path: &Path) -> io::Result<bool> {
    let is_new = !path.exists();
    let file = File::options().create(true).append(true).mode(0o600).open(path)?;
    if file.metadata()?.len() > MAX_LOG_BYTES {
        file.set_len(0)?;
    }
    stderr::settle();
    rustix::stdio::dup2_stderr(&file)?;
    Ok(is_new)
}

/// Starts the process. It shares our stderr until it has claimed its name and opened its log.
fn start(name: &str) -> io::Result<Child> {
    let mut command = child::command(program());
    command.arg0("lunar");
    // stderr may be a terminal now, but becomes a log file.
    command.args(["attach", "--handed", name]).env("NO_COLOR", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// The path of this program, so that the process has its name; `/proc/self/exe` if another file is at that path now.
fn program() -> PathBuf {
    let id = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let running = Path::new(RUNNING);
    let is_same =
        |path: &PathBuf| id(path).ok().is_some_and(|file| id(running).is_ok_and(|ours| ours == file));
    std::fs::read_link(running).ok().filter(is_same).unwrap_or(running.into())
}

/// The error for a process that ended without a reply.
fn unexpected_exit(child: &mut Child, attached: &Attached, name: &str) -> Failure {
    let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    let said = last_lines(&attached.file(name, "log"), 5).join("\n  ");
    Failure::new(
        Exit::General,
        format!("the process that attaches {name} ended ({how})"),
        format!("the end of the log:\n  {said}"),
    )
}

/// The last `count` lines of a log.
pub fn last_lines(path: &Path, count: usize) -> Vec<String> {
    const TAIL: u64 = 16 << 10;
    let read = || -> io::Result<String> {
        let mut file = File::open(path)?;
        let from = file.metadata()?.len().saturating_sub(TAIL);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(TAIL).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}

/// Runs the process of an attachment, in a new session (setsid(2)).
///
/// # Errors
/// A failure after the attachment. An earlier failure is written to stdout.
pub fn run_launched() -> Result<(), Failure> {
    let mut text = String::new();
    let read =
        io::stdin().read_to_string(&mut text).and_then(|_| Ok(serde_json::from_str::<LaunchRequest>(&text)?));
    let handed =
        read.map_err(|e| Failure::new(Exit::Invalid, format!("--handed is internal: {e}"), "omit --handed"))?;
    // Fails if the process already leads its group, as it does when a shell started it.
    _ = rustix::process::setsid();
    let attached = open_attached()?;
    let log = attached.file(&handed.attachment.name, "log");
    let (mut was_ready, mut new_log) = (false, false);
    let watch = AttachObserver {
        claimed: |_: &Record| {
            new_log = log_to(&log).map_err(|e| cannot("open the log of the attachment", &e))?;
            Ok(())
        },
        missing: |why: &str| _ = reply(&LaunchReply::Missing(why.to_owned())),
        ready: |record: &Record| {
            was_ready = true;
            // The file system of the working directory can be unmounted.
            _ = std::env::set_current_dir("/");
            reply(&LaunchReply::Ready(Box::new(record.clone())))
        },
        ends_with_terminal: false,
    };
    match process::serve(&handed.attachment, handed.timeout, watch) {
        Err(failure) if !was_ready => {
            if new_log {
                // Without an attachment, no command shows this log.
                _ = std::fs::remove_file(&log);
            }
            let problems = failure.problems.iter().map(|problem| (problem.fault(), problem.hint.clone()));
            reply(&LaunchReply::Failed { exit: failure.exit as u8, problems: problems.collect() });
            Ok(())
        }
        ended => ended,
    }
}

/// Writes a reply. False: the command that reads it is gone.
fn reply(reply: &LaunchReply) -> bool {
    let Ok(mut line) = serde_json::to_string(reply) else { return false };
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_ok()
}
