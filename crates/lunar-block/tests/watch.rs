//! Files and devices that change under an open backend.

use lunar_block::{Backend, BackendKind, BackendSpec, MissingMedium, open};
use lunar_runtime::Buf;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A directory that is removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("lunar-watch-{name}-{}", std::process::id()));
        _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.0.join(name);
        File::create(&path).and_then(|file| file.set_len(size)).expect("a file");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn disk(path: &Path) -> Arc<dyn Backend> {
    open(&BackendSpec::path(path)).expect("open")
}

fn missing(disk: &Arc<dyn Backend>) -> MissingMedium {
    disk.missing().expect("the medium is missing")
}

#[test]
fn deleted_file_is_missing_and_can_be_saved() {
    let folder = Folder::new("deleted");
    let path = folder.file("a", MIB);
    fs::write(&path, vec![9; MIB as usize]).expect("data");
    let disk = disk(&path);
    assert_eq!(disk.missing(), None);
    fs::remove_file(&path).expect("removed");
    let missing = missing(&disk);
    assert!(missing.is_unlinked && !missing.is_replaced(), "{missing:?}");
    let remedy = missing.remedy();
    let (_, command) = remedy.split_once("ends: ").expect("a command");
    assert!(Command::new("sh").args(["-c", command]).status().expect("a shell").success());
    assert_eq!(fs::read(folder.0.join("a.saved")).expect("saved"), vec![9; MIB as usize]);
}

#[test]
fn replaced_file_is_missing_until_it_is_back() {
    let folder = Folder::new("replaced");
    let [path, other] = ["a", "b"].map(|name| folder.file(name, MIB));
    let disk = disk(&path);
    let kept = folder.0.join("kept");
    fs::rename(&path, &kept).expect("moved");
    let moved = missing(&disk);
    assert!(!moved.is_unlinked && !moved.is_replaced());
    assert_eq!(moved.name_now, Some(kept.canonicalize().expect("there")));
    fs::rename(&other, &path).expect("replaced");
    assert!(missing(&disk).is_replaced());
    fs::rename(&kept, &path).expect("back");
    assert_eq!(disk.missing(), None);
}

#[test]
fn lost_name_of_a_replaced_file_is_not_hinted() {
    let folder = Folder::new("second-name");
    let [path, other] = ["a", "b"].map(|name| folder.file(name, MIB));
    fs::hard_link(&path, folder.0.join("second")).expect("a link");
    let disk = disk(&path);
    fs::rename(&other, &path).expect("replaced");
    let missing = missing(&disk);
    assert!(missing.is_replaced() && !missing.is_unlinked && missing.name_now.is_none(), "{missing:?}");
    assert!(missing.remedy().contains("cp --sparse=always /proc/"), "{}", missing.remedy());
}

#[test]
fn switched_link_is_replaced_and_can_be_pointed_back() {
    let folder = Folder::new("switched");
    let [path, other] = ["a", "b"].map(|name| folder.file(name, MIB));
    let link = folder.0.join("link");
    let point = |to: &Path| {
        _ = fs::remove_file(&link);
        std::os::unix::fs::symlink(to, &link).expect("a link");
    };
    point(&path);
    let disk = disk(&link);
    point(&other);
    let missing = missing(&disk);
    let ids = [missing.served, missing.there].map(|id| id.expect("known").to_string());
    assert!(ids.iter().all(|id| id.starts_with("inode ") && missing.to_string().contains(id)), "{missing}");
    let command = missing.remedy().split_once(": ").expect("a command").1.to_owned();
    assert!(Command::new("sh").args(["-c", &command]).status().expect("a shell").success());
    assert_eq!(disk.missing(), None);
}

