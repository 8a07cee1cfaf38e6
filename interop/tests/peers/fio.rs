//! `lunar bench` and fio on one file: two who measure the same thing find the same.

use interop::server::{Folder, lunar_bin};
use interop::tool::{self, Tool};
use std::path::Path;

const FIO: [Tool; 1] = [Tool { program: "fio", package: "fio" }];
/// In the page cache, so that no disk's moods come into it.
const BYTES: usize = 64 << 20;
/// Runs of each, in turn; the median counts.
const ROUNDS: usize = 5;
/// What they should agree within, and what fails.
const SHOULD: f64 = 1.10;
const MUST: f64 = 1.30;

/// Bytes a second of sequential reads of 256 KiB.
fn with_fio(file: &Path) -> f64 {
    let name = format!("--filename={}", file.display());
    let said = tool::must(
        "fio",
        &[
            "--name=x",
            &name,
            "--rw=read",
            "--bs=256k",
            "--iodepth=1",
            "--ioengine=psync",
            "--invalidate=0",
            "--time_based",
            "--runtime=1",
            "--output-format=json",
        ],
    );
    let json = said.find('{').map_or("", |at| &said[at..]);
    let told: serde_json::Value = serde_json::from_str(json).expect("JSON of fio");
    told["jobs"][0]["read"]["bw_bytes"].as_f64().expect("a rate of fio")
}

fn with_lunar(file: &Path) -> f64 {
    let (lunar, file) = (lunar_bin(), file.display().to_string());
    let line = ["bench", "read", &file, "--bs", "256k", "--depth", "4", "--runtime", "1", "--json"];
    let said = tool::must(lunar.to_str().expect("text"), &line);
    let told: serde_json::Value = serde_json::from_str(&said).expect("JSON of lunar");
    let outcome = &told["runs"][0]["outcome"];
    let figure = |value: &serde_json::Value| value.as_f64().expect("a figure");
    figure(&outcome["read"]["bytes"]) / figure(&outcome["elapsed_s"])
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_unstable_by(f64::total_cmp);
    rates[rates.len() / 2]
}

#[test]
fn fio_and_lunar_bench_agree() {
    if !tool::have(&FIO) {
        return;
    }
    let dir = Folder::fresh();
    let file = dir.join("disk.img");
    std::fs::write(&file, vec![0x5a; BYTES]).expect("a file");
    let (theirs, ours): (Vec<f64>, Vec<f64>) =
        (0..ROUNDS).map(|_| (with_fio(&file), with_lunar(&file))).unzip();
    let (theirs, ours) = (median(theirs), median(ours));
    let apart = (ours / theirs).max(theirs / ours);
    let verdict = if apart <= SHOULD { "they agree" } else { "more than 10 % apart" };
    println!("256 KiB reads: fio {:.0} MB/s, lunar bench {:.0} MB/s: {verdict}", theirs / 1e6, ours / 1e6);
    assert!(apart <= MUST, "fio {theirs:.0} B/s, lunar bench {ours:.0} B/s");
}
