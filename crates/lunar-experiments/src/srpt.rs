//! scst-srpt-2010: blockdev-perftest on a file in memory.

use crate::lab::{Lab, Open};
use crate::media::{Disk, Folder, Medium, memory_folder};
use crate::published::{Published, put};
use lunar_bench::Error;
use lunar_bench::device::flush;
use lunar_bench::document::Table;
use lunar_bench::job::{Fill, IoDirection, Job};
use lunar_bench_compat::blockdev_perftest::Figures;

/// Bytes of each test: -s 30.
const AMOUNT: u64 = 1 << 30;
const REPEATS: usize = 3;
/// A table of the publication: its options.
struct Mode {
    id: &'static str,
    options: &'static str,
    buffered: bool,
    /// The time to make it stable counts: fio's end_fsync.
    flush: bool,
}

const MODES: [Mode; 4] = [
    Mode { id: "d", options: "-d", buffered: false, flush: false },
    Mode { id: "a", options: "-a", buffered: true, flush: false },
    Mode { id: "jd", options: "-j -d", buffered: false, flush: true },
    Mode { id: "ja", options: "-j -a", buffered: true, flush: true },
];

/// Repeats it.
///
/// # Errors
/// When the disk cannot be made.
pub fn run(lab: &mut Lab, published: &Published) -> Result<(), Error> {
    lab.note(lab.carrier().stands_in("SRP over InfiniBand"));
    let memory = Folder::below(&memory_folder())?;
    let size = lab.scaled(AMOUNT, 64 << 20);
    let disk = Disk::new(Medium::Cached(memory.file("disk", size)?), size);
    for who in lab.all() {
        let server = lab.serve(&who, std::slice::from_ref(&disk), 1);
        let target = server.as_ref().and_then(|server| server.target(0, ""));
        for mode in &MODES {
            let kinds = ["rates", "iops", "seconds"];
            let mut tables = kinds.map(|kind| published.table(&format!("{kind}-{}", mode.id)));
            let open = target.as_ref().and_then(|target| {
                lab.open_device(std::slice::from_ref(target), 1, server.as_ref(), !mode.buffered)
            });
            if let Some(open) = open {
                measure(lab, &who.name(), &open, mode, size, &mut tables);
                open.rig.close();
            }
            for mut table in tables {
                table.title += &format!(", {}", who.name());
                lab.table(table);
            }
        }
    }
    Ok(())
}

/// Block sizes from 64 MiB down to 4 KiB: three writes, then three reads of each.
fn measure(lab: &mut Lab, name: &str, open: &Open, mode: &Mode, size: u64, tables: &mut [Table; 3]) {
    for block in (12..=26).rev().map(|log2| 1u32 << log2) {
        for (word, way) in [("W", IoDirection::Write), ("R", IoDirection::Read)] {
            let job = job(lab, mode, way, block, size);
            let label = format!("{name} {} {block} {word}", mode.options);
            let times: Vec<f64> = (0..REPEATS).filter_map(|_| once(lab, &label, open, &job)).collect();
            if times.len() < REPEATS {
                continue;
            }
            let [rates, iops, seconds] = tables;
            let row = block.to_string();
            let figures = Figures::of(&times, AMOUNT, block.into());
            put(rates, &row, &format!("{word}(avg"), Some(figures.average));
            put(rates, &row, &format!("{word}(std"), Some(figures.deviation));
            put(iops, &row, word, Some(figures.iops));
            for (n, time) in times.iter().enumerate() {
                put(seconds, &row, &format!("{word} {}", n + 1), Some(*time));
            }
        }
    }
}

fn job(lab: &Lab, mode: &Mode, way: IoDirection, block: u32, size: u64) -> Job {
    // Small blocks take long: fewer of them show as much.
    let many = if mode.buffered { 32 << 20 } else { (u64::from(block) << 9).clamp(2 << 20, 32 << 20) };
    let len = block.min(size as u32);
    Job {
        way,
        sizes: vec![(len, 1)],
        time: None,
        amount: Some(lab.scaled(AMOUNT, many).max(len.into())),
        fill: Fill::Zeros,
        flush: mode.flush && way == IoDirection::Write,
        ..Job::default()
    }
}

/// Seconds for all of a test's bytes at the rate of this run. What is still on its way then is made stable
/// outside of it, as dd and sync do.
fn once(lab: &mut Lab, label: &str, open: &Open, job: &Job) -> Option<f64> {
    let outcome = lab.measure(label, open, job)?;
    if job.way == IoDirection::Write
        && let Err(why) = flush(&open.rig)
    {
        lab.note(format!("{label}: {why}"));
        return None;
    }
    Some(AMOUNT as f64 / outcome.rate())
}
