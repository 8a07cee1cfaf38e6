use super::*;
use nix::fcntl::{FcntlArg, fcntl};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::MutexGuard;

/// A file of one page, removed on drop. Until then, no other test starts a program.
struct Scratch(PathBuf, #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = std::env::temp_dir().join(format!("lunar-lock-{name}-{}", std::process::id()));
        std::fs::write(&path, [0; 4096]).expect("a file");
        Scratch(path, crate::fork_lock::lock())
    }

    /// Opens a separate file description.
    fn open(&self) -> File {
        File::options().read(true).write(true).open(&self.0).expect("open")
    }

    /// Opens a separate, read-only file description.
    fn open_to_read(&self) -> File {
        File::open(&self.0).expect("open")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        _ = std::fs::remove_file(&self.0);
    }
}

/// Locks as another program would, outside the lock table of this process.
fn stranger(file: &File, purpose: FileAccess) -> Result<LockEntry, LockError> {
    LockEntry::begin(LockHolder { id: 0, file: file.try_clone()?, purpose, offered: false }, false)
}

fn try_it(file: &File, purpose: FileAccess) -> Result<MediumLock, LockError> {
    try_claim(file, FileId::of(&file.metadata()?), purpose)
}

fn is_in_use<T>(result: Result<T, LockError>) -> bool {
    match result {
        Ok(_) => false,
        Err(LockError::InUse(_)) => true,
        Err(LockError::Failed(e)) => panic!("{e}"),
    }
}

#[test]
fn locks_follow_the_file_system() {
    let (both, bytes) = (LockKinds { flock: true, bytes: true }, LockKinds { flock: false, bytes: true });
    let ext4 = 0xef53;
    let cases = [
        (ext4, false, both),
        (0x6969, false, bytes),
        (0xff53_4d42, false, LockKinds { flock: true, bytes: false }),
        // The magic of SMB, sign-extended from 32 bits.
        (0xffff_ffff_ff53_4d42, false, LockKinds { flock: true, bytes: false }),
        (ext4, true, bytes),
    ];
    for (fs_type, device, expected) in cases {
        assert_eq!(kinds(fs_type, device), expected, "{fs_type:x} {device}");
    }
}

#[test]
fn writer_excludes_all_and_reader_excludes_writers() {
    let scratch = Scratch::new("two");
    let files = [0; 4].map(|_| scratch.open());
    let writer = try_it(&files[0], FileAccess::Write).expect("free");
    assert!(
        is_in_use(try_it(&files[1], FileAccess::Write)) && is_in_use(try_it(&files[1], FileAccess::Read))
    );
    assert!(
        is_in_use(stranger(&files[1], FileAccess::Write)) && is_in_use(stranger(&files[1], FileAccess::Read))
    );
    drop((writer, files));
    let files = [0; 4].map(|_| scratch.open_to_read());
    let _readers = [0, 1].map(|n| try_it(&files[n], FileAccess::Read).expect("shared"));
    let _stranger = stranger(&files[2], FileAccess::Read).expect("shared");
    assert!(
        is_in_use(try_it(&files[3], FileAccess::Write)) && is_in_use(stranger(&files[3], FileAccess::Write))
    );
}

/// QEMU tests the byte of each permission that it uses or does not share.
#[test]
fn bytes_say_to_qemu_what_is_done() {
    let scratch = Scratch::new("bytes");
    let (own, other) = (scratch.open(), scratch.open());
    let seen = || -> Vec<i64> {
        let all = (USED..USED + 8).chain(UNSHARED..UNSHARED + 8);
        all.filter(|byte| conflict(&other, libc::F_WRLCK, *byte, 1).expect("a look").is_some()).collect()
    };
    let writer = try_it(&own, FileAccess::Write).expect("free");
    assert_eq!(seen(), [100, 101, 103, 201, 203]);
    drop((writer, own));
    let own = scratch.open_to_read();
    let _reader = try_it(&own, FileAccess::Read).expect("free");
    assert_eq!(seen(), [100, 201, 203]);
}

/// Type, first byte, and length of a lock; length 0 reaches to the end of the file.
type Foreign = (i32, i64, i64);

const READ_LOCK: i32 = libc::F_RDLCK;
const WRITE_LOCK: i32 = libc::F_WRLCK;

