//! stgt-iser-null-2008: sgp_dd on null storage by block size and threads, with the CPU time of both sides.

use crate::lab::{Lab, LabTargets};
use crate::media::{DiskMedium, ServedDisk};
use crate::peers::{Peer, PeerServer};
use crate::published::{Published, put};
use lunar_bench::Error;
use lunar_bench::document::ResultTable;
use lunar_bench::job::{IoDirection, Job};
use lunar_bench::outcome::JobOutcome;
use std::time::Duration;

/// Bytes of each null disk.
const SIZE: u64 = 64 << 30;
const QUICK_MS: u64 = 550;
const MB: f64 = 1e6;
/// The direction and threads of each column.
const COLUMNS: [(&str, IoDirection, usize); 4] = [
    ("READ 10 threads", IoDirection::Read, 10),
    ("READ 2 threads", IoDirection::Read, 2),
    ("WRITE 10 threads", IoDirection::Write, 10),
    ("WRITE 2 threads", IoDirection::Write, 2),
];
/// The best column of reads, and of writes.
const BEST: [(&str, IoDirection, usize); 2] = [COLUMNS[0], COLUMNS[3]];
/// The ids of the tables of one server.
const MEASURED: [&str; 9] = [
    "bandwidth-b-a",
    "cpu-b-a",
    "kiops",
    "two-initiators",
    "two-initiators-cpu",
    "two-instances",
    "two-instances-cpu",
    "bidirectional",
    "chain",
];

