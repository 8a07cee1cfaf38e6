//! sn5420-2002: dd of a file by block size, from a disk of this host and through iSCSI, near and far.

use super::lab::{Lab, Open};
use super::media::{Disk, Medium, WARM, make_cold};
use super::peers::{Server, Who};
use super::published::{Published, put};
use super::relay::Line;
use crate::document::Table;
use crate::job::{Job, Way};
use crate::outcome::Outcome;
use crate::{Error, Target};
use std::path::Path;
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
/// OC-12, 622 Mbit/s, and a few milliseconds between two towns.
const FAR: Line = Line { delay: Duration::from_millis(2), bytes_per_s: 622e6 / 8.0 };
/// Rows of the window table: head, window in bytes, runs.
const WINDOWS: [(&str, u32, usize); 3] =
    [("1 MB, 5 runs", 1 << 20, 5), ("8 MB, 4 runs", 8 << 20, 4), ("32 MB, 7 runs", 32 << 20, 7)];
const NEAR_ROW: &str = "Linux/with iSCSI";
const LOCAL_ROW: &str = "Linux/with Fibre";
const FAR_ROW: &str = "Remote Linux/with iSCSI";
const MB: f64 = 1e6;
const QUICK_MS: u64 = 350;

/// The tables of a server while they are filled.
struct Tables {
    read: Table,
    write: Table,
    two: Table,
    window: Table,
}

/// Repeats it.
///
/// # Errors
/// When the file cannot be made.
pub fn run(lab: &mut Lab, published: &Published) -> Result<(), Error> {
    lab.note("there is one host, and it runs Linux: the rows of the Sun are published figures only");
    lab.note("with Fibre: the same file on this host, without iSCSI");
    lab.note(format!(
        "Remote: a relay in this process, {} ms each way and {:.0} Mbit/s; it acknowledges what it takes, so \
         windows count from host to relay",
        FAR.delay.as_millis(),
        FAR.bytes_per_s * 8.0 / 1e6
    ));
    lab.note("behind its router: the file is at Lunar's target, and the host at Lunar's router before it");
    let size = size(lab);
    let path = lab.work.file("500mb", size)?;
    lab.note(match make_cold(&path) {
        true => {
            "the file is taken out of the page cache before each read, instead of rotating among five copies"
        }
        false => WARM,
    });
    let local = local(lab, published, &path);
    for who in lab.all() {
        let disk = Disk::new(Medium::Cached(path.clone()), size);
        let server = lab.serve(&who, &[disk], 1);
        tables(lab, published, &local, &who.name(), server.as_ref(), &path);
        if let (Who::Lunar, Some(server)) = (&who, &server) {
            let router = lab.route(server);
            tables(lab, published, &local, "Lunar behind its router", router.as_ref(), &path);
        }
    }
    Ok(())
}

/// All tables of a server, with what was measured without one.
fn tables(
    lab: &mut Lab,
    published: &Published,
    local: &(Table, Table, Table),
    name: &str,
    server: Option<&Server>,
    path: &Path,
) {
    let (read, write, two) = local.clone();
    let mut tables = Tables { read, write, two, window: published.table("window") };
    if let Some(server) = server {
        fill(lab, name, server, path, &mut tables);
    }
    for mut table in [tables.read, tables.write, tables.two, tables.window] {
        table.title += &format!(", {name}");
        lab.table(table);
    }
}

/// Bytes of the file. Nothing is read twice in one run: it would come from memory.
fn size(lab: &Lab) -> u64 {
    lab.scaled(FILE, 256 << 20)
}

fn job(lab: &Lab, way: Way, block: u32) -> Job {
    let (time, amount) = (lab.cap(QUICK_MS), Some(size(lab)));
    Job { way, sizes: vec![(block, 1)], time, amount, ..Job::default() }
}

/// dd once: MB/s.
fn dd(lab: &mut Lab, label: &str, open: &Open, path: &Path, job: &Job) -> Option<Outcome> {
    if job.way == Way::Read {
        make_cold(path);
    }
    lab.measure(label, open, job)
}

