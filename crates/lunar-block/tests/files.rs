//! File backends: missing, locked, truncated, shared by cores, and with O_DIRECT.

mod common;

use common::{Scratch, filled, runtimes};
use lunar_block::{Backend, BackendKind, BackendSpec, ExamineReport, OpenError, TryIo, examine, open};
use lunar_runtime::Buf;
use std::io;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn refused(spec: &BackendSpec) -> OpenError {
    open(spec).err().expect("a refusal")
}

/// A disk with O_DIRECT; None if the file system does not support it.
fn direct(scratch: &Scratch) -> Option<Arc<dyn Backend>> {
    let opened = open(&BackendSpec { direct: true, ..scratch.spec(MIB) });
    opened.inspect_err(|e| println!("skipped: O_DIRECT: {e}")).ok()
}

#[test]
fn missing_file_is_made_sparse_and_private() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let e = refused(&BackendSpec { create: false, ..scratch.spec(1 << 40) });
    assert_eq!(e.hint, "check the path, or set a size to create the file");
    let disk = open(&scratch.spec(1 << 40)).expect("made");
    assert_eq!(disk.info().capacity, 1 << 40);
    let made = std::fs::metadata(&scratch.0).expect("there");
    assert!(made.blocks() < 100 && made.mode() & 0o777 == 0o600);
}

#[test]
fn file_that_exists_keeps_its_size_and_bytes() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, [7; 5000]).expect("written");
    let disk = open(&scratch.spec(MIB)).expect("open");
    assert_eq!(disk.info().capacity, 5000);
    assert_eq!(std::fs::read(&scratch.0).expect("read"), [7; 5000]);
}

#[test]
fn offered_medium_can_be_reopened() {
    let scratch = Scratch::new();
    let first = open(&scratch.spec(MIB)).expect("open");
    let reader = BackendSpec { read_only: true, ..scratch.spec(MIB) };
    assert_eq!(refused(&reader).what, "is being written by another server");
    first.offer(true);
    let second = open(&reader).expect("offered");
    drop(second);
    first.offer(false);
    // The file has another name now, but is still open.
    let moved = scratch.0.with_extension("moved");
    std::fs::rename(&scratch.0, &moved).expect("renamed");
    let e = refused(&BackendSpec { path: moved.clone(), ..scratch.spec(MIB) });
    assert_eq!(e.what, "is in use by another server");
    std::fs::remove_file(&moved).expect("removed");
}

#[test]
fn examine_reports_what_open_would_and_changes_nothing() {
    let scratch = Scratch::new();
    let spec = scratch.spec(MIB);
    let found = |spec: &BackendSpec| examine(spec).map_err(|e| e.what);
    assert_eq!(found(&spec), Ok(ExamineReport { size: None, in_use: None, block_size: None }));
    assert!(!scratch.0.exists(), "examine does not create the file");
    let e = examine(&BackendSpec { create: false, ..spec.clone() }).expect_err("missing");
    assert_eq!(e.hint, "check the path, or set a size to create the file");
    let nowhere = BackendSpec { path: scratch.0.join("none/disk.img"), ..spec.clone() };
    assert!(examine(&nowhere).is_err());
    let disk = open(&spec).expect("open");
    let reader = BackendSpec { read_only: true, ..spec.clone() };
    for (spec, how) in [(&spec, "is in use by"), (&reader, "is being written by")] {
        let found = examine(spec).expect("the file exists");
        let in_use = found.in_use.expect("the file is in use");
        assert_eq!((in_use.error.what.as_str(), found.size), (&*format!("{how} another server"), Some(MIB)));
        assert_eq!(in_use.error, refused(spec), "the error of open");
    }
    drop(disk);
    assert_eq!(found(&spec), Ok(ExamineReport { size: Some(MIB), in_use: None, block_size: None }));
    open(&spec).expect("examine released its locks");
    std::fs::write(&scratch.0, []).expect("emptied");
    assert_eq!(found(&BackendSpec { create: false, ..spec.clone() }), Err("is empty".into()));
    let folder = BackendSpec::path(std::env::temp_dir());
    assert_eq!(found(&folder), Err("is a directory".into()));
    assert_eq!(
        found(&BackendSpec::sized(BackendKind::Memory, 4096)),
        Ok(ExamineReport { size: Some(4096), in_use: None, block_size: None })
    );
}

#[test]
fn file_that_cannot_be_made_leaves_nothing_behind() {
    let scratch = Scratch::new();
    let e = refused(&scratch.spec(i64::MAX as u64 - 511));
    assert!(e.what.starts_with("cannot be created"), "{}", e.what);
    assert!(!scratch.0.exists());
    std::fs::write(&scratch.0, []).expect("written");
    assert!(open(&scratch.spec(i64::MAX as u64 - 511)).is_err());
    assert!(scratch.0.exists(), "an existing file is not removed");
}

