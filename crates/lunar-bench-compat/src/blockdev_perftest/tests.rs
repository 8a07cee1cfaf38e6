use super::*;
use crate::testing::{TempDir, dropped, is_cached, play, served};
use clap::Parser;
use lunar_bench::testing::RecordingDisk;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    let words = std::iter::once("blockdev-perftest").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.args).expect("understood")
}

fn perftest(line: &str) -> Result<(Document, String), Error> {
    play(|context| run(&args(line), context))
}

fn rows(text: &str) -> Vec<Vec<f64>> {
    let lines = text.lines().filter(|line| !line.starts_with('#')).skip(2);
    lines.map(|line| line.split_whitespace().map(|cell| cell.parse().expect("a number")).collect()).collect()
}

#[test]
fn every_option_is_parsed() {
    let all = args("-a -f -i 5 -j -m 12 -M 20 -n -r -s 22 --keep-caches disk");
    assert!(all.buffered && all.force && all.fio && all.no_check && all.read_only && all.keep_caches);
    assert_eq!((all.iterations, all.min, all.max, all.size), (5, 12, 20, 22));
    let none = args("disk");
    assert_eq!((none.iterations, none.min, none.max, none.size), (3, 9, 26, 30));
    assert_eq!(none.blocks().len(), 18);
    assert_eq!(args("-f -d -s 30 -m 12 disk").options_text(), "-f -d -s 30 -m 12");
    assert_eq!(args("-s 10 disk").blocks(), [1024, 512], "sizes above 2^s are skipped");
    for wrong in ["-a -d disk", "-r -w disk", "-m 8 disk", "-i 0 disk", ""] {
        let words = std::iter::once("blockdev-perftest").chain(wrong.split_whitespace());
        assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
    }
}

#[test]
fn table_has_a_row_for_each_size_and_all_runs() {
    let (document, text) = perftest("-i 2 -s 16 -m 12 -M 14 memory:1M").expect("the tool runs");
    let rows = rows(&text);
    assert_eq!(rows.iter().map(|row| row[0]).collect::<Vec<_>>(), [16384.0, 8192.0, 4096.0], "{text}");
    assert!(rows.iter().all(|row| row.len() == 11), "{text}");
    assert_eq!(document.runs.len(), 3 * 2 * 2);
    assert_eq!((document.runs[0].label.as_str(), document.runs[0].outcome.write.ios), ("16384 write 1", 4));
    assert_eq!(
        (document.runs[3].label.as_str(), document.runs[3].outcome.read.bytes),
        ("16384 read 2", 65536)
    );
    assert_eq!((document.tables[0].rows.len(), document.tables[0].columns.len()), (3, 4));
    let last = document.tables[0].rows[2].1[2].measured.expect("measured");
    assert!((last - rows[2][8]).abs() < 0.0006, "{last} {text}");
}

#[test]
fn unselected_direction_is_zero() {
    let (document, text) = perftest("-r -s 12 -m 12 null:1M").expect("the tool runs");
    let row = &rows(&text)[0];
    assert!(row[1..7].iter().all(|cell| *cell == 0.0) && row[10] > 0.0, "{text}");
    assert_eq!(document.runs.len(), 3);
    let (_, text) = perftest("-w -s 12 -m 12 null:1M").expect("the tool runs");
    let row = &rows(&text)[0];
    assert!(row[7..].iter().all(|cell| *cell == 0.0) && row[4] > 0.0, "{text}");
}

#[test]
fn option_a_uses_the_page_cache_and_d_bypasses_it() {
    let scratch = TempDir::folder();
    let disk = scratch.file("disk", 0);
    std::fs::write(&disk, [0; 1 << 20]).expect("written");
    for (how, is_there) in [("-a -r", true), ("-d -r", false), ("-a -w -f", true), ("-d -w -f", false)] {
        if !dropped(&disk) {
            return;
        }
        let line = format!("{how} -i 1 -s 20 -m 18 -M 18 --keep-caches {disk}");
        let (document, text) = perftest(&line).expect("the tool runs");
        assert_eq!((document.ended_early(), rows(&text).len()), (None, 1), "{text}");
        assert_eq!(is_cached(&disk), is_there, "{how}");
    }
}

