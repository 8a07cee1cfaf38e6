use super::*;
use crate::job::{AccessPattern, ArrivalProcess, IoDirection};
use crate::{ErrorKind, TargetOptions, TargetSpec};
use clap::Parser;
use interop::op;
use interop::script::Script;
use lunar_nbd::server::{ListenAddress, NbdExport, ServerLimits, serve};
use lunar_runtime::error::ErrorCode;
use std::sync::Arc;
use std::time::Duration;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    Line::try_parse_from(format!("bench {line}").split_whitespace()).expect("valid arguments").args
}

fn job(line: &str) -> Job {
    args(line).job().expect("a job")
}

#[test]
fn defaults_are_4k_reads_for_ten_seconds() {
    assert_eq!(job("null:1M"), Job::default());
}

#[test]
fn short_run_has_short_intervals() {
    let ms = |line: &str| job(line).interval.as_millis();
    assert_eq!(
        ["1m", "10", "3", "1", "200ms"].map(|time| ms(&format!("null:1M --runtime {time}"))),
        [1000, 1000, 300, 100, 100]
    );
    assert_eq!((ms("null:1M --amount 1G"), ms("null:1M --runtime 1 --interval 1")), (1000, 1000));
}

#[test]
fn recovery_timeout_defaults_to_the_drain_timeout() {
    let patience = |settings: &str| {
        let target = TargetSpec::parse(&format!("iscsi://127.0.0.1/iqn.2026-11.org.example:a/0{settings}"));
        let TargetSpec::Lun(url) = target.expect("a target") else { panic!("not a LUN") };
        let times = url.options().expect("options").timeouts;
        (times.recovery.as_secs(), times.login_tries)
    };
    assert_eq!(patience(""), (30, 1));
    assert_eq!(patience("?recovery_timeout=90&login_tries=2"), (90, 2));
}

#[test]
fn workload_is_first_word_or_rw_option() {
    assert_eq!(job("randrw null:1M --rwmixread 70").direction, IoDirection::Mix(70));
    assert_eq!(job("--rw randrw --read-percent 70 null:1M"), job("randrw null:1M --read-percent 70"));
    // A file may have the name of a workload.
    assert_eq!(args("read").target_specs().unwrap()[0].to_string(), "read");
    assert_eq!(args("read --rw write null:1M").job().unwrap_err().what, "two workloads: read and --rw write");
}

#[test]
fn every_option_reaches_the_job() {
    let all = job(
        "randwrite null:1M --bs 4k/3:8k --iodepth 32 --runtime 500ms --amount 1G --ramp-time 2 --rate-iops 1000 \
         --poisson --zipf 1.2 --offset 1M --span 2M --fill 0xff --compare --fua --flush --continue-on-error \
         --seed 7 --interval 100ms --thinktime 3ms",
    );
    let expected = Job {
        order: AccessPattern::Zipf(1.2),
        direction: IoDirection::Write,
        sizes: vec![(4096, 3), (8192, 1)],
        depth: 32,
        time: Some(Duration::from_millis(500)),
        amount: Some(1 << 30),
        commands: None,
        ramp: Duration::from_secs(2),
        pace: ArrivalProcess::Poisson(1000.0),
        think: Duration::from_millis(3),
        fill: crate::job::Fill::Bytes([0xff; 8]),
        compare: true,
        fua: true,
        flush: true,
        offset: 1 << 20,
        span: Some(2 << 20),
        continue_on_error: true,
        seed: 7,
        interval: Duration::from_millis(100),
    };
    assert_eq!(all, expected);
    assert_eq!(job("read null:1M --stride 64k").order, AccessPattern::Strided(65536));
    assert_eq!(job("read null:1M --amount 1G").time, None, "an amount is enough");
    let opening = args("null:1M --sessions 3 --direct --destroy --create 1M --target-pid 1 --cores 0,")
        .target_options(&all);
    let opening = opening.unwrap();
    assert_eq!(opening.cores, lunar_runtime::CoreSelection::List(vec![0]));
    assert_eq!((opening.sessions, opening.direct, opening.destroy), (3, true, true));
    assert_eq!((opening.create, opening.target_pid, opening.write), (Some(1 << 20), Some(1), true));
}

