use super::*;
use crate::testing::{TempDir, dropped, is_cached, play, served, without_figures};
use clap::Parser;
use interop::tool::{Tool, have};
use lunar_bench::ErrorKind;
use lunar_bench::outcome::DirectionTotals;
use lunar_bench::testing::RecordingDisk;
use std::process::Command;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    let words = std::iter::once("sgp_dd").chain(line.split_whitespace());
    Cli::try_parse_from(words).map(|cli| cli.args).expect("understood")
}

fn sgp_dd(line: &str) -> Result<(Document, String), Error> {
    play(|context| run(&args(line), context))
}

#[test]
fn lines_for_known_times_match_the_tool() {
    let read = DirectionTotals { ios: 64, bytes: 8192 * 512, ..DirectionTotals::default() };
    let outcome = JobOutcome { elapsed_s: 0.015_171, read, ..JobOutcome::default() };
    assert_eq!(
        lines(&outcome, 8192 * 512, 512, true),
        ["time to transfer data was 0.015171 secs, 276.47 MB/sec", "8192+0 records in", "8192+0 records out"]
    );
    assert_eq!(
        lines(&outcome, 8193 * 512, 512, false),
        ["  remaining block count=1", "8192+0 records in", "8192+0 records out"]
    );
    // The tool prints no rate for a very short time, or for zero bytes.
    let short = JobOutcome { elapsed_s: 0.000_010, ..outcome };
    assert_eq!(lines(&short, 8192 * 512, 512, true)[0], "time to transfer data was 0.000010 secs");
    let nothing = JobOutcome { elapsed_s: 1.5, ..JobOutcome::default() };
    assert_eq!(lines(&nothing, 0, 512, true)[0], "time to transfer data was 1.500000 secs");
}

#[test]
fn every_operand_is_parsed() {
    let line = "if=memory:1M of=. bs=512 ibs=512 obs=512 bpt=8 thr=16 dio=1 count=0x10 skip=2 seek=0 time=1 fua=3 \
                cdbsz=16 sync=1 coe=1 iflag=dpo,excl,null oflag=dsync deb=1 verbose=1 -v --destroy";
    let settings = SgpDdSettings::read(&args(line)).expect("understood");
    assert_eq!((settings.bs, settings.bpt, settings.threads), (512, 8, 16));
    assert_eq!((settings.plan.bytes, settings.plan.input.start), (Some(8192), 1024));
    assert_eq!(settings.shapes[0], CdbOptions { size: 16, fua: true, dpo: true });
    assert_eq!(settings.shapes[1], CdbOptions { size: 16, fua: true, dpo: false });
    let RoutePlan { fua, destroy, .. } = settings.plan;
    assert!(settings.time && settings.sync && settings.verbose && fua && destroy);
    assert_eq!(settings.continue_on_error, [true; 2]);
    assert!(settings.plan.input.direct);
    let coe = |flag: &str| {
        SgpDdSettings::read(&args(&format!("if=null:1M of=. {flag}"))).expect("understood").continue_on_error
    };
    assert_eq!(
        (coe("iflag=coe"), coe("oflag=coe"), coe("coe=0")),
        ([true, false], [false, true], [false; 2])
    );
    let none = SgpDdSettings::read(&args("if=memory:1M of=/dev/null")).expect("understood");
    assert_eq!((none.bs, none.bpt, none.threads, none.time), (512, 128, 4, false));
    let large = SgpDdSettings::read(&args("if=memory:1M of=/dev/null bs=4096")).expect("understood");
    assert_eq!(large.bpt, 32);
    let fua =
        |text: &str| SgpDdSettings::read(&args(&format!("if=. of=null:1M fua={text}"))).expect("good").shapes;
    assert_eq!([fua("1"), fua("2")].map(|s| (s[0].fua, s[1].fua)), [(false, true), (true, false)]);
}

#[test]
fn reads_writes_and_copies_move_all_blocks() {
    let (document, text) = sgp_dd("if=null:1M of=/dev/null bs=512 bpt=16 thr=10 time=1").expect("a read");
    assert_eq!(
        without_figures(&text),
        "time to transfer data was # secs, # MB/sec\n2048+0 records in\n2048+0 records out\n"
    );
    assert_eq!((document.runs[0].label.as_str(), document.runs[0].outcome.read.ios), ("read", 128));
    let (document, text) =
        sgp_dd("if=/dev/zero of=memory:1M bpt=3 count=100 seek=1948 sync=1").expect("a write");
    assert_eq!(text, "100+0 records in\n100+0 records out\n");
    assert_eq!((document.runs[0].label.as_str(), document.runs[0].outcome.write.bytes), ("write", 51200));
}

#[test]
fn file_copy_is_exact_and_checks_for_data() {
    let scratch = TempDir::folder();
    let (a, b) = (scratch.file("a", 1 << 20), scratch.file("b", 1 << 20));
    let bytes: Vec<u8> = (0..1 << 20).map(|n: u32| (n / 512) as u8 | 1).collect();
    std::fs::write(&a, &bytes).expect("written");
    let line = format!("if={a} of={b} bs=512 bpt=7 skip=10 seek=20 count=1000 coe=1");
    let (document, text) = sgp_dd(&line).expect("a copy");
    assert_eq!(text, "1000+0 records in\n1000+0 records out\n");
    assert_eq!((document.runs[0].label.as_str(), document.runs[0].targets.len()), ("copy", 2));
    let copied = std::fs::read(&b).expect("there");
    assert!(copied[20 * 512..1020 * 512] == bytes[10 * 512..1010 * 512]);
    assert!(copied[..20 * 512].iter().chain(&copied[1020 * 512..]).all(|byte| *byte == 0));
    assert_eq!(sgp_dd(&line).expect_err("the output holds data").kind, ErrorKind::HoldsData);
    sgp_dd(&format!("{line} --destroy")).expect("--destroy permits it");
}

