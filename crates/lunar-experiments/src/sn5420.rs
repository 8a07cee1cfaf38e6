//! sn5420-2002: dd of a file by block size: local, and over iSCSI on a near and a remote line.

use crate::lab::{Lab, LabTargets};
use crate::media::{DiskMedium, ServedDisk, WARM, make_cold};
use crate::peers::{Peer, PeerServer};
use crate::published::{Published, put};
use crate::relay::{LinkProfile, RelayLink, WIDE};
use lunar_bench::document::{ResultTable, TableCell};
use lunar_bench::job::{IoDirection, Job};
use lunar_bench::outcome::JobOutcome;
use lunar_bench::{Error, TargetSpec};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The file of the publication.
const FILE: u64 = 500_000_000;
const BLOCKS: [(&str, u32); 6] = [
    ("64k", 64 << 10),
    ("128k", 128 << 10),
    ("256k", 256 << 10),
    ("512k", 512 << 10),
    ("1024k", 1 << 20),
    ("2048k", 2 << 20),
];
/// OC-12, 622 Mbit/s, and a few milliseconds between two cities.
const FAR: LinkProfile =
    LinkProfile { delay: Duration::from_millis(2), bytes_per_s: 622e6 / 8.0, window: WIDE };
/// The rows of the window table: heading, window in bytes, runs. The last row is not in the publication: its
/// window is smaller than the bandwidth-delay product.
const WINDOWS: [(&str, u32, usize); 4] = [
    ("1 MB, 5 runs", 1 << 20, 5),
    ("8 MB, 4 runs", 8 << 20, 4),
    ("32 MB, 7 runs", 32 << 20, 7),
    (SMALL_ROW, 64 << 10, 2),
];
const SMALL_ROW: &str = "64 KB, 2 runs";
const NEAR_ROW: &str = "Linux/with iSCSI";
const LOCAL_ROW: &str = "Linux/with Fibre";
const FAR_ROW: &str = "Remote Linux/with iSCSI";
const MB: f64 = 1e6;
const QUICK_MS: u64 = 350;

/// The tables of a server.
struct Sn5420Tables {
    read: ResultTable,
    write: ResultTable,
    two: ResultTable,
    window: ResultTable,
}

/// Repeats the experiment.
///
/// # Errors
/// If the file cannot be created.
pub fn run(lab: &mut Lab, published: &Published) -> Result<(), Error> {
    lab.note("the only host runs Linux: the rows of the Sun have published figures only");
    lab.note("with Fibre: the same file on this host, without iSCSI");
    lab.note("two reads at once: each has its own file, and over iSCSI its own logical unit");
    lab.note("behind its router: the file is on Lunar's target, and the host is connected to Lunar's router");
    let size = size(lab);
    let files = [lab.work.file("500mb", size)?, lab.work.file("500mb-too", size)?];
    lab.note(match make_cold(&files[0]) {
        true => {
            "the file is dropped from the page cache before each read, instead of rotating among five copies"
        }
        false => WARM,
    });
    let local = local(lab, published, &files);
    for peer in lab.all() {
        let disks = files.clone().map(|file| ServedDisk::new(DiskMedium::Cached(file), size));
        let server = lab.serve(&peer, &disks, 1);
        if matches!(peer, Peer::Running(_)) {
            lab.note(format!("{}: both reads use the only logical unit of this target", peer.name()));
        }
        tables(lab, published, &local, &peer.name(), server.as_ref(), &files);
        if let (Peer::Lunar, Some(server)) = (&peer, &server) {
            let router = lab.route(server);
            tables(lab, published, &local, "Lunar behind its router", router.as_ref(), &files);
        }
    }
    Ok(())
}

/// All tables of a server, with the local figures.
fn tables(
    lab: &mut Lab,
    published: &Published,
    local: &(ResultTable, ResultTable, ResultTable),
    name: &str,
    server: Option<&PeerServer>,
    files: &[PathBuf; 2],
) {
    let (read, write, two) = local.clone();
    let mut window = published.table("window");
    window.rows.push((SMALL_ROW.into(), vec![TableCell::default(); window.columns.len()]));
    let mut tables = Sn5420Tables { read, write, two, window };
    if let Some(server) = server {
        fill(lab, name, server, files, &mut tables);
    }
    for mut table in [tables.read, tables.write, tables.two, tables.window] {
        table.title += &format!(", {name}");
        lab.table(table);
    }
}