#[test]
fn document_has_the_overhead_note() {
    let notes = |line| run(&args(line), &RunHandle::default()).expect("a document").notes;
    let memory_notes = notes("randwrite memory:1M --runtime 20ms --fill lba");
    assert!(
        memory_notes.len() == 1 && memory_notes[0].starts_with("overhead: measuring takes "),
        "{memory_notes:?}"
    );
    let null_notes = notes("read null:1M --runtime 20ms");
    assert!(
        null_notes.len() == 1 && null_notes[0].contains("(this run, as it is on null:)"),
        "{null_notes:?}"
    );
    let fine = notes("read memory:1M --runtime 5ms --interval 10ns");
    assert!(fine[0].starts_with("overhead: measuring takes "), "{fine:?}");
}

#[test]
fn null_and_memory_targets_have_a_default_size() {
    for name in ["null:", "memory:"] {
        let document = run(&args(&format!("read {name} --amount 64k")), &RunHandle::default()).expect(name);
        let target = &document.runs[0].targets[0];
        assert_eq!((target.name.as_str(), target.capacity), (format!("{name}1073741824").as_str(), 1 << 30));
    }
}

#[test]
fn targets_of_different_sizes_get_a_note() {
    let notes = |line| -> Vec<String> {
        let document = run(&args(line), &RunHandle::default()).expect("a document");
        document.notes.into_iter().filter(|note| !note.starts_with("overhead: ")).collect()
    };
    assert_eq!(
        notes("read null:1M null:2M --amount 64k"),
        ["the targets differ in size: the job uses 1048576 bytes of each, the size of the smallest"]
    );
    assert_eq!(notes("read null:1M null:2M --amount 64k --span 512k"), [""; 0]);
    assert_eq!(notes("read null:1M null:1M --amount 64k"), [""; 0]);
}

#[test]
fn lun_amounts_and_strides_must_be_whole_blocks() {
    let target = Script::new().listen();
    let line = |more: &str| args(&format!("read {} {more}", target.url("")));
    let refused = |more| run(&line(more), &RunHandle::default()).unwrap_err();
    let amount = refused("--amount 1003");
    assert_eq!(
        (amount.kind, amount.what.as_str()),
        (ErrorKind::Invalid, "--amount: 1003 bytes are not a multiple of the block size 512")
    );
    assert_eq!(
        refused("--stride 1000 --amount 4k").what,
        "a length, offset or stride of 1000 bytes is not a multiple of the block size 512"
    );
    let document =
        run(&line("--bs 512 --stride 1k --amount 1k"), &RunHandle::default()).expect("whole blocks");
    assert_eq!((document.ended_early(), document.runs[0].outcome.read.bytes), (None, 1024));
}

#[test]
fn sessions_are_logged_out_after_any_error() {
    let target = Script::new().listen();
    let line = |more: &str| args(&format!("{} {more}", target.url("")));
    for (more, said) in [
        ("--rw write --amount 4k", "holds data"),
        ("--bs 1000 --amount 4k", "not a multiple of the block size"),
        ("--amount 4k --verify", "writes nothing"),
    ] {
        let before = target.requests(op::LOGOUT).len();
        let e = run(&line(more), &RunHandle::default()).unwrap_err();
        assert!(e.what.contains(said), "{e}");
        assert_eq!(target.requests(op::LOGOUT).len(), before + 1, "{more}");
    }
}

#[test]
fn direct_option_bypasses_the_page_cache() {
    const O_DIRECT: u32 = rustix::fs::OFlags::DIRECT.bits();
    let path = std::env::temp_dir().join(format!("lunar-direct-{}", std::process::id()));
    std::fs::File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("a file");
    let flags_of = |more: &str| {
        let args = args(&format!("read {} {more}", path.display()));
        let opening = args.target_options(&args.job().expect("a job")).expect("an opening");
        let opened = OpenTargets::open(&args.target_specs().expect("a target"), &opening).expect("a rig");
        let open = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
        let ours = open.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path));
        let flags: Vec<u32> = ours.map(|fd| flags(&fd.file_name().to_string_lossy())).collect();
        opened.close();
        flags
    };
    let (direct, cached) = (flags_of("--direct"), flags_of(""));
    assert!(direct.iter().any(|flags| flags & O_DIRECT != 0), "{direct:x?}");
    assert!(!cached.is_empty() && cached.iter().all(|flags| flags & O_DIRECT == 0), "{cached:x?}");
    std::fs::remove_file(&path).expect("removed");
}

