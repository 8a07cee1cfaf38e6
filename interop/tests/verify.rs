//! `lunar bench --verify` across kills of the server and of itself. No acknowledged data are lost, and a change by
//! another program is detected.

use interop::{Folder, Server, TARGET, lunar_bin};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Size of the written range. It is small, so that blocks are overwritten often.
const SPAN: u64 = 2 << 20;
const UNIT: u64 = 4096;
/// Bytes that the state grows by for each write.
const RECORDS: u64 = 48;
/// Writes after which most blocks were written.
const MANY: u64 = 2 * SPAN / UNIT;

fn server() -> Server {
    let toml = format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n"
    );
    Server::start_in(Folder::fresh(), &toml)
}

/// `lunar bench` on the server, with the state in its folder.
fn bench(server: &Server, more: &[&str]) -> Command {
    let mut command = Command::new(lunar_bin());
    command.args(["bench", "randwrite", &format!("iscsi://{}/{TARGET}/0", server.portal())]);
    command.args(["--depth", "16", "--sessions", "2", "--span", "2m", "--destroy", "--verify"]);
    command.arg("--verify-state").arg(server.dir().join("verify.state")).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn stdout_and_stderr(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

/// The number of blocks with acknowledged contents.
fn verified(output: &Output) -> u64 {
    let (out, err) = stdout_and_stderr(output);
    assert!(output.status.success(), "{out}{err}");
    let note = out.lines().find_map(|line| line.strip_prefix("note: verified: "));
    let note = note.unwrap_or_else(|| panic!("nothing was verified: {out}{err}"));
    note.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

fn check(server: &Server) -> u64 {
    verified(&bench(server, &["--verify-only"]).output().expect("lunar runs"))
}

/// Starts to write, and returns when the state file has `writes` more records.
fn begin(server: &Server, runtime: &str, writes: u64) -> Child {
    let len = || std::fs::metadata(server.dir().join("verify.state")).map_or(0, |state| state.len());
    let (before, end) = (len(), Instant::now() + Duration::from_secs(30));
    let child = bench(server, &["--runtime", runtime]).spawn().expect("lunar runs");
    while len() < before + writes * RECORDS {
        assert!(Instant::now() < end, "lunar bench does not write");
        sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn verify_finds_no_loss_after_a_server_restart() {
    let mut server = server();
    for round in 0..3 {
        let child = begin(&server, "6", MANY + 300 * round);
        server.kill9();
        server.restart();
        // lunar bench logs in again, and reads back all blocks at its end.
        assert!(verified(&child.wait_with_output().expect("lunar bench ends")) > SPAN / UNIT / 2);
        assert!(check(&server) > SPAN / UNIT / 2);
    }
}

#[test]
fn verify_state_continues_after_a_killed_run() {
    let server = server();
    for round in 0..4 {
        let mut child = begin(&server, "60", MANY + 300 * round);
        child.kill().expect("lunar bench runs");
        child.wait().expect("lunar bench ends");
        assert!(check(&server) > SPAN / UNIT / 2, "round {round}");
    }
    let output = bench(&server, &["--amount", "4m"]).output().expect("lunar runs");
    assert!(verified(&output) > SPAN / UNIT / 2);
}

#[test]
fn verify_detects_a_disk_changed_by_others() {
    let mut server = server();
    let output = bench(&server, &["--amount", "8m"]).output().expect("lunar runs");
    assert!(verified(&output) > SPAN / UNIT / 2);
    server.kill9();
    let disk = File::options().read(true).write(true).open(server.dir().join("disk.img")).expect("the disk");
    let written = |n: &u64| {
        let mut head = [0; 8];
        disk.read_exact_at(&mut head, n * UNIT).expect("a block");
        head != [0; 8]
    };
    let block = (0..SPAN / UNIT).find(written).expect("something was written");
    disk.write_all_at(b"!", block * UNIT + 777).expect("altered");
    server.restart();
    let output = bench(&server, &["--verify-only"]).output().expect("lunar runs");
    let (out, err) = stdout_and_stderr(&output);
    let expected = format!("block {block} (byte {}): the data does not match its CRC", block * UNIT);
    assert!(output.status.code() == Some(1) && err.contains(&expected), "{out}{err}");
}
