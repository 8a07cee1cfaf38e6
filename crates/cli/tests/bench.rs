//! `lunar bench` as people use it: what it prints and writes, what it refuses, and what is left of a run that
//! ends early.

use bench::Document;
use interop::tool::{self, Tool};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LUNAR: &str = env!("CARGO_BIN_EXE_lunar");

/// A folder that goes away.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn bench(&self, args: &str) -> Command {
        let mut command = Command::new(LUNAR);
        command.arg("bench").args(args.split_whitespace()).current_dir(&self.0).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Exit status, stdout and stderr.
    fn run(&self, args: &str) -> (i32, String, String) {
        told(self.bench(args).output().unwrap())
    }

    fn good(&self, args: &str) -> String {
        let (status, said, complaints) = self.run(args);
        assert_eq!(status, 0, "{args}: {complaints}");
        said
    }

    fn document(&self, args: &str) -> Document {
        serde_json::from_str(&self.good(args)).expect("a document")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn told(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn text_json_terse_and_a_page_tell_of_one_run() {
    let folder = Folder::new("forms");
    let text = folder.good("randread memory:1M --runtime 50ms");
    assert!(text.starts_with("randread, 4k, depth 1, 1 session\n") && text.contains("MiB/s"), "{text}");
    let document = folder.document("randread memory:1M --runtime 50ms --json --report page.html");
    assert_eq!(document.runs.len(), 1);
    assert!(document.runs[0].outcome.read.ios > 0);
    let page = fs::read_to_string(folder.0.join("page.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("overhead"), "{}", &page[..200]);
    let terse = folder.good("randread memory:1M --runtime 50ms --terse");
    assert!(terse.starts_with("3;") && terse.lines().count() == 1, "{terse}");
}

/// A short run of each tool.
const FACES: [&str; 5] = [
    "blockdev-perftest -r -s 16 -m 14 -i 1 memory:1M",
    "disktest -B 4k -K 1 -P T -L 16 memory:1M",
    "sgp_dd if=memory:1M of=. bpt=8",
    "dd if=memory:1M of=/dev/null bs=64k",
    "db-mix --files 1 --size 64k --window 64k --operations 10 memory:1M",
];

#[test]
fn every_face_tells_what_measuring_costs_as_text_as_json_and_on_the_page() {
    let folder = Folder::new("overhead");
    let is_told = |line: &str, before: &str| {
        line.strip_prefix(before).is_some_and(|rest| rest.starts_with("overhead: measuring takes "))
    };
    for face in FACES {
        let text = folder.good(face);
        assert!(text.lines().any(|line| is_told(line, "# ")), "{face}: {text}");
        let document = folder.document(&format!("{face} --json --report page.html"));
        assert!(document.notes.iter().any(|note| is_told(note, "")), "{face}: {:?}", document.notes);
        let page = fs::read_to_string(folder.0.join("page.html")).unwrap();
        assert!(page.lines().any(|line| is_told(line, "<p class=\"overhead\">")), "{face}");
    }
    assert_eq!(folder.good("dd if=memory:1M of=/dev/null status=none"), "", "it was to be silent");
}

#[test]
fn a_face_on_a_terminal_tells_how_it_goes_beside_its_lines() {
    if !tool::have(&[Tool { program: "script", package: "bsdutils" }]) {
        return;
    }
    let folder = Folder::new("progress");
    for (to, is_silent) in [("", false), (" --json >result.json", true)] {
        let line = format!("{LUNAR} bench disktest -r -B 4k -K 1 -P T -T 2 null:1M{to}");
        let mut command = Command::new("script");
        command.args(["-qec", &line, "seen"]).current_dir(&folder.0).env("TERM", "xterm");
        let ran = tool::run(&mut command, Duration::from_secs(60));
        let seen = String::from_utf8_lossy(&fs::read(folder.0.join("seen")).unwrap()).into_owned();
        assert!(ran.ok(), "{seen}");
        let rates = seen.split(" IOPS, ").filter_map(|before| before.rsplit(' ').next()?.parse::<u64>().ok());
        assert!(rates.max().is_some_and(|iops| iops > 0), "{seen}");
        assert_eq!(seen.contains("| null:1048576 | Total read throughput: "), !is_silent, "{seen}");
    }
}

#[test]
fn two_results_are_compared() {
    let folder = Folder::new("compare");
    for (file, rate) in [("a.json", 4000), ("b.json", 400), ("c.json", 4000)] {
        let line = format!("null:1M --rate {rate} --runtime 1 --interval 50ms --json");
        fs::write(folder.0.join(file), folder.good(&line)).unwrap();
    }
    let (status, text, _) = folder.run("compare a.json b.json");
    assert!(status == 1 && text.contains("WORSE"), "{text}");
    // Its latency may be worse, on a machine that does other things: that is not looked at.
    let (_, text, _) = folder.run("compare b.json c.json --json");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = told["rows"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["unit"] == "1/s" && row["verdict"] == "better"), "{text}");
    let (status, _, complaint) = folder.run("compare a.json none.json");
    assert!(status == 1 && complaint.contains("none.json"), "{complaint}");
}

#[test]
fn what_holds_data_is_not_written_and_mistakes_have_their_statuses() {
    let folder = Folder::new("refused");
    folder.good("write disk --create 1M --bs 64k --amount 1M");
    for (args, status, said) in [
        ("write disk --bs 64k --amount 1M", 15, "holds data"),
        ("read no-such-disk", 1, "no-such-disk"),
        ("randread null:1M --bs 0", 7, "commands cannot have"),
        ("read iscsi://127.0.0.1:1/iqn.2026-11.org.example:x/0", 4, "127.0.0.1:1"),
        ("read null:1M --runtime 10ms --report no/such/folder.html", 1, "cannot write the report"),
        ("sgp_dd if=disk of=/dev/null bs=7", 7, "bs"),
    ] {
        let (found, out, complaint) = folder.run(args);
        assert_eq!((found, out.as_str()), (status, ""), "{args}: {complaint}");
        assert!(complaint.contains(said) && complaint.contains("hint:"), "{args}: {complaint}");
    }
    folder.good("write disk --bs 64k --amount 1M --destroy");
}

#[test]
fn a_signal_ends_it_and_what_was_measured_is_told() {
    let folder = Folder::new("signal");
    let child = folder.bench("null:1M --runtime 1h --json").spawn().unwrap();
    let begun = Instant::now();
    // It heeds signals before it begins to measure; one that is too early would end it without a word.
    let heeds = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
    };
    while !heeds() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not heed signals");
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(300));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child.id() as i32).unwrap(),
        rustix::process::Signal::INT,
    )
    .unwrap();
    let (status, out, _) = told(child.wait_with_output().unwrap());
    assert_eq!(status, 130);
    let document: Document = serde_json::from_str(&out).expect("what was measured");
    assert!(document.runs[0].outcome.read.ios > 0);
}

#[test]
fn a_full_disk_ends_it_and_what_was_measured_stands() {
    let folder = Folder::new("full");
    // The limit on the size of files stands in for a full disk.
    let line = format!(
        "ulimit -f 1024; trap '' XFSZ; exec {LUNAR} bench write disk --create 4M --bs 64k --amount 4M"
    );
    let output = Command::new("bash").args(["-c", &line]).current_dir(&folder.0).output().unwrap();
    let (status, out, complaint) = told(output);
    assert_eq!(status, 1, "{out}{complaint}");
    assert!(complaint.contains("File too large") && complaint.contains("hint:"), "{complaint}");
}
