//! `lunar bench` and fio measure one file, and must agree.

use interop::server::{Folder, lunar_bin};
use interop::tool::{self, Tool};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const FIO: [Tool; 1] = [Tool { program: "fio", package: "fio" }];
/// I/O engines with several reads in flight. The test uses the first one that this system permits.
const ENGINES: [&str; 2] = ["io_uring", "libaio"];
/// Bytes of the file. It is in the page cache, so the speed of the disk has no effect.
const BYTES: usize = 64 << 20;
/// Block size of both programs.
const BLOCK: &str = "256k";
/// Queue depth of both programs. At higher depths fio cycles through its buffers, but Lunar reuses one that is in the
/// CPU cache. This alone would make a difference of up to a factor of two.
const DEPTH: &str = "1";
/// Reads per second of the paced runs, far fewer than both programs can do. At full speed, an unoptimized build is
/// slower than fio by its own work for each command, so these runs are reported and do not fail.
const PACED: &str = "1000";
/// Runs of each, in turn. The median of their differences is the result.
const ROUNDS: usize = 3;
/// The difference up to which two rates agree.
const AGREE: f64 = 0.10;

/// Bytes per second of sequential reads by fio with an engine, at most `pace` reads each second (text of a number).
/// None: fio cannot use the engine.
fn fio(engine: &str, file: &Path, pace: Option<&str>) -> Option<f64> {
    let (name, block) = (format!("--filename={}", file.display()), format!("--bs={BLOCK}"));
    let (engine, depth) = (format!("--ioengine={engine}"), format!("--iodepth={DEPTH}"));
    let mut command = Command::new("fio");
    command.args(["--name=x", "--rw=read", "--invalidate=0", "--time_based", "--runtime=1"]);
    command.args(["--output-format=json", &name, &block, &engine, &depth]);
    command.args(pace.map(|pace| format!("--rate_iops={pace}")));
    let ran = tool::run(&mut command, Duration::from_secs(60));
    let json = ran.said.find('{').map_or("", |at| &ran.said[at..]);
    let report: Option<serde_json::Value> =
        serde_json::Deserializer::from_str(json).into_iter().next().and_then(Result::ok);
    report.filter(|_| ran.ok())?["jobs"][0]["read"]["bw_bytes"].as_f64().filter(|rate| *rate > 0.0)
}

/// Bytes per second of the same reads by `lunar bench`.
fn lunar(file: &Path, pace: Option<&str>) -> f64 {
    let (lunar, file) = (lunar_bin(), file.display().to_string());
    let mut line = vec!["bench", "read", &file, "--bs", BLOCK, "--depth", DEPTH, "--runtime", "1", "--json"];
    line.extend(pace.iter().flat_map(|pace| ["--rate", pace]));
    let said = tool::must(lunar.to_str().expect("text"), &line);
    let report: serde_json::Value = serde_json::from_str(&said).expect("JSON of lunar");
    let outcome = &report["runs"][0]["outcome"];
    let figure = |value: &serde_json::Value| value.as_f64().expect("a figure");
    figure(&outcome["read"]["bytes"]) / figure(&outcome["elapsed_s"])
}

/// The rates of fio and `lunar bench`. The order in which they run alternates.
fn round(n: usize, engine: &str, file: &Path, pace: Option<&str>) -> (f64, f64) {
    let theirs = || fio(engine, file, pace).unwrap_or_else(|| panic!("fio with {engine} does not read"));
    match n % 2 {
        0 => (theirs(), lunar(file, pace)),
        _ => {
            let ours = lunar(file, pace);
            (theirs(), ours)
        }
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// The report of the rounds, and the difference of the two: 0.1 is 10 %.
fn verdict(engine: &str, rounds: &[(f64, f64)]) -> (String, f64) {
    let theirs = median(rounds.iter().map(|round| round.0));
    let ours = median(rounds.iter().map(|round| round.1));
    // Within a round, both have the same conditions.
    let apart = median(rounds.iter().map(|(theirs, ours)| ours / theirs)) - 1.0;
    let report = format!(
        "{BLOCK} reads, depth {DEPTH}: fio ({engine}) {:.0} MB/s, lunar bench {:.0} MB/s: {:+.1} %, {}",
        theirs / 1e6,
        ours / 1e6,
        apart * 100.0,
        if apart.abs() <= AGREE { "they agree" } else { "more than 10 % apart" }
    );
    (report, apart.abs())
}

#[test]
fn fio_and_lunar_bench_agree() {
    if !tool::have(&FIO) {
        return;
    }
    let dir = Folder::fresh();
    let file = dir.join("disk.img");
    std::fs::write(&file, vec![0x5a; BYTES]).expect("a file");
    let engine = ENGINES.into_iter().find(|engine| fio(engine, &file, None).is_some());
    let engine = engine.expect("one of fio's engines can be used");
    let compared = |pace| {
        let rounds: Vec<(f64, f64)> = (0..ROUNDS).map(|n| round(n, engine, &file, pace)).collect();
        verdict(engine, &rounds)
    };
    println!("at full speed: {}", compared(None).0);
    let (report, apart) = compared(Some(PACED));
    println!("at {PACED}/s: {report}");
    assert!(apart <= AGREE, "{report}");
}

#[test]
fn difference_is_the_percentage_of_the_median_round() {
    let (report, apart) = verdict("io_uring", &[(4e9, 4.2e9), (1e9, 9e9), (2e9, 2.1e9)]);
    assert!(
        report.ends_with("fio (io_uring) 2000 MB/s, lunar bench 4200 MB/s: +5.0 %, they agree"),
        "{report}"
    );
    assert!((apart - 0.05).abs() < 1e-9);
    let (report, apart) = verdict("libaio", &[(3e9, 2e9)]);
    assert!(report.ends_with("-33.3 %, more than 10 % apart") && apart > AGREE, "{report}");
}
