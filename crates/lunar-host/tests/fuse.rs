//! Tests of a FUSE mount with the kernel of this machine.
#![forbid(unsafe_code)]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lunar_block::testing::VolatileBackend;
use lunar_block::{Backend, BackendKind, BackendSpec, TryIo};
use lunar_host::fuse::{FuseMount, Options};
use lunar_runtime::Cores;
use rustix::fs::{FallocateFlags, OFlags, fallocate};

const MIB: u64 = 1 << 20;
const NAME: &str = "disk.img";

/// Whether FUSE works here. If not, prints the reason.
fn possible() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0);
    let reason = match fs::metadata("/dev/fuse") {
        Err(e) => format!("/dev/fuse: {e}"),
        Ok(_) if is_root || has("fusermount3") => return true,
        Ok(_) => "fusermount3 (apt-get install fuse3), or root".into(),
    };
    println!("skipped: needs {reason}");
    false
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A new directory, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fuse-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&dir).expect("a new directory");
        Folder(dir)
    }

    fn mount(&self, cores: &Cores, backend: Arc<dyn Backend>) -> FuseMount {
        FuseMount::start(cores, backend, &self.0, NAME, &Options::default()).expect("the backend is mounted")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Not recursive: a failed test may have left a mount in it.
        let _ = fs::remove_dir(&self.0);
    }
}

fn cores() -> Cores {
    Cores::start(&[0]).expect("an event loop")
}

fn memory(size: u64) -> Arc<dyn Backend> {
    lunar_block::open(&BackendSpec::sized(BackendKind::Memory, size)).expect("memory")
}

/// Returns bytes that differ between neighbouring sectors.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 512 * 7 + n) as u8).collect()
}

fn writable(mount: &FuseMount) -> File {
    OpenOptions::new().read(true).write(true).open(mount.path()).expect("the file opens")
}

fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the list of mounts");
    mounts.lines().any(|line| line.split(' ').nth(1) == dir.to_str())
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().expect("the command runs");
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{program} {arguments:?}\n{}", String::from_utf8_lossy(&said));
}

#[test]
fn written_bytes_reach_the_backend_and_read_back() {
    if !possible() {
        return;
    }
    let (cores, folder, backend) = (cores(), Folder::new(), memory(64 * MIB));
    let mount = folder.mount(&cores, backend.clone());
    let found = fs::metadata(mount.path()).expect("the file has metadata");
    assert_eq!((found.len(), found.mode()), (64 * MIB, 0o100_600));
    let names: Vec<_> = fs::read_dir(&folder.0)
        .expect("the directory is readable")
        .map(|entry| entry.expect("a directory entry").file_name())
        .collect();
    assert_eq!(names, [NAME]);
    let (file, data) = (writable(&mount), pattern(5 * MIB as usize + 700));
    file.write_all_at(&data, 3 * MIB + 100).expect("the write succeeds");
    drop(file);
    let mut back = vec![0; data.len()];
    writable(&mount).read_exact_at(&mut back, 3 * MIB + 100).expect("the read succeeds");
    assert!(back == data, "the read returned other data");
    let mut below = vec![0; data.len()];
    assert!(matches!(backend.try_read(3 * MIB + 100, &mut below), TryIo::Done(Ok(()))));
    assert!(below == data, "the backend has other data");
    mount.stop().expect("the mount stops");
    assert!(!is_mounted(&folder.0));
}

#[test]
fn direct_transfers_pass_the_page_cache_by() {
    if !possible() {
        return;
    }
    let (cores, folder, scratch) = (cores(), Folder::new(), Folder::new());
    let below = scratch.0.join("below.img");
    let spec = BackendSpec {
        create: true,
        size: Some(32 * MIB),
        kind: BackendKind::File,
        direct: true,
        ..BackendSpec::path(&below)
    };
    let mount = folder.mount(&cores, lunar_block::open(&spec).expect("the file is created"));
    let direct = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(mount.path());
    let file = file.expect("the file opens with O_DIRECT");
    let mut data = lunar_runtime::Buf::copy_of(&pattern(4 * MIB as usize));
    file.write_all_at(&data, MIB).expect("the write succeeds");
    let changed = OpenOptions::new().write(true).open(&below).expect("the backing file opens");
    changed.write_all_at(&[0xee; 4096], 2 * MIB).expect("the backing file is writable");
    data[MIB as usize..][..4096].fill(0xee);
    let mut back = lunar_runtime::Buf::zeroed(data.len());
    file.read_exact_at(&mut back, MIB).expect("the read succeeds");
    assert!(back[..] == data[..], "the read returned other data");
    drop(file);
    mount.stop().expect("the mount stops");
    assert!(
        fs::read(&below).expect("the backing file is readable")[MIB as usize..5 * MIB as usize] == data[..]
    );
    fs::remove_file(below).expect("the backing file is removed");
}

