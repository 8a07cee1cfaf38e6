//! `blast` on `floor` by NVMe/TCP.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

struct Floor(Child);

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nvme_jobs_on_floor_have_no_errors() {
    let child = Command::new(env!("CARGO_BIN_EXE_floor"))
        .args(["127.0.0.1:0", "--nvme"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("floor runs");
    let mut floor = Floor(child);
    let mut line = String::new();
    let stdout = floor.0.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut line).expect("its address");
    let portal = line.trim().strip_prefix("listening on ").expect("its address");
    let run = |options: &str| {
        Command::new(env!("CARGO_BIN_EXE_blast"))
            .args(["--nvme", "--portal", portal, "--target", "nqn.2026-11.org.example:bench"])
            .args(["--seconds", "1", "--depth", "4"])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .spawn()
            .expect("blast runs")
    };
    let jobs = [
        "--op read",
        "--op read --bytes 262144 --disable-sqflow",
        "--op read --header-digest --data-digest",
        "--op write --queues 2 --header-digest",
        "--op write --bytes 262144",
        "--op write --bytes 262144 --header-digest --data-digest",
    ];
    let started = jobs.map(|options| (options, run(options)));
    for (options, blast) in started {
        let output = blast.wait_with_output().expect("its output");
        let line = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && line.contains(" errors 0 "), "{options}: {line}");
        assert!(!line.starts_with("iops 0 "), "{options}: {line}");
    }
}