#[test]
fn renamed_folder_takes_the_file_with_it() {
    let folder = Folder::new("folder");
    fs::create_dir(folder.0.join("d")).expect("a folder");
    let path = folder.file("d/a", MIB);
    let disk = disk(&path);
    fs::rename(folder.0.join("d"), folder.0.join("e")).expect("renamed");
    let moved = missing(&disk);
    assert!(!moved.is_replaced() && moved.name_now == folder.0.join("e/a").canonicalize().ok(), "{moved:?}");
    fs::create_dir(folder.0.join("d")).expect("another folder");
    folder.file("d/a", MIB);
    assert!(missing(&disk).is_replaced(), "another file is at the path");
}

#[test]
fn unreadable_path_reports_nothing() {
    let folder = Folder::new("loop");
    let path = folder.file("a", MIB);
    let link = folder.0.join("link");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    let disk = disk(&link);
    fs::remove_file(&link).expect("removed");
    std::os::unix::fs::symlink(&link, &link).expect("a loop");
    assert_eq!(disk.missing(), None);
}

#[test]
fn write_beyond_a_new_end_fails_and_nothing_grows() {
    let folder = Folder::new("shrunk");
    let path = folder.file("a", MIB);
    let disk = disk(&path);
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(disk.write(MIB - 4096, Buf::zeroed(4096), false)).0.expect("within");
    OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(4096)).expect("shrunk");
    // Waits until the cached size check has expired.
    std::thread::sleep(std::time::Duration::from_millis(1));
    lunar_runtime::begin_batch();
    let size = || fs::metadata(&path).expect("there").len();
    let beyond = |result: std::io::Result<()>| {
        assert_eq!(result.expect_err("beyond the end").kind(), ErrorKind::UnexpectedEof);
        assert_eq!(size(), 4096);
    };
    if let lunar_block::TryIo::Done(result) = disk.try_write(MIB - 4096, &[1; 4096]) {
        beyond(result);
    }
    beyond(runtime.block_on(disk.write(MIB - 4096, Buf::zeroed(4096), true)).0);
    beyond(runtime.block_on(disk.write(0, Buf::zeroed(8192), false)).0);
    beyond(runtime.block_on(disk.write_zeroes(8192, 4096, false)));
    runtime.block_on(disk.write(0, Buf::zeroed(4096), false)).0.expect("within");
}

#[test]
fn file_of_an_image_format_is_refused_unless_raw() {
    let folder = Folder::new("format");
    let path = folder.file("a", MIB);
    fs::write(&path, [&b"QFI\xfb\0\0\0\x03"[..], &[0; 8192]].concat()).expect("data");
    let spec = BackendSpec::path(&path);
    for spec in [&spec, &BackendSpec { read_only: true, ..spec.clone() }] {
        for refused in [open(spec).map(drop), lunar_block::examine(spec).map(drop)] {
            let refused = refused.expect_err("qcow2");
            assert_eq!(
                (refused.kind, &*refused.what),
                (ErrorKind::InvalidData, "is a disk image in the format qcow2, not raw")
            );
            assert!(refused.hint.contains("qemu-img convert") && refused.hint.contains("--raw"));
        }
        let raw = BackendSpec { raw: true, ..spec.clone() };
        assert!(open(&raw).is_ok() && lunar_block::examine(&raw).is_ok());
    }
}

#[test]
fn new_or_empty_file_is_raw() {
    let folder = Folder::new("new");
    let spec = |name| BackendSpec {
        kind: BackendKind::File,
        size: Some(MIB),
        create: true,
        ..BackendSpec::path(folder.0.join(name))
    };
    assert!(open(&spec("new")).is_ok());
    folder.file("empty", 0);
    assert!(open(&spec("empty")).is_ok());
    folder.file("zeros", MIB);
    assert!(open(&spec("zeros")).is_ok());
    let direct = BackendSpec { direct: true, ..spec("zeros") };
    match open(&direct) {
        Err(e) if e.kind == ErrorKind::InvalidInput => println!("skipped: O_DIRECT: {e}"),
        opened => drop(opened.expect("examined with O_DIRECT")),
    }
}