#[test]
fn fsync_and_o_dsync_reach_stable_storage() {
    if !possible() {
        return;
    }
    let (cores, folder, lossy) = (cores(), Folder::new(), Arc::new(VolatileBackend::new(memory(MIB))));
    let mount = folder.mount(&cores, lossy.clone());
    let file = writable(&mount);
    let dsync = OpenOptions::new().write(true).custom_flags(OFlags::DSYNC.bits() as i32).open(mount.path());
    let dsync = dsync.expect("the file opens with O_DSYNC");
    file.write_all_at(&[1; 4096], 0).expect("the write succeeds");
    file.sync_all().expect("fsync succeeds");
    dsync.write_all_at(&[2; 4096], 4096).expect("the write succeeds");
    file.write_all_at(&[3; 4096], 8192).expect("the write succeeds");
    let (done, end) = flume::bounded(1);
    cores.run_on(0, move || {
        compio::runtime::spawn(async move { done.send(lossy.lose(None).await) }).detach();
    });
    end.recv().expect("a result").expect("unstable data is discarded");
    // Reopening the file drops its cached pages, which still have the lost data.
    let mut back = [9; 12288];
    writable(&mount).read_exact_at(&mut back, 0).expect("the read succeeds");
    assert_eq!([back[0], back[4096], back[8192]], [1, 2, 0]);
    drop((file, dsync));
    mount.stop().expect("the mount stops");
}

#[test]
fn size_is_the_mediums() {
    if !possible() {
        return;
    }
    let (cores, folder, scratch) = (cores(), Folder::new(), Folder::new());
    let below = scratch.0.join("below.img");
    let spec = BackendSpec {
        create: true,
        size: Some(8 * MIB),
        kind: BackendKind::File,
        ..BackendSpec::path(&below)
    };
    let mount = folder.mount(&cores, lunar_block::open(&spec).expect("the file is created"));
    let file = writable(&mount);
    for size in [0, 4 * MIB, 16 * MIB] {
        let refused = file.set_len(size).expect_err("set_len changed the size");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{size}");
    }
    file.set_len(8 * MIB).expect("set_len with the same size succeeds");
    assert_eq!(
        file.write_at(&[1], 8 * MIB).expect_err("a write past the end succeeded").kind(),
        io::ErrorKind::StorageFull
    );
    assert_eq!(file.read_at(&mut [0; 10], 8 * MIB).expect("a read at the end returns 0"), 0);
    let stat = rustix::fs::statfs(mount.path()).expect("statfs succeeds");
    assert_eq!((stat.f_blocks, stat.f_bsize, stat.f_bfree), (2048, 4096, 0));
    let larger = OpenOptions::new().write(true).open(&below).and_then(|below| below.set_len(24 * MIB));
    larger.expect("the backing file grows");
    let end = Instant::now() + Duration::from_secs(20);
    while file.metadata().expect("the file has metadata").len() != 24 * MIB {
        assert!(Instant::now() < end, "the file keeps its old size");
        std::thread::sleep(Duration::from_millis(50));
    }
    file.write_all_at(&[7; 512], 20 * MIB).expect("the new part is writable");
    drop(file);
    mount.stop().expect("the mount stops");
    fs::remove_file(below).expect("the backing file is removed");
}

#[test]
fn there_is_one_file_and_no_other() {
    if !possible() {
        return;
    }
    let (cores, folder) = (cores(), Folder::new());
    let mount = folder.mount(&cores, memory(MIB));
    for name in ["other", "disk.im", "disk.img2"] {
        let other = folder.0.join(name);
        assert_eq!(fs::metadata(&other).expect_err("another file exists").kind(), io::ErrorKind::NotFound);
        assert_eq!(
            File::create(&other).expect_err("another file was created").kind(),
            io::ErrorKind::PermissionDenied
        );
    }
    assert_eq!(
        fs::remove_file(mount.path()).expect_err("the file was removed").kind(),
        io::ErrorKind::PermissionDenied
    );
    mount.stop().expect("the mount stops");
}

#[test]
fn hole_gives_space_back_and_a_zeroed_range_reads_as_zeros() {
    if !possible() {
        return;
    }
    let (cores, folder, backend) = (cores(), Folder::new(), memory(16 * MIB));
    let mount = folder.mount(&cores, backend.clone());
    let allocated = || -> u64 { backend.describe()[2].1.parse().expect("a number") };
    let file = writable(&mount);
    file.write_all_at(&vec![5; 16 * MIB as usize], 0).expect("the write succeeds");
    assert_eq!(allocated(), 16 * MIB);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 8 * MIB, 64 * MIB).expect("PUNCH_HOLE succeeds");
    assert_eq!(allocated(), 8 * MIB);
    fallocate(&file, FallocateFlags::ZERO_RANGE, 1000, 3000).expect("ZERO_RANGE succeeds");
    let mut back = vec![9; 16 * MIB as usize];
    file.read_exact_at(&mut back, 0).expect("the read succeeds");
    let expected = |n: usize| if (1000..4000).contains(&n) || n >= 8 * MIB as usize { 0 } else { 5 };
    assert!(back.iter().enumerate().all(|(n, byte)| *byte == expected(n)));
    let beyond = fallocate(&file, FallocateFlags::ZERO_RANGE, 15 * MIB, 2 * MIB);
    assert_eq!(beyond, Err(rustix::io::Errno::NOSPC));
    let reserve = fallocate(&file, FallocateFlags::empty(), 0, 4096);
    assert_eq!(reserve, Err(rustix::io::Errno::OPNOTSUPP));
    drop(file);
    mount.stop().expect("the mount stops");
}

