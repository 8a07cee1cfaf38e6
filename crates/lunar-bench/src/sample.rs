//! Documents for tests: one shaped like an experiment's, and variants.

use crate::document::{
    Document, JobRun, MeasuredTarget, ResultTable, SCHEMA, SummaryRow, SummaryTable, TableCell,
};
use crate::outcome::{CpuTime, DirectionTotals, IoCounts, JobOutcome, Latency, SeriesStep};
use crate::{HostInfo, Job, OpenTargets, RunHandle, TargetOptions, TargetSpec};
use lunar_block::BackendKind;
use std::time::Duration;

/// Published MB/s (write, read) of `blockdev-perftest -f -d`, from 4 KiB to 64 MiB (scst-srpt-2010).
const PUBLISHED: [(f64, f64); 15] = [
    (78.758, 99.356),
    (138.664, 177.077),
    (232.643, 304.125),
    (351.314, 470.513),
    (469.419, 661.468),
    (582.342, 826.764),
    (629.392, 923.782),
    (689.674, 986.290),
    (807.054, 1175.494),
    (964.409, 1430.388),
    (967.383, 1410.098),
    (891.503, 1581.660),
    (842.682, 1645.080),
    (923.379, 2038.166),
    (1031.838, 2850.743),
];
/// Width of a histogram's bins, as a factor.
const BIN: f64 = 1.02;
const STEPS: usize = 30;

/// A document without anything in it.
pub fn empty(title: &str) -> Document {
    Document {
        schema: SCHEMA.into(),
        title: title.into(),
        command: ["lunar", "bench", "reproduce", "scst-srpt-2010"].map(String::from).to_vec(),
        begun: "2026-11-20T22:11:51Z".into(),
        host: HostInfo {
            name: "moon".into(),
            kernel: "Linux 6.12.9 x86_64".into(),
            cpu: "Example CPU @ 2.60GHz".into(),
            cores: 2,
            governor: None,
            memory: 8 << 30,
            lunar: "0.1.0".into(),
        },
        seed: Some("scst-srpt-2010".into()),
        runs: Vec::new(),
        tables: Vec::new(),
        summary: None,
        notes: Vec::new(),
        steady: None,
        search: None,
    }
}

/// A latency distribution of `ios` commands around a mean, with a tail.
pub fn latency(mean_ns: f64, ios: u64) -> Latency {
    let weight = |n: i32| (-f64::from(n) / 9.0).exp() + if n > 150 { 2e-5 } else { 0.0 };
    let all: f64 = (0..220).map(weight).sum();
    let bin = |n: i32| {
        let ns = mean_ns * 0.82 * BIN.powi(n);
        (ns as u64, (weight(n) / all * ios as f64).round() as u64)
    };
    let histogram: Vec<(u64, u64)> = (0..220).map(bin).filter(|bin| bin.1 > 0).collect();
    let (min_ns, max_ns) = (histogram[0].0, histogram[histogram.len() - 1].0);
    let mut latency =
        Latency { mean_ns, stddev_ns: mean_ns * 0.2, min_ns, max_ns, percentiles: vec![], histogram };
    let listed = [50.0, 90.0, 99.0, 99.9, 99.99];
    latency.percentiles = listed.iter().filter_map(|p| Some((*p, latency.quantile(p / 100.0)?))).collect();
    latency
}

/// A run of thirty seconds with commands of one size; `wave` is the amplitude of its rate.
pub fn run(label: &str, bytes: u64, is_read: bool, rate: f64, wave: f64) -> JobRun {
    let (mut sum, mut series) = (DirectionTotals::default(), Vec::new());
    for n in 0..STEPS {
        // Not periodic, so that intervals appear independent.
        let wobble = 1.0 + wave * ((n * n) as f64 * 1.7).sin();
        let ios = (rate * wobble / bytes as f64).round().max(1.0) as u64;
        sum.ios += ios;
        sum.bytes += ios * bytes;
        let mean_ns = 1e9 * bytes as f64 / rate / wobble;
        let share = match is_read {
            true => IoCounts { read_ios: ios, read_bytes: ios * bytes, ..IoCounts::default() },
            false => IoCounts { write_ios: ios, write_bytes: ios * bytes, ..IoCounts::default() },
        };
        series.push(SeriesStep {
            until_s: (n + 1) as f64,
            share,
            mean_ns,
            max_ns: (mean_ns * (3.0 + 2.0 * wobble)) as u64,
        });
    }
    sum.service = latency(1e9 * bytes as f64 / rate, sum.ios);
    sum.total = sum.service.clone();
    let cpu = CpuTime {
        client_s: sum.ios as f64 * 8e-6 + 1.0,
        target_s: Some(sum.ios as f64 * 5e-6 + 0.7),
        cores: 2,
    };
    let (read, write) =
        if is_read { (sum, DirectionTotals::default()) } else { (DirectionTotals::default(), sum) };
    let outcome = JobOutcome { elapsed_s: STEPS as f64, read, write, series, cpu, ..JobOutcome::default() };
    let direction = if is_read { "read" } else { "write" };
    let job = [("rw", direction), ("bs", &bytes.to_string()), ("depth", "1"), ("runtime", "30")];
    let job = job.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    JobRun { label: label.into(), job, targets: vec![target()], outcome }
}

