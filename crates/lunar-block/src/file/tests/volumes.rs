//! File systems of their own: shared blocks, and no space.

use super::*;
use rustix::fs::FallocateFlags;
use std::path::PathBuf;

/// The medium is a reflink copy of an image, on a file system with free space for half of it.
fn fails_whole(folder: &Volume) {
    let records = folder.0.with_extension("records");
    std::fs::create_dir_all(&records).expect("a folder");
    let spec = BackendSpec { journal: Some(records.clone()), ..BackendSpec::path(folder.0.join("copy")) };
    std::fs::write(folder.0.join("first"), vec![1; 1 << 20]).expect("an image");
    let copy = std::fs::File::create(&spec.path).expect("a copy");
    let first = std::fs::File::open(folder.0.join("first")).expect("an image");
    rustix::fs::ioctl_ficlone(&copy, &first).expect("shared");
    copy.sync_all().expect("stable");
    let other = std::fs::File::create(folder.0.join("other")).expect("a file");
    let (mut at, mut step) = (0, 1 << 28);
    while step >= 4096 {
        match rustix::fs::fallocate(&other, FallocateFlags::empty(), at, step) {
            Ok(()) => at += step,
            Err(_) => step /= 2,
        }
    }
    other.set_len(at - (1 << 19)).and_then(|()| other.sync_all()).expect("free space for half of the image");
    drop((copy, first));
    let file = FileBackend::open(&spec).expect("a file");
    compio::runtime::Runtime::new().expect("a runtime").block_on(async {
        file.write_atomic(0, of(2, 1 << 20)).await.0.expect_err("no space");
        assert_eq!(file.read(0, Buf::zeroed(1 << 20)).await.1[..], [1; 1 << 20]);
        assert!(!file.open.is_open(), "other writes are not blocked");
    });
    std::fs::remove_dir_all(records).expect("a folder");
}

#[test]
fn atomic_write_to_shared_blocks_is_whole_or_not_there() {
    for (program, package, options) in
        [("mkfs.xfs", "xfsprogs", &["-q", "-m", "reflink=1"][..]), ("mkfs.btrfs", "btrfs-progs", &["-q"])]
    {
        match Volume::mount(program, options) {
            Some(folder) => fails_whole(&folder),
            None => {
                println!("skipped: needs root, loop devices and {program} (apt-get install {package})");
            }
        }
    }
}

/// A mounted file system with shared blocks (reflink); None if it cannot be created.
struct Volume(PathBuf);

impl Volume {
    fn mount(program: &str, options: &[&str]) -> Option<Volume> {
        let path = std::env::temp_dir().join(format!("lunar-{program}-{}.mount", std::process::id()));
        let image = path.with_extension("img");
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::File::create(&image).and_then(|file| file.set_len(320 << 20)).expect("an image");
        let folder = Volume(path);
        let run = |program, options: &[&str], paths: &[&Path]| {
            let _turn = crate::fork_lock::lock();
            let ran = std::process::Command::new(program).args(options).args(paths).output();
            ran.is_ok_and(|ran| ran.status.success())
        };
        let is_mounted =
            run(program, options, &[&image]) && run("mount", &["-o", "loop"], &[&image, &folder.0]);
        is_mounted.then_some(folder)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _turn = crate::fork_lock::lock();
        _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
        _ = std::fs::remove_file(self.0.with_extension("img"));
        _ = std::fs::remove_dir(&self.0);
    }
}

/// A small tmpfs of its own. Without root, None, and the test is reported as skipped.
pub(super) struct Tmpfs(pub(super) PathBuf);

impl Tmpfs {
    pub(super) fn mount(name: &str, size: &str) -> Option<Tmpfs> {
        let path = std::env::temp_dir().join(format!("lunar-{name}-{}.mount", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        let folder = Tmpfs(path);
        let mut mount = std::process::Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&folder.0);
        let _turn = crate::fork_lock::lock();
        if mount.output().is_ok_and(|ran| ran.status.success()) {
            return Some(folder);
        }
        println!("skipped: needs root and mount, for a small file system");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _turn = crate::fork_lock::lock();
        _ = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
        _ = std::fs::remove_dir(&self.0);
    }
}
