//! scst-iet-stgt-2009: sequential access and database access on null, file and block storage, and two lines.

use crate::lab::{Lab, LabTargets};
use crate::media::{DiskMedium, LoopDevice, SchedulerGuard, ServedDisk, WARM, make_cold};
use crate::mounted::MountedFs;
use crate::peers::{Peer, PeerServer};
use crate::published::{Published, figure};
use crate::relay::{LinkProfile, WIDE};
use lunar_bench::document::{ResultTable, TableCell};
use lunar_bench::job::{IoDirection, Job};
use lunar_bench::{Error, TargetSpec};
use lunar_bench_compat::db_mix;
use std::time::Duration;

/// dd bs=512K count=2000.
const BLOCK: u32 = 512 << 10;
const AMOUNT: u64 = 2000 * BLOCK as u64;
/// The workload of io_trash: operations, and the sizes of its two files and of the window in each.
const OPERATIONS: u64 = 300_000;
const MIX_FILE: u64 = 500_000_000;
const MIX_WINDOW: u64 = 50_000_000;
/// 100 Mbit/s.
const LINE: LinkProfile = LinkProfile { delay: Duration::from_micros(50), bytes_per_s: 12.5e6, window: WIDE };
/// The rate of the disk behind two lines.
const OLD_DISK: u64 = 35_000_000;
const MB: f64 = 1e6;
const QUICK_MS: u64 = 900;

/// A kind of storage as the publication names it, with its disk and the current name of its scheduler.
struct StorageKind {
    head: &'static str,
    disk: usize,
    scheduler: Option<&'static str>,
}

const NULL: usize = 0;
/// Bytes of null storage.
const NULL_SIZE: u64 = 64 << 30;
const STORAGES: [StorageKind; 5] = [
    StorageKind { head: "NULLIO", disk: NULL, scheduler: None },
    StorageKind { head: "FILEIO/CFQ", disk: 1, scheduler: Some("bfq") },
    StorageKind { head: "FILEIO/deadline", disk: 1, scheduler: Some("mq-deadline") },
    StorageKind { head: "BLOCKIO/CFQ", disk: 2, scheduler: Some("bfq") },
    StorageKind { head: "BLOCKIO/deadline", disk: 2, scheduler: Some("mq-deadline") },
];

/// The tables of all servers: id, whether it has a row of null storage, whether of the others.
const WORKS: [(&str, bool, bool); 5] = [
    ("direct-read", true, true),
    ("direct-write", true, false),
    ("fs-read", false, true),
    ("fs-write", false, true),
    ("db-mix", false, true),
];

/// The tables of files in a file system.
const ON_FILES: [&str; 3] = ["fs-write", "fs-read", "db-mix"];

