use super::*;
use crate::Kind;
use crate::job::{Order, Pace, Way};
use clap::Parser;
use export::nbd::{Export, Limits, Listen, serve};
use std::sync::Arc;
use std::time::Duration;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: Args,
}

fn args(line: &str) -> Args {
    Line::try_parse_from(format!("bench {line}").split_whitespace()).expect("a line that clap takes").args
}

fn job(line: &str) -> Job {
    args(line).job().expect("a job")
}

#[test]
fn without_options_it_reads_4k_for_ten_seconds() {
    assert_eq!(job("null:1M"), Job::default());
}

#[test]
fn the_work_stands_first_or_behind_rw() {
    assert_eq!(job("randrw null:1M --rwmixread 70").way, Way::Mix(70));
    assert_eq!(job("--rw randrw --read-percent 70 null:1M"), job("randrw null:1M --read-percent 70"));
    // A file may have the name of a work.
    assert_eq!(args("read").on().unwrap()[0].to_string(), "read");
    assert_eq!(args("read --rw write null:1M").job().unwrap_err().what, "two works: read and --rw write");
}

#[test]
fn every_option_reaches_the_job() {
    let all = job(
        "randwrite null:1M --bs 4k/3:8k --iodepth 32 --runtime 500ms --amount 1G --ramp-time 2 --rate-iops 1000 \
         --poisson --zipf 1.2 --offset 1M --span 2M --fill 0xff --compare --fua --flush --continue-on-error \
         --seed 7 --interval 100ms --thinktime 3ms",
    );
    let expected = Job {
        order: Order::Zipf(1.2),
        way: Way::Write,
        sizes: vec![(4096, 3), (8192, 1)],
        depth: 32,
        time: Some(Duration::from_millis(500)),
        amount: Some(1 << 30),
        ramp: Duration::from_secs(2),
        pace: Pace::Poisson(1000.0),
        think: Duration::from_millis(3),
        fill: crate::job::Fill::Bytes([0xff; 8]),
        compare: true,
        stable: true,
        flush: true,
        offset: 1 << 20,
        span: Some(2 << 20),
        go_on: true,
        seed: 7,
        interval: Duration::from_millis(100),
    };
    assert_eq!(all, expected);
    assert_eq!(job("read null:1M --stride 64k").order, Order::Strided(65536));
    assert_eq!(job("read null:1M --amount 1G").time, None, "an amount is enough");
    let opening =
        args("null:1M --sessions 3 --direct --destroy --create 1M --target-pid 1 --cores 0,").opening(&all);
    let opening = opening.unwrap();
    assert_eq!((opening.sessions, opening.direct, opening.destroy), (3, true, true));
    assert_eq!((opening.create, opening.target_pid, opening.write), (Some(1 << 20), Some(1), true));
}

#[test]
fn what_measuring_itself_costs_is_told_beside_what_it_measures() {
    let notes = |line| run(&args(line), &Watch::default()).expect("a document").notes;
    let told = notes("randwrite memory:1M --runtime 20ms --fill lba");
    assert!(told.len() == 1 && told[0].starts_with("overhead: measuring takes "), "{told:?}");
    let told = notes("read null:1M --runtime 20ms");
    assert!(told.len() == 1 && told[0].contains("(this run, as it is on null:)"), "{told:?}");
}

#[test]
fn rounds_and_searches_are_asked_for() {
    let steady = args("null:1M --steady iops --rounds 2 --runtime 20ms");
    let document = run(&steady, &Watch::default()).expect("a document");
    assert_eq!((document.runs.len(), document.notes.len()), (2, 2));
    let bound = args("null:1M --latency-target 500us --latency-percentile 99.9").bound().unwrap();
    assert_eq!(bound, Some(rounds::Bound { percent: 99.9, within: Duration::from_micros(500) }));
    assert!(args("null:1M --latency-percentile 101").bound().is_err());
}