/// The flags with which a descriptor of this process was opened.
fn flags(fd: &str) -> u32 {
    let fdinfo = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let flags = fdinfo.lines().find_map(|line| line.strip_prefix("flags:"));
    flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(0)
}

#[test]
fn target_pid_option_reports_its_cpu_time() {
    let target_s = |more: &str| {
        let document = run(&args(&format!("null:1M --runtime 100ms {more}")), &RunHandle::default());
        document.map(|document| document.runs[0].outcome.cpu.target_s)
    };
    let ours = target_s(&format!("--target-pid {}", std::process::id())).expect("a document");
    assert!(ours.is_some_and(|seconds| seconds > 0.0), "{ours:?}");
    assert_eq!(target_s("").expect("a document"), None);
    assert_eq!(target_s("--target-pid 4294967295").unwrap_err().kind, ErrorKind::System);
}

#[test]
fn rounds_and_search_options_are_parsed() {
    let steady = args("null:1M --steady iops --rounds 2 --runtime 20ms");
    let document = run(&steady, &RunHandle::default()).expect("a document");
    assert_eq!((document.runs.len(), document.notes.len()), (2, 2));
    let steady = document.steady.as_ref().expect("a steady state");
    assert_eq!((steady.figure.as_str(), steady.rounds, steady.is_steady), ("iops", 2, false));
    assert_eq!(document.shortfall().expect("a shortfall").0, "the metric did not become steady");
    let search = run(
        &args("null:1M --latency-target 1ns --latency-percentile 60 --runtime 5ms"),
        &RunHandle::default(),
    );
    let document = search.expect("a document");
    let search = document.search.as_ref().expect("a search");
    assert_eq!((search.percent, search.within_ns, search.rate), (60.0, 1, None));
    assert_eq!(document.shortfall().expect("a shortfall").0, "no rate meets the latency target");
    let text = serde_json::to_string(&document).expect("JSON");
    assert_eq!(serde_json::from_str::<Document>(&text).expect("the same"), document);
    let bound = args("null:1M --latency-target 500us --latency-percentile 99.9").bound().unwrap();
    assert_eq!(
        bound,
        Some(crate::rounds::LatencyBound { percent: 99.9, within: Duration::from_micros(500) })
    );
    assert!(args("null:1M --latency-target 1ms --latency-percentile 101").bound().is_err());
    for (line, what, hint) in [
        ("null:1M --rounds 6", "--rounds 6: needs --steady", "--steady iops"),
        ("null:1M --latency-percentile 60", "--latency-percentile 60: needs", "--latency-target 5ms"),
    ] {
        let e = run(&args(line), &RunHandle::default()).expect_err(line);
        assert!(e.kind == ErrorKind::Invalid && e.what.starts_with(what) && e.hint.contains(hint), "{e}");
    }
    assert_eq!(args("null:1M --steady bw").until_steady().unwrap().map(|(_, rounds)| rounds), Some(25));
}

#[test]
fn contradicting_options_are_rejected() {
    for (line, said) in [
        ("read null:1M --zipf 1.2", "--zipf needs a random workload"),
        ("randread null:1M --stride 4k", "--stride needs a sequential workload"),
        ("randread null:1M --zipf 0", "--zipf 0: out of range"),
        ("read null:1M --stride 0", "--stride 0: out of range"),
        ("read null:1M --bs 0", "invalid command length"),
    ] {
        let e = args(line).job().unwrap_err();
        assert!(e.kind == ErrorKind::Invalid && e.what.contains(said) && !e.hint.is_empty(), "{line}: {e}");
    }
}

#[test]
fn verify_options_are_parsed() {
    let verify_options = |line: &str| args(line).verify_options();
    assert!(!verify_options("write null:1M").is_on);
    assert!(verify_options("write null:1M --verify").is_on);
    let kept = verify_options("write null:1M --verify --verify-state kept --verify-only");
    assert!(kept.is_on && kept.is_only && kept.state.is_some_and(|path| path.ends_with("kept")));
    assert_eq!(kept_job("randwrite null:1M --verify-state kept --verify-only").direction, IoDirection::Read);
    for wrong in
        ["--verify --compare", "--verify --fill lba", "--verify-only", "--verify-state kept --fill lba"]
    {
        let line = format!("bench write null:1M {wrong}");
        assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{wrong}");
    }
}