/// A foreign lock, whether it excludes a reader, and whether it excludes a writer.
const FOREIGN: [(Foreign, bool, bool); 25] = [
    // By the protocol of QEMU.
    ((READ_LOCK, USED + READ, 1), false, false),
    ((READ_LOCK, USED + WRITE, 1), true, true),
    ((READ_LOCK, USED + READ, 2), true, true),
    ((READ_LOCK, USED + RESIZE, 1), true, true),
    ((READ_LOCK, UNSHARED + READ, 1), true, true),
    ((READ_LOCK, UNSHARED + WRITE, 1), false, true),
    ((READ_LOCK, UNSHARED + RESIZE, 1), false, true),
    ((READ_LOCK, USED, UNSHARED + RESIZE - USED + 1), true, true),
    ((WRITE_LOCK, USED + READ, 1), true, true),
    // By type: a reader.
    ((READ_LOCK, 0, 0), false, true),
    ((READ_LOCK, 0, 1), false, true),
    ((READ_LOCK, 0, USED), false, true),
    ((READ_LOCK, 0, UNSHARED), false, true),
    ((READ_LOCK, 0, 1 << 20), false, true),
    ((READ_LOCK, USED + WRITE, 0), false, true),
    ((READ_LOCK, USED - 1, 3), false, true),
    ((READ_LOCK, UNSHARED + READ, 4096), false, true),
    ((READ_LOCK, 512, 512), false, true),
    ((READ_LOCK, 1 << 40, 1), false, true),
    // By type: a writer.
    ((WRITE_LOCK, 0, 0), true, true),
    ((WRITE_LOCK, 0, 1), true, true),
    ((WRITE_LOCK, USED + 40, 1), true, true),
    ((WRITE_LOCK, USED - 1, 3), true, true),
    ((WRITE_LOCK, 4096, 4096), true, true),
    ((WRITE_LOCK, 1 << 40, 1), true, true),
];

/// Takes a lock, of the file description or of the process.
fn take(file: &File, is_ofd: bool, (kind, start, len): Foreign) {
    let lock = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    };
    let how = if is_ofd { FcntlArg::F_OFD_SETLK(&lock) } else { FcntlArg::F_SETLK(&lock) };
    fcntl(file, how).expect("locked");
}

/// Whether opening as a reader is refused, and whether as a writer.
fn refused(scratch: &Scratch) -> (bool, bool) {
    let refused = |purpose| is_in_use(try_it(&scratch.open(), purpose));
    (refused(FileAccess::Read), refused(FileAccess::Write))
}

#[test]
fn ofd_locks_of_others_count_by_their_range_and_type() {
    let scratch = Scratch::new("others");
    for (lock, reader, writer) in FOREIGN {
        // A description keeps its byte locks until it is closed.
        let other = scratch.open();
        take(&other, true, lock);
        assert_eq!(refused(&scratch), (reader, writer), "{lock:?}");
    }
}

#[test]
fn fcntl_locks_of_others_count_by_their_range_and_type() {
    let scratch = Scratch::new("fcntl");
    for (n, (lock, reader, writer)) in FOREIGN.into_iter().enumerate() {
        let holder = Process::with(&scratch.0, n);
        assert_eq!(refused(&scratch), (reader, writer), "{lock:?}");
        drop(holder);
    }
}

#[test]
fn wide_read_lock_hides_no_lock_of_qemu() {
    let scratch = Scratch::new("hidden");
    let (wide, qemu) = (scratch.open(), scratch.open());
    take(&wide, true, (READ_LOCK, 0, 0));
    take(&qemu, true, (READ_LOCK, USED + READ, 1));
    assert_eq!(refused(&scratch), (false, true), "both read");
    take(&qemu, true, (READ_LOCK, USED + WRITE, 1));
    assert_eq!(refused(&scratch), (true, true), "one writes");
}

/// Another process that holds a lock. The kernel drops locks of a process when it closes any descriptor of the file.
struct Process(std::process::Child);

const PATH: &str = "LUNAR_TEST_LOCKED";
const LOCK: &str = "LUNAR_TEST_LOCK";

