//! `lunar bench reproduce`: each experiment with very short runs, against Lunar's own target.

use lunar_bench::Document;
use lunar_bench::document::{JobRun, ResultTable, TableCell};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The working folder of a test, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lunar-again-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn start(&self, args: &[&str]) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lunar"));
        command.args(["bench", "reproduce"]).args(args).current_dir(&self.0).env("TMPDIR", &self.0);
        command.env_remove("LUNAR_LOG").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("the program starts")
    }

    fn run(&self, args: &[&str]) -> Output {
        self.start(args).wait_with_output().expect("the program ends")
    }

    /// The document of the only result.
    fn document(&self) -> Document {
        let files: Vec<PathBuf> = fs::read_dir(self.0.join("results"))
            .expect("results")
            .map(|f| f.expect("a file").path())
            .collect();
        let files: Vec<_> =
            files.iter().filter(|file| file.extension().is_some_and(|e| e == "json")).collect();
        assert_eq!(files.len(), 1, "{files:?}");
        serde_json::from_slice(&fs::read(files[0]).expect("the result")).expect("a document")
    }

    /// All files besides results.
    fn rest(&self) -> Vec<PathBuf> {
        let all = fs::read_dir(&self.0).expect("the folder").map(|file| file.expect("a file").path());
        all.filter(|path| !path.ends_with("results")).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs an experiment against Lunar alone. Returns its document, after checking that it left nothing else.
fn reproduce(seed: &str) -> Document {
    reproduce_over(seed, "tcp", &[])
}

/// As [`reproduce`], over a transport with these further arguments.
fn reproduce_over(seed: &str, transport: &str, with: &[&str]) -> Document {
    let folder = Folder::new(&format!("{seed}-{transport}"));
    let brief = ["--against", "none", "--brief", "150", "--transport", transport];
    let output = folder.run(&[&[seed], &brief[..], with].concat());
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("| published") && said.contains("| ratio"), "{said}");
    assert!(said.contains("\nnote: overhead: measuring takes "), "{said}");
    assert_eq!(folder.rest(), Vec::<PathBuf>::new());
    assert!(!is_open_by_a_loop(&folder.0));
    let document = folder.document();
    assert_eq!(document.seed.as_deref(), Some(seed));
    assert_eq!(document.ended_early(), None);
    document
}

/// Whether a loop device is still backed by a file below a folder.
fn is_open_by_a_loop(folder: &Path) -> bool {
    let disks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let files = disks.filter_map(|disk| fs::read_to_string(disk.path().join("loop/backing_file")).ok());
    files.into_iter().any(|file| file.starts_with(&folder.display().to_string()))
}

fn table<'a>(document: &'a Document, title: &str) -> &'a ResultTable {
    let found = document.tables.iter().find(|table| table.title.contains(title));
    found.unwrap_or_else(|| panic!("no table {title}: {:?}", document.tables))
}

/// The tables of the target and of the router in front of it.
fn both<'a>(document: &'a Document, title: &str) -> impl Iterator<Item = &'a ResultTable> {
    let tables: Vec<_> = document.tables.iter().filter(|table| table.title.contains(title)).collect();
    assert_eq!(tables.len(), 2, "{title}");
    assert!(tables[0].title.ends_with(", Lunar") && tables[1].title.ends_with("behind its router"));
    tables.into_iter()
}

/// Checks that every cell of these rows was measured, and that its ratio is that of its figures. Deviations have no
/// ratio.
fn is_measured(table: &ResultTable, rows: &[&str]) {
    for (head, cells) in
        table.rows.iter().filter(|(head, _)| rows.is_empty() || rows.contains(&head.as_str()))
    {
        for (column, cell) in table.columns.iter().zip(cells) {
            let measured = cell.measured.unwrap_or_else(|| panic!("{}: {head}, {column}", table.title));
            assert!(measured >= 0.0, "{}: {head}, {column}", table.title);
            if table.is_spread(column) {
                assert_eq!(cell.ratio, None, "{}: {head}, {column}", table.title);
            } else if let Some(published) = cell.published.filter(|published| *published != 0.0) {
                let ratio = cell.ratio.expect("a ratio");
                assert!((ratio - measured / published).abs() < 1e-9, "{}: {head}, {column}", table.title);
            }
        }
    }
}

