//! Commands whose stdout and stderr are a full device, a pipe without a reader, or a pipe that is not read.

use crate::NO_ANSWER;
use crate::logs::{BAD, configuration};
use interop::tool::ToolOutput;
use interop::{INITIATOR, Server, TARGET, lunar_bin};
use std::fs::{self, File};
use std::io::{PipeReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The destination of a stream of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StderrKind {
    Taken,
    Closed,
    Full,
    Unread,
}

/// Command lines, whether they print to stdout on success, and their exit status.
pub fn table(folder: &Path, server: &Server) -> Vec<(Vec<String>, bool, i32)> {
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let (good, bad) = (file("good.toml", &configuration(1)), file("bad.toml", BAD[1]));
    let (portal, socket) = (server.portal(), server.dir().join("admin.sock"));
    let (socket, none) = (socket.display(), "iscsi://127.0.0.1:1/iqn.2026-11.org.example:none/0");
    let url = format!("iscsi://{portal}/{TARGET}/0");
    let row = |words: String, prints: bool, status: i32| {
        (words.split(' ').map(str::to_owned).collect(), prints, status)
    };
    vec![
        row(format!("check {good}"), true, 0),
        row(format!("check {bad}"), false, 1),
        row(format!("ls {portal}"), true, 0),
        row(format!("ls {portal} --json"), true, 0),
        row("ls 127.0.0.1:1".into(), false, 4),
        row(format!("discover {portal}"), true, 0),
        row(format!("info {url}"), true, 0),
        row(format!("info {none}"), false, 4),
        row(format!("doctor {url}"), true, 0),
        row(format!("session list --socket {socket}"), true, 0),
        row(format!("apply {bad} --socket {socket}"), false, 1),
        row(format!("copy {url} null:1M --json"), true, 0),
        row(format!("bench randread {url} --runtime 1s --json"), true, 0),
        row("completions bash".into(), true, 0),
        row("man copy".into(), true, 0),
        row("no-command".into(), false, 2),
    ]
}

/// Runs a command with these streams, and returns the output of those that were captured.
pub fn runs(folder: &Path, words: &[String], stdout: StderrKind, stderr: StderrKind) -> ToolOutput {
    let files = ["stdout", "stderr"].map(|name| folder.join(name));
    let [(out, _out), (err, _err)] = [stdout.open(&files[0]), stderr.open(&files[1])];
    let mut command = Command::new(lunar_bin());
    for name in ["LUNAR_RUN_DIR", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"] {
        command.env(name, folder);
    }
    command.args(words).env("LUNAR_INITIATOR", INITIATOR).stdin(Stdio::null()).stdout(out).stderr(err);
    let mut child = command.spawn().expect("lunar runs");
    drop(command);
    let status = ended(&mut child);
    let said = files.map(|file| fs::read_to_string(file).unwrap_or_default()).concat();
    ToolOutput { status, said }
}

impl StderrKind {
    /// The stream, and the files that must stay open for it.
    fn open(self, file: &Path) -> (Stdio, Option<PipeReader>) {
        let taken = File::create(file).expect("a file");
        match self {
            StderrKind::Taken => (taken.into(), None),
            StderrKind::Full => {
                (File::options().write(true).open("/dev/full").expect("Linux has it").into(), None)
            }
            StderrKind::Closed => (std::io::pipe().expect("a pipe").1.into(), None),
            StderrKind::Unread => {
                let (read, mut write) = std::io::pipe().expect("a pipe");
                rustix::io::ioctl_fionbio(&write, true).expect("a pipe");
                for part in [[b'.'; 4096].as_slice(), b"."] {
                    while write.write(part).is_ok() {}
                }
                rustix::io::ioctl_fionbio(&write, false).expect("a pipe");
                (write.into(), Some(read))
            }
        }
    }
}

/// Waits for the exit status of a process. None: it still ran after [`NO_ANSWER`], and was killed.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    let end = Instant::now() + NO_ANSWER;
    while Instant::now() < end {
        if let Some(status) = child.try_wait().expect("a child") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}
