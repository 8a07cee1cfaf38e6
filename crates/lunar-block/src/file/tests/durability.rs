//! FUA and flush.

use super::*;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;

fn broken() -> Arc<Syncer> {
    Arc::new(Syncer::new(|| Err(Errno::IO)))
}

#[test]
fn fua_write_goes_through() {
    let file = nameless();
    let files = &file.medium.files;
    let Some(through) = &files.through else { return println!("skipped: no /proc") };
    let flags = [through, &files.plain].map(|file| fcntl_getfl(file).expect("flags").contains(OFlags::DSYNC));
    assert_eq!(flags, [true, false]);
    let chosen = |through| ops::FileHandle::new(files, through, None);
    use std::os::fd::{AsFd, AsRawFd};
    assert_eq!(chosen(true).as_fd().as_raw_fd(), through.as_raw_fd());
    assert_eq!(chosen(false).as_fd().as_raw_fd(), files.plain.as_raw_fd());
}

/// The kernel continues the write after the process is killed. No other process may lock the file before it ends.
#[test]
fn fua_write_with_o_direct_holds_its_range_lock() {
    let path = std::env::temp_dir().join(format!("lunar-block-direct-{}", std::process::id()));
    let spec = BackendSpec {
        kind: BackendKind::File,
        size: Some(4096),
        create: true,
        direct: true,
        ..BackendSpec::path(&path)
    };
    let Ok(file) = FileBackend::open(&spec) else { return println!("skipped: O_DIRECT") };
    use std::os::fd::AsFd;
    let handle = ops::FileHandle::new(&file.medium.files, true, None);
    // A reference as the kernel holds it during a write.
    let kept = handle.as_fd().try_clone_to_owned().expect("a descriptor");
    drop((handle, file));
    let refused = FileBackend::open(&spec).err().expect("the file is in use");
    assert_eq!(refused.kind, io::ErrorKind::ResourceBusy);
    drop(kept);
    assert!(FileBackend::open(&spec).is_ok());
    std::fs::remove_file(path).expect("its name");
}

#[test]
fn fua_write_without_o_dsync_is_synced() {
    let mut file = nameless();
    file.syncer = broken();
    Arc::get_mut(&mut file.medium.files).expect("not shared").through = None;
    write(&file, false).expect("a write without FUA does not sync");
    assert_eq!(write(&file, true).expect_err("FUA syncs").raw_os_error(), Some(5));
}

#[test]
fn failed_flush_makes_later_flushes_fail() {
    let mut file = nameless();
    file.syncer = broken();
    write(&file, true).expect("no sync has failed yet");
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(file.flush()).expect_err("lost");
    assert_eq!(write(&file, true).expect_err("lost").raw_os_error(), Some(5));
    write(&file, false).expect("a write without FUA does not sync");
}
