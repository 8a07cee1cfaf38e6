//! scst-srpt-2010: blockdev-perftest on a file in memory.

use super::lab::{Lab, Open};
use super::media::{Disk, Folder, Medium, memory_folder};
use super::published::{Published, put};
use crate::Error;
use crate::document::Table;
use crate::job::{Fill, Job, Way};
use crate::outcome::Outcome;

/// Bytes of each test: -s 30.
const AMOUNT: u64 = 1 << 30;
const REPEATS: usize = 3;
const MIB: f64 = (1 << 20) as f64;
/// What the page cache makes of buffered access, whatever the block size: commands of this length, so many at
/// once.
const BUFFERED: (u32, usize) = (128 << 10, 8);

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
    let (len, depth) = (BUFFERED.0 >> 10, BUFFERED.1);
    lab.note("iSCSI over tcp stands in for SRP over InfiniBand");
    lab.note(format!(
        "-a has no page cache of the initiator here: it is commands of {len} KiB, {depth} at once, as read-ahead \
         and write-back make them of any block size"
    ));
    let memory = Folder::below(&memory_folder())?;
    let size = lab.scaled(AMOUNT, 64 << 20);
    let disk = Disk::new(Medium::Cached(memory.file("disk", size)?), size);
    for who in lab.all() {
        let server = lab.serve(&who, std::slice::from_ref(&disk), 1);
        let target = server.as_ref().and_then(|server| server.target(0, ""));
        let open = target.and_then(|target| lab.open(&[target], 1, server.as_ref()));
        for mode in &MODES {
            let kinds = ["rates", "iops", "seconds"];
            let mut tables = kinds.map(|kind| published.table(&format!("{kind}-{}", mode.id)));
            if let Some(open) = &open {
                measure(lab, &who.name(), open, mode, size, &mut tables);
            }
            for mut table in tables {
                table.title += &format!(", {}", who.name());
                lab.table(table);
            }
        }
        if let Some(open) = open {
            open.rig.close();
        }
    }
    Ok(())
}

/// Block sizes from 64 MiB down to 4 KiB: three writes, then three reads of each.
fn measure(lab: &mut Lab, name: &str, open: &Open, mode: &Mode, size: u64, tables: &mut [Table; 3]) {
    for block in (12..=26).rev().map(|log2| 1u32 << log2) {
        for (word, way) in [("W", Way::Write), ("R", Way::Read)] {
            let job = job(lab, mode, way, block, size);
            let label = format!("{name} {} {block} {word}", mode.options);
            let times: Vec<f64> =
                (0..REPEATS).filter_map(|_| Some(time(&lab.measure(&label, open, &job)?))).collect();
            if times.len() < REPEATS {
                continue;
            }
            let [rates, iops, seconds] = tables;
            let row = block.to_string();
            let (mean, deviation) = rate(&times);
            put(rates, &row, &format!("{word}(avg"), Some(mean / MIB));
            put(rates, &row, &format!("{word}(std"), Some(deviation / MIB));
            put(iops, &row, word, Some(mean / f64::from(block)));
            for (n, time) in times.iter().enumerate() {
                put(seconds, &row, &format!("{word} {}", n + 1), Some(*time));
            }
        }
    }
}

fn job(lab: &Lab, mode: &Mode, way: Way, block: u32, size: u64) -> Job {
    let (len, depth) = if mode.buffered { BUFFERED } else { (block, 1) };
    // Small blocks take long: fewer of them show as much.
    let quick = (u64::from(len) << 9).clamp(2 << 20, 32 << 20);
    let len = len.min(size as u32);
    let amount = lab.scaled(AMOUNT, quick).max(len.into());
    Job {
        way,
        sizes: vec![(len, 1)],
        depth,
        time: None,
        amount: Some(amount),
        fill: Fill::Zeros,
        flush: mode.flush && way == Way::Write,
        ..Job::default()
    }
}

/// Seconds for all of a test's bytes at the rate of this run.
fn time(outcome: &Outcome) -> f64 {
    AMOUNT as f64 / outcome.rate()
}

/// Mean of the rates and their deviation in bytes a second, as blockdev-perftest works them out: not all bytes
/// by all time.
fn rate(times: &[f64]) -> (f64, f64) {
    let many = times.len() as f64;
    let rates: Vec<f64> = times.iter().map(|time| AMOUNT as f64 / time).collect();
    let mean = rates.iter().sum::<f64>() / many;
    let square = rates.iter().map(|rate| rate * rate).sum::<f64>() / many;
    (mean, (square - mean * mean).max(0.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arithmetic_is_that_of_the_script() {
        let (mean, deviation) = rate(&[1.0, 2.0, 4.0]);
        assert_eq!(format!("{:.3} {:.3}", mean / MIB, deviation / MIB), "597.333 319.288");
        assert_eq!(format!("{:.3}", mean / 4096.0), "152917.333");
        // The first line of the publication.
        let (mean, _) = rate(&[0.986, 1.007, 0.984]);
        assert!((mean / MIB - 1031.838).abs() < 0.5, "{}", mean / MIB);
    }
}