/// Checks that every cell of a column was measured.
fn has_column(table: &ResultTable, column: &str) {
    let at = table.columns.iter().position(|head| head == column).expect("the column");
    for (head, cells) in &table.rows {
        assert!(cells[at].measured.is_some(), "{}: {head}, {column}", table.title);
    }
}

#[test]
fn scst_iet_stgt_2009() {
    let document = reproduce("scst-iet-stgt-2009");
    assert_eq!(document.tables.len(), 7);
    for table in &document.tables {
        has_column(table, "Lunar (ISCSI-SCST)");
    }
    let has = |begin: &str| document.notes.iter().any(|note| note.starts_with(begin));
    let (is_mounted, is_on_disk) =
        (has("rows on a file system: ext3"), has("db-mix: two ranges of the disk"));
    assert!(is_mounted || is_on_disk, "{:?}", document.notes);
    for run in document.runs.iter().filter(|run| run.label.ends_with(" db-mix")) {
        let in_files = run.targets.iter().filter(|target| target.name.contains("/mnt/")).count();
        assert_eq!(in_files, if is_mounted { 2 } else { 0 }, "{}: {:?}", run.label, run.targets);
    }
    let two = table(&document, "two lines").rows.iter().map(|row| row.1[0].measured.expect("measured"));
    // Two links of 12.5 MB/s each; the bound allows for data in their queues.
    assert!(two.into_iter().all(|rate| rate < 40.0), "the links are too fast");
}

#[test]
fn open_iscsi_2005() {
    let document = reproduce("open-iscsi-2005");
    assert_eq!(document.tables.len(), 2);
    document.tables.iter().for_each(|table| is_measured(table, &[]));
}

#[test]
fn sn5420_2002_measures_all_tables() {
    let document = reproduce("sn5420-2002");
    assert_eq!(document.tables.len(), 2 * 4);
    let rows = ["Linux/with iSCSI", "Linux/with Fibre", "Remote Linux/with iSCSI"];
    for title in ["Read performance", "Write performance", "Two simultaneous"] {
        both(&document, title).for_each(|table| is_measured(table, &rows));
    }
    both(&document, "TCP window").for_each(|table| is_measured(table, &[]));
    let far = table(&document, "Read performance").rows.iter().find(|row| row.0 == rows[2]).expect("the row");
    assert!(far.1.iter().all(|cell| cell.measured < Some(110.0)), "622 Mbit/s are 78 MB/s: {far:?}");
    for table in both(&document, "TCP window") {
        let average = |row: &(String, Vec<TableCell>)| row.1[3].measured.expect("measured");
        assert!(table.rows.iter().all(|row| average(row) < 110.0), "over the long link: {table:?}");
        let small = table.rows.iter().find(|row| row.0.starts_with("64 KB")).expect("the row");
        assert!(average(small) < 25.0, "64 KiB every 4 ms are 16 MB/s: {small:?}");
    }
    let is_far = |run: &&JobRun| run.label == "Lunar Remote Linux/with iSCSI two reads";
    let two = document.runs.iter().find(is_far).expect("two reads");
    assert!(two.targets.len() == 2 && two.targets[0].name != two.targets[1].name, "{:?}", two.targets);
}

#[test]
fn stgt_iser_null_2008() {
    let document = reproduce("stgt-iser-null-2008");
    assert_eq!(document.tables.len(), 4 + 9);
    assert!(document.notes.iter().any(|note| note.contains("are the same run here")));
    for title in ["fast -> fast), Lunar", "two initiators", "two instances", "Bidirectional", "A -> B -> C"] {
        is_measured(table(&document, title), &[]);
    }
    let cpu = document
        .tables
        .iter()
        .filter(|table| table.title.starts_with("CPU by") && table.title.ends_with("Lunar"));
    cpu.for_each(|table| is_measured(table, &[]));
    is_measured(table(&document, "Commands of 1 KB, Lunar"), &["fast -> fast"]);
}

#[test]
fn scst_srpt_2010() {
    let document = reproduce("scst-srpt-2010");
    assert_eq!(document.tables.len(), 4 * 3);
    document.tables.iter().for_each(|table| is_measured(table, &[]));
}