/// The tables of a server.
struct IserTables(Vec<(&'static str, ResultTable)>);

impl IserTables {
    fn put(&mut self, id: &str, row: &str, column: &str, measured: Option<f64>) {
        let (_, table) = self.0.iter_mut().find(|table| table.0 == id).expect("a table of this experiment");
        put(table, row, column, measured);
    }

    fn cpu(&mut self, id: &str, row: &str, column: &str, outcome: &JobOutcome) {
        self.put(id, row, &format!("{column} Ini"), Some(percent(outcome.cpu.client_s, outcome)));
        self.target_cpu(id, row, column, outcome);
    }

    /// The target's CPU time only.
    fn target_cpu(&mut self, id: &str, row: &str, column: &str, outcome: &JobOutcome) {
        let measured = outcome.cpu.target_s.map(|seconds| percent(seconds, outcome));
        self.put(id, row, &format!("{column} Tgt"), measured);
    }
}

/// CPU time as a percentage of all cores.
fn percent(seconds: f64, outcome: &JobOutcome) -> f64 {
    seconds / outcome.elapsed_s / outcome.cpu.cores as f64 * 100.0
}

/// Repeats the experiment.
///
/// # Errors
/// None: failures are notes.
pub fn run(lab: &mut Lab, published: &Published) -> Result<(), Error> {
    lab.note(lab.transport().stands_in("iSER over InfiniBand"));
    lab.note("one machine is compared with the two fast ones of the publication (B -> A)");
    lab.note("CPU is a percentage of all cores of this machine, which initiator and target share");
    lab.note(
        "two initiators at once: both are in one process, so the CPU time of each cannot be measured; its cells \
         are empty",
    );
    lab.note(
        "two initiators, and two instances on 1 dev, are the same run here: two sessions of one process \
         with one disk",
    );
    lab.note(
        "A -> B -> C: B is Lunar's router (block mode), C is the target of the table, all on this machine",
    );
    for id in ["bandwidth-c-b", "cpu-c-b", "bandwidth-b-c", "cpu-b-c"] {
        lab.table(published.table(id));
    }
    for peer in lab.all() {
        if !peer.has_null() && matches!(peer, Peer::Istgt) {
            lab.note("istgt is skipped: istgt has no null storage");
            continue;
        }
        let mut tables = IserTables(MEASURED.map(|id| (id, published.table(id))).into());
        measure(lab, &peer, &mut tables);
        for (_, mut table) in tables.0 {
            table.title += &format!(", {}", peer.name());
            lab.table(table);
        }
    }
    Ok(())
}

fn job(lab: &Lab, direction: IoDirection, kib: u32, threads: usize) -> Job {
    let time = lab.cap(QUICK_MS).unwrap_or(Duration::from_secs(10));
    Job { direction, sizes: vec![(kib << 10, 1)], depth: threads, time: Some(time), ..Job::default() }
}

fn measure(lab: &mut Lab, peer: &Peer, tables: &mut IserTables) {
    let disks = [ServedDisk::new(DiskMedium::Null, SIZE), ServedDisk::new(DiskMedium::Null, SIZE)];
    let Some(server) = lab.serve(peer, &disks, 1) else { return };
    let name = peer.name();
    if let Some(open) = open(lab, &server, &[0], 1) {
        by_size(lab, &name, &open, tables);
        open.opened.close();
    }
    for (devices, sessions, row) in [(&[0][..], 2, "1 dev"), (&[0, 1], 1, "2 devs")] {
        let Some(open) = open(lab, &server, devices, sessions) else { continue };
        two_instances(lab, &name, &open, row, tables);
        open.opened.close();
    }
    bidirectional(lab, &name, &server, tables);
    chain(lab, &name, &server, tables);
}

fn open(lab: &mut Lab, server: &PeerServer, disks: &[usize], sessions: usize) -> Option<LabTargets> {
    let targets: Option<Vec<_>> = disks.iter().map(|disk| server.target(*disk, "")).collect();
    lab.open(&targets?, sessions, Some(server))
}

fn by_size(lab: &mut Lab, name: &str, open: &LabTargets, tables: &mut IserTables) {
    for kib in (0..9).map(|n| 1u32 << n) {
        for (column, direction, threads) in COLUMNS {
            let job = job(lab, direction, kib, threads);
            let label = format!("{name} {kib} KiB {column}");
            let Some(outcome) = lab.measure(&label, open, &job) else { continue };
            let row = kib.to_string();
            tables.put("bandwidth-b-a", &row, column, Some(outcome.rate() / MB));
            tables.cpu("cpu-b-a", &row, column, &outcome);
            if kib == 1 {
                tables.put("kiops", "fast -> fast", column, Some(outcome.iops() / 1e3));
            }
        }
    }
}

/// Runs through a router, with the best numbers of threads: the publication does not state those that it used.
fn chain(lab: &mut Lab, name: &str, server: &PeerServer, tables: &mut IserTables) {
    let Some(router) = lab.route(server) else { return };
    let Some(open) = open(lab, &router, &[0], 1) else { return };
    for kib in (0..10).map(|n| 1u32 << n) {
        for ((_, direction, threads), column) in BEST.into_iter().zip(["READ", "WRITE"]) {
            let job = job(lab, direction, kib, threads);
            let outcome = lab.measure(&format!("{name} through a router {kib} KiB {column}"), &open, &job);
            let rate = outcome.map(|outcome| outcome.rate() / MB);
            tables.put("chain", &kib.to_string(), column, rate);
        }
    }
    open.opened.close();
}

/// Two at once: the sessions of one process represent both two initiators, and two instances on one.
fn two_instances(lab: &mut Lab, name: &str, open: &LabTargets, row: &str, tables: &mut IserTables) {
    for (column, direction, threads) in BEST {
        let job = job(lab, direction, 1, threads);
        let label = format!("{name} two at once, {row}, {column}");
        let Some(outcome) = lab.measure(&label, open, &job) else { continue };
        tables.put("two-instances", row, &format!("{column}, first"), kiops(&outcome, 0));
        tables.put("two-instances", row, &format!("{column}, second"), kiops(&outcome, 1));
        tables.cpu("two-instances-cpu", row, column, &outcome);
        if row == "1 dev" {
            two_initiators(tables, column, &outcome);
        }
    }
}

/// The rate of one session.
fn kiops(outcome: &JobOutcome, at: usize) -> Option<f64> {
    outcome.session_iops(at).map(|iops| iops / 1e3)
}

/// Records the rates and the target's CPU time. The CPU time of this process is that of both initiators, so it must
/// not appear as that of one.
fn two_initiators(tables: &mut IserTables, column: &str, outcome: &JobOutcome) {
    for (at, initiator) in ["slow", "fast"].into_iter().enumerate() {
        tables.put("two-initiators", initiator, column, kiops(outcome, at));
        tables.target_cpu("two-initiators-cpu", initiator, column, outcome);
    }
}

/// Reads and writes of 256 KiB: one after the other, at once in one session, and at once in two.
fn bidirectional(lab: &mut Lab, name: &str, server: &PeerServer, tables: &mut IserTables) {
    let (Some(one), Some(two)) = (open(lab, server, &[0], 1), open(lab, server, &[0], 1)) else { return };
    let [read, write] = BEST.map(|(_, direction, threads)| job(lab, direction, 256, threads));
    let both = job(lab, IoDirection::Both, 256, 10);
    let read_rate = |outcome: &JobOutcome| Some(outcome.read.rate(outcome.elapsed_s) / MB);
    let write_rate = |outcome: &JobOutcome| Some(outcome.write.rate(outcome.elapsed_s) / MB);
    let mut row = |head: &str, read: Option<f64>, write: Option<f64>| {
        tables.put("bidirectional", head, "READ", read);
        tables.put("bidirectional", head, "WRITE", write);
    };
    let reads = lab.measure(&format!("{name} single dir READ"), &one, &read);
    let writes = lab.measure(&format!("{name} single dir WRITE"), &one, &write);
    row("single dir", reads.as_ref().and_then(read_rate), writes.as_ref().and_then(write_rate));
    let mixed = lab.measure(&format!("{name} bi-dir 1 ini"), &one, &both);
    row("bi-dir 1 ini", mixed.as_ref().and_then(read_rate), mixed.as_ref().and_then(write_rate));
    let [reads, writes] = lab.measure_both(&format!("{name} bi-dir 2 ini"), (&one, &read), (&two, &write));
    row("bi-dir 2 ini", reads.as_ref().and_then(read_rate), writes.as_ref().and_then(write_rate));
    one.opened.close();
    two.opened.close();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Experiment;
    use lunar_bench::outcome::{CpuTime, IoCounts};

    #[test]
    fn shared_cpu_is_not_shown_for_each_of_two_initiators() {
        let published = Published::of(Experiment::Iser);
        let mut tables = IserTables(MEASURED.map(|id| (id, published.table(id))).into());
        let share = |read_ios| IoCounts { read_ios, ..IoCounts::default() };
        let sessions = vec![share(1000), share(2000)];
        let cpu = CpuTime { client_s: 1.0, target_s: Some(0.5), cores: 2 };
        let outcome = JobOutcome { elapsed_s: 1.0, sessions, cpu, ..JobOutcome::default() };
        two_initiators(&mut tables, "READ 10 threads", &outcome);
        let measured = |id: &str| {
            let (_, table) = tables.0.iter().find(|table| table.0 == id).expect("a table");
            let cells = table.rows.iter().map(|row| [row.1[0].measured, row.1[1].measured]);
            cells.collect::<Vec<_>>()
        };
        assert_eq!(measured("two-initiators"), [[Some(1.0), None], [Some(2.0), None]]);
        assert_eq!(measured("two-initiators-cpu"), [[None, Some(25.0)]; 2]);
    }
}