/// The size of the file. No run reads data twice, because the second read would come from memory.
fn size(lab: &Lab) -> u64 {
    lab.scaled(FILE, 256 << 20)
}

fn job(lab: &Lab, direction: IoDirection, block: u32) -> Job {
    let (time, amount) = (lab.cap(QUICK_MS), Some(size(lab)));
    Job { direction, sizes: vec![(block, 1)], time, amount, ..Job::default() }
}

/// One run of dd: MB/s.
fn dd(lab: &mut Lab, label: &str, open: &LabTargets, path: &Path, job: &Job) -> Option<JobOutcome> {
    if job.direction == IoDirection::Read {
        make_cold(path);
    }
    lab.measure(label, open, job)
}

fn by_size(
    lab: &mut Lab,
    name: &str,
    row: &str,
    open: &LabTargets,
    path: &Path,
    read: &mut ResultTable,
    write: &mut ResultTable,
) {
    for (table, direction, word) in [(read, IoDirection::Read, "read"), (write, IoDirection::Write, "write")]
    {
        for (column, block) in BLOCKS {
            let job = job(lab, direction, block);
            let outcome = dd(lab, &format!("{name} {row} {word} bs={column}"), open, path, &job);
            put(table, row, column, outcome.map(|outcome| outcome.rate() / MB));
        }
    }
}

/// Each reader has a whole file.
fn two_reads(
    lab: &mut Lab,
    name: &str,
    row: &str,
    open: &LabTargets,
    files: &[PathBuf; 2],
    table: &mut ResultTable,
) {
    make_cold(&files[1]);
    let job = Job { amount: Some(2 * size(lab)), ..job(lab, IoDirection::Read, 256 << 10) };
    let Some(outcome) = dd(lab, &format!("{name} {row} two reads"), open, &files[0], &job) else { return };
    shares(table, row, &outcome);
}

/// The rate of each reader over its own time, and the sum, as in the publication.
fn shares(table: &mut ResultTable, row: &str, outcome: &JobOutcome) {
    let rates = [0, 1].map(|at| outcome.session_rate(at).map(|rate| rate / MB));
    put(table, row, "first", rates[0]);
    put(table, row, "second", rates[1]);
    put(table, row, "aggregate", rates[0].zip(rates[1]).map(|(first, second)| first + second));
}

/// Without iSCSI, once for all servers.
fn local(
    lab: &mut Lab,
    published: &Published,
    files: &[PathBuf; 2],
) -> (ResultTable, ResultTable, ResultTable) {
    let [mut read, mut write, mut two] = ["read", "write", "two-reads"].map(|id| published.table(id));
    let targets = files.clone().map(TargetSpec::Path);
    if let Some(open) = lab.open(&targets[..1], 1, None) {
        by_size(lab, "this host", LOCAL_ROW, &open, &files[0], &mut read, &mut write);
        open.opened.close();
    }
    if let Some(open) = lab.open(&targets, 1, None) {
        two_reads(lab, "this host", LOCAL_ROW, &open, files, &mut two);
        open.opened.close();
    }
    (read, write, two)
}

fn fill(lab: &mut Lab, name: &str, server: &PeerServer, files: &[PathBuf; 2], tables: &mut Sn5420Tables) {
    let near = [0, 1].map(|disk| server.target(disk, ""));
    let links = lab.links(server, FAR).unwrap_or_default();
    links.iter().for_each(|link| lab.note(remote(link)));
    let far = [0, 1].map(|disk| server.at(links.first()?.address(), disk, ""));
    for (row, targets) in [(NEAR_ROW, near), (FAR_ROW, far)] {
        let [Some(one), Some(two)] = targets else { continue };
        let targets = [one, two];
        if let Some(open) = lab.open_device(&targets[..1], 1, Some(server), false) {
            by_size(lab, name, row, &open, &files[0], &mut tables.read, &mut tables.write);
            open.opened.close();
        }
        if let Some(open) = lab.open_device(&targets, 1, Some(server), false) {
            two_reads(lab, name, row, &open, files, &mut tables.two);
            open.opened.close();
        }
    }
    match lab.transport().is_relayed() {
        true => windows(lab, name, server, &files[0], &mut tables.window),
        false => lab.note("the table of TCP windows is omitted: RDMA devices have no TCP windows"),
    }
}

