use super::*;
use crate::document::{JobRun, ResultTable, TableCell};
use crate::sample;
use crate::session_stats::{CommandTimes, SessionStats};
use clap::Parser;
use std::fs;
use std::time::{Duration, Instant};

fn document(runs: Vec<JobRun>) -> Document {
    Document { runs, ..sample::empty("runs") }
}

fn read(rate: f64, wave: f64) -> JobRun {
    sample::run("4 KiB read", 4096, true, rate, wave)
}

fn verdicts(comparison: &Comparison) -> Vec<(&str, ChangeVerdict)> {
    comparison.rows.iter().map(|row| (row.what.as_str(), row.verdict)).collect()
}

#[test]
fn slower_run_is_a_regression_and_faster_is_not() {
    let (fast, slow) = (document(vec![read(1e8, 0.02)]), document(vec![read(0.8e8, 0.02)]));
    let worse = compare(&fast, &slow, 5.0).unwrap();
    let expected = [
        ("read IOPS", ChangeVerdict::Worse),
        ("read bandwidth", ChangeVerdict::Worse),
        ("read mean latency", ChangeVerdict::Worse),
        ("read p50 latency", ChangeVerdict::Worse),
        ("read p99 latency", ChangeVerdict::Worse),
        ("client CPU/IO", ChangeVerdict::Same),
        ("target CPU/IO", ChangeVerdict::Same),
    ];
    assert_eq!((verdicts(&worse), worse.worse), (expected.to_vec(), 5));
    let iops = &worse.rows[0];
    let (low, high) = iops.interval_percent.unwrap();
    assert!((iops.change_percent.unwrap() + 20.0).abs() < 0.5, "{iops:?}");
    assert!(low < -20.0 && low > -28.0 && high > -20.0 && high < -12.0, "{iops:?}");
    let better = compare(&slow, &fast, 5.0).unwrap();
    assert!(better.rows[..5].iter().all(|row| row.verdict == ChangeVerdict::Better) && better.worse == 0);
    assert_eq!(compare(&fast, &slow, 30.0).unwrap().worse, 0, "below the threshold");
}

#[test]
fn random_difference_is_the_same() {
    let (a, b) = (document(vec![read(1e8, 0.6)]), document(vec![read(0.9e8, 0.6)]));
    let comparison = compare(&a, &b, 5.0).unwrap();
    let iops = &comparison.rows[0];
    let (low, high) = iops.interval_percent.unwrap();
    assert!(iops.change_percent.unwrap() < -5.0 && low < 0.0 && high > 0.0, "{iops:?}");
    assert_eq!((iops.verdict, comparison.worse), (ChangeVerdict::Same, 0), "{:?}", comparison.rows);
}

#[test]
fn repeated_runs_give_every_figure_an_interval() {
    let three =
        |factor: f64| document([1.0, 1.01, 0.99].map(|spread| read(1e8 * factor * spread, 0.0)).to_vec());
    let comparison = compare(&three(1.0), &three(0.8), 5.0).unwrap();
    assert!(comparison.rows.iter().all(|row| row.interval_percent.is_some()), "{:?}", comparison.rows);
    assert_eq!(comparison.rows[0].verdict, ChangeVerdict::Worse);
    let one = compare(&three(1.0), &document(vec![read(1e8, 0.1)]), 5.0).unwrap();
    assert!(one.notes.iter().any(|note| note.contains("3 runs in A and 1 in B")), "{:?}", one.notes);
}

#[test]
fn single_figure_is_unsure_and_not_a_regression() {
    let (a, mut b) = (sample::large(), sample::large());
    b.runs[0].outcome.cpu.client_s *= 2.0;
    b.tables[0].rows[0].1[0].measured = Some(1.0);
    let comparison = compare(&a, &b, 5.0).unwrap();
    let unsure: Vec<_> = comparison
        .rows
        .iter()
        .filter(|row| row.verdict == ChangeVerdict::Unsure)
        .map(|row| (row.of.as_str(), row.what.as_str()))
        .collect();
    let table = "blockdev-perftest -f -d -s 30 -m 12, 67108864";
    assert_eq!((unsure, comparison.worse), (vec![("4 KiB write", "client CPU/IO"), (table, "W")], 0));
}

