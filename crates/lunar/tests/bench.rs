//! `lunar bench`: output, files, errors, and the results of runs that end early.

use interop::tool::{self, Tool};
use lunar_bench::Document;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const LUNAR: &str = env!("CARGO_BIN_EXE_lunar");

/// A folder that is removed on drop.
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
        result_of(self.bench(args).output().unwrap())
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

fn result_of(output: Output) -> (i32, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn text_json_terse_and_html_show_one_run() {
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
fn every_bench_command_reports_its_overhead() {
    let folder = Folder::new("overhead");
    let names_overhead = |line: &str, before: &str| {
        line.strip_prefix(before).is_some_and(|rest| rest.starts_with("overhead: measuring takes "))
    };
    for face in FACES {
        let text = folder.good(face);
        assert!(text.lines().any(|line| names_overhead(line, "# ")), "{face}: {text}");
        let document = folder.document(&format!("{face} --json --report page.html"));
        assert!(document.notes.iter().any(|note| names_overhead(note, "")), "{face}: {:?}", document.notes);
        let page = fs::read_to_string(folder.0.join("page.html")).unwrap();
        assert!(page.lines().any(|line| names_overhead(line, "<p class=\"overhead\">")), "{face}");
    }
    assert_eq!(
        folder.good("dd if=memory:1M of=/dev/null status=none"),
        "",
        "status=none suppresses all output"
    );
}

#[test]
fn bench_command_on_a_terminal_shows_progress() {
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
    // The latency is not checked: it may be worse on a busy machine.
    let (_, text, _) = folder.run("compare b.json c.json --json");
    let document: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = document["rows"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["unit"] == "1/s" && row["verdict"] == "better"), "{text}");
    let (status, _, complaint) = folder.run("compare a.json none.json");
    assert!(status == 21 && complaint.contains("none.json"), "{complaint}");
}

#[test]
fn compare_help_lists_only_its_options() {
    let folder = Folder::new("compare-help");
    let options = |of: &str| {
        let help = folder.good(&format!("{of} --help"));
        ["--json", "--threshold", "--terse", "--report"].map(|option| help.contains(option))
    };
    assert_eq!(options("compare"), [true, true, false, false]);
    assert_eq!(options("dd"), [true, false, true, true]);
}

#[test]
fn existing_data_is_kept_and_errors_have_exit_statuses() {
    let folder = Folder::new("refused");
    folder.good("write disk --create 1M --bs 64k --amount 1M");
    for (args, status, said) in [
        ("write disk --bs 64k --amount 1M", 15, "holds data"),
        ("read no-such-disk", 21, "no-such-disk"),
        ("randread null:1M --bs 0", 7, "invalid command length"),
        ("read iscsi://127.0.0.1:1/iqn.2026-11.org.example:x/0", 4, "127.0.0.1:1"),
        ("read null:1M --runtime 10ms --report no/such/folder.html", 21, "cannot write the report"),
        ("sgp_dd if=disk of=/dev/null bs=7", 7, "bs"),
        ("read null:1M --rate 1e-20", 7, "invalid rate"),
        ("read null:1M --rounds 3", 7, "--rounds 3: needs --steady"),
        ("dd if=no-such-disk of=/dev/null", 21, "does not exist"),
        ("read null:1M --target-pid 4294967295", 1, "process 4294967295 does not exist"),
        ("compare a b --report page.html", 7, "--report does not apply"),
        ("compare a b --terse", 7, "--terse does not apply"),
    ] {
        let (found, out, complaint) = folder.run(args);
        assert_eq!((found, out.as_str()), (status, ""), "{args}: {complaint}");
        assert!(complaint.contains(said) && complaint.contains("hint:"), "{args}: {complaint}");
    }
    folder.good("write disk --bs 64k --amount 1M --destroy");
}

/// Waits until the child catches signals. An earlier signal would end it without output.
fn wait_until_it_heeds(child: &Child) {
    let started_at = Instant::now();
    let heeds = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 2 != 0)
    };
    while !heeds() {
        assert!(started_at.elapsed() < Duration::from_secs(30), "the child catches no signals");
        sleep(Duration::from_millis(5));
    }
    sleep(Duration::from_millis(300));
}

fn kill(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn signal_ends_the_run_and_results_are_printed() {
    let folder = Folder::new("signal");
    for (signal, expected) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let child = folder.bench("null:1M --runtime 1h --json").spawn().unwrap();
        wait_until_it_heeds(&child);
        kill(&child, signal);
        let (status, out, _) = result_of(child.wait_with_output().unwrap());
        assert_eq!(status, expected);
        let document: Document = serde_json::from_str(&out).expect("the results so far");
        assert!(document.runs[0].outcome.read.ios > 0);
    }
}

#[test]
fn second_signal_ends_it_at_once() {
    let folder = Folder::new("twice");
    // A server that accepts connections and sends nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let mut child =
        folder.bench(&format!("iscsi://{address}/iqn.2026-11.org.example:x/0 --runtime 1")).spawn().unwrap();
    wait_until_it_heeds(&child);
    kill(&child, Signal::TERM);
    sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "the child still waits for its target");
    let started_at = Instant::now();
    kill(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert!(started_at.elapsed() < Duration::from_secs(2), "{:?}", started_at.elapsed());
}