#[test]
fn dry_run_moves_nothing() {
    let (document, text) = sgp_dd("if=null:1M of=. --dry-run -v cdbsz=6").expect("prepared");
    assert!(document.runs.is_empty());
    assert!(
        text.contains("cdbsz is ignored: null:1048576") && text.contains("65536 bytes a command"),
        "{text}"
    );
}

#[test]
fn invalid_options_are_rejected_with_a_hint() {
    let refused = |line: &str| sgp_dd(line).expect_err(line).to_string();
    assert!(refused("of=.").contains("if= must name a file or a disk"));
    assert!(refused("if=- of=.").contains("standard input"));
    assert!(refused("if=/dev/zero of=/dev/null").contains("neither"));
    assert!(refused("if=null:1M of=. cdbsz=7").contains("6, 10, 12 or 16"));
    assert!(refused("if=null:1M of=. thr=1025").contains("1 to 1024"));
    assert!(refused("if=null:1M of=. oflag=append").contains("oflag=append"));
    assert!(refused("if=null:1M of=. ibs=4096").contains("ibs"));
    assert!(refused("if=null:1M of=. bs=1000").contains("bs=512"));
    assert!(refused("if=null:1M of=. count=2049").contains("smaller count"));
    assert!(refused("if=null:1M of=. foo=1").contains("foo=1"));
}

#[test]
fn threads_are_commands_in_flight() {
    let probe = RecordingDisk::new(1 << 20);
    let disk = served(probe.clone());
    for threads in [1, 6] {
        sgp_dd(&format!("if={} of=. bpt=8 thr={threads}", disk.url)).expect("a read");
        assert_eq!(probe.max_in_flight(), threads);
    }
}

#[test]
fn dio_bypasses_the_page_cache() {
    let scratch = TempDir::folder();
    let disk = scratch.file("disk", 0);
    std::fs::write(&disk, [7; 1 << 20]).expect("written");
    for how in ["dio=1", "iflag=direct", "iflag=dio"] {
        if !dropped(&disk) {
            return;
        }
        sgp_dd(&format!("if={disk} of=. {how}")).expect("a read");
        assert!(!is_cached(&disk), "{how}");
    }
    sgp_dd(&format!("if={disk} of=. dio=0")).expect("a read");
    assert!(is_cached(&disk));
}

#[test]
fn coe_replaces_unreadable_blocks_and_reports_them() {
    let probe = RecordingDisk::new(1 << 20);
    probe.set(&[7; 1 << 20]);
    probe.spoil(70_000..70_001);
    let (disk, scratch) = (served(probe), TempDir::folder());
    let to = scratch.file("to", 1 << 20);
    let copy = format!("if={} of={to} bpt=16 --destroy", disk.url);
    let (document, text) = sgp_dd(&format!("{copy} coe=1")).expect("a copy");
    assert!(text.contains(">> substituted zeros for in blk=128 for 8192 bytes, "), "{text}");
    assert!(text.ends_with("2048+0 records in\n2048+0 records out\n"), "{text}");
    assert_eq!((document.runs[0].outcome.errors, document.ended_early()), (1, None));
    let copied = std::fs::read(&to).expect("there");
    let is_zero = |at: usize| (65_536..73_728).contains(&at);
    assert!(copied.iter().enumerate().all(|(at, byte)| *byte == if is_zero(at) { 0 } else { 7 }));
    // Without coe, or with coe only for the output, the copy ends there.
    for how in ["", "oflag=coe"] {
        let (document, text) = sgp_dd(&format!("{copy} thr=1 {how}")).expect("the copy starts");
        assert!(document.ended_early().is_some_and(|why| why.contains("reading: ")), "{text}");
        assert!(text.contains("  remaining block count=1920\n128+0 records in\n"), "{text}");
    }
    // Like the tool, reads without an output are replaced, too.
    let (document, text) = sgp_dd(&format!("if={} of=. bpt=16 iflag=coe", disk.url)).expect("a read");
    assert!(text.contains(">> substituted zeros for in blk=128 for 8192 bytes, "), "{text}");
    assert_eq!((document.runs[0].outcome.errors, document.runs[0].outcome.read.bytes), (1, 1 << 20));
}

#[test]
fn skip_past_end_is_rejected_and_count_zero_accepted() {
    let refused = |line: &str| sgp_dd(line).expect_err(line).to_string();
    assert!(refused("if=null:1M of=. skip=2048").contains("leaves no blocks"));
    assert!(refused("if=null:1M of=. skip=5000").contains("leaves no blocks"));
    assert!(refused("if=null:1M of=. skip=5000 count=10").contains("only 0 bytes are available"));
    let (_, text) = sgp_dd("if=null:1M of=. count=0").expect("a count of zero");
    assert_eq!(text, "0+0 records in\n0+0 records out\n");
}

/// Compares the shape of the lines with those of the real tool.
#[test]
fn lines_match_real_sgp_dd() {
    let scratch = TempDir::folder();
    let a = scratch.file("a", 1 << 20);
    let line = format!("if={a} of=/dev/null bs=512 count=2000 bpt=16 time=1");
    if !have(&[Tool { program: "sgp_dd", package: "sg3-utils" }]) {
        return;
    }
    let theirs = Command::new("sgp_dd").args(line.split_whitespace()).output().expect("the tool runs");
    let theirs = String::from_utf8(theirs.stderr).expect("text");
    let (_, ours) = sgp_dd(&line).expect("a read");
    assert_eq!(without_figures(&ours), without_figures(&theirs), "{ours}\n{theirs}");
}
