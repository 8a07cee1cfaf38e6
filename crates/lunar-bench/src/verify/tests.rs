use super::*;
use crate::{TargetOptions, TargetSpec};
use lunar_block::{Backend, BackendInfo, BufResult, LocalBoxFuture};
use lunar_runtime::Buf;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering};

/// The fault of a disk at an offset.
type FaultOfUnit = fn(u64) -> Wrong;

#[derive(Clone, Copy)]
enum Wrong {
    Nothing,
    /// Acknowledges the write and drops it.
    Forgotten,
    /// Writes to another offset.
    At(u64),
    /// Fails.
    Fails,
}

/// A disk with a fault, after a number of correct writes to each offset.
struct Faulty {
    disk: Arc<dyn Backend>,
    fault: FaultOfUnit,
    good: u32,
    writes: AtomicU32,
}

impl Backend for Faulty {
    fn info(&self) -> BackendInfo {
        self.disk.info()
    }
    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        self.disk.read(offset, buf)
    }
    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        let is_good = self.writes.fetch_add(1, Ordering::Relaxed) < self.good;
        match if is_good { Wrong::Nothing } else { (self.fault)(offset) } {
            Wrong::Nothing => self.disk.write(offset, buf, fua),
            Wrong::At(other) => self.disk.write(other, buf, fua),
            Wrong::Forgotten => Box::pin(async move { (Ok(()), buf) }),
            Wrong::Fails => Box::pin(async move { (Err(io::Error::other("a scratch")), buf) }),
        }
    }
    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.flush()
    }
    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.unmap(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        self.disk.write_zeroes(offset, len, unmap)
    }
    fn describe(&self) -> Vec<(String, String)> {
        self.disk.describe()
    }
}

fn opened(target: &str, sessions: usize) -> OpenTargets {
    let opening = TargetOptions { sessions, write: true, destroy: true, ..TargetOptions::default() };
    OpenTargets::open(&[TargetSpec::parse(target).expect("a target")], &opening).expect("a rig")
}

fn checks() -> VerifyOptions {
    VerifyOptions { is_on: true, ..VerifyOptions::default() }
}

/// Runs a job as the command does.
fn run(mut opened: OpenTargets, checks: &VerifyOptions, job: Job) -> Result<Document, Error> {
    let (job, handle) = (checks.limit(job), RunHandle::default());
    let verification = checks.prepare(&mut opened, &job)?.expect("verification is on");
    let mut document = Document::new("a test");
    if !checks.is_only {
        document.runs.push(plain::one(&opened, &job, &handle)?);
    }
    verification.finish(&opened, &job, &mut document, &handle)?;
    opened.close();
    Ok(document)
}

fn good(document: &Document) -> &str {
    assert_eq!(document.ended_early(), None);
    let last = document.runs.last().expect("a run");
    assert_eq!(last.label, "verify");
    document.notes.last().expect("a note")
}

/// Writes the first 64 KiB twice, on a disk that fails after `good` writes.
fn on_faulty(good: u32, fault: FaultOfUnit, more: Job) -> Document {
    let mut opened = opened("memory:1M", 1);
    opened.wrap(|_, disk| Arc::new(Faulty { disk, fault, good, writes: AtomicU32::new(0) }));
    let job = Job {
        direction: IoDirection::Write,
        time: None,
        amount: Some(128 << 10),
        span: Some(64 << 10),
        ..more
    };
    run(opened, &checks(), job).expect("a document")
}

fn said(document: &Document) -> &str {
    document.ended_early().expect("the fault is detected")
}