/// Checks that the document names `carrier` as the transport of every session.
fn is_carried_by(document: &Document, carrier: &str) {
    let note = format!("transport: {carrier}");
    assert!(document.notes.contains(&note), "{:?}", document.notes);
    let targets = document.runs.iter().flat_map(|run| &run.targets);
    let carriers: Vec<_> = targets.flat_map(|target| &target.facts).filter(|f| f.0 == "Transport").collect();
    assert!(!carriers.is_empty() && carriers.iter().all(|fact| fact.1 == carrier), "{carriers:?}");
}

#[test]
fn stgt_iser_null_2008_over_iser() {
    let document = reproduce_over("stgt-iser-null-2008", "iser", &["--provider", "iwarp"]);
    is_carried_by(&document, "iser/iwarp");
    for title in ["fast -> fast), Lunar", "Bidirectional", "A -> B -> C"] {
        is_measured(table(&document, title), &[]);
    }
    assert!(
        document.notes.iter().any(|n| n.starts_with("iSER over iWARP in software")),
        "{:?}",
        document.notes
    );
}

#[test]
fn stgt_iser_null_2008_over_srp() {
    let document = reproduce_over("stgt-iser-null-2008", "srp", &["--provider", "iwarp"]);
    is_carried_by(&document, "srp/iwarp");
    for title in ["Bidirectional", "A -> B -> C"] {
        is_measured(table(&document, title), &[]);
    }
}

#[test]
fn scst_srpt_2010_over_its_own_transport() {
    let document = reproduce_over("scst-srpt-2010", "srp", &["--provider", "iwarp"]);
    is_carried_by(&document, "srp/iwarp");
    document.tables.iter().for_each(|table| is_measured(table, &[]));
}

#[test]
fn lines_of_their_own_carry_srp_as_well() {
    let document = reproduce_over("sn5420-2002", "srp", &["--provider", "iwarp"]);
    is_carried_by(&document, "srp/iwarp");
    is_measured(table(&document, "Read performance"), &["Linux/with iSCSI", "Remote Linux/with iSCSI"]);
}

#[test]
fn first_signal_ends_the_run_and_keeps_results() {
    let folder = Folder::new("signal");
    let child = folder.start(&["stgt-iser-null-2008", "--against", "none"]);
    std::thread::sleep(Duration::from_secs(3));
    kill_process(Pid::from_child(&child), Signal::INT).expect("the program runs");
    let output = child.wait_with_output().expect("the program ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("note: ended by the user"), "{said}");
    assert_eq!(folder.rest(), Vec::<PathBuf>::new());
    let document = folder.document();
    assert!(!document.runs.is_empty() && document.runs[0].outcome.ios() > 0);
}

/// The command lines of processes that contain the path of a folder.
fn running_in(folder: &Path) -> Vec<String> {
    let name = folder.to_str().expect("text");
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let command_lines =
        processes.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    command_lines.filter(|line| line.contains(name)).collect()
}

/// The second signal is a different one: two pending signals of the same kind count as one.
#[test]
fn second_signal_leaves_nothing_of_it_behind() {
    let folder = Folder::new("signals");
    let mut child = folder.start(&["stgt-iser-null-2008", "--against", "none"]);
    let started_at = Instant::now();
    while running_in(&folder.0).is_empty() {
        assert!(started_at.elapsed() < Duration::from_secs(30), "no server runs");
        std::thread::sleep(Duration::from_millis(5));
    }
    for signal in [Signal::INT, Signal::TERM] {
        kill_process(Pid::from_child(&child), signal).expect("the program runs");
    }
    assert_eq!(child.wait().expect("the program ends").code(), Some(143));
    assert_eq!(running_in(&folder.0), Vec::<String>::new());
    assert_eq!(folder.rest(), Vec::<PathBuf>::new());
}

#[test]
fn unwritable_folder_is_reported_before_the_run() {
    let folder = Folder::new("unwritable");
    let output = folder.run(&["open-iscsi-2005", "--out", "/proc/nowhere"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cannot write /proc/nowhere"), "{said}");
    assert!(said.contains("hint: use --out"), "{said}");
}