#[test]
fn short_run_has_no_interval() {
    let mut a = document(vec![read(1e8, 0.1)]);
    a.runs[0].outcome.series.truncate(2);
    let comparison = compare(&a, &document(vec![read(0.5e8, 0.1)]), 5.0).unwrap();
    assert!(
        comparison.rows[..5]
            .iter()
            .all(|row| row.verdict == ChangeVerdict::Unsure && row.interval_percent.is_none())
    );
}

/// Ten commands per second for this long, in a run of thirty seconds.
fn alive(seconds: u64) -> JobRun {
    let begin = Instant::now();
    let mut record = SessionStats::new(begin, Duration::from_secs(1), false);
    for n in 1..=seconds * 10 {
        let (due, done) =
            (begin + Duration::from_millis(n * 100 - 5), begin + Duration::from_millis(n * 100));
        record.add(true, 4096, CommandTimes { due, started_at: due, done });
    }
    let mut run = read(1e8, 0.0);
    run.outcome.read = record.totals().0;
    run.outcome.series = record.series(begin + Duration::from_secs(30));
    run
}

/// Random reads of 100 µs and writes of a millisecond, ten per second for thirty seconds, all slower by
/// `factor`.
fn mixed(factor: f64) -> JobRun {
    let begin = Instant::now();
    let mut record = SessionStats::new(begin, Duration::from_secs(1), false);
    for n in 1..300u64 {
        // Not periodic: the shares of the directions vary between intervals.
        let lot = n.wrapping_mul(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let (is_read, noise) = (lot % 10 < 7, 1.0 + (lot % 97) as f64 / 5000.0);
        let took = Duration::from_secs_f64(if is_read { 1e-4 } else { 1e-3 } * noise * factor);
        let done = begin + Duration::from_millis(n * 100);
        record.add(is_read, 4096, CommandTimes { due: done - took, started_at: done - took, done });
    }
    let (mut run, totals) = (read(1e8, 0.0), record.totals());
    (run.outcome.read, run.outcome.write) = totals;
    run.outcome.series = record.series(begin + Duration::from_secs(30));
    run
}

#[test]
fn slower_mix_is_a_regression() {
    let comparison = compare(&document(vec![mixed(1.0)]), &document(vec![mixed(1.1)]), 5.0).unwrap();
    for what in ["read mean latency", "write mean latency", "read p50 latency", "write p99 latency"] {
        let row = comparison.rows.iter().find(|row| row.what == what).expect(what);
        assert_eq!(row.verdict, ChangeVerdict::Worse, "{row:?}");
        let (low, high) = row.interval_percent.expect("an interval");
        assert!(low > 1.0 && high < 19.0, "{row:?}");
    }
    let same = compare(&document(vec![mixed(1.0)]), &document(vec![mixed(1.0)]), 5.0).unwrap();
    assert_eq!(same.worse, 0);
}

#[test]
fn searches_compare_by_their_highest_rates() {
    let search = |rate: f64| {
        let tries = [rate * 2.0, rate]
            .map(|rate| JobRun { label: format!("try 1, {rate:.0} a second: kept"), ..read(rate, 0.02) });
        let found = JobRun { label: "highest rate: read".into(), ..read(rate, 0.02) };
        document([tries.to_vec(), vec![found]].concat())
    };
    let comparison = compare(&search(1e8), &search(0.7e8), 5.0).unwrap();
    assert!(comparison.rows.iter().all(|row| row.of == "highest rate: read"), "{:?}", comparison.rows);
    assert_eq!((verdicts(&comparison)[0], comparison.notes.len()), (("read IOPS", ChangeVerdict::Worse), 0));
}

#[test]
fn target_that_died_half_way_is_worse() {
    let (whole, half) = (document(vec![alive(30)]), document(vec![alive(15)]));
    let comparison = compare(&whole, &half, 5.0).unwrap();
    assert_eq!(
        verdicts(&comparison)[..2],
        [("read IOPS", ChangeVerdict::Worse), ("read bandwidth", ChangeVerdict::Worse)]
    );
    assert_eq!(compare(&whole, &whole, 5.0).unwrap().worse, 0);
}

#[test]
fn vanished_direction_is_a_regression() {
    let both = JobRun { label: "both".into(), ..sample::run("both", 4096, false, 1e8, 0.02) };
    let mut without = both.clone();
    without.outcome.write = Default::default();
    let comparison = compare(&document(vec![both]), &document(vec![without]), 5.0).unwrap();
    assert_eq!((verdicts(&comparison)[0], comparison.worse), (("write IOPS", ChangeVerdict::Worse), 1));
}

#[test]
fn run_that_failed_only_now_is_a_regression() {
    let (a, mut b) = (document(vec![read(1e8, 0.1)]), document(vec![read(1e8, 0.1)]));
    b.runs[0].outcome.ended_early = Some("the target went away".into());
    let comparison = compare(&a, &b, 5.0).unwrap();
    assert_eq!((comparison.worse, comparison.rows.last().unwrap().what.as_str()), (1, "failures"));
    assert_eq!(comparison.notes, ["4 KiB read: ended early in B: the target went away"]);
    assert_eq!(compare(&b, &b, 5.0).unwrap().worse, 0);
}

#[test]
fn differences_of_machine_job_and_target_are_noted() {
    let (a, mut b) = (sample::large(), sample::large());
    b.host.kernel = "Linux 6.13".into();
    b.runs[0].job[2].1 = "32".into();
    b.runs[1].label = "another".into();
    b.host.governor = Some("powersave".into());
    b.host.memory = 4 << 30;
    for run in &mut b.runs {
        run.targets[0].facts[3].1 = "CRC32C".into();
        run.targets[0].facts.remove(9);
    }
    let comparison = compare(&a, &b, 5.0).unwrap();
    let expected = [
        "different kernel: Linux 6.12.9 x86_64, then Linux 6.13",
        "different frequency policy: unknown, then powersave",
        "different memory size: 8192 MiB, then 4096 MiB",
        "4 KiB write: depth was 1, then 32",
        "different HeaderDigest of the target: None, then CRC32C",
        "different MaxRecvDataSegmentLength of the target: 262144, then not set",
        "only in A: 4 KiB read",
        "only in B: another",
    ];
    assert_eq!(comparison.notes, expected);
}

#[test]
fn documents_without_common_runs_are_an_error() {
    let run = |label: &str| sample::run(label, 4096, true, 1e8, 0.1);
    let other = document(vec![run("other"), run("more")]);
    let e = compare(&document(vec![read(1e8, 0.1)]), &other, 5.0).unwrap_err();
    assert_eq!(
        e.what,
        "the measurements have no run in common: A has \"4 KiB read\", B has \"other\", \"more\""
    );
}

#[test]
fn single_runs_compare_whatever_their_labels() {
    let mut deeper = document(vec![sample::run("deeper", 4096, true, 2e8, 0.1)]);
    deeper.runs[0].job[2].1 = "32".into();
    let comparison = compare(&document(vec![read(1e8, 0.1)]), &deeper, 5.0).unwrap();
    let label = "4 KiB read, then deeper";
    assert!(comparison.rows.iter().any(|row| row.of == label && row.what == "read IOPS"), "{comparison:?}");
    assert!(comparison.notes.contains(&format!("{label}: depth was 1, then 32")), "{:?}", comparison.notes);
}

#[test]
fn standard_deviation_is_neither_better_nor_worse() {
    let table = |spread: f64| ResultTable {
        title: "rates".into(),
        unit: "MB/s".into(),
        larger_is_better: true,
        columns: vec!["R(avg".into(), "R(std".into()],
        rows: vec![(
            "4096".into(),
            [100.0, spread].map(|it| TableCell { measured: Some(it), ..TableCell::default() }).into(),
        )],
    };
    let with = |spread| Document { tables: vec![table(spread)], ..document(Vec::new()) };
    let whats: Vec<String> =
        compare(&with(1.0), &with(9.0), 5.0).unwrap().rows.into_iter().map(|row| row.what).collect();
    assert_eq!(whats, ["R(avg"]);
}

#[test]
fn files_that_are_not_documents_are_rejected() {
    let good = serde_json::to_string(&sample::large()).unwrap();
    let what = |text: &str| read::parse(text, "F").unwrap_err().what;
    assert_eq!(read::parse(&good, "F").unwrap(), sample::large());
    assert!(what("no").starts_with("F is not a measurement of lunar bench: invalid JSON: "));
    assert_eq!(what("[1]"), "F is not a measurement of lunar bench: the schema is missing");
    assert_eq!(what(r#"{"schema":"x"}"#), "F is not a measurement of lunar bench: the schema is x");
    assert_eq!(
        what(r#"{"schema":"lunar.bench/3"}"#),
        "F has the unsupported schema lunar.bench/3; supported are lunar.bench/2 and lunar.bench/1"
    );
    assert!(what(r#"{"schema":"lunar.bench/1"}"#).contains("missing field"));
    assert!(what(&"[".repeat(100_000)).contains("invalid JSON"));
    let missing = super::read(std::path::Path::new("/nowhere/a.json")).unwrap_err();
    assert!(missing.what.starts_with("cannot read /nowhere/a.json: "), "{missing}");
}

#[test]
fn document_of_older_schema_is_read_and_compared() {
    let now = document(vec![read(1e8, 0.02)]);
    let mut value = serde_json::to_value(&now).unwrap();
    value["schema"] = "lunar.bench/1".into();
    let outcome = value["runs"][0]["outcome"].as_object_mut().unwrap();
    assert!(outcome.remove("late").is_some(), "a field of schema 2");
    for direction in ["submit", "service", "total"] {
        outcome["read"][direction]["histogram"] = serde_json::Value::Array(Vec::new());
    }
    let before = read::parse(&value.to_string(), "F").unwrap();
    let comparison = compare(&before, &now, 5.0).unwrap();
    assert_eq!(comparison.notes, ["different schema: lunar.bench/1, then lunar.bench/2"]);
    assert!(comparison.rows.iter().any(|row| row.what == "read IOPS" && row.verdict == ChangeVerdict::Same));
}

#[test]
fn tables_with_older_spellings_of_units_are_compared() {
    let mut now = sample::large();
    now.runs.clear();
    now.tables[0].unit = "MiB/s".into();
    let mut before = now.clone();
    before.tables[0].unit = "MB/s (2^20)".into();
    let before = read::parse(&serde_json::to_string(&before).unwrap(), "F").unwrap();
    let comparison = compare(&before, &now, 5.0).unwrap();
    assert!(comparison.rows.len() == 30 && comparison.rows.iter().all(|row| row.unit == "MiB/s"));
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

#[test]
fn compare_prints_table_or_json_and_returns_worse() {
    let folder = std::env::temp_dir().join(format!("lunar-compare-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, rate: f64| {
        let path = folder.join(name).display().to_string();
        fs::write(&path, serde_json::to_string(&document(vec![read(rate, 0.02)])).unwrap()).unwrap();
        path
    };
    let (a, b) = (write("a.json", 1e8), write("b.json", 0.8e8));
    let parse =
        |more: &[&str]| Line::try_parse_from([["x", &a, &b].as_slice(), more].concat()).map(|line| line.args);
    let (text, is_worse) = run(&parse(&[]).unwrap(), false).unwrap();
    assert!(is_worse && text.contains("A: runs, 2026-11-20T22:11:51Z\n"), "{text}");
    let row: Vec<&str> = text.lines().nth(5).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["read", "IOPS", "24,461", "19,569"], "{text}");
    assert_eq!((row[4], row.last()), ("-20.0", Some(&"WORSE")), "{text}");
    assert!(text.ends_with("0 better, 5 worse, 2 the same, 0 unsure, beyond 5 %\n"), "{text}");
    let same = Args { b: PathBuf::from(&a), ..parse(&[]).unwrap() };
    let (text, is_worse) = run(&same, false).unwrap();
    assert!(text.ends_with("no difference: 7 the same, 0 unsure, beyond 5 %\n") && !is_worse, "{text}");
    let (json, is_worse) = run(&parse(&["--threshold", "50%"]).unwrap(), true).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (json["schema"].as_str(), json["rows"][0]["verdict"].as_str(), is_worse),
        (Some(SCHEMA), Some("same"), false)
    );
    assert!(parse(&["--threshold", "-1"]).is_err() && parse(&["--threshold", "much"]).is_err());
    fs::remove_dir_all(&folder).unwrap();
}
