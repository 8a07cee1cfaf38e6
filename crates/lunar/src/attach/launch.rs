//! The process of an attachment is this program anew: what it is to do comes on its stdin, for secrets have no
//! place among arguments, and one line on its stdout says how it went.

use super::process::{self, AttachObserver};
use super::{cannot, open_attached};
use crate::exit::{Exit, Failure};
use crate::{output, stderr};
use lunar_server::Problem;
use lunar_server::attached::{Attached, Record};
use lunar_server::config::attachment::Attachment;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A log larger than this, in bytes, begins anew with the next process.
const MAX_LOG_BYTES: u64 = 1 << 20;

/// The program that runs, wherever its file is now.
const RUNNING: &str = "/proc/self/exe";

/// What is handed to the process.
#[derive(Serialize, Deserialize)]
struct LaunchRequest {
    attachment: Attachment,
    timeout: Option<Duration>,
}

/// What it answers.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LaunchReply {
    /// A path could not be opened, and is tried again.
    Missing(String),
    /// It is attached, as this.
    Ready(Box<Record>),
    /// It is not.
    Failed {
        exit: u8,
        /// What is wrong, and what to do.
        problems: Vec<(String, Option<String>)>,
    },
}

/// Starts the process, and waits until its disk is there.
///
/// # Errors
/// What the process tells of its failure.
pub fn launch(attachment: Attachment, timeout: Option<Duration>) -> Result<Record, Failure> {
    let attached = open_attached()?;
    let name = attachment.name.clone();
    let handed = serde_json::to_string(&LaunchRequest { attachment, timeout });
    let handed = handed.map_err(|e| cannot("tell the process what to do", &io::Error::other(e)))?;
    let mut child = start(&name).map_err(|e| cannot("start a process", &e))?;
    // A process that is gone already is told of below.
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
                let problem = |(what, hint)| Problem { hint, ..Problem::new(what, "") };
                let problems = problems.into_iter().map(problem).collect();
                return Err(Failure { exit: Exit::of(exit), problems });
            }
            Err(_) => break,
        }
    }
    Err(unexpected_exit(&mut child, &attached, &name))
}

/// From here on what the process says stands in its log; true if that is a new one.
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

/// Until it has its name, it says what it has to say where we do.
fn start(name: &str) -> io::Result<Child> {
    let mut command = Command::new(program());
    command.arg0("lunar");
    // What may be a terminal now is a file later.
    command.args(["attach", "--handed", name]).env("NO_COLOR", "1");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// This program. Its file gives the process its name, unless another stands there by now.
fn program() -> PathBuf {
    let id = |path: &Path| std::fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let running = Path::new(RUNNING);
    let is_same =
        |path: &PathBuf| id(path).ok().is_some_and(|file| id(running).is_ok_and(|ours| ours == file));
    std::fs::read_link(running).ok().filter(is_same).unwrap_or(running.into())
}

/// It ended without a word.
fn unexpected_exit(child: &mut Child, attached: &Attached, name: &str) -> Failure {
    let how = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
    let said = last_lines(&attached.file(name, "log"), 5).join("\n  ");
    Failure::new(
        Exit::General,
        format!("the process of {name} ended ({how})"),
        format!("the end of its log:\n  {said}"),
    )
}

/// The last lines of a log.
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

/// The process itself: serves what stdin says, out of its parent's session, and answers.
///
/// # Errors
/// What went wrong after it was attached; what went wrong before is answered.
pub fn run_launched() -> Result<(), Failure> {
    let mut text = String::new();
    let read =
        io::stdin().read_to_string(&mut text).and_then(|_| Ok(serde_json::from_str::<LaunchRequest>(&text)?));
    let handed =
        read.map_err(|e| Failure::new(Exit::Invalid, format!("--handed is internal: {e}"), "leave it out"))?;
    // It leads its group already when a shell has started it: then it stays where it is.
    _ = rustix::process::setsid();
    let attached = open_attached()?;
    let log = attached.file(&handed.attachment.name, "log");
    let (mut was_ready, mut new_log) = (false, false);
    let watch = AttachObserver {
        claimed: |_: &Record| {
            new_log = log_to(&log).map_err(|e| cannot("open its log", &e))?;
            Ok(())
        },
        missing: |why: &str| _ = reply(&LaunchReply::Missing(why.to_owned())),
        ready: |record: &Record| {
            was_ready = true;
            // Nothing of where it was started is kept busy.
            _ = std::env::set_current_dir("/");
            reply(&LaunchReply::Ready(Box::new(record.clone())))
        },
        ends_with_terminal: false,
    };
    match process::serve(&handed.attachment, handed.timeout, watch) {
        Err(failure) if !was_ready => {
            if new_log {
                // Nothing was attached: nobody would look for it.
                _ = std::fs::remove_file(&log);
            }
            let problems = failure.problems.iter().map(|problem| (problem.fault(), problem.hint.clone()));
            reply(&LaunchReply::Failed { exit: failure.exit as u8, problems: problems.collect() });
            Ok(())
        }
        ended => ended,
    }
}

/// False when nobody waits for it any more.
fn reply(reply: &LaunchReply) -> bool {
    let Ok(mut line) = serde_json::to_string(reply) else { return false };
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_ok()
}