#[test]
fn competing_commands_leave_consistent_units() {
    for direction in [IoDirection::Write, IoDirection::Mix(50), IoDirection::Both] {
        let job = Job {
            order: AccessPattern::Random,
            direction,
            sizes: vec![(512, 1), (4096, 2), (16384, 1)],
            depth: 32,
            span: Some(64 << 10),
            time: Some(Duration::from_millis(300)),
            ..Job::default()
        };
        let document = run(opened("memory:1M", 2), &checks(), job).expect("a document");
        assert_eq!(good(&document), "verified: 128 blocks hold acknowledged data");
        assert!(document.runs[0].outcome.write.ios > 1000, "{:?}", document.runs[0].outcome.write.ios);
        assert_eq!(document.runs[1].outcome.read.bytes, 64 << 10);
        let has = |name: &str| document.runs[1].job.iter().any(|(n, _)| n == name);
        assert!(has("verify") && !has("fill"));
    }
}

#[test]
fn read_back_runs_without_think_time() {
    let job = Job { think: Duration::from_millis(20), ..sixteen() };
    let document = run(opened("memory:1M", 1), &checks(), job).expect("a document");
    good(&document);
    let [written, read] = [&document.runs[0], &document.runs[1]].map(|run| run.outcome.elapsed_s);
    assert!(written > 0.3 && read < 0.2, "written in {written} s, read back in {read} s");
    assert!(document.runs[1].job.iter().all(|word| word.0 != "think"));
}

#[test]
fn read_without_data_after_same_write_is_a_mismatch() {
    let mut opened = opened("memory:1M", 1);
    crate::run::tests::mute(&mut opened);
    let job = Job {
        direction: IoDirection::Mix(50),
        time: None,
        amount: Some(4096 * 100),
        span: Some(4096),
        ..Job::default()
    };
    let document = run(opened, &checks(), job).expect("a document");
    assert_eq!(said(&document), "block 0 (byte 0): the data was not written by this run");
    assert!(document.runs[0].outcome.read.ios < 40, "the fault was detected only in the read-back");
}

#[test]
fn each_target_has_its_own_ledger() {
    let targets = ["memory:1M", "memory:2M"].map(|t| TargetSpec::parse(t).expect("a target"));
    let opening = TargetOptions { sessions: 2, write: true, ..TargetOptions::default() };
    let job = Job { direction: IoDirection::Write, time: None, amount: Some(4 << 20), ..Job::default() };
    let document = run(OpenTargets::open(&targets, &opening).expect("open targets"), &checks(), job)
        .expect("a document");
    assert_eq!(good(&document), "verified: 512 blocks hold acknowledged data");
}

#[test]
fn lost_write_is_found() {
    let forgets: FaultOfUnit = |offset| if offset == 8192 { Wrong::Forgotten } else { Wrong::Nothing };
    let never_there = on_faulty(0, forgets, Job::default());
    assert_eq!(said(&never_there), "block 2 (byte 8192): the data was not written by this run");
    let second = on_faulty(16, forgets, Job::default());
    assert_eq!(
        said(&second),
        "block 2 (byte 8192): stale data of generation 1, although generation 2 was acknowledged"
    );
    assert!(second.notes.last().expect("a note").starts_with("verification failed: block 2"));
}

#[test]
fn misdirected_write_is_found() {
    let astray: FaultOfUnit = |offset| if offset == 12288 { Wrong::At(4096) } else { Wrong::Nothing };
    assert_eq!(
        said(&on_faulty(0, astray, Job::default())),
        "block 1 (byte 4096): misplaced data that was written to block 3"
    );
}

#[test]
fn failed_write_may_be_old_or_new() {
    let fails: FaultOfUnit = |offset| if offset == 8192 { Wrong::Fails } else { Wrong::Nothing };
    let document = on_faulty(16, fails, Job { continue_on_error: true, ..Job::default() });
    assert!(
        good(&document)
            .ends_with("15 blocks hold acknowledged data; 1 have an unacknowledged write, 0 of them torn")
    );
    let ended = on_faulty(16, fails, Job::default());
    assert_eq!(said(&ended), "write of 4096 bytes at offset 8192 failed: a scratch");
    assert_eq!(ended.notes, ["written data was not read back"]);
}

