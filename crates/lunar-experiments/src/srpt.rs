//! scst-srpt-2010: blockdev-perftest on a file in memory.

use crate::lab::{Lab, LabTargets};
use crate::media::{DiskMedium, ServedDisk, WorkDir, memory_dir};
use crate::published::{Published, put};
use lunar_bench::Error;
use lunar_bench::device::flush;
use lunar_bench::document::ResultTable;
use lunar_bench::job::{Fill, IoDirection, Job};
use lunar_bench_compat::blockdev_perftest::RateStats;

/// Bytes of each test: -s 30.
const AMOUNT: u64 = 1 << 30;
const REPEATS: usize = 3;
/// A table of the publication, with its options.
struct PerftestMode {
    id: &'static str,
    options: &'static str,
    buffered: bool,
    /// Whether the time includes a flush (fio's `end_fsync`).
    flush: bool,
}

const MODES: [PerftestMode; 4] = [
    PerftestMode { id: "d", options: "-d", buffered: false, flush: false },
    PerftestMode { id: "a", options: "-a", buffered: true, flush: false },
    PerftestMode { id: "jd", options: "-j -d", buffered: false, flush: true },
    PerftestMode { id: "ja", options: "-j -a", buffered: true, flush: true },
];

/// Repeats the experiment.
///
/// # Errors
/// If the disk cannot be created.
pub fn run(lab: &mut Lab, published: &Published) -> Result<(), Error> {
    lab.note(lab.transport().stands_in("SRP over InfiniBand"));
    let memory = WorkDir::below(&memory_dir())?;
    let size = lab.scaled(AMOUNT, 64 << 20);
    let disk = ServedDisk::new(DiskMedium::Cached(memory.file("disk", size)?), size);
    for peer in lab.all() {
        let server = lab.serve(&peer, std::slice::from_ref(&disk), 1);
        let target = server.as_ref().and_then(|server| server.target(0, ""));
        for mode in &MODES {
            let kinds = ["rates", "iops", "seconds"];
            let mut tables = kinds.map(|kind| published.table(&format!("{kind}-{}", mode.id)));
            let open = target.as_ref().and_then(|target| {
                lab.open_device(std::slice::from_ref(target), 1, server.as_ref(), !mode.buffered)
            });
            if let Some(open) = open {
                measure(lab, &peer.name(), &open, mode, size, &mut tables);
                open.opened.close();
            }
            for mut table in tables {
                table.title += &format!(", {}", peer.name());
                lab.table(table);
            }
        }
    }
    Ok(())
}

/// Block sizes from 64 MiB down to 4 KiB: three writes, then three reads of each.
fn measure(
    lab: &mut Lab,
    name: &str,
    open: &LabTargets,
    mode: &PerftestMode,
    size: u64,
    tables: &mut [ResultTable; 3],
) {
    for block in (12..=26).rev().map(|log2| 1u32 << log2) {
        for (word, direction) in [("W", IoDirection::Write), ("R", IoDirection::Read)] {
            let job = job(lab, mode, direction, block, size);
            let label = format!("{name} {} {block} {word}", mode.options);
            let times: Vec<f64> = (0..REPEATS).filter_map(|_| once(lab, &label, open, &job)).collect();
            if times.len() < REPEATS {
                continue;
            }
            let [rates, iops, seconds] = tables;
            let row = block.to_string();
            let figures = RateStats::of(&times, AMOUNT, block.into());
            put(rates, &row, &format!("{word}(avg"), Some(figures.average));
            put(rates, &row, &format!("{word}(std"), Some(figures.deviation));
            put(iops, &row, word, Some(figures.iops));
            for (n, time) in times.iter().enumerate() {
                put(seconds, &row, &format!("{word} {}", n + 1), Some(*time));
            }
        }
    }
}

fn job(lab: &Lab, mode: &PerftestMode, direction: IoDirection, block: u32, size: u64) -> Job {
    // Small blocks take long; fewer of them give the same rate.
    let many = if mode.buffered { 32 << 20 } else { (u64::from(block) << 9).clamp(2 << 20, 32 << 20) };
    let len = block.min(size as u32);
    Job {
        direction,
        sizes: vec![(len, 1)],
        time: None,
        amount: Some(lab.scaled(AMOUNT, many).max(len.into())),
        fill: Fill::Zeros,
        flush: mode.flush && direction == IoDirection::Write,
        ..Job::default()
    }
}

/// The time in seconds for the full amount at the rate of this run. Like with dd and sync, the flush is not
/// part of the time.
fn once(lab: &mut Lab, label: &str, open: &LabTargets, job: &Job) -> Option<f64> {
    let outcome = lab.measure(label, open, job)?;
    if job.direction == IoDirection::Write
        && let Err(why) = flush(&open.opened)
    {
        lab.note(format!("{label}: {why}"));
        return None;
    }
    Some(AMOUNT as f64 / outcome.rate())
}
