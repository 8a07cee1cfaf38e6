use super::*;
use crate::testing::{TempDir, dropped, is_cached, play, served};
use clap::Parser;
use lunar_bench::outcome::DirectionTotals;
use lunar_bench::testing::RecordingDisk;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    let words = iter::once("db-mix").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.args).unwrap_or_else(|e| panic!("{e}"))
}

fn settings(line: &str) -> DbMixSettings {
    DbMixSettings::of(&args(line)).unwrap_or_else(|e| panic!("{e}"))
}

fn db_mix(line: &str) -> Result<(Document, String), Error> {
    play(|context| run(&args(line), context))
}

#[test]
fn io_trash_arguments_equal_the_defaults() {
    let seed = settings("2 2 ./ 500000000 50000000 10 4096 4096 300000 10 90 0 10");
    assert_eq!(seed, settings("./"));
    let habit =
        AccessProfile { size: 499_998_720, window: 50_000_000, outside: 10, fsync_every: 10, granule: 4096 };
    assert_eq!((seed.habit, seed.threads, seed.files), (habit, 2, 2));
    assert_eq!((seed.io, seed.operations, seed.read_percent), ((4096, 4096), 300_000, 90));
    let job = seed.job(1);
    assert_eq!((job.direction, job.commands, job.sizes.len()), (IoDirection::Mix(90), Some(300_000), 1));
}

#[test]
fn every_option_is_parsed() {
    let line = "--threads 3 --files 4 --size 1M --window 64k --outside 5 --io-min 512 --io-max 2k --operations 7 \
                --read-percent 40 --think 9ms --fsync-every 0 --seed 5 --direct --keep --destroy null:8M";
    let all = settings(line);
    assert_eq!((all.threads, all.files, all.io, all.operations), (3, 4, (512, 2048), 7));
    assert_eq!((all.read_percent, all.think_ms, all.job(5).sizes.len()), (40, 9, 4));
    assert_eq!(
        all.habit,
        AccessProfile { size: 1 << 20, window: 65536, outside: 5, fsync_every: 0, granule: 512 }
    );
    let requested = args(line);
    assert!(requested.direct && requested.keep && requested.destroy && requested.seed == 5);
    assert_eq!(all.job(5).think, Duration::from_millis(9));
}

#[test]
fn execution_time_has_the_published_format() {
    let read = DirectionTotals { ios: 270_000, bytes: 270_000 * 4096, ..DirectionTotals::default() };
    let write = DirectionTotals { ios: 30_000, bytes: 30_000 * 4096, ..DirectionTotals::default() };
    let outcome = JobOutcome { elapsed_s: 285.0, read, write, ..JobOutcome::default() };
    assert_eq!(
        lines(&outcome),
        [
            "total execution time 4m45s",
            "reads: 270000 operations, 947.4/s, 3.88 MB/s (3.70 MiB/s)",
            "writes: 30000 operations, 105.3/s, 0.43 MB/s (0.41 MiB/s)"
        ]
    );
}

#[test]
fn folder_gets_files_and_is_left_clean() {
    let scratch = TempDir::folder();
    let folder = scratch.path("");
    let line = format!("--files 3 --size 2M --window 256k --operations 500 {folder}");
    let (document, text) = db_mix(&line).expect("the tool runs");
    assert!(text.starts_with("3 files of 2097152 bytes written in 0."), "{text}");
    assert!(text.contains("\ntotal execution time 0."), "{text}");
    let labels: Vec<&str> = document.runs.iter().map(|run| run.label.as_str()).collect();
    assert_eq!(labels, ["files written", "operations"]);
    assert_eq!(document.runs[0].outcome.write.bytes, 6 << 20);
    assert_eq!(document.runs[1].outcome.ios(), 500);
    assert!((400..=480).contains(&document.runs[1].outcome.read.ios), "{text}");
    assert_eq!(fs::read_dir(&folder).expect("there").count(), 0);
    db_mix(&format!("{line} --keep")).expect("the tool runs");
    let kept = fs::read(scratch.path("lunar-db-mix-2")).expect("kept");
    assert!(kept.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)), "all blocks are written");
    assert_eq!(db_mix(&line).expect_err("the files exist").kind, ErrorKind::HoldsData);
    assert!(Path::new(&scratch.path("lunar-db-mix-2")).exists(), "an existing file is kept");
}

#[test]
fn targets_hold_adjacent_files() {
    let line = "--files 3 --size 512k --window 64k --operations 300 --think 1ms memory:1M null:1M";
    let (document, text) = db_mix(line).expect("the tool runs");
    assert!(text.starts_with("total execution time "), "{text}");
    assert_eq!((document.runs[0].outcome.ios(), document.runs[0].targets.len()), (300, 2));
    assert!(document.runs[0].outcome.elapsed_s > 0.14, "two threads think 150 times each");
}

#[test]
fn operation_count_is_exact_for_any_lengths() {
    let line =
        "--files 2 --size 512k --window 64k --io-min 512 --io-max 16k --operations 301 --threads 3 --destroy";
    let probe = RecordingDisk::new(1 << 20);
    let disk = served(probe.clone());
    let (document, text) = db_mix(&format!("{line} {}", disk.url)).expect("the tool runs");
    assert_eq!(document.runs[0].outcome.ios(), 301, "{text}");
    let lens = [probe.reads(), probe.writes()].concat().into_iter().map(|io| io.1);
    let lens: std::collections::BTreeSet<usize> = lens.filter(|len| *len < 1 << 20).collect();
    assert!(lens.iter().all(|len| len % 512 == 0 && (512..=16384).contains(len)), "{lens:?}");
    assert!(lens.len() > 20 && lens.first() < Some(&2048) && lens.last() > Some(&14336), "{lens:?}");
}

#[test]
fn direct_bypasses_the_page_cache() {
    let scratch = TempDir::folder();
    let line =
        format!("--files 1 --size 1M --window 1M --operations 50 --keep --destroy {}", scratch.path(""));
    let file = scratch.path("lunar-db-mix-0");
    db_mix(&line).expect("the tool runs");
    assert!(is_cached(&file));
    if dropped(&file) {
        db_mix(&format!("{line} --direct")).expect("the tool runs");
        assert!(!is_cached(&file));
    }
}

#[test]
fn invalid_options_are_rejected_with_a_hint() {
    let refused = |line: &str| db_mix(line).expect_err(line).to_string();
    assert!(refused("--size 1M --window 2M null:9M").contains("not in ascending order"));
    assert!(refused("--io-min 100 null:9M").contains("multiples of 512"));
    assert!(refused("--io-min 8k --io-max 4k null:9M").contains("smaller one first"));
    assert!(refused("--size x null:9M").contains("--size"));
    assert!(refused("--size 8M --window 1M null:9M").contains("2 files of 8388608 bytes exceed the"));
    assert!(
        refused("2 2 ./ 500000000 50000000 10 4096 4096 300000 20 90 0 10").contains("arguments 10 and 11")
    );
    assert!(
        refused("0 2 ./ 500000000 50000000 10 4096 4096 300000 10 90 0 10")
            .contains("argument out of range: 0 threads, 2 files")
    );
    assert!(refused("/nowhere/at/all").contains("/nowhere/at/all"));
}