#[test]
fn only_one_server_writes_a_file() {
    let scratch = Scratch::new();
    let first = open(&scratch.spec(MIB)).expect("open");
    let e = refused(&scratch.spec(MIB));
    let path = scratch.0.display().to_string();
    assert_eq!((e.subject.as_str(), e.what.as_str()), (path.as_str(), "is in use by another server"));
    assert!(e.to_string().contains("\nhint: stop that server"));
    assert_eq!(e.kind, io::ErrorKind::ResourceBusy);
    let reader = BackendSpec { read_only: true, ..scratch.spec(MIB) };
    assert_eq!(refused(&reader).what, "is being written by another server");
    drop(first);
    let readers = (open(&reader).expect("one reader"), open(&reader).expect("and another"));
    assert_eq!(refused(&scratch.spec(MIB)).what, "is in use by another server");
    drop(readers);
    open(&scratch.spec(MIB)).expect("free again");
}

#[test]
fn reader_changes_nothing() {
    let scratch = Scratch::new();
    drop(open(&scratch.spec(MIB)).expect("made"));
    let disk = open(&BackendSpec { read_only: true, ..scratch.spec(MIB) }).expect("open");
    assert!(disk.info().read_only && !disk.info().unmap);
    for runtime in runtimes() {
        runtime.block_on(async {
            let kinds = [
                disk.write(0, Buf::zeroed(512), false).await.0,
                disk.write(0, Buf::zeroed(512), true).await.0,
                disk.unmap(0, 4096).await,
                disk.write_zeroes(0, 4096, false).await,
            ]
            .map(|result| result.expect_err("refused").kind());
            assert_eq!(kinds, [io::ErrorKind::ReadOnlyFilesystem; 4]);
            disk.flush().await.expect("nothing to flush");
        });
    }
}

#[test]
fn refused_backend_names_the_fault_and_its_fix() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let empty = Scratch::new();
    std::fs::write(&empty.0, []).expect("written");
    let file = |path: &str| BackendSpec { kind: BackendKind::File, ..BackendSpec::path(path) };
    let device = |path: &str| BackendSpec { kind: BackendKind::Device, ..BackendSpec::path(path) };
    let cases = [
        (file(folder), "is a directory", "name a file in it"),
        (file("/dev/null"), "is neither a file nor a block device", "name a disk image or a disk"),
        (device(&empty.0.display().to_string()), "is a file, not a block device", "use backend = \"file\""),
        (
            BackendSpec::path(&empty.0),
            "is empty",
            "remove the file and set a size, or extend the file with truncate -s SIZE",
        ),
        (
            BackendSpec { size: None, ..BackendSpec::sized(BackendKind::Null, 1) },
            "size missing",
            "add the size, such as null:1G",
        ),
        (BackendSpec::sized(BackendKind::Memory, 0), "invalid size of 0 bytes", "choose 1 to 2^63-1 bytes"),
        (
            BackendSpec::sized(BackendKind::Memory, u64::MAX),
            "invalid size of 18446744073709551615 bytes",
            "choose 1 to 2^63-1 bytes",
        ),
    ];
    for (spec, what, hint) in cases {
        let e = refused(&spec);
        assert_eq!((e.what.as_str(), e.hint.as_str()), (what, hint));
    }
    let e = refused(&device("/dev/no such disk"));
    assert_eq!(e.hint, "check the path; lsblk lists the disks");
}

#[test]
fn file_that_grows_or_shrinks_is_seen() {
    let scratch = Scratch::new();
    let disk = open(&scratch.spec(MIB)).expect("made");
    let resize = |size| {
        let file = std::fs::OpenOptions::new().write(true).open(&scratch.0).expect("open");
        file.set_len(size).expect("resized");
    };
    assert!(!disk.refresh());
    resize(2 * MIB);
    for runtime in runtimes() {
        let (result, _) = runtime.block_on(disk.read(MIB, Buf::zeroed(512)));
        assert_eq!(result.expect_err("the new size is not known yet").kind(), io::ErrorKind::UnexpectedEof);
    }
    assert!(disk.refresh() && !disk.refresh());
    assert_eq!(disk.info().capacity, 2 * MIB);
    resize(4096);
    for runtime in runtimes() {
        let (result, _) = runtime.block_on(disk.read(4096 - 512, Buf::zeroed(1024)));
        assert_eq!(result.expect_err("cut short").kind(), io::ErrorKind::UnexpectedEof);
    }
    match disk.try_read(4096, &mut [0; 512]) {
        TryIo::Done(result) => {
            assert_eq!(result.expect_err("cut short").kind(), io::ErrorKind::UnexpectedEof)
        }
        TryIo::WouldWait => println!("skipped: this file system does not read on the spot"),
    }
    assert!(disk.refresh());
    assert_eq!(disk.info().capacity, 4096);
}