#[test]
fn read_only_is_read_only() {
    if !possible() {
        return;
    }
    let (cores, folder) = (cores(), Folder::new());
    let options = Options { read_only: true };
    let mount =
        FuseMount::start(&cores, memory(MIB), &folder.0, NAME, &options).expect("the backend is mounted");
    assert_eq!(fs::metadata(mount.path()).expect("the file has metadata").mode(), 0o100_400);
    let refused = OpenOptions::new()
        .write(true)
        .open(mount.path())
        .expect_err("a read-only file was opened for writing");
    assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(mount.path()).expect("the file is readable").len(), MIB as usize);
    mount.stop().expect("the mount stops");
}

#[test]
fn file_system_is_whole_in_it() {
    if !possible() {
        return;
    }
    if !has("mkfs.ext4") || !has("e2fsck") {
        println!("skipped: needs mkfs.ext4 (apt-get install e2fsprogs)");
        return;
    }
    let (cores, folder) = (cores(), Folder::new());
    let mount = folder.mount(&cores, memory(64 * MIB));
    let path = mount.path().to_str().expect("a UTF-8 path").to_owned();
    run("mkfs.ext4", &["-q", "-F", "-E", "discard", "-d", env!("CARGO_MANIFEST_DIR"), &path]);
    run("e2fsck", &["-f", "-n", &path]);
    mount.stop().expect("the mount stops");
}

#[test]
fn invalid_mount_point_or_name_is_refused_with_a_hint() {
    let cores = cores();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let long = "x".repeat(256);
    let cases = [
        (Path::new("/no/such/folder"), NAME, "create an empty folder"),
        (&file, NAME, "is not a directory"),
        (Path::new("/"), "a/b", "is not a file name"),
        (Path::new("/"), "..", "is not a file name"),
        (Path::new("/"), &long, "is not a file name"),
    ];
    for (dir, name, says) in cases {
        let started = FuseMount::start(&cores, memory(MIB), dir, name, &Options::default());
        let Err(e) = started else { panic!("{name} is mounted on {}", dir.display()) };
        assert!(e.to_string().contains("hint: ") && e.to_string().contains(says), "{e}");
    }
}

#[test]
fn open_file_does_not_block_the_unmount() {
    if !possible() {
        return;
    }
    let (cores, folder) = (cores(), Folder::new());
    let mount = folder.mount(&cores, memory(MIB));
    let file = writable(&mount);
    assert!(mount.is_mounted());
    mount.stop().expect("the mount stops");
    assert!(!is_mounted(&folder.0));
    assert!(file.write_at(&[1], 0).is_err(), "a write after the unmount succeeded");
}

#[test]
fn unmount_by_others_is_noticed() {
    if !possible() {
        return;
    }
    let (cores, folder) = (cores(), Folder::new());
    let mount = folder.mount(&cores, memory(MIB));
    run("umount", &[folder.0.to_str().expect("a UTF-8 path")]);
    let end = Instant::now() + Duration::from_secs(20);
    while mount.is_mounted() {
        assert!(Instant::now() < end, "the unmount is not noticed");
        std::thread::sleep(Duration::from_millis(5));
    }
    mount.stop().expect("the mount stops");
}

/// This test starts its own executable as a server process, and kills it.
#[test]
fn killed_process_leaves_no_mount() {
    const VARIABLE: &str = "FUSE_TEST_SERVES";
    if let Some(dir) = std::env::var_os(VARIABLE) {
        let cores = cores();
        let mount = FuseMount::start(&cores, memory(MIB), Path::new(&dir), NAME, &Options::default());
        println!("serves {}", mount.as_ref().expect("the backend is mounted").path().display());
        // Serves until it is killed, or the parent has died and closed its input.
        let _ = io::stdin().read(&mut [0]);
        return;
    }
    if !possible() {
        return;
    }
    let folder = Folder::new();
    let mut command = Command::new(std::env::current_exe().expect("the path of this executable"));
    command.args(["--exact", "killed_process_leaves_no_mount", "--nocapture"]);
    command.env(VARIABLE, &folder.0).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the server process starts");
    let stdout = BufReader::new(child.stdout.take().expect("a piped standard output"));
    assert!(
        stdout.lines().map_while(Result::ok).any(|line| line.contains("serves")),
        "the server process did not start to serve"
    );
    assert!(is_mounted(&folder.0));
    child.kill().expect("the server process is killed");
    child.wait().expect("the server process has ended");
    let end = Instant::now() + Duration::from_secs(20);
    while is_mounted(&folder.0) {
        assert!(Instant::now() < end, "the mount of a killed process stays");
        std::thread::sleep(Duration::from_millis(20));
    }
}
