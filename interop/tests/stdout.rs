//! A command fails if it cannot write all of its output, for example to a full device. A stderr that is full, closed
//! or not read does not change the exit status.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};

use interop::server::{Folder, lunar_bin};
use interop::{config, shared};

const MOVES: &str = "iqn.2026-11.org.example:moves";

/// Runs a command whose stdout is full. Returns its stderr and its exit status.
fn without_room(arguments: &[&str], run_dir: &str) -> (String, Option<i32>) {
    let full = File::options().write(true).open("/dev/full").expect("Linux has it");
    let mut command = Command::new(lunar_bin());
    command.args(arguments).env("LUNAR_INITIATOR", config::INITIATOR).env("LUNAR_RUN_DIR", run_dir);
    command.env("XDG_STATE_HOME", run_dir).stdin(Stdio::null());
    let ran = command.stdout(full).output().expect("lunar runs");
    (String::from_utf8_lossy(&ran.stderr).into_owned(), ran.status.code())
}

fn fails(arguments: &[&str], run_dir: &str) {
    let (said, status) = without_room(arguments, run_dir);
    let hint = if arguments.contains(&"--json") { "\",\"hint\":\"" } else { "\n  hint: " };
    let is_reported = said.contains(&format!("cannot write to stdout: no space left on device{hint}"));
    assert!(is_reported && status == Some(1), "{arguments:?}: {status:?}: {said}");
}

#[test]
fn commands_without_a_target_fail_on_full_stdout() {
    let dir = Folder::fresh();
    let run_dir = dir.display().to_string();
    let file = dir.join("lunar.toml").display().to_string();
    std::fs::write(&file, config::standard()).expect("a file");
    let (disk, copy) = (dir.join("disk").display().to_string(), dir.join("copy").display().to_string());
    std::fs::write(&disk, [7; 4096]).expect("a file");
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["scsi", "--help"],
        &["check", &file],
        &["config", "show", &file],
        &["config", "dump", "--config", &file],
        &["adopt", "--all", "--dry-run", "--config", &file],
        &["completions", "bash"],
        &["man"],
        &["attach", "list", "--json"],
        &["rdma", "list"],
        &["copy", &disk, &copy, "--json"],
        &["bench", "randread", "null:1M", "--runtime", "1s", "--json"],
        &["bench", "dd", "if=null:1M", "of=null:1M"],
    ] {
        fails(arguments, &run_dir);
    }
}

#[test]
fn commands_with_a_server_fail_on_full_stdout() {
    let dir = Folder::fresh();
    let run_dir = dir.display().to_string();
    let server = shared();
    let socket = server.dir().join("admin.sock").display().to_string();
    server.said(&["target", "add", MOVES, "standby=true", "--transient"]);
    for arguments in [
        &["status"][..],
        &["page"],
        &["top", "--once", "--interval", "100ms"],
        &["session", "list"],
        &["gateway", "list"],
        &["gateway", "show", "--json"],
        &["target", "list"],
        &["target", "show", config::TARGET, "--json"],
        // A target without LUNs, which the test adds.
        &["target", "promote", MOVES],
        &["target", "demote", MOVES],
        &["lun", "list"],
        &["lun", "add", config::TARGET, "null:1M", "--lun", "99", "--dry-run"],
        &["disk", "list"],
        &["access", "list", config::TARGET],
        &["chap", "list"],
        &["portal", "list"],
        &["portal", "show", "1"],
        &["subsystem", "list"],
        &["namespace", "list"],
        &["config", "show"],
        &["history"],
        &["diff", "--since", "1"],
        &["rollback", "--to", "1", "--dry-run"],
    ] {
        fails(&[arguments, &["--socket", &socket]].concat(), &run_dir);
    }
}

#[test]
fn commands_with_a_target_fail_on_full_stdout() {
    let dir = Folder::fresh();
    let run_dir = dir.display().to_string();
    let server = shared();
    let portal = server.portal().to_string();
    let url = format!("iscsi://{portal}/{}/0", config::TARGET);
    for arguments in [
        &["discover", &portal][..],
        &["ls", &portal, "--json"],
        &["info", &url],
        &["pr", &url, "read-keys"],
        &["scsi", &url, "12:00:00:00:60:00", "--in", "96"],
        &["scsi", &url, "12:00:00:00:60:00", "--in", "96", "--json"],
        &["doctor", &url],
        &["copy", &url, "null:64M", "--json"],
    ] {
        fails(arguments, &run_dir);
    }
    // There are logins to show now.
    let socket = server.dir().join("admin.sock").display().to_string();
    fails(&["events", "--socket", &socket], &run_dir);
}

