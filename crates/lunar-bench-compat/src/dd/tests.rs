use super::*;
use crate::testing::{TempDir, dropped, is_cached, play, served, without_figures};
use clap::Parser;
use interop::tool::{Tool, have};
use lunar_bench::ErrorKind;
use lunar_bench::outcome::DirectionTotals;
use lunar_bench::testing::RecordingDisk;
use std::process::Command;
use std::time::Instant;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    let words = std::iter::once("dd").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.args).expect("understood")
}

fn dd(line: &str) -> Result<(Document, String), Error> {
    play(|context| run(&args(line), context))
}

#[test]
fn lines_of_known_times_are_those_of_the_tool() {
    let read = DirectionTotals { ios: 41, bytes: 4_194_304, ..DirectionTotals::default() };
    let outcome = JobOutcome { elapsed_s: 0.007_983_06, read, ..JobOutcome::default() };
    let expected = [
        "40+1 records in",
        "40+1 records out",
        "4194304 bytes (4.2 MB, 4.0 MiB) copied, 0.00798306 s, 525 MB/s",
    ];
    assert_eq!(lines(&outcome, 102_400, (true, true)), expected);
    assert_eq!(lines(&outcome, 102_400, (true, false)), expected[..2]);
    // The publication of 2002: 16.74 + 16.54 = 33.28 MB/s, for 500 MB each.
    let run = |rate: f64| {
        let read = DirectionTotals { bytes: 500_000_000, ..DirectionTotals::default() };
        JobOutcome { elapsed_s: 500.0 / rate, read, ..JobOutcome::default() }
    };
    let text = aggregate(&[run(16.74), run(16.54)]);
    assert!(text.ends_with("s, 33.1 MB/s; sum of the rates 33.3 MB/s"), "{text}");
    assert!(text.starts_with("aggregate: 1000000000 bytes (1.0 GB, 954 MiB) copied, 30.2297 s"), "{text}");
}

#[test]
fn every_operand_is_parsed() {
    let line = "if=null:8M of=memory:8M bs=4k count=10 skip=1 seek=2 iflag=direct,fullblock oflag=direct,dsync \
                conv=fsync,fdatasync,notrunc status=noxfer --destroy";
    let settings = DdSettings::read(&args(line)).expect("understood");
    let plan = settings.plan(("null:8M", "memory:8M"), 4096, 0).expect("a plan");
    assert_eq!((plan.bytes, plan.input.start, plan.output.start), (Some(40960), 4096, 8192));
    assert!(plan.input.direct && plan.output.direct && plan.fua && plan.destroy && settings.flush);
    assert_eq!(settings.status, (true, false));
    let (document, text) = dd(line).expect("a copy");
    assert_eq!(text, "10+0 records in\n10+0 records out\n");
    assert_eq!(document.runs[0].label, "copy bs=4k");
    assert_eq!(dd("if=null:1M of=/dev/null status=none").expect("a read").1, "");
    let (_, text) =
        dd("if=null:1M of=/dev/null bs=600k count=5 status=noxfer").expect("a short input is no error");
    assert_eq!(text, "1+1 records in\n1+1 records out\n");
}

#[test]
fn list_of_block_sizes_runs_each() {
    let (document, text) = dd("if=null:4M of=/dev/null bs=64k,128k,2048k").expect("a read");
    let expected = "+ dd if=null:4M of=/dev/null bs=64k\n64+0 records in\n64+0 records out\n\
                    4194304 bytes (# MB, # MiB) copied, # s, # GB/s\n";
    let shown = without_figures(&text).replace("MB/s", "GB/s");
    assert!(shown.starts_with(expected) || shown.contains(" GB/s\n"), "{shown}");
    assert_eq!(text.lines().filter(|line| line.starts_with("+ dd")).count(), 3);
    assert!(text.contains("bs=2048k\n2+0 records in\n"), "{text}");
    let labels: Vec<&str> = document.runs.iter().map(|run| run.label.as_str()).collect();
    assert_eq!(labels, ["read bs=64k", "read bs=128k", "read bs=2048k"]);
}