fn target() -> MeasuredTarget {
    let facts = [
        ("Vendor", "LUNAR"),
        ("Product", "MEMORY"),
        ("TargetName", "iqn.2026-11.org.example:disks"),
        ("HeaderDigest", "None"),
        ("DataDigest", "None"),
        ("InitialR2T", "No"),
        ("ImmediateData", "Yes"),
        ("MaxBurstLength", "1048576"),
        ("FirstBurstLength", "262144"),
        ("MaxRecvDataSegmentLength", "262144"),
    ];
    MeasuredTarget {
        name: "iscsi://127.0.0.1:3260/iqn.2026-11.org.example:disks/0".into(),
        sessions: 1,
        capacity: 1 << 30,
        facts: facts.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec(),
    }
}

/// A document shaped like an experiment's: fifteen block sizes, read and write, with published figures.
pub fn large() -> Document {
    let mut document = empty("SRP target of SCST, 2010: block sizes through one session");
    let mut rows = Vec::new();
    for (n, (write, read)) in PUBLISHED.into_iter().enumerate() {
        let bytes = 4096u64 << n;
        let name = lunar_proto::size::show(bytes);
        let rate = |peak: f64, begin: f64| 1e6 / (1.0 / peak + 1.0 / (begin * bytes as f64 / 4096.0));
        let (writes, reads) = (rate(1900.0, 160.0), rate(2600.0, 260.0));
        document.runs.push(run(&format!("{name} write"), bytes, false, writes, 0.08));
        document.runs.push(run(&format!("{name} read"), bytes, true, reads, 0.03));
        let cell = |published: f64, rate: f64| TableCell::new(Some(published), Some(rate / 1048576.0));
        rows.insert(0, (bytes.to_string(), vec![cell(write, writes), cell(read, reads)]));
    }
    document.tables.push(ResultTable {
        title: "blockdev-perftest -f -d -s 30 -m 12".into(),
        unit: "MiB/s, mean of three rates".into(),
        larger_is_better: true,
        columns: vec!["W".into(), "R".into()],
        rows,
    });
    let row = |what: &str, published, measured: [Option<f64>; 3]| SummaryRow {
        what: what.into(),
        unit: "MiB/s".into(),
        larger_is_better: true,
        published,
        measured: measured.to_vec(),
    };
    document.summary = Some(SummaryTable {
        targets: ["Lunar", "STGT", "istgt"].map(String::from).to_vec(),
        rows: vec![
            row("write, 64 MiB", Some(1031.838), [Some(1800.0), Some(1031.0), Some(700.0)]),
            row("read, 64 MiB", Some(2850.743), [Some(2500.0), None, Some(1900.0)]),
        ],
    });
    document.notes.push("The I/O scheduler could not be set here: there is no block device.".into());
    document.notes.push("Amounts are scaled down to 64 MiB for each figure (--quick).".into());
    let overhead = "overhead: measuring takes 0.45 µs of the CPU time of each command (randread, 4k, depth 32, on null:)";
    document.notes.push(overhead.into());
    document
}

/// A document in which every text tries to inject markup.
pub fn hostile() -> Document {
    const EVIL: &str = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"' onload='alert(3)' \u{202e}\u{0}&amp;";
    let mut document = large();
    let evil = |text: &mut String| *text = EVIL.into();
    [&mut document.title, &mut document.begun, &mut document.schema].into_iter().for_each(evil);
    let host = &mut document.host;
    [&mut host.name, &mut host.kernel, &mut host.cpu, &mut host.lunar].into_iter().for_each(evil);
    host.governor = Some(EVIL.into());
    document.seed = Some(EVIL.into());
    document.command.iter_mut().chain(&mut document.notes).for_each(evil);
    for run in &mut document.runs {
        run.label += EVIL;
        run.outcome.ended_early = Some(EVIL.into());
        let pairs = run.job.iter_mut().chain(run.targets.iter_mut().flat_map(|target| &mut target.facts));
        pairs.for_each(|(name, value)| [name, value].into_iter().for_each(evil));
        run.targets.iter_mut().for_each(|target| evil(&mut target.name));
    }
    let summary = document.summary.as_mut().expect("a summary");
    summary.targets.iter_mut().for_each(evil);
    summary.rows.iter_mut().for_each(|row| [&mut row.what, &mut row.unit].into_iter().for_each(evil));
    for table in &mut document.tables {
        [&mut table.title, &mut table.unit].into_iter().for_each(evil);
        table.columns.iter_mut().for_each(evil);
        table.rows.iter_mut().skip(13).for_each(|row| evil(&mut row.0));
    }
    document
}

/// A measured document: reads and writes at a given rate, and a run on a null disk.
pub fn measured() -> Document {
    let mut document = empty("Two short runs in this process");
    document.seed = None;
    let jobs = [
        (
            "mixed 4k at a rate",
            TargetSpec::InProcess(BackendKind::Memory, 16 << 20),
            Job {
                direction: crate::job::IoDirection::Mix(70),
                pace: crate::job::ArrivalProcess::Poisson(2000.0),
                ..Job::default()
            },
        ),
        (
            "read 64k",
            TargetSpec::InProcess(BackendKind::Null, 16 << 20),
            Job { sizes: vec![(65536, 1)], ..Job::default() },
        ),
    ];
    for (label, target, job) in jobs {
        let opened = OpenTargets::open(&[target], &TargetOptions { write: true, ..TargetOptions::default() })
            .expect("a rig");
        let job = Job {
            order: crate::job::AccessPattern::Random,
            depth: 4,
            time: Some(Duration::from_millis(800)),
            interval: Duration::from_millis(50),
            ..job
        };
        let outcome = opened.run(&job, &RunHandle::default()).expect("a run");
        let words = vec![("depth".to_owned(), "4".to_owned())];
        document.runs.push(JobRun {
            label: label.into(),
            job: words,
            targets: opened.measured_targets(),
            outcome,
        });
        opened.close();
    }
    document
}
