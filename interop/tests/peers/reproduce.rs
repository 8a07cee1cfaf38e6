//! `lunar bench reproduce` against STGT and istgt, and against a running target: short runs of the experiments.

use interop::peer::{ISTGT, TGT};
use interop::server::{Folder, lunar_bin};
use interop::tool;
use interop::{Server, TARGET};
use lunar_bench::Document;
use lunar_bench::document::ResultTable;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
/// Limit of each run, in milliseconds.
const BRIEF: &str = "20";
const PEERS: [&str; 4] = ["--against", "stgt", "--against", "istgt"];
const NAMES: [&str; 3] = ["Lunar", "STGT", "istgt"];

/// The document of an experiment, as `--json` prints it.
fn reproduce(dir: &Path, seed: &str, with: &[&str]) -> Document {
    let mut command = Command::new(lunar_bin());
    command.args(["bench", "reproduce", seed, "--quick", "--brief", BRIEF, "--json"]).args(with);
    let ran = tool::run(command.current_dir(dir), LIMIT);
    assert!(ran.ok(), "{seed}: {:?}\n{}", ran.status, ran.said);
    let parsed = serde_json::Deserializer::from_str(&ran.said).into_iter().next();
    let document: Document = parsed.expect("JSON").expect("a document");
    document.tables.iter().for_each(ratios_are_right);
    document
}

/// The same against both peers. If they are not installed: None, after printing `skipped`.
fn against_peers(seed: &str) -> Option<Document> {
    if !tool::have(&[&TGT[..], &ISTGT].concat()) {
        return None;
    }
    let document = reproduce(&Folder::fresh(), seed, &PEERS);
    let has = |begin: &str| document.notes.iter().any(|note| note.starts_with(begin));
    assert!(has("STGT is tgtd ") && has("istgt is istgt "), "{:?}", document.notes);
    Some(document)
}

fn ratios_are_right(table: &ResultTable) {
    for (head, cells) in &table.rows {
        for (column, cell) in table.columns.iter().zip(cells) {
            let published = cell.published.filter(|published| *published != 0.0 && !table.is_spread(column));
            let both = published.zip(cell.measured);
            let expected = both.map(|(published, measured)| measured / published);
            assert_eq!(cell.ratio, expected, "{}: {head}", table.title);
        }
    }
}

/// The tables of a server with one of these titles. There must be at least one for each title.
fn of<'a>(document: &'a Document, who: &str, titles: &[&str]) -> Vec<&'a ResultTable> {
    let end = format!(", {who}");
    let is_one =
        |table: &&ResultTable, title: &&str| table.title.ends_with(&end) && table.title.contains(*title);
    for title in titles {
        let is_there = document.tables.iter().any(|table| is_one(&table, title));
        assert!(is_there, "no table {title} of {who}: {:?}", document.notes);
    }
    document.tables.iter().filter(|table| titles.iter().any(|title| is_one(table, title))).collect()
}

/// Checks that every cell of these rows was measured. No rows stand for all rows.
fn is_measured(table: &ResultTable, rows: &[&str]) {
    let wanted = table.rows.iter().filter(|row| rows.is_empty() || rows.contains(&row.0.as_str()));
    for (head, cells) in wanted {
        for (column, cell) in table.columns.iter().zip(cells) {
            assert!(cell.measured.is_some(), "{}: {head}, {column}", table.title);
        }
    }
}

#[test]
fn scst_iet_stgt_2009_is_measured() {
    let Some(document) = against_peers("scst-iet-stgt-2009") else { return };
    assert_eq!(document.tables.len(), 7);
    for table in &document.tables {
        for (column, is_null_there) in
            [("Lunar (ISCSI-SCST)", true), ("STGT", true), ("istgt (ISCSI-SCST)", false)]
        {
            let Some(at) = table.columns.iter().position(|head| head == column) else {
                assert!(table.title.contains("two lines"), "{} has no {column}", table.title);
                continue;
            };
            let is_alone = table.title.contains("two lines") && !column.starts_with("Lunar");
            for (head, cells) in
                table.rows.iter().filter(|row| !is_alone && (is_null_there || row.0 != "NULLIO"))
            {
                assert!(cells[at].measured.is_some(), "{}: {head}, {column}", table.title);
            }
        }
    }
}