/// Measured figures: table, server, row, figure.
type MeasuredRows = Vec<(&'static str, String, String, f64)>;

/// The disks, and the objects that must live as long.
struct ScstDisks {
    all: [ServedDisk; 3],
    size: u64,
    _device: Option<LoopDevice>,
}

/// Repeats the experiment.
///
/// # Errors
/// If the disks cannot be created.
pub fn run(lab: &mut Lab, published: &Published) -> Result<(), Error> {
    explain(lab);
    let disks = disks(lab)?;
    let mut measured = MeasuredRows::new();
    for peer in lab.all() {
        let Some(server) = lab.serve(&peer, &disks.all, 1) else { continue };
        for storage in &STORAGES {
            storage_of(lab, &peer, &server, &disks, storage, &mut measured);
        }
    }
    two_paths(lab, &disks, &mut measured);
    for (id, ..) in WORKS {
        let table = beside(lab, published.table(id), id, &disks, &measured);
        lab.table(table);
    }
    for id in ["two-path", "session-parameters"] {
        let table = beside(lab, published.table(id), id, &disks, &measured);
        lab.table(table);
    }
    Ok(())
}

fn explain(lab: &mut Lab) {
    lab.note("Lunar, istgt and running targets are compared with ISCSI-SCST, STGT with itself");
    lab.note("db-mix interprets the thirteen arguments of io_trash, see lunar bench db-mix --help");
    lab.note("memory is not limited to 256 MB");
    lab.note("two lines: two relays of 100 Mbit/s in this process, and disks of 35 MB/s, as in the original");
    if lab.is_full() {
        lab.note("all figures are means of three runs");
    }
}

fn disks(lab: &mut Lab) -> Result<ScstDisks, Error> {
    let size = lab.scaled(1280 << 20, 256 << 20);
    let (file, under) = (lab.work.file("file", size)?, lab.work.file("block", size)?);
    lab.note(match make_cold(&file) {
        true => "the disk is dropped from the page cache before each read",
        false => WARM,
    });
    let device = LoopDevice::over(&under);
    if device.is_none() {
        lab.note("BLOCKIO is a file that bypasses the page cache: a loop device needs root");
    }
    if mix_size(size) < MIX_FILE {
        lab.note(format!("db-mix: two files of {} bytes instead of {MIX_FILE}", mix_size(size)));
    }
    let block = device.as_ref().map_or(under.clone(), |device| device.path().to_owned());
    let all = [
        ServedDisk::new(DiskMedium::Null, NULL_SIZE),
        ServedDisk::new(DiskMedium::Cached(file), size),
        ServedDisk::new(DiskMedium::Direct(block), size),
    ];
    Ok(ScstDisks { all, size, _device: device })
}

/// All figures of one server with one kind of storage.
fn storage_of(
    lab: &mut Lab,
    peer: &Peer,
    server: &PeerServer,
    disks: &ScstDisks,
    storage: &StorageKind,
    measured: &mut MeasuredRows,
) {
    let is_null = storage.disk == NULL;
    if is_null && matches!(peer, Peer::Istgt) {
        lab.note("istgt has no null storage");
    }
    let Some(target) = server.target(storage.disk, "") else { return };
    let Some(open) = lab.open_device(std::slice::from_ref(&target), 1, Some(server), false) else { return };
    let disk = &disks.all[storage.disk];
    let _scheduler = scheduler(storage, disk);
    parameters(lab, peer, &open, measured);
    let name = format!("{} {}", peer.name(), storage.head);
    for (id, on_null, on_others) in WORKS {
        if (is_null && !on_null) || (!is_null && !on_others) || ON_FILES.contains(&id) {
            continue;
        }
        let job = job(lab, id, disk.size);
        let label = format!("{name} {id}");
        let figures: Vec<f64> =
            (0..repeats(lab)).filter_map(|_| once(lab, &label, &open, &job, disk)).collect();
        measured.extend(mean(&figures).map(|figure| (id, peer.name(), storage.head.into(), figure)));
    }
    if !is_null {
        let figures = match on_file_system(lab, &name, server, storage, disks) {
            Ok(figures) => figures,
            Err(why) => {
                let [write, read] = like_file_system(lab, &name, &open, disk, &why);
                [write, read, mix_on_disk(lab, &name, (&target, server), disk, &why)]
            }
        };
        for (id, figure) in ON_FILES.into_iter().zip(figures) {
            measured.extend(figure.map(|figure| (id, peer.name(), storage.head.into(), figure)));
        }
    }
    open.opened.close();
}

/// On an ext3 file system of this host on the logical unit: dd to a file and from it in MB/s, then io_trash on
/// two files in seconds.
fn on_file_system(
    lab: &mut Lab,
    name: &str,
    server: &PeerServer,
    storage: &StorageKind,
    disks: &ScstDisks,
) -> Result<[Option<f64>; 3], String> {
    if lab.is_ended() {
        return Ok([None; 3]);
    }
    let target = server.target(storage.disk, "").ok_or("the server does not serve the disk")?;
    let mut mounted = lab.mount(&target, server)?;
    let whole = |bytes: u64| bytes / u64::from(BLOCK) * u64::from(BLOCK);
    // The file system needs some space for itself.
    let file = mounted.file(whole(disks.size / 5 * 4).min(AMOUNT))?;
    let write = Job { sizes: vec![(BLOCK, 1)], ..job(lab, "fs-write", disks.size) };
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..repeats(lab) {
        let Some(outcome) = in_file(lab, &format!("{name} fs-write"), &file, &write) else { break };
        writes.push(outcome.rate() / MB);
        mounted.make_cold()?;
        if let Some(path) = disks.all[storage.disk].path() {
            make_cold(path);
        }
        // A range that was never written would be read without the disk.
        let span = Some(whole(outcome.bytes()).clamp(BLOCK.into(), write.amount.unwrap_or(AMOUNT)));
        let room = std::fs::metadata(&file).map_err(|e| e.to_string())?.len();
        let span = span.map(|span| span.min(room));
        let read = Job { span, amount: span, ..job(lab, "fs-read", disks.size) };
        let Some(outcome) = in_file(lab, &format!("{name} fs-read"), &file, &read) else { break };
        reads.push(outcome.rate() / MB);
    }
    let mix = mix_in_files(lab, &format!("{name} db-mix"), &mut mounted, &disks.all[storage.disk])?;
    lab.note(
        "rows on a file system: ext3 of this host on a disk of lunar attach, one access at a time, \
         including the time of a flush, because the data fits in this host's memory",
    );
    lab.note("db-mix: two files on that file system, dropped from the page caches first");
    Ok([mean(&writes), mean(&reads), mix])
}

fn in_file(lab: &mut Lab, label: &str, file: &std::path::Path, job: &Job) -> Option<lunar_bench::JobOutcome> {
    let open = lab.open(&[TargetSpec::Path(file.to_owned())], 1, None)?;
    let outcome = lab.measure(label, &open, job);
    open.opened.close();
    outcome
}

/// The access pattern of a file system, if it cannot be mounted; MB/s.
fn like_file_system(
    lab: &mut Lab,
    name: &str,
    open: &LabTargets,
    disk: &ServedDisk,
    why: &str,
) -> [Option<f64>; 2] {
    lab.note(format!(
        "rows on a file system use only its access pattern ({why}): writes \
         include 4 KiB journal writes, and a flush at the end"
    ));
    ["fs-write", "fs-read"].map(|id| {
        let job = job(lab, id, disk.size);
        let label = format!("{name} {id}");
        let figures: Vec<f64> =
            (0..repeats(lab)).filter_map(|_| once(lab, &label, open, &job, disk)).collect();
        mean(&figures)
    })
}

fn repeats(lab: &Lab) -> usize {
    if lab.is_full() { 3 } else { 1 }
}

fn mean(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

fn scheduler(storage: &StorageKind, disk: &ServedDisk) -> Option<SchedulerGuard> {
    SchedulerGuard::set(disk.path()?, storage.scheduler?)
}

/// One run of dd in MB/s.
fn once(lab: &mut Lab, label: &str, open: &LabTargets, job: &Job, disk: &ServedDisk) -> Option<f64> {
    if job.direction == IoDirection::Read
        && let Some(path) = disk.path()
    {
        make_cold(path);
    }
    Some(lab.measure(label, open, job)?.rate() / MB)
}

/// io_trash on two files of the file system.
fn mix_in_files(
    lab: &mut Lab,
    label: &str,
    mounted: &mut MountedFs,
    disk: &ServedDisk,
) -> Result<Option<f64>, String> {
    let files = mounted.files(2, mix_size(disk.size))?;
    let places: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
    let mut figures = Vec::new();
    for _ in 0..repeats(lab) {
        mounted.make_cold()?;
        figures.extend(db_mix(lab, label, &places, true, disk));
    }
    Ok(mean(&figures))
}

/// io_trash without a file system: two ranges of the disk replace its files.
fn mix_on_disk(
    lab: &mut Lab,
    name: &str,
    (target, server): (&TargetSpec, &PeerServer),
    disk: &ServedDisk,
    why: &str,
) -> Option<f64> {
    lab.note(format!("db-mix: two ranges of the disk replace the files ({why})"));
    let (label, places) = (format!("{name} db-mix"), [target.to_string()]);
    let may_destroy = lab.may_destroy(Some(server));
    let figures: Vec<f64> =
        (0..repeats(lab)).filter_map(|_| db_mix(lab, &label, &places, may_destroy, disk)).collect();
    mean(&figures)
}

/// The size of each file: a file system needs some space for itself.
fn mix_size(disk: u64) -> u64 {
    (disk / 5 * 2).min(MIX_FILE)
}

/// One run of io_trash: seconds for all of its operations.
fn db_mix(lab: &mut Lab, label: &str, places: &[String], destroy: bool, disk: &ServedDisk) -> Option<f64> {
    if let Some(path) = disk.path() {
        make_cold(path);
    }
    let operations = lab.scaled(OPERATIONS, 6000);
    let size = mix_size(disk.size);
    let args = db_mix::Args {
        threads: 2,
        files: 2,
        size: size.to_string(),
        window: MIX_WINDOW.min(size).to_string(),
        outside: 10,
        io_min: "4096".into(),
        io_max: "4096".into(),
        operations,
        read_percent: 90,
        think: Duration::ZERO,
        fsync_every: 10,
        seed: 1,
        direct: false,
        keep: false,
        destroy,
        places: places.to_vec(),
    };
    let outcome = lab.face(label, |stage| db_mix::run(&args, stage))?;
    Some(outcome.elapsed_s * OPERATIONS as f64 / operations as f64)
}

fn job(lab: &Lab, id: &str, size: u64) -> Job {
    let dd = Job {
        direction: if id.ends_with("write") { IoDirection::Write } else { IoDirection::Read },
        sizes: vec![(BLOCK, 1)],
        time: lab.cap(QUICK_MS),
        // Repeated reads come from memory.
        amount: Some(AMOUNT.min(size)),
        ..Job::default()
    };
    match id {
        "fs-write" => Job { sizes: vec![(BLOCK, 16), (4096, 1)], flush: true, ..dd },
        _ => dd,
    }
}

/// The negotiated parameters, as figures and as an administrator's listing.
fn parameters(lab: &mut Lab, peer: &Peer, open: &LabTargets, measured: &mut MeasuredRows) {
    let id = "session-parameters";
    if measured.iter().any(|row| row.0 == id && row.1 == peer.name()) {
        return;
    }
    let targets = open.opened.measured_targets();
    let Some(target) = targets.first() else { return };
    lab.lines.push(format!("# session parameters: {}", peer.name()));
    // They follow the identification of the logical unit.
    let keys = target.facts.iter().skip_while(|fact| fact.0 != "InitialR2T");
    for (key, value) in keys {
        lab.lines.push(format!("{key}={value}"));
        let figure = match value.as_str() {
            "Yes" => Some(1.0),
            "No" | "None" => Some(0.0),
            number => number.parse().ok(),
        };
        measured.extend(figure.map(|figure| (id, peer.name(), key.clone(), figure)));
    }
}

/// Measures one session through each of two slow links. Only Lunar is measured, because the publication has only
/// ISCSI-SCST.
fn two_paths(lab: &mut Lab, disks: &ScstDisks, measured: &mut MeasuredRows) {
    let mut slow = disks.all.clone();
    slow.iter_mut().skip(1).for_each(|disk| disk.bytes_per_s = OLD_DISK);
    let Some(server) = lab.serve(&Peer::Lunar, &slow, 2) else { return };
    let Some(links) = lab.links(&server, LINE) else { return };
    let one_line = StorageKind { head: "NULLIO, one line", disk: NULL, scheduler: None };
    for (storage, lines) in STORAGES.iter().map(|storage| (storage, 2)).chain([(&one_line, 1)]) {
        let targets: Option<Vec<TargetSpec>> =
            links.iter().take(lines).map(|link| server.at(link.address(), storage.disk, "")).collect();
        let Some(open) = targets.and_then(|targets| lab.open_device(&targets, 1, Some(&server), false))
        else {
            continue;
        };
        let disk = &disks.all[storage.disk];
        let _scheduler = scheduler(storage, disk);
        // Commands take a while on such a line.
        let time = lab.cap(2 * QUICK_MS).map(|cap| cap.max(Duration::from_millis(600)));
        let job = Job { time, ..job(lab, "direct-read", disk.size) };
        let label = format!("Lunar {} two-path", storage.head);
        let figures: Vec<f64> =
            (0..repeats(lab)).filter_map(|_| once(lab, &label, &open, &job, disk)).collect();
        if let Some(figure) = mean(&figures) {
            measured.push(("two-path", "Lunar".into(), storage.head.into(), figure));
        }
        open.opened.close();
    }
}

/// The published table with a column for each server; rows with a different scheduler are marked.
fn beside(
    lab: &mut Lab,
    published: ResultTable,
    id: &str,
    disks: &ScstDisks,
    measured: &MeasuredRows,
) -> ResultTable {
    let all = lab.all();
    let name = |peer: &Peer| peer.name();
    // Table two-path has only ISCSI-SCST.
    let mut columns: Vec<(String, &str, Option<String>)> = all
        .iter()
        .filter(|peer| id != "two-path" || matches!(peer, Peer::Lunar))
        .map(|peer| match peer {
            Peer::Stgt => ("STGT".into(), "STGT", Some(name(peer))),
            _ => (format!("{} (ISCSI-SCST)", name(peer)), "ISCSI-SCST", Some(name(peer))),
        })
        .collect();
    for other in ["IET", "STGT"] {
        if published.columns.iter().any(|column| column == other) && !columns.iter().any(|c| c.1 == other) {
            columns.push((other.into(), other, None));
        }
    }
    let cell = |row: &str, (_, theirs, ours): &(String, &str, Option<String>)| {
        let found = measured.iter().find(|m| m.0 == id && Some(&m.1) == ours.as_ref() && m.2 == row);
        TableCell::new(figure(&published, row, theirs), found.map(|m| m.3))
    };
    let row = |(head, _): &(String, Vec<TableCell>)| {
        (said(head, disks), columns.iter().map(|column| cell(head, column)).collect())
    };
    let rows = published.rows.iter().map(row).collect();
    ResultTable {
        columns: columns.iter().map(|column| column.0.clone()).collect(),
        rows,
        ..published.clone()
    }
}

/// The heading of a row, with a mark if its scheduler cannot be set.
fn said(head: &str, disks: &ScstDisks) -> String {
    let Some(storage) = STORAGES.iter().find(|storage| storage.head == head) else { return head.into() };
    match (storage.scheduler, scheduler(storage, &disks.all[storage.disk])) {
        (Some(name), Some(_)) => format!("{head} ({name})"),
        (Some(name), None) => format!("{head} ({name} cannot be set)"),
        (None, _) => head.into(),
    }
}