/// Runs in a shell with a file size limit of `kib` KiB, which stands for a full disk.
fn limited(folder: &Folder, kib: u32, args: &str) -> (i32, String, String) {
    let line = format!("ulimit -f {kib}; trap '' XFSZ; exec {LUNAR} bench {args}");
    result_of(Command::new("bash").args(["-c", &line]).current_dir(&folder.0).output().unwrap())
}

#[test]
fn full_disk_ends_the_run_and_results_are_printed() {
    let folder = Folder::new("full");
    fs::File::create(folder.0.join("disk")).and_then(|disk| disk.set_len(4 << 20)).unwrap();
    let (status, out, complaint) = limited(&folder, 1024, "write disk --bs 64k --amount 4M --json");
    assert_eq!(status, 1, "{out}{complaint}");
    assert!(complaint.contains("file too large") && complaint.contains("\"hint\":"), "{complaint}");
    let document: Document = serde_json::from_str(&out).expect("the results so far");
    let outcome = &document.runs[0].outcome;
    assert_eq!((outcome.write.ios, outcome.write.bytes), (16, 1 << 20));
    assert!(
        outcome
            .ended_early
            .as_ref()
            .is_some_and(|why| why.contains("write of 65536 bytes at offset 1048576"))
    );
}

#[test]
fn full_state_file_ends_verification_with_results() {
    let folder = Folder::new("state");
    let line = "randwrite memory:1M --amount 64M --verify --verify-state state --json";
    let (status, out, complaint) = limited(&folder, 64, line);
    assert_eq!(status, 1, "{out}{complaint}");
    assert!(
        complaint.contains("state cannot be written: ") && complaint.contains("\"hint\":"),
        "{complaint}"
    );
    let document: Document = serde_json::from_str(&out).expect("the results so far");
    let writes = document.runs[0].outcome.write.ios;
    // Each write has two records of 24 bytes; the header is short.
    assert!((1300..=1365).contains(&writes), "{writes}");
    assert!(document.notes.iter().any(|note| note.starts_with("written data was not read back")));
}

#[test]
fn failed_commands_are_counted_and_set_the_status() {
    let folder = Folder::new("errors");
    fs::File::create(folder.0.join("disk")).and_then(|disk| disk.set_len(4 << 20)).unwrap();
    let line = "write disk --bs 64k --amount 4M --continue-on-error --json";
    let (status, out, complaint) = limited(&folder, 1024, line);
    assert_eq!(status, 1, "{out}{complaint}");
    assert!(complaint.contains("\"detail\":\"48 commands failed\",\"hint\":\""), "{complaint}");
    let outcome = &serde_json::from_str::<Document>(&out).expect("a document").runs[0].outcome;
    assert_eq!((outcome.write.ios, outcome.errors, &outcome.ended_early), (16, 48, &None));
}

#[test]
fn missed_goal_sets_the_status_and_is_in_the_document() {
    let folder = Folder::new("reached");
    let run = |args: &str| {
        let (status, out, complaint) = folder.run(args);
        (status, serde_json::from_str::<Document>(&out).expect("a document"), complaint)
    };
    let (status, document, complaint) = run("null:1M --steady iops --rounds 3 --runtime 10ms --json");
    assert!(status == 1 && complaint.contains("the metric did not become steady"), "{complaint}");
    let steady = document.steady.expect("a result of --steady");
    assert_eq!((steady.rounds, steady.is_steady, steady.window), (3, false, None));
    let (status, document, complaint) = run("null:1M --latency-target 1ns --runtime 20ms --json");
    assert!(status == 1 && complaint.contains("no rate meets the latency target"), "{complaint}");
    assert_eq!(document.search.map(|search| (search.percent, search.rate)), Some((99.0, None)));
    let found = "null:1M --latency-target 10s --latency-percentile 60 --runtime 300ms --depth 64 --json";
    let (status, document, complaint) = run(found);
    assert_eq!(status, 0, "{complaint}");
    let search = document.search.expect("a result of --latency-target");
    assert!(search.percent == 60.0 && search.rate.is_some_and(|rate| rate > 0.0), "{search:?}");
    assert!(document.runs.iter().any(|run| run.label.starts_with("highest rate: read")));
}

#[test]
fn refused_measurement_leaves_no_page_and_harms_none() {
    let folder = Folder::new("page");
    let page = folder.0.join("page.html");
    folder.run("randread null:1M --bs 0 --report page.html");
    assert!(!page.exists());
    fs::write(&page, "of yesterday").unwrap();
    folder.run("randread null:1M --bs 0 --report page.html");
    assert_eq!(fs::read_to_string(&page).unwrap(), "of yesterday");
    folder.good("randread null:1M --runtime 10ms --report page.html");
    assert!(fs::read_to_string(&page).unwrap().starts_with("<!DOCTYPE html>"));
}

#[test]
fn target_pid_selects_the_process_for_cpu_time() {
    let folder = Folder::new("pid");
    let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let document = folder.document(&format!("null:1M --runtime 500ms --target-pid {} --json", busy.id()));
    busy.kill().unwrap();
    busy.wait().unwrap();
    let target_s = document.runs[0].outcome.cpu.target_s;
    assert!(target_s.is_some_and(|seconds| seconds > 0.0), "{target_s:?}");
}