impl Process {
    fn with(path: &std::path::Path, lock: usize) -> Process {
        let mut command = std::process::Command::new(std::env::current_exe().expect("this test"));
        let command = command.args(["--exact", "file::lock::tests::process_holds_a_lock"]);
        let command = command.env(PATH, path).env(LOCK, lock.to_string());
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a process");
        let info = format!("/proc/{}/fdinfo", child.id());
        let is_locked = || {
            let files = std::fs::read_dir(&info).into_iter().flatten().flatten();
            files
                .filter_map(|file| std::fs::read_to_string(file.path()).ok())
                .any(|info| info.contains("POSIX"))
        };
        let end = Instant::now() + Duration::from_secs(30);
        while !is_locked() {
            assert!(Instant::now() < end, "the process takes no lock");
            sleep(PAUSE);
        }
        Process(child)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        _ = self.0.wait();
    }
}

/// The body of the other process. Without the environment variables, this test passes at once.
#[test]
fn process_holds_a_lock() {
    let (Ok(path), Ok(lock)) = (std::env::var(PATH), std::env::var(LOCK)) else { return };
    let file = File::options().read(true).write(true).open(path).expect("open");
    take(&file, false, FOREIGN[lock.parse::<usize>().expect("a number")].0);
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("the end");
}

#[test]
fn offered_medium_reopens_without_losing_its_lock() {
    let scratch = Scratch::new("offered");
    let (first, second, other) = (scratch.open(), scratch.open(), scratch.open());
    let old = try_it(&first, FileAccess::Write).expect("free");
    old.offer(true);
    let new = try_it(&second, FileAccess::Write).expect("offered");
    assert!(is_in_use(stranger(&other, FileAccess::Write)) && is_in_use(stranger(&other, FileAccess::Read)));
    drop((old, first));
    assert!(is_in_use(stranger(&other, FileAccess::Write)) && is_in_use(stranger(&other, FileAccess::Read)));
    drop((new, second));
    stranger(&other, FileAccess::Write).expect("no process holds a lock");
}

#[test]
fn upgrade_that_fails_leaves_the_reader_locked() {
    let scratch = Scratch::new("upgrade");
    let (own, again, other) = (scratch.open_to_read(), scratch.open(), scratch.open());
    let reader = try_it(&own, FileAccess::Read).expect("free");
    let foreign = stranger(&other, FileAccess::Read).expect("shared");
    reader.offer(true);
    assert!(is_in_use(try_it(&again, FileAccess::Write)), "another program reads the file");
    reader.offer(false);
    drop((foreign, other));
    let other = scratch.open();
    assert!(is_in_use(stranger(&other, FileAccess::Write)), "the reader still holds its lock");
    drop(stranger(&other, FileAccess::Read).expect("readers share"));
    drop(other);
    reader.offer(true);
    let _writer = try_it(&again, FileAccess::Write).expect("no other reader");
    assert!(is_in_use(stranger(&scratch.open(), FileAccess::Read)));
}

#[test]
fn after_a_downgrade_readers_are_let_in_and_writers_are_not() {
    let scratch = Scratch::new("downgrade");
    let (first, second) = (scratch.open(), scratch.open_to_read());
    let old = try_it(&first, FileAccess::Write).expect("free");
    old.offer(true);
    let _new = try_it(&second, FileAccess::Read).expect("offered");
    assert!(is_in_use(stranger(&scratch.open(), FileAccess::Read)), "the writer still holds its lock");
    drop((old, first));
    let other = scratch.open();
    drop(stranger(&other, FileAccess::Read).expect("only a reader holds a lock"));
    assert!(is_in_use(stranger(&scratch.open(), FileAccess::Write)));
}

#[test]
fn write_still_in_the_kernel_keeps_its_bytes_locked() {
    let scratch = Scratch::new("kept");
    let own = scratch.open();
    let claim = try_it(&own, FileAccess::Write).expect("free");
    let kept = own.try_clone().expect("a reference as the kernel holds it");
    drop((claim, own));
    assert!(is_in_use(try_it(&scratch.open(), FileAccess::Write)));
    drop(kept);
    try_it(&scratch.open(), FileAccess::Write).expect("free");
}

#[test]
fn holder_is_named() {
    let scratch = Scratch::new("named");
    let (other, own) = (scratch.open(), scratch.open());
    set(&other, libc::F_RDLCK, USED + WRITE).expect("locked");
    let Err(LockError::InUse(LockOwner::Known(user))) = probe(&own, FileAccess::Write) else {
        panic!("the file is in use")
    };
    let process = format!("(process {})", std::process::id());
    assert!(user.who.starts_with("another program: ") && user.who.ends_with(&process), "{}", user.who);
}