fn kept_job(line: &str) -> Job {
    args(line).verify_options().limit(job(line))
}

#[test]
fn job_words_round_trip_through_arguments() {
    let common = "--bs 4k/3:8k --depth 4 --sessions 3 --runtime 500ms --amount 1m --ramp 10ms --think 3ms --rate 5000 \
                  --poisson --offset 64k --span 512k --fill 0xff00000000000000 --fua --flush --direct --cores 0, \
                  --continue-on-error --seed 7 --interval 100ms";
    for work in [
        "randrw null:1M --read-percent 30 --zipf 1.2 --compare",
        "write null:1M --stride 16k",
        "bidir null:1M",
    ] {
        let line = format!("{work} {common}");
        let (requested, given) = (job(&line), args(&line));
        let opening = given.target_options(&requested).expect("an opening");
        let opened = OpenTargets::open(&given.target_specs().expect("a target"), &opening).expect("a rig");
        let run = labelled_run(&opened, &requested, JobOutcome::default());
        let words = run.job.iter().map(|(name, value)| match value.as_str() {
            "yes" => format!("--{name}"),
            value => format!("--{name} {value}"),
        });
        let again = format!("null:1M {}", words.collect::<Vec<_>>().join(" "));
        assert_eq!(job(&again), requested, "{again}");
        let parsed = args(&again).target_options(&requested).expect("an opening");
        assert_eq!(
            (parsed.sessions, parsed.direct, parsed.cores),
            (opening.sessions, opening.direct, opening.cores),
            "{again}"
        );
    }
    let plain = labelled_run(&rig_of("null:1M"), &Job::default(), JobOutcome::default());
    let names: Vec<&str> = plain.job.iter().map(|word| word.0.as_str()).collect();
    assert_eq!(names, ["rw", "bs", "depth", "sessions", "runtime"], "defaults are omitted");
}

fn rig_of(target: &str) -> OpenTargets {
    OpenTargets::open(&[TargetSpec::parse(target).expect("a target")], &TargetOptions::default())
        .expect("a rig")
}

#[test]
fn nbd_url_is_measured() {
    let backend =
        lunar_block::open(&lunar_block::BackendSpec::sized(lunar_block::BackendKind::Memory, 8 << 20))
            .expect("memory");
    let description = String::new();
    let export = NbdExport { name: "disk".into(), backend, block_size: 512, read_only: false, description };
    let listen = [ListenAddress::Tcp("127.0.0.1:0".parse().expect("an address"))];
    let cores = Arc::new(lunar_runtime::Cores::one().expect("an event loop"));
    let server = serve(&listen, vec![export], cores, ServerLimits::default()).expect("served");
    let url = server.addresses()[0].url("disk");
    let line = format!("randrw {url} --amount 1m --depth 4 --sessions 2 --verify");
    let document = run(&args(&line), &RunHandle::default()).expect("a document");
    let (first, measured) = (&document.runs[0], &document.runs[0].targets[0]);
    assert_eq!((document.ended_early(), first.outcome.bytes()), (None, 1 << 20));
    assert_eq!((measured.name.as_str(), measured.capacity, measured.sessions), (url.as_str(), 8 << 20, 2));
    assert!(document.notes.iter().any(|note| note.starts_with("verified: ")), "{:?}", document.notes);
    let gone = args(&format!("read {url}-that-is-not-there")).clone();
    assert_eq!(run(&gone, &RunHandle::default()).unwrap_err().kind, ErrorKind::Medium(ErrorCode::NotFound));
}

#[test]
fn null_disk_document_is_complete() {
    let document =
        run(&args("randread null:64M --depth 4 --runtime 100ms --interval 50ms"), &RunHandle::default());
    let document = document.expect("a document");
    let run = &document.runs[0];
    assert_eq!(run.label, "randread, 4k, depth 4, 1 session");
    assert!(run.outcome.read.ios > 1000 && run.outcome.ended_early.is_none());
    assert_eq!((run.targets[0].name.as_str(), run.targets[0].capacity), ("null:67108864", 64 << 20));
    let text = serde_json::to_string(&document).expect("JSON");
    assert_eq!(serde_json::from_str::<Document>(&text).expect("the same"), document);
}