/// The disk is attached, and stderr reports that. In the foreground, the command ends.
#[test]
fn attach_to_full_stdout_is_reported() {
    let dir = Folder::fresh();
    let run_dir = dir.display().to_string();
    let server = shared();
    let url = format!("iscsi://{}/{}/0", server.portal(), config::TARGET);
    let (said, status) = without_room(&["attach", &url, "--name", "unseen"], &run_dir);
    assert!(said.contains("hint: lunar attach list still lists") && status == Some(1), "{status:?}: {said}");
    fails(&["attach", "list"], &run_dir);
    fails(&["detach", "unseen"], &run_dir);
    let (said, status) = without_room(&["attach", &url, "--name", "unseen", "--foreground"], &run_dir);
    assert!(said.contains("cannot write to stdout: ") && status == Some(1), "{status:?}: {said}");
}

#[test]
fn reader_that_closes_the_pipe_is_no_failure() {
    let mut command = Command::new(lunar_bin());
    let mut child = command.args(["man", "copy"]).stdout(Stdio::piped()).spawn().expect("lunar runs");
    // The reader closes the pipe after a byte, or before the command starts.
    let mut out = child.stdout.take().expect("a pipe");
    out.read_exact(&mut [0]).expect("a byte");
    drop(out);
    assert!(child.wait().expect("a child").success());
    let (read, write) = std::io::pipe().expect("a pipe");
    drop(read);
    let status = Command::new(lunar_bin()).args(["completions", "bash"]).stdout(write).status();
    assert!(status.expect("lunar runs").success());
}

/// The exit status of a command with this stderr.
fn status_with_stderr(arguments: &[&str], stderr: Stdio) -> Option<i32> {
    let mut command = Command::new(lunar_bin());
    let ended = command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).status();
    ended.expect("lunar runs").code()
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("Linux has it").into()
}

fn closed() -> Stdio {
    std::io::pipe().expect("a pipe").1.into()
}

#[test]
fn full_stderr_does_not_change_the_exit_status() {
    let dir = Folder::fresh();
    let (bad, good) =
        (dir.join("bad.toml").display().to_string(), dir.join("good.toml").display().to_string());
    std::fs::write(&bad, "no configuration").expect("a file");
    // A warning: the target has no LUN.
    let lonely = "[[target]]\nname = \"iqn.2026-11.org.example:alone\"\n";
    std::fs::write(&good, config::standard() + lonely).expect("a file");
    let dead = "iscsi://127.0.0.1:1/iqn.2026-11.org.example:none/0";
    for (arguments, status) in [
        (&["check", &bad][..], 1),
        (&["check", &good], 0),
        (&["no-command"], 2),
        (&["serve", "--config", &bad], 1),
        (&["info", dead, "--timeout", "2"], 4),
        (&["copy", "null:64M", "null:64M"], 0),
        (&["copy", dead, "null:64M"], 4),
    ] {
        for (name, stderr) in [("full", full()), ("closed", closed())] {
            assert_eq!(status_with_stderr(arguments, stderr), Some(status), "{name}: {arguments:?}");
        }
    }
}

/// The pipe is full before the command begins.
#[test]
fn unread_stderr_does_not_block_a_command() {
    let (read, mut write) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&write, true).expect("a pipe");
    while std::io::Write::write(&mut write, &[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).expect("a pipe");
    assert_eq!(status_with_stderr(&["check", "/none.toml"], write.into()), Some(21));
    drop(read);
}

/// The stdout of the server is not read; it serves and ends normally.
#[test]
fn unread_stdout_does_not_block_a_server() {
    let (read, mut write) = std::io::pipe().expect("a pipe");
    rustix::io::ioctl_fionbio(&write, true).expect("a pipe");
    while std::io::Write::write(&mut write, &[b'.'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&write, false).expect("a pipe");
    let dir = Folder::fresh();
    let portal = format!("127.0.0.1:{}", interop::ports::free());
    let mut command = Command::new(lunar_bin());
    command.args(["serve", "memory:1M", "--listen", &portal]).env("XDG_STATE_HOME", &*dir);
    let mut child = command.env("LUNAR_RUN_DIR", &*dir).stdout(write).spawn().expect("lunar runs");
    while std::net::TcpStream::connect(&portal).is_err() {
        assert!(child.try_wait().expect("a child").is_none(), "lunar serve ended");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .expect("lunar serve runs");
    assert_eq!(child.wait().expect("a child").code(), Some(0));
    drop(read);
}