#[test]
fn open_iscsi_2005_is_measured() {
    let Some(document) = against_peers("open-iscsi-2005") else { return };
    assert_eq!(document.tables.len(), 2 * NAMES.len());
    for who in NAMES {
        of(&document, who, &[""]).into_iter().for_each(|table| is_measured(table, &[]));
    }
}

#[test]
fn sn5420_2002_is_measured() {
    let Some(document) = against_peers("sn5420-2002") else { return };
    let rows = ["Linux/with iSCSI", "Linux/with Fibre", "Remote Linux/with iSCSI"];
    for who in NAMES.into_iter().chain(["Lunar behind its router"]) {
        let titles = ["Read performance", "Write performance", "Two simultaneous"];
        of(&document, who, &titles).into_iter().for_each(|table| is_measured(table, &rows));
        of(&document, who, &["TCP window"]).into_iter().for_each(|table| is_measured(table, &[]));
    }
}

#[test]
fn stgt_iser_null_2008_is_measured() {
    let Some(document) = against_peers("stgt-iser-null-2008") else { return };
    for who in ["Lunar", "STGT"] {
        let titles =
            ["fast -> fast)", "from two initiators", "from two instances", "Bidirectional", "A -> B -> C"];
        of(&document, who, &titles).into_iter().for_each(|table| is_measured(table, &[]));
    }
    assert!(document.notes.iter().any(|note| note == "istgt is skipped: istgt has no null storage"));
}

#[test]
fn scst_srpt_2010_is_measured() {
    let Some(document) = against_peers("scst-srpt-2010") else { return };
    assert_eq!(document.tables.len(), 12 * NAMES.len());
    for who in NAMES {
        of(&document, who, &[""]).into_iter().for_each(|table| is_measured(table, &[]));
    }
}

/// A running target, whose disk holds data.
struct RunningTarget {
    server: Server,
    disk: PathBuf,
}

impl RunningTarget {
    const BYTE: u8 = 0x5a;

    fn start() -> RunningTarget {
        let dir = Folder::fresh();
        let disk = dir.join("disk");
        fs::write(&disk, vec![RunningTarget::BYTE; 32 << 20]).expect("a disk");
        let toml = format!(
            "[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\nname = \"{TARGET}\"\n\
             [[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"{}\"\n",
            disk.display()
        );
        RunningTarget { server: Server::start_in(dir, &toml), disk }
    }

    fn url(&self) -> String {
        format!("iscsi://{}/{TARGET}/0", self.server.portal())
    }

    fn is_untouched(&self) -> bool {
        fs::read(&self.disk).expect("the disk").iter().all(|byte| *byte == RunningTarget::BYTE)
    }
}

/// Checks that all cells of a row were measured, or none.
fn has_row(table: &ResultTable, row: &str, is_measured: bool) {
    let (_, cells) = table.rows.iter().find(|(head, _)| head == row).expect("the row");
    let all = cells.iter().all(|cell| cell.measured.is_some() == is_measured);
    assert!(all, "{}: {row}: {cells:?}", table.title);
}

#[test]
fn running_target_is_only_read() {
    let (running, dir) = (RunningTarget::start(), Folder::fresh());
    let url = running.url();
    for seed in ["open-iscsi-2005", "scst-iet-stgt-2009"] {
        let document = reproduce(&dir, seed, &["--against", &url]);
        let is_read_only_note = |note: &String| {
            note.contains("holds data")
                && note.ends_with("the target is used read-only (add --destroy to overwrite the data)")
        };
        assert!(document.notes.iter().any(is_read_only_note), "{:?}", document.notes);
        assert!(running.is_untouched(), "{seed} wrote");
        if seed == "open-iscsi-2005" {
            for table in of(&document, &url, &[""]) {
                has_row(table, "256K write", false);
                has_row(table, "256K read", true);
            }
        }
    }
}

#[test]
fn destroy_writes_a_running_target_and_reports_it() {
    let (running, dir) = (RunningTarget::start(), Folder::fresh());
    let url = running.url();
    let with = ["--against", &url, "--destroy", "--report", "page.html"];
    let document = reproduce(&dir, "open-iscsi-2005", &with);
    of(&document, &url, &[""]).into_iter().for_each(|table| is_measured(table, &[]));
    assert!(!running.is_untouched(), "nothing was written");
    let page = fs::read_to_string(dir.join("page.html")).expect("a page");
    for part in [">Published and measured</h2>", &url, "<p class=\"overhead\">"] {
        assert!(page.contains(part), "{part}");
    }
}