#[test]
fn two_concurrent_copies_are_summed() {
    let (document, text) = dd("if=null:1M if=null:2M of=/dev/null bs=256k").expect("a read");
    assert_eq!(document.runs.len(), 2);
    assert_eq!(document.runs[1].outcome.read.bytes, 2 << 20);
    let last = text.lines().last().expect("a line");
    assert!(last.starts_with("aggregate: 3145728 bytes (3.1 MB, 3.0 MiB) copied, "), "{text}");
    let (document, _) = dd("if=/dev/zero of=null:1M of=null:1M bs=256k count=2").expect("a write");
    assert!(document.runs.iter().all(|run| run.outcome.write.bytes == 512 << 10));
}

#[test]
fn copy_is_complete_and_creates_the_output() {
    let scratch = TempDir::folder();
    let (a, b) = (scratch.file("a", 0), scratch.path("b"));
    let bytes: Vec<u8> = (0..100_352u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(&a, &bytes).expect("written");
    let line = format!("if={a} of={b} bs=4096 conv=fsync");
    let (_, text) = dd(&line).expect("a copy");
    assert!(
        text.starts_with("24+1 records in\n24+1 records out\n100352 bytes (100 kB, 98 KiB) copied, "),
        "{text}"
    );
    assert!(std::fs::read(&b).expect("made") == bytes);
    assert_eq!(dd(&line).expect_err("the output holds data").kind, ErrorKind::HoldsData);
    dd(&format!("{line} --destroy")).expect("--destroy permits it");
    // A list checks for data once, before the first size.
    let c = scratch.path("c");
    dd(&format!("if={a} of={c} bs=4k,8k")).expect("one copy for each size");
}

#[test]
fn skip_past_end_is_a_note_for_files_and_error_for_disks() {
    let scratch = TempDir::folder();
    let file = scratch.file("a", 1536);
    let output = |skip: u32| dd(&format!("if={file} of=/dev/null skip={skip}")).expect("no error").1;
    let nothing = "0+0 records in\n0+0 records out\n0 bytes copied, 0 s, 0.0 kB/s\n";
    assert_eq!(output(4), format!("# {file}: cannot skip to specified offset\n{nothing}"));
    assert_eq!(output(3), nothing, "exactly at the end");
    let e = dd("if=null:1024 of=/dev/null skip=4 count=1").expect_err("it is a disk");
    assert_eq!(
        (e.kind, e.what.as_str()),
        (ErrorKind::Invalid, "null:1024: skip= is 1024 bytes past the end of the input")
    );
}

#[test]
fn missing_file_hint_names_an_operand() {
    let scratch = TempDir::folder();
    let (none, empty) = (scratch.path("none"), scratch.file("empty", 0));
    for (line, what, hint) in [
        (format!("if={none} of=/dev/null"), "none: the file does not exist", "after if="),
        (format!("if={empty} of=/dev/null"), "empty: the file is empty", "after if="),
        (format!("if=/dev/zero of={none}"), "none: the file does not exist", "count="),
        (format!("if=/dev/zero of={empty}"), "empty: the file is empty", "count="),
    ] {
        let e = dd(&line).expect_err(&line);
        assert!(e.what.ends_with(what) && e.hint.contains(hint) && !e.hint.contains("give a size"), "{e}");
    }
    dd(&format!("if=/dev/zero of={none} count=2")).expect("the output is created");
    assert_eq!(std::fs::metadata(&none).expect("made").len(), 1024);
}

fn pattern(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

#[test]
fn copies_to_and_from_nbd_are_exact_with_any_flags() {
    let scratch = TempDir::folder();
    let bytes = pattern((3 << 20) + 4096);
    let (from, to) = (RecordingDisk::new(bytes.len()), RecordingDisk::new(4 << 20));
    from.set(&bytes);
    let (a, b) = (scratch.file("a", 0), scratch.path("b"));
    std::fs::write(&a, &bytes).expect("written");
    let (there, here) = (served(from), served(to.clone()));
    let is_there = |line: &str| assert!(to.bytes()[..bytes.len()] == bytes, "{line}");
    for bs in ["1M", "64k"] {
        for flags in ["", "iflag=direct", "oflag=direct", "iflag=direct oflag=direct"] {
            let line = format!("if={} of={b} bs={bs} {flags} --destroy", there.url);
            dd(&line).expect(&line);
            assert!(std::fs::read(&b).expect("made") == bytes, "{line}");
            for input in [&a, &there.url] {
                to.set(&vec![0xee; 4 << 20]);
                let line = format!("if={input} of={} bs={bs} {flags} --destroy", here.url);
                dd(&line).expect(&line);
                is_there(&line);
                assert!(to.bytes()[bytes.len()..].iter().all(|byte| *byte == 0xee), "{line}");
            }
        }
    }
}

#[test]
fn direct_requests_are_unchanged_and_others_are_merged() {
    let probe = RecordingDisk::new(2 << 20);
    let disk = served(probe.clone());
    let lens = |line: String| {
        let before = (probe.reads().len(), probe.writes().len());
        dd(&line).expect(&line);
        let (reads, writes) = (probe.reads(), probe.writes());
        let lens: Vec<usize> = reads[before.0..].iter().chain(&writes[before.1..]).map(|io| io.1).collect();
        (lens.iter().all(|len| *len == 64 << 10), lens.iter().all(|len| *len == 512 << 10))
    };
    let url = &disk.url;
    assert_eq!(lens(format!("if={url} of=/dev/null bs=64k iflag=direct")), (true, false));
    assert_eq!(lens(format!("if={url} of=/dev/null bs=64k")), (false, true));
    let write = format!("if=/dev/zero of={url} bs=64k count=32 --destroy");
    assert_eq!(lens(format!("{write} oflag=direct")), (true, false));
    assert_eq!(lens(write), (false, true));
}

#[test]
fn direct_flag_bypasses_the_page_cache_of_files() {
    let scratch = TempDir::folder();
    let (a, b) = (scratch.file("a", 0), scratch.path("b"));
    std::fs::write(&a, pattern(1 << 20)).expect("written");
    if !dropped(&a) {
        return;
    }
    let line = format!("if={a} of={b} bs=64k --destroy");
    dd(&format!("{line} iflag=direct oflag=direct")).expect("a copy");
    assert_eq!((is_cached(&a), is_cached(&b)), (false, false));
    assert!(dropped(&a) && dropped(&b));
    dd(&line).expect("a copy");
    assert_eq!((is_cached(&a), is_cached(&b)), (true, true));
}

#[test]
fn dsync_uses_fua_and_fsync_flushes_in_the_time() {
    let probe = RecordingDisk::new(1 << 20);
    probe.flush_in(500);
    let disk = served(probe.clone());
    let elapsed_s = |more: &str| {
        let line = format!("if=/dev/zero of={} bs=64k count=8 --destroy {more}", disk.url);
        dd(&line).expect(&line).0.runs[0].outcome.elapsed_s
    };
    let unmeasured_s = |more: &str| {
        let started_at = Instant::now();
        let elapsed_s = elapsed_s(more);
        started_at.elapsed().as_secs_f64() - elapsed_s
    };
    // There is always a flush after the time.
    assert!(unmeasured_s("") >= 0.5 && unmeasured_s("oflag=direct") >= 0.5);
    assert_eq!((probe.flushes(), probe.stable_writes()), (2, 0));
    assert!(elapsed_s("conv=fsync") >= 0.5 && elapsed_s("conv=fdatasync oflag=direct") >= 0.5);
    assert_eq!((probe.flushes(), probe.stable_writes()), (4, 0));
    elapsed_s("oflag=dsync,direct");
    assert_eq!(probe.stable_writes(), 8);
}

/// A writer that removes a file when the first rate is printed.
struct Remover<'a>(Vec<u8>, &'a str);

impl std::io::Write for Remover<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        if String::from_utf8_lossy(bytes).contains("copied") {
            _ = std::fs::remove_file(self.1);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn results_before_a_target_vanished_are_kept() {
    let scratch = TempDir::folder();
    let a = scratch.file("a", 1 << 20);
    let (handle, mut out) = (RunHandle::default(), Remover(Vec::new(), &a));
    let line = format!("if={a} of=/dev/null bs=64k,128k,256k");
    let document = run(&args(&line), RunContext { handle: &handle, out: &mut out })
        .expect("the results of the first size");
    let text = String::from_utf8(out.0).expect("text");
    assert_eq!((document.runs.len(), document.runs[0].outcome.read.bytes), (2, 1 << 20));
    let why = document.ended_early().expect("the output was removed");
    assert!(why.contains(&a) && text.contains(&format!("bs=128k: the run ended early: {why}")), "{text}");
    assert!(!text.contains("256k: "), "no further size: {text}");
}

#[test]
fn invalid_options_are_rejected_with_a_hint() {
    let refused = |line: &str| dd(line).expect_err(line).to_string();
    assert!(refused("if=null:1M").contains("/dev/null"));
    assert!(refused("if=/dev/zero of=/dev/null count=1").contains("neither"));
    assert!(refused("if=null:1M of=/dev/null ibs=1k").contains("ibs=1k"));
    assert!(refused("if=null:1M of=/dev/null bs=64k,foo").contains("foo"));
    assert!(refused("if=null:1M of=/dev/null bs=0").contains("bs=0: out of range"));
    assert!(refused("if=null:1M of=/dev/null conv=swab").contains("conv=swab"));
    assert!(refused("if=null:1M of=/dev/null status=all").contains("noxfer"));
    assert!(refused("if=/dev/zero of=null:1M bs=1M count=2").contains("smaller count"));
    assert!(refused("if=a if=b of=c of=d of=e").contains("equally often"));
    assert!(refused("if=/nowhere/at/all of=/dev/null").contains("/nowhere/at/all"));
}

#[test]
fn lines_match_real_dd() {
    if !have(&[Tool { program: "dd", package: "coreutils" }]) {
        return;
    }
    let scratch = TempDir::folder();
    let (a, b) = (scratch.file("a", 1_000_000), scratch.file("b", 0));
    for more in ["bs=64k", "bs=3000 count=7", "bs=4096 count=1", "bs=1 count=3", "bs=64k status=noxfer"] {
        let line = format!("if={a} of=/dev/null {more}");
        let theirs = Command::new("dd").env("LC_ALL", "C").args(line.split_whitespace()).output();
        let theirs = String::from_utf8(theirs.expect("the tool runs").stderr).expect("text");
        let (_, ours) = dd(&line).expect("a read");
        assert_eq!(shape(&ours), shape(&theirs), "{ours}\n{theirs}");
    }
    drop(b);
}

/// Lines without the measured figures after "copied, ".
fn shape(text: &str) -> String {
    let cut = |line: &str| line.split_once("copied, ").map_or(line, |(before, _)| before).to_owned();
    text.lines().map(cut).collect::<Vec<_>>().join("\n")
}

#[test]
fn file_grows_and_full_disk_is_reported() {
    let dir = std::env::temp_dir().join(format!("lunar-dd-grows-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = |name: &str| dir.join(name).display().to_string();
    let bytes: Vec<u8> = (0..1_000_001u32).map(|n| (n / 7) as u8).collect();
    std::fs::write(path("from"), &bytes).expect("written");
    std::fs::write(path("to"), [1; 5000]).expect("written");
    let (document, _) =
        dd(&format!("if={} of={} bs=64k seek=2 --destroy", path("from"), path("to"))).expect("a copy");
    assert_eq!(document.ended_early(), None);
    let copied = std::fs::read(path("to")).expect("the copy");
    assert!(copied.len() == bytes.len() + (128 << 10) && copied[128 << 10..] == bytes[..]);
    assert!(copied[..5000] == [1; 5000], "earlier bytes are unchanged");
    let (document, _) = dd(&format!("if={} of=memory:512k bs=64k --destroy", path("from"))).expect("a part");
    assert_eq!(document.runs[0].outcome.read.bytes, 512 << 10);
    assert_eq!(document.ended_early(), Some("no space left: 475713 bytes of the input were not copied"));
    std::fs::remove_dir_all(&dir).expect("removed");
}
