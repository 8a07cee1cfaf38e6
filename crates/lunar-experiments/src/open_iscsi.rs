//! open-iscsi-2005: disktest on two sessions, each with its own disk.

use crate::lab::Lab;
use crate::media::{DiskMedium, ServedDisk, WorkDir, memory_dir};
use crate::peers::Peer;
use crate::published::{Published, put};
use lunar_bench::Error;
use lunar_bench::document::ResultTable;
use lunar_bench::job::{IoDirection, Job};
use lunar_bench_compat::disktest;
use std::time::Duration;

/// disktest's default number of threads; each has one transfer in flight.
const THREADS: usize = 4;
const MIB: f64 = (1 << 20) as f64;
const RUNS: [(&str, &str, IoDirection, u32); 3] = [
    ("256K write", "Write", IoDirection::Write, 256 << 10),
    ("256K read", "Read", IoDirection::Read, 256 << 10),
    ("1K read", "Read", IoDirection::Read, 1 << 10),
];

/// Repeats the experiment.
///
/// # Errors
/// If the disks cannot be created.
pub fn run(lab: &mut Lab, published: &Published) -> Result<(), Error> {
    lab.note(format!(
        "disktest ran with {THREADS} threads per session (its default; the publication does not state it)"
    ));
    lab.note("the disks are files in memory: the publication does not describe its own");
    let memory = WorkDir::below(&memory_dir())?;
    let size = lab.scaled(512 << 20, 128 << 20);
    let disk =
        |name: &str| Ok::<_, Error>(ServedDisk::new(DiskMedium::Cached(memory.file(name, size)?), size));
    let disks = [disk("sda")?, disk("sdb")?];
    for peer in lab.all() {
        let (mut throughput, mut iops) = (published.table("throughput"), published.table("iops"));
        measure(lab, &peer, &disks, &mut throughput, &mut iops);
        for mut table in [throughput, iops] {
            table.title += &format!(", {}", peer.name());
            lab.table(table);
        }
    }
    Ok(())
}

fn measure(
    lab: &mut Lab,
    peer: &Peer,
    disks: &[ServedDisk; 2],
    throughput: &mut ResultTable,
    iops: &mut ResultTable,
) {
    let Some(server) = lab.serve(peer, disks, 1) else { return };
    let targets: Option<Vec<_>> = (0..disks.len()).map(|disk| server.target(disk, "")).collect();
    let Some(open) = targets.and_then(|targets| lab.open(&targets, 1, Some(&server))) else { return };
    for (row, word, direction, size) in RUNS {
        let time = lab.cap(5000).unwrap_or(Duration::from_secs(60));
        let job =
            Job { direction, sizes: vec![(size, 1)], depth: THREADS, time: Some(time), ..Job::default() };
        let Some(outcome) = lab.measure(&format!("{} {row}", peer.name()), &open, &job) else { continue };
        lab.lines.push(format!("{}, {row}:", peer.name()));
        for at in 0..outcome.sessions.len() {
            let column = format!("Session #{at}");
            put(throughput, row, &column, outcome.session_rate(at).map(|rate| rate / MIB));
            put(iops, row, &column, outcome.session_iops(at));
            let line =
                outcome.session(at).map(|(did, s)| disktest::stat(format!("session{at}"), word, did, s));
            lab.lines.extend(line);
        }
        put(throughput, row, "Total", Some(outcome.rate() / MIB));
        put(iops, row, "Total", Some(outcome.iops()));
    }
    open.opened.close();
}