fn by_size(
    lab: &mut Lab,
    name: &str,
    row: &str,
    open: &Open,
    path: &Path,
    read: &mut Table,
    write: &mut Table,
) {
    for (table, way, word) in [(read, Way::Read, "read"), (write, Way::Write, "write")] {
        for (column, block) in BLOCKS {
            let job = job(lab, way, block);
            let outcome = dd(lab, &format!("{name} {row} {word} bs={column}"), open, path, &job);
            put(table, row, column, outcome.map(|outcome| outcome.rate() / MB));
        }
    }
}

fn two_reads(lab: &mut Lab, name: &str, row: &str, open: &Open, path: &Path, table: &mut Table) {
    // Each reads the whole file.
    let job = Job { amount: Some(2 * size(lab)), ..job(lab, Way::Read, 256 << 10) };
    let Some(outcome) = dd(lab, &format!("{name} {row} two reads"), open, path, &job) else { return };
    for (share, column) in outcome.sessions.iter().zip(["first", "second"]) {
        put(table, row, column, Some(share.read_bytes as f64 / outcome.elapsed_s / MB));
    }
    put(table, row, "aggregate", Some(outcome.rate() / MB));
}

/// Without iSCSI, once for all servers.
fn local(lab: &mut Lab, published: &Published, path: &Path) -> (Table, Table, Table) {
    let [mut read, mut write, mut two] = ["read", "write", "two-reads"].map(|id| published.table(id));
    let target = [Target::Path(path.to_owned())];
    if let Some(open) = lab.open(&target, 1, None) {
        by_size(lab, "this host", LOCAL_ROW, &open, path, &mut read, &mut write);
        open.rig.close();
    }
    if let Some(open) = lab.open(&target, 2, None) {
        two_reads(lab, "this host", LOCAL_ROW, &open, path, &mut two);
        open.rig.close();
    }
    (read, write, two)
}

fn fill(lab: &mut Lab, name: &str, server: &Server, path: &Path, tables: &mut Tables) {
    let near = server.target(0, "");
    let links = lab.links(server, FAR).unwrap_or_default();
    let far = links.first().and_then(|link| server.at(link.address(), 0, ""));
    for (row, target) in [(NEAR_ROW, near), (FAR_ROW, far)] {
        let Some(target) = target else { continue };
        let targets = [target];
        if let Some(open) = lab.open_device(&targets, 1, Some(server), false) {
            by_size(lab, name, row, &open, path, &mut tables.read, &mut tables.write);
            open.rig.close();
        }
        if let Some(open) = lab.open_device(&targets, 2, Some(server), false) {
            two_reads(lab, name, row, &open, path, &mut tables.two);
            open.rig.close();
        }
    }
    match lab.carrier().is_relayed() {
        true => windows(lab, name, server, path, &mut tables.window),
        false => lab.note("TCP windows are nothing to an RDMA device: their table is left out"),
    }
}

/// The same read again and again, as HiWater was tried.
fn windows(lab: &mut Lab, name: &str, server: &Server, path: &Path, table: &mut Table) {
    for (row, bytes, runs) in WINDOWS {
        let Some(target) = server.target(0, &format!("window={bytes}")) else { return };
        let Some(open) = lab.open_device(&[target], 1, Some(server), false) else { continue };
        let job = job(lab, Way::Read, 256 << 10);
        let label = format!("{name} window {row}");
        let rates: Vec<f64> = (0..runs)
            .filter_map(|_| dd(lab, &label, &open, path, &job))
            .map(|outcome| outcome.rate() / MB)
            .collect();
        open.rig.close();
        let mean = (!rates.is_empty()).then(|| rates.iter().sum::<f64>() / rates.len() as f64);
        put(table, row, "first run", rates.first().copied());
        put(table, row, "last run", rates.last().copied());
        put(table, row, "initial run", rates.first().copied());
        put(table, row, "average", mean);
    }
}