/// A description of the remote line.
fn remote(link: &RelayLink) -> String {
    let how = match link.is_of_the_kernel() {
        true => "a network namespace with tc-netem",
        false => {
            "a relay in this process, with at most one window of a connection in flight, \
             and at most 1 MiB"
        }
    };
    format!(
        "Remote: {how}; {} ms each way and {:.0} Mbit/s. The windows are measured over it: {:.0} kB fill the line, so larger \
         windows make no difference; a smaller one is added",
        FAR.delay.as_millis(),
        FAR.bytes_per_s * 8.0 / 1e6,
        2.0 * FAR.delay.as_secs_f64() * FAR.bytes_per_s / 1e3
    )
}

/// Repeats a read over the remote line with each window, as the publication did with HiWater.
fn windows(lab: &mut Lab, name: &str, server: &PeerServer, path: &Path, table: &mut ResultTable) {
    for (row, bytes, runs) in WINDOWS {
        let links = lab.links(server, LinkProfile { window: bytes as usize, ..FAR }).unwrap_or_default();
        let target = |link: &RelayLink| server.at(link.address(), 0, &format!("window={bytes}"));
        let Some(target) = links.first().and_then(target) else {
            return lab
                .note(format!("{name}: network emulation failed, so the table of TCP windows is omitted"));
        };
        let Some(open) = lab.open_device(&[target], 1, Some(server), false) else { continue };
        let job = job(lab, IoDirection::Read, 256 << 10);
        let label = format!("{name} window {row}");
        let rates: Vec<f64> = (0..runs)
            .filter_map(|_| dd(lab, &label, &open, path, &job))
            .map(|outcome| outcome.rate() / MB)
            .collect();
        open.opened.close();
        let mean = (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
        put(table, row, "first run", rates.first().copied());
        put(table, row, "last run", rates.last().copied());
        put(table, row, "initial run", rates.first().copied());
        put(table, row, "average", mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use crate::published::figure;
    use lunar_bench::testing::RecordingDisk;
    use lunar_bench::{OpenTargets, RunHandle, TargetOptions};
    use lunar_block::{Backend, BackendKind};
    use std::sync::Arc;

    const SIZE: u64 = 1 << 20;

    #[test]
    fn two_reads_start_at_their_files_and_have_own_times() {
        let memory = || TargetSpec::InProcess(BackendKind::Memory, SIZE);
        let two = [memory(), memory()];
        let mut opened = OpenTargets::open(&two, &TargetOptions::default()).expect("a rig");
        // The second file is slow: its disk delays each read.
        let probe = RecordingDisk::new(SIZE as usize);
        opened.wrap(|session, disk| -> Arc<dyn Backend> {
            if session == 1 { probe.clone() } else { disk }
        });
        let job = Job { sizes: vec![(64 << 10, 1)], time: None, amount: Some(2 * SIZE), ..Job::default() };
        let outcome = opened.run(&job, &RunHandle::default()).expect("a run");
        opened.close();
        assert_eq!(probe.reads().first(), Some(&(0, 64 << 10)), "{:?}", probe.reads());
        let mut table = Published::of(Experiment::Sn5420).table("two-reads");
        shares(&mut table, NEAR_ROW, &outcome);
        let row = table.rows.iter().find(|row| row.0 == NEAR_ROW).expect("the row");
        let [first, second, aggregate] = [0, 1, 2].map(|at| row.1[at].measured.expect("measured"));
        assert!(first > 2.0 * second, "{first} and {second} MB/s");
        assert!((first + second - aggregate).abs() < 1e-6, "{first} + {second}, {aggregate} MB/s");
        assert_eq!(figure(&table, NEAR_ROW, "aggregate"), Some(22.6));
    }
}