#[test]
fn reads_of_a_mix_are_verified() {
    let forgets: FaultOfUnit = |_| Wrong::Forgotten;
    let mix = Job { order: AccessPattern::Random, direction: IoDirection::Mix(50), ..Job::default() };
    let mut opened = opened("memory:1M", 1);
    opened.wrap(|_, disk| Arc::new(Faulty { disk, fault: forgets, good: 0, writes: AtomicU32::new(0) }));
    let document = run(opened, &checks(), mix).expect("a document");
    assert_eq!(document.runs.len(), 1);
    assert!(said(&document).ends_with("not written by this run"));
}

/// A folder with a disk and a state file, removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> TempDir {
        let path = std::env::temp_dir().join(format!("lunar-verify-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        File::create(path.join("disk")).and_then(|file| file.set_len(1 << 20)).expect("a disk");
        TempDir(path)
    }

    fn opened(&self) -> OpenTargets {
        opened(self.0.join("disk").to_str().expect("text"), 2)
    }

    fn checks(&self) -> VerifyOptions {
        VerifyOptions { state: Some(self.0.join("state")), ..checks() }
    }

    fn only(&self) -> VerifyOptions {
        VerifyOptions { is_only: true, ..self.checks() }
    }

    fn disk(&self) -> File {
        File::options().read(true).write(true).open(self.0.join("disk")).expect("a disk")
    }

    fn block(&self, n: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        self.disk().read_exact_at(&mut bytes, n * 4096).expect("a block");
        bytes
    }

    fn write_to(&self, n: u64, bytes: &[u8]) {
        self.disk().write_all_at(bytes, n * 4096).expect("a block");
    }

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// 16 blocks, each once.
fn sixteen() -> Job {
    Job {
        direction: IoDirection::Write,
        time: None,
        amount: Some(64 << 10),
        span: Some(64 << 10),
        ..Job::default()
    }
}

#[test]
fn run_with_state_continues_the_last_one() {
    let folder = TempDir::new("resume");
    run(folder.opened(), &folder.checks(), sixteen()).expect("a document");
    let first = folder.block(3);
    run(folder.opened(), &folder.checks(), sixteen()).expect("a document");
    let document = run(folder.opened(), &folder.only(), Job::default()).expect("a document");
    assert_eq!(good(&document), "verified: 16 blocks hold acknowledged data");
    assert_eq!(document.runs[0].outcome.write.ios, 0);
    folder.write_to(3, &first);
    let document = run(folder.opened(), &folder.only(), Job::default()).expect("a document");
    assert_eq!(
        said(&document),
        "block 3 (byte 12288): stale data of generation 1, although generation 2 was acknowledged"
    );
}

#[test]
fn altered_disk_is_found_by_verify_only() {
    let folder = TempDir::new("altered");
    run(folder.opened(), &folder.checks(), sixteen()).expect("a document");
    let why = || {
        let document = run(folder.opened(), &folder.only(), Job::default()).expect("a document");
        said(&document).to_owned()
    };
    let (le32, five) = (folder.block(4), folder.block(5));
    let mut flipped = le32.clone();
    flipped[1000] ^= 1;
    folder.write_to(4, &flipped);
    assert_eq!(why(), "block 4 (byte 16384): the data does not match its CRC");
    folder.write_to(4, &five);
    assert_eq!(why(), "block 4 (byte 16384): misplaced data that was written to block 5");
    folder.write_to(4, &[0; 4096]);
    assert_eq!(why(), "block 4 (byte 16384): the data was not written by this run");
    folder.write_to(4, &le32);
    let document = run(folder.opened(), &folder.only(), Job::default()).expect("a document");
    good(&document);
}

#[test]
fn torn_state_is_continued_and_damaged_one_rejected() {
    let folder = TempDir::new("torn");
    run(folder.opened(), &folder.checks(), sixteen()).expect("a document");
    let whole = fs::read(folder.state()).expect("a state");
    // Half of the last acknowledgement is lost.
    fs::write(folder.state(), &whole[..whole.len() - 10]).expect("written");
    let document = run(folder.opened(), &folder.only(), Job::default()).expect("a document");
    assert!(good(&document).contains("15 blocks hold acknowledged data; 1 have"));
    assert_eq!(fs::read(folder.state()).expect("a state").len(), whole.len() - 10, "the file is unchanged");
    run(folder.opened(), &folder.checks(), sixteen()).expect("a document");
    let document = run(folder.opened(), &folder.only(), Job::default()).expect("a document");
    assert_eq!(good(&document), "verified: 16 blocks hold acknowledged data");
    for garbage in [&whole[..20], b"something else, long enough to hold a header, but without a word of ours"]
    {
        fs::write(folder.state(), garbage).expect("written");
        let refused = run(folder.opened(), &folder.checks(), sixteen()).unwrap_err();
        assert!(refused.kind == ErrorKind::Invalid && refused.what.contains("cannot be used"), "{refused}");
        assert_eq!(fs::read(folder.state()).expect("a state"), garbage, "the file is unchanged");
    }
    let mut damaged = whole.clone();
    let at = whole.len() - 100;
    damaged[at] ^= 1;
    fs::write(folder.state(), &damaged).expect("written");
    assert!(run(folder.opened(), &folder.only(), sixteen()).unwrap_err().what.contains("is damaged"));
}

#[test]
fn state_is_exclusive_and_bound_to_its_job() {
    let folder = TempDir::new("fits");
    run(folder.opened(), &folder.checks(), sixteen()).expect("a document");
    let refused = |checks: &VerifyOptions, job: Job| run(folder.opened(), checks, job).unwrap_err().what;
    let other = refused(&folder.checks(), Job { span: Some(32 << 10), ..sixteen() });
    assert!(other.ends_with(
        "the file covers blocks of 4096 bytes in 65536 bytes from offset 0, but the job uses blocks of 4096 bytes in \
         32768 bytes from offset 0"
    ));
    let held = VerifyJournal::open(&folder.state(), false).expect("the state file can be opened");
    assert!(refused(&folder.checks(), sixteen()).ends_with("another process uses the file"));
    drop(held);
    let small = folder.0.join("small");
    File::create(&small).and_then(|file| file.set_len(32 << 10)).expect("a disk");
    let small = || opened(small.to_str().expect("text"), 1);
    assert!(
        run(small(), &folder.only(), sixteen())
            .unwrap_err()
            .what
            .ends_with("the target has only 32768 bytes")
    );
    fs::remove_file(folder.state()).expect("removed");
    assert_eq!(
        run(folder.opened(), &folder.only(), sixteen()).unwrap_err().kind,
        ErrorKind::Medium(lunar_runtime::error::ErrorCode::NotFound)
    );
}

#[test]
fn job_that_cannot_be_verified_is_rejected() {
    let refused = |job: Job| run(opened("memory:1M", 1), &checks(), job).unwrap_err().what;
    assert!(
        refused(Job { sizes: vec![(4096, 1), (768, 1)], ..sixteen() }).contains("at multiples of 256 bytes")
    );
    assert!(refused(Job { direction: IoDirection::Read, ..sixteen() }).contains("writes nothing"));
    assert!(
        refused(Job { offset: 512, ..sixteen() })
            .starts_with("--offset: 512 bytes are not a multiple of the verified block of 4096")
    );
    assert!(refused(Job { amount: Some(5000), ..sixteen() }).starts_with("--amount"));
    assert!(refused(Job { order: AccessPattern::Strided(6144), ..sixteen() }).starts_with("--stride"));
    let huge = run(opened("null:2T", 1), &checks(), Job { span: None, ..sixteen() }).unwrap_err();
    assert!(huge.what.contains("the maximum is 268435456 blocks") && huge.hint.contains("--span"), "{huge}");
}