#[test]
fn option_j_includes_the_flush() {
    let probe = RecordingDisk::new(1 << 20);
    probe.flush_in(500);
    let disk = served(probe.clone());
    for how in ["-a", "-d"] {
        let seconds = |more: &str| {
            let line = format!("-w -f {how} {more} -i 1 -s 16 -m 16 -M 16 {}", disk.url);
            perftest(&line).expect("the tool runs").0.runs[0].outcome.elapsed_s
        };
        assert!(seconds("") < 0.5 && seconds("-j") >= 0.5, "{how}");
    }
    assert!(probe.flushes() >= 4, "flushed after the time, too");
}

#[test]
fn option_j_drops_the_target_from_the_page_cache() {
    let scratch = TempDir::folder();
    let disk = scratch.file("disk", 0);
    std::fs::write(&disk, vec![0; 32 << 20]).expect("written");
    if !dropped(&disk) {
        return;
    }
    let bring = || drop(std::fs::read(&disk).expect("there"));
    // Only the start is read; the rest keeps its state.
    let line = format!("-j -a -r -i 1 -s 20 -m 20 -M 20 {disk}");
    bring();
    perftest(&format!("{line} --keep-caches")).expect("the tool runs");
    assert!(is_cached(&disk));
    perftest(&line).expect("the tool runs");
    assert!(!is_cached(&disk));
}

#[test]
fn failed_cache_drop_warns_once() {
    let scratch = TempDir::folder();
    let (caches, none) = (scratch.file("drop_caches", 0), scratch.path("none/at/all"));
    let (document, text) = play(|context| {
        let mut output = ToolOutput::new("caches", context);
        drop_all(Path::new(&caches), &mut output)?;
        drop_all(Path::new(&none), &mut output)?;
        drop_all(Path::new(&none), &mut output)?;
        Ok(output.finish())
    })
    .expect("a report");
    assert_eq!(std::fs::read_to_string(&caches).expect("there"), "3");
    assert_eq!(document.notes.len(), 1);
    assert!(text.starts_with(&format!("# WARNING: {none} cannot be written (")), "{text}");
    assert!(text.ends_with("): results will be unreliable\n"), "{text}");
}

#[test]
fn each_run_on_nbd_reaches_the_disk() {
    let probe = RecordingDisk::new(512 << 10);
    let disk = served(probe.clone());
    perftest(&format!("-a -r -i 3 -s 19 -m 12 -M 12 {}", disk.url)).expect("the tool runs");
    assert_eq!(probe.reads(), [(0, 512 << 10); 3]);
}

#[test]
fn existing_data_is_found_and_options_f_n_overwrite() {
    let scratch = TempDir::folder();
    let disk = scratch.file("disk", 4 << 20);
    let mut bytes = vec![0; 4 << 20];
    bytes[(2 << 20) + 77] = 1;
    std::fs::write(&disk, &bytes).expect("written");
    let line = |how: &str| format!("{how} -a -i 1 -s 22 -m 20 -M 20 --keep-caches {disk}");
    let error = perftest(&line("")).expect_err("the disk holds data");
    assert_eq!(error.kind, ErrorKind::HoldsData);
    assert!(error.what.contains("byte 2097229") && error.hint.contains("-f"), "{error}");
    perftest(&line("-r")).expect("reads succeed");
    assert_eq!(std::fs::read(&disk).expect("there")[(2 << 20) + 77], 1);
    perftest(&line("-n")).expect("no check");
    assert!(std::fs::read(&disk).expect("there").iter().all(|byte| *byte == 0));
    std::fs::write(&disk, &bytes).expect("written");
    perftest(&line("-f")).expect("-f permits it");
}

#[test]
fn invalid_options_are_rejected_with_a_hint() {
    let refused = |line: &str| perftest(line).expect_err("refused");
    assert!(refused("-t root@host null:1M").hint.contains("drop_caches"));
    assert!(refused("-s 30 null:1M").what.contains("fewer than the 2^30 bytes of -s 30"));
    assert!(
        refused("-m 14 -M 12 null:1M")
            .what
            .contains("the smallest block size 2^14 exceeds the largest, 2^12")
    );
    let error = refused("iscsi://127.0.0.1:1/iqn.2026-11.org.example:none/0");
    assert!(matches!(error.kind, ErrorKind::Target(Some(_))), "{error}");
}

#[test]
fn ended_run_keeps_its_rows() {
    let (mut out, handle) = (Vec::new(), lunar_bench::RunHandle::default());
    handle.end();
    let context = RunContext { handle: &handle, out: &mut out };
    let document = run(&args("-s 12 -m 9 null:1M"), context).expect("the tool ends");
    assert_eq!(document.runs.len(), 0);
}