#[test]
fn cached_bytes_are_read_without_waiting() {
    let scratch = Scratch::new();
    let disk = open(&scratch.spec(MIB)).expect("made");
    for runtime in runtimes() {
        runtime.block_on(async {
            let (result, _) = disk.write(4096, filled(&[5; 8192]), false).await;
            result.expect("write");
        });
        let mut seen = [0; 8192];
        match disk.try_read(4096, &mut seen) {
            TryIo::Done(result) => result.expect("read"),
            TryIo::WouldWait => println!("skipped: this file system does not read on the spot"),
        }
        assert!(seen == [5; 8192] || seen == [0; 8192]);
    }
}

#[test]
fn unmap_gives_space_back() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let disk = open(&scratch.spec(4 * MIB)).expect("made");
    if !disk.info().unmap {
        return println!("skipped: this file system cannot punch holes");
    }
    let blocks = || std::fs::metadata(&scratch.0).expect("there").blocks();
    for runtime in runtimes() {
        runtime.block_on(async {
            disk.write(0, filled(&vec![1; 4 * MIB as usize]), true).await.0.expect("write");
            let full = blocks();
            disk.unmap(MIB + 1, 2 * MIB).await.expect("unmap");
            disk.flush().await.expect("flush");
            assert!(blocks() + 3000 < full, "{} of {full} blocks left", blocks());
            let hole = disk.extent(MIB + 4096, MIB).await.expect("extent");
            assert!(!hole.mapped && hole.len == MIB);
        });
    }
}

/// Eight writers on two threads, one for each driver, write different parts of the same blocks. No write may be lost.
#[test]
fn narrow_direct_neighbours_do_not_undo_one_another() {
    const LANE: u64 = 64;
    const ROUNDS: u64 = 12;
    let scratch = Scratch::new();
    let Some(disk) = direct(&scratch) else { return };
    std::thread::scope(|threads| {
        for runtime in 0..runtimes().len() as u64 {
            let disk = &disk;
            threads.spawn(move || {
                let lanes = (0..4).map(|lane| async move {
                    for round in 1..=ROUNDS {
                        for block in 0..4 {
                            let lane = runtime * 4 + lane;
                            let bytes = filled(&[(lane * 16 + round) as u8; LANE as usize]);
                            disk.write(block * 512 + lane * LANE, bytes, round % 4 == 0)
                                .await
                                .0
                                .expect("write");
                        }
                    }
                });
                runtimes().remove(runtime as usize).block_on(together(lanes));
            });
        }
    });
    let lanes = runtimes().len() as u64 * 4;
    let (result, seen) = runtimes().remove(0).block_on(disk.read(0, Buf::zeroed(2048)));
    result.expect("read");
    for (at, byte) in seen.iter().enumerate() {
        let lane = at as u64 % 512 / LANE;
        let last = if lane < lanes { (lane * 16 + ROUNDS) as u8 } else { 0 };
        assert_eq!(*byte, last, "byte {at}");
    }
}

/// Runs futures concurrently on this core.
async fn together(futures: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut waiting: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        waiting.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if waiting.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[test]
fn direct_needs_whole_blocks_to_the_end() {
    let scratch = Scratch::new();
    std::fs::write(&scratch.0, [0; 4096 + 100]).expect("written");
    if direct(&Scratch::new()).is_some() {
        let e = refused(&BackendSpec { direct: true, ..scratch.spec(MIB) });
        assert!(e.what.starts_with("has 4196 bytes, not a multiple of the O_DIRECT block size of"), "{e}");
    }
    assert_eq!(open(&scratch.spec(MIB)).expect("through the page cache").info().capacity, 4196);
}

/// One backend, used by four threads with a runtime each, including flushes.
#[test]
fn all_cores_share_one_file() {
    let scratch = Scratch::new();
    let disk = open(&scratch.spec(MIB)).expect("made");
    std::thread::scope(|threads| {
        for core in 0..4u64 {
            let disk = &disk;
            threads.spawn(move || {
                let runtime = runtimes().remove(core as usize % runtimes().len());
                runtime.block_on(async {
                    for round in 0..20 {
                        let bytes = filled(&[(core * 32 + round) as u8; 1000]);
                        disk.write(core * 1000, bytes, round % 5 == 0).await.0.expect("write");
                        disk.flush().await.expect("flush");
                        let (result, seen) = disk.read(core * 1000, Buf::zeroed(1000)).await;
                        result.expect("read");
                        assert!(seen.iter().all(|byte| *byte == (core * 32 + round) as u8));
                    }
                });
            });
        }
    });
}