#[test]
fn what_contradicts_itself_is_refused() {
    for (line, said) in [
        ("read null:1M --zipf 1.2", "--zipf is for random work"),
        ("randread null:1M --stride 4k", "--stride is for sequential work"),
        ("randread null:1M --zipf 0", "no zipf with 0"),
        ("read null:1M --stride 0", "a stride of 0"),
        ("read null:1M --bs 0", "commands cannot have"),
        ("read null:1M --runtime soon", "no time"),
    ] {
        let e = args(line).job().unwrap_err();
        assert!(e.kind == Kind::Invalid && e.what.contains(said) && !e.hint.is_empty(), "{line}: {e}");
    }
}

#[test]
fn verification_is_asked_for() {
    let checks = |line: &str| args(line).checks();
    assert!(!checks("write null:1M").is_on);
    assert!(checks("write null:1M --verify").is_on);
    let kept = checks("write null:1M --verify --verify-state kept --verify-only");
    assert!(kept.is_on && kept.is_only && kept.state.is_some_and(|path| path.ends_with("kept")));
    assert_eq!(kept_job("randwrite null:1M --verify-state kept --verify-only").way, Way::Read);
    for wrong in
        ["--verify --compare", "--verify --fill lba", "--verify-only", "--verify-state kept --fill lba"]
    {
        let line = format!("bench write null:1M {wrong}");
        assert!(Line::try_parse_from(line.split_whitespace()).is_err(), "{wrong}");
    }
}

fn kept_job(line: &str) -> Job {
    args(line).checks().limit(job(line))
}

#[test]
fn a_job_is_told_in_the_words_that_ask_for_it() {
    let line =
        "randrw null:1M --bs 4k/3:8k --depth 4 --amount 1m --rate 5000 --poisson --span 1m --read-percent 30";
    let asked = job(line);
    let told = args::told(&asked, 1);
    let words: Vec<String> = told
        .iter()
        .map(|(name, value)| if value == "yes" { format!("--{name}") } else { format!("--{name} {value}") })
        .collect();
    assert_eq!(job(&format!("null:1M {}", words.join(" "))), asked);
}

#[test]
fn exports_of_nbd_servers_are_measured_by_their_urls() {
    let backend = block::open(&block::Spec::sized(block::Kind::Memory, 8 << 20)).expect("memory");
    let description = String::new();
    let export = Export { name: "disk".into(), backend, block_size: 512, read_only: false, description };
    let listen = [Listen::Tcp("127.0.0.1:0".parse().expect("an address"))];
    let cores = Arc::new(net::Cores::one().expect("an event loop"));
    let server = serve(&listen, vec![export], cores, Limits::default()).expect("served");
    let url = server.addresses()[0].url("disk");
    let line = format!("randrw {url} --amount 1m --depth 4 --sessions 2 --verify");
    let document = run(&args(&line), &Watch::default()).expect("a document");
    let (first, facts) = (&document.runs[0], &document.runs[0].targets[0]);
    assert_eq!((document.ended_early(), first.outcome.bytes()), (None, 1 << 20));
    assert_eq!((facts.name.as_str(), facts.capacity, facts.sessions), (url.as_str(), 8 << 20, 2));
    assert!(document.notes.iter().any(|note| note.starts_with("verified: ")), "{:?}", document.notes);
    let gone = args(&format!("read {url}-that-is-not-there")).clone();
    assert_eq!(run(&gone, &Watch::default()).unwrap_err().kind, Kind::Target(None));
}

#[test]
fn a_run_on_a_null_disk_is_told_whole() {
    let document =
        run(&args("randread null:64M --depth 4 --runtime 100ms --interval 50ms"), &Watch::default());
    let document = document.expect("a document");
    let run = &document.runs[0];
    assert_eq!(run.label, "randread, 4k, depth 4, 1 session");
    assert!(run.outcome.read.ios > 1000 && run.outcome.ended_early.is_none());
    assert_eq!((run.targets[0].name.as_str(), run.targets[0].capacity), ("null:67108864", 64 << 20));
    let text = serde_json::to_string(&document).expect("JSON");
    assert_eq!(serde_json::from_str::<Document>(&text).expect("the same"), document);
}
