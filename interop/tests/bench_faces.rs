//! The compatibility commands of `lunar bench`: their requests to a scripted target, and their results if it
//! vanishes.

use clap::Parser;
use interop::script::{BLOCK, BLOCKS, HookAction, Script, ScriptConnection, Target};
use interop::{Folder, Pdu, Server, TARGET, op};
use lunar_bench::{Document, Error, RunHandle};
use lunar_bench_compat::{RunContext, blockdev_perftest, dd, disktest, sgp_dd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

#[derive(Parser)]
#[command(name = "bench")]
enum Cli {
    BlockdevPerftest(blockdev_perftest::Args),
    Disktest(Box<disktest::Args>),
    #[command(name = "sgp_dd")]
    SgpDd(sgp_dd::Args),
    Dd(dd::Args),
}

/// Runs a compatibility command. Returns its document and its output.
fn play(words: &[&str]) -> Result<(Document, String), Error> {
    let cli = Cli::try_parse_from([&["bench"], words].concat()).unwrap_or_else(|e| panic!("{e}"));
    let (handle, mut out) = (RunHandle::default(), Vec::new());
    let context = RunContext { handle: &handle, out: &mut out };
    let document = match cli {
        Cli::BlockdevPerftest(args) => blockdev_perftest::run(&args, context),
        Cli::Disktest(args) => disktest::run(&args, context),
        Cli::SgpDd(args) => sgp_dd::run(&args, context),
        Cli::Dd(args) => dd::run(&args, context),
    }?;
    Ok((document, String::from_utf8(out).expect("text")))
}

/// CDBs of the commands with one of these operation codes.
fn cdbs(target: &Target, codes: &[u8]) -> Vec<[u8; 16]> {
    let commands = target.requests(op::SCSI).into_iter();
    let cdbs = commands.map(|pdu| <[u8; 16]>::try_from(&pdu.bhs[32..48]).expect("16 bytes"));
    cdbs.filter(|cdb| codes.contains(&cdb[0])).collect()
}

/// Serves READ and WRITE of any size: reads return zeros, and writes are discarded.
fn any_size(link: &mut ScriptConnection, pdu: &Pdu) -> HookAction {
    let cdb = &pdu.bhs[32..48];
    match cdb[0] {
        _ if pdu.opcode() != op::SCSI => return HookAction::Usual,
        0x08 => link.data_in(pdu, &vec![0; usize::from(cdb[4]) * BLOCK]),
        0xa8 => link.data_in(pdu, &vec![0; usize::from(cdb[9]) * BLOCK]),
        0x0a | 0x2a | 0xaa | 0x8a => link.good(pdu),
        _ => return HookAction::Usual,
    }
    HookAction::Done
}

#[test]
fn cdb_sizes_and_fua_of_sgp_dd_reach_the_wire() {
    for (size, read, write, fua) in
        [("6", 0x08, 0x0a, "0"), ("10", 0x28, 0x2a, "3"), ("12", 0xa8, 0xaa, "3"), ("16", 0x88, 0x8a, "3")]
    {
        let target = Script::new().hook(any_size).listen();
        let url = target.url("");
        let common =
            [format!("cdbsz={size}"), format!("fua={fua}"), "bpt=4".into(), "thr=1".into(), "count=8".into()];
        let common: Vec<&str> = common.iter().map(String::as_str).collect();
        let (from, to) = (format!("if={url}"), format!("of={url}"));
        let run = |ends: &[&str]| {
            play(&[&["sgp_dd"], ends, &common[..]].concat()).unwrap_or_else(|e| panic!("{e}"))
        };
        let (document, said) = run(&[&from, "of=/dev/null", "skip=3"]);
        assert_eq!((document.ended_early(), said.as_str()), (None, "8+0 records in\n8+0 records out\n"));
        run(&["if=/dev/zero", &to, "seek=16", "--destroy", "sync=1"]);
        let (reads, writes) = (cdbs(&target, &[read]), cdbs(&target, &[write]));
        assert_eq!((reads.len(), writes.len()), (2, 2), "cdbsz={size}");
        let lba_at = match size {
            "6" => 3,
            "16" => 9,
            _ => 5,
        };
        assert_eq!(
            [reads[0][lba_at], reads[1][lba_at], writes[0][lba_at], writes[1][lba_at]],
            [3, 7, 16, 20]
        );
        let bit = if fua == "3" { 8 } else { 0 };
        assert!(size == "6" || reads.iter().chain(&writes).all(|cdb| cdb[1] == bit), "{reads:?} {writes:?}");
        assert_eq!(cdbs(&target, &[0x35]).len(), 1, "sync=1");
    }
}

#[test]
fn sgp_dd_rejects_wrong_block_and_cdb_sizes() {
    let target = Script::new().listen();
    let from = format!("if={}", target.url(""));
    let refused =
        |words: &[&str]| play(&[&["sgp_dd", &from, "of=."], words].concat()).expect_err(words[0]).to_string();
    assert!(refused(&["bs=4096"]).contains("use bs=512"));
    assert!(refused(&["cdbsz=6", "bpt=257"]).contains("does not fit into a 6-byte CDB"));
    assert!(refused(&["cdbsz=6", "fua=2"]).contains("FUA"));
}

#[test]
fn threads_of_sgp_dd_are_commands_in_flight() {
    // The target responds only when 8 commands are in flight. With fewer, the run would never end.
    let waiting = Mutex::new(Vec::new());
    let hook = move |link: &mut ScriptConnection, pdu: &Pdu| {
        if pdu.opcode() != op::SCSI || pdu.bhs[32] != 0x28 {
            return HookAction::Usual;
        }
        let mut waiting = waiting.lock().expect("no thread panics while it holds the lock");
        waiting.push(pdu.clone());
        if waiting.len() == 8 {
            waiting.drain(..).for_each(|pdu| link.data_in(&pdu, &[0; 2 * BLOCK]));
        }
        HookAction::Done
    };
    let target = Script::new().hook(hook).listen();
    let from = format!("if={}", target.url("operation_timeout=3&recovery_timeout=1"));
    let (document, said) =
        play(&["sgp_dd", &from, "of=.", "bpt=2", "thr=8", "time=1"]).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(document.ended_early(), None, "{said}");
    assert_eq!(document.runs[0].outcome.read.ios, BLOCKS as u64 / 2);
    assert_eq!(cdbs(&target, &[0x28]).len(), BLOCKS / 2);
    assert!(document.runs[0].targets[0].facts.iter().any(|fact| fact.0 == "MaxBurstLength"));
}

#[test]
fn without_direct_small_blocks_travel_in_large_requests() {
    let target = Script::new().listen();
    let url = target.url("");
    let perftest = |how: &str| {
        let options = ["blockdev-perftest", how, "-r", "-i", "1", "-s", "19", "-m", "12", "-M", "12", &url];
        play(&options).unwrap_or_else(|e| panic!("{e}"))
    };
    let (document, said) = perftest("-a");
    assert!(said.contains("# -a: iscsi://") && said.contains(" has no page cache; "), "{said}");
    assert_eq!(document.runs[0].outcome.read.ios, 128, "the I/Os that the command reports");
    let reads = cdbs(&target, &[0x28]).len();
    assert!(reads < 16, "{reads} reads");
    perftest("-d");
    assert_eq!(cdbs(&target, &[0x28]).len() - reads, 128);
}

#[test]
fn dd_write_without_direct_is_complete() {
    let target = Script::new().listen();
    let to = format!("of={}", target.url(""));
    let (document, said) = play(&["dd", "if=/dev/zero", &to, "bs=3k", "count=100", "seek=1", "--destroy"])
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(document.ended_early(), None, "{said}");
    assert!(
        said.starts_with("100+0 records in\n100+0 records out\n307200 bytes (307 kB, 300 KiB) copied, "),
        "{said}"
    );
    let disk = target.disk();
    assert!(disk[3072..310_272].iter().all(|byte| *byte == 0));
    assert!(disk[..3072].iter().any(|byte| *byte != 0) && disk[310_272..].iter().any(|byte| *byte != 0));
}

/// Uses a server, because the disk of a scripted target is smaller than a block of 1 MiB.
#[test]
fn dd_copies_large_blocks_to_and_from_a_target_whole() {
    let toml = format!(
        "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n\
         [[target.lun]]\nlun = 0\nbackend = \"memory\"\nsize = \"4MiB\"\n"
    );
    let (server, files) = (Server::start(&toml), Folder::fresh());
    let url = format!("iscsi://{}/{TARGET}/0", server.portal());
    let file = |name: &str| files.join(name).to_str().expect("text").to_owned();
    let bytes: Vec<u8> = (0..4u32 << 20).map(|n| (n / 512 + n) as u8).collect();
    std::fs::write(file("in"), &bytes).expect("written");
    let copy = |from: &str, to: &str, flag: &str| {
        play(&["dd", &format!("if={from}"), &format!("of={to}"), "bs=1M", flag, "--destroy"])
            .unwrap_or_else(|e| panic!("{e}"))
    };
    copy(&file("in"), &url, "oflag=direct");
    copy(&url, &file("out"), "iflag=direct");
    assert!(std::fs::read(file("out")).expect("the output file") == bytes);
    copy(&url, &file("buffered"), "conv=fsync");
    assert!(std::fs::read(file("buffered")).expect("the output file") == bytes);
}

#[test]
fn disktest_has_a_session_for_each_device_that_is_named() {
    let target = Script::new().listen();
    let url = target.url("");
    let (document, said) = play(&["disktest", "-B", "4k", "-K", "2", "-P", "T", "-L", "64", &url, &url])
        .unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(document.runs.len(), 2);
    assert!(said.contains("| 2 devices | Total read throughput: "), "{said}");
    let logins: Vec<usize> =
        target.seen().iter().filter(|seen| !seen.full_feature).map(|seen| seen.link).collect();
    assert_eq!(logins.iter().max(), Some(&1));
    assert_eq!(cdbs(&target, &[0x28]).len(), 128);
}

/// A target that closes every connection from the 20th read on.
fn vanishing() -> Target {
    let reads = AtomicUsize::new(0);
    let hook = move |_: &mut ScriptConnection, pdu: &Pdu| {
        let is_read = pdu.opcode() == op::SCSI && pdu.bhs[32] == 0x28;
        let gone = reads.load(SeqCst) >= 20 || (is_read && reads.fetch_add(1, SeqCst) + 1 >= 20);
        if gone { HookAction::Close } else { HookAction::Usual }
    };
    Script::new().hook(hook).listen()
}

#[test]
fn results_are_reported_after_the_target_vanishes() {
    for face in ["sgp_dd", "dd", "disktest", "blockdev-perftest"] {
        let target = vanishing();
        let url = target.url("recovery_timeout=1&operation_timeout=3&login_timeout=1");
        let from = format!("if={url}");
        let words: Vec<&str> = match face {
            "sgp_dd" => vec![face, &from, "of=.", "bpt=1", "thr=1", "time=1"],
            "dd" => vec![face, &from, "of=/dev/null", "bs=512", "iflag=direct"],
            "disktest" => vec![face, "-B", "512", "-K", "1", "-P", "X", &url],
            _ => vec![face, "-r", "-s", "18", "-m", "9", "-M", "9", &url],
        };
        let start = Instant::now();
        let (document, said) = play(&words).unwrap_or_else(|e| panic!("{face}: {e}"));
        assert!(start.elapsed() < Duration::from_secs(20), "{face}: {:?}", start.elapsed());
        let why = document.ended_early().unwrap_or_else(|| panic!("{face}: {said}"));
        assert!(said.contains(why), "{face}: {why} in {said}");
        assert_eq!(document.runs[0].outcome.read.ios, 19, "{face}: {said}");
        if face == "sgp_dd" {
            assert!(said.contains("  remaining block count=1005\n19+0 records in\n"), "{said}");
        }
        if face == "disktest" {
            assert!(said.contains("| ERROR | ") && said.ends_with("Test Done (Failed)\n"), "{said}");
        }
    }
}
