//! Atomic writes, their records, and undo.

use super::volumes::Tmpfs;
use super::*;
use rustix::io::Errno;

#[test]
fn atomic_write_ends_and_is_not_done_again() {
    with_journal("ends", async |spec, file| {
        file.write_atomic(512, of(1, 5000)).await.0.expect("written");
        file.write(512, of(2, 5000), true).await.0.expect("a later write");
        drop(file);
        let file = FileBackend::open(spec).expect("again");
        assert_eq!(file.read(512, Buf::zeroed(5000)).await.1[..], [2; 5000]);
    });
}

/// FUA writes go to a device that is always full.
#[test]
fn atomic_write_without_space_leaves_the_old_blocks() {
    with_journal("full", async |spec, mut file| {
        file.write(0, of(1, 8192), false).await.0.expect("written");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
        file.syncer = Arc::new(Syncer::new(|| Ok(())));
        Arc::get_mut(&mut file.medium.files).expect("not shared").through = Some(full);
        let e = file.write_atomic(0, of(2, 8192)).await.0.expect_err("no space");
        assert_eq!(e.kind(), io::ErrorKind::StorageFull);
        drop(file);
        let file = FileBackend::open(spec).expect("again");
        assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [1; 8192]);
    });
}

/// For each sync of the file: its first byte, and whether a record is valid.
type Syncs = Arc<std::sync::Mutex<Vec<(u8, bool)>>>;

/// Records the syncs. `end` returns the result of each sync, by its number.
fn watch_syncs(
    spec: &BackendSpec,
    file: &mut FileBackend,
    end: fn(usize, &WriteJournal) -> Result<(), Errno>,
) -> Syncs {
    let syncs = Syncs::default();
    let (path, seen) = (spec.path.clone(), syncs.clone());
    let journal = file.journal.clone().expect("a journal");
    file.syncer = Arc::new(Syncer::new(move || {
        let first = std::fs::read(&path).expect("a file")[0];
        let mut seen = crate::locked(&seen);
        seen.push((first, journal.is_pending().expect("readable")));
        end(seen.len(), &journal)
    }));
    syncs
}

#[test]
fn unflushed_old_blocks_are_stable_before_the_record() {
    with_journal("unflushed", async |spec, mut file| {
        let syncs = watch_syncs(spec, &mut file, |_, _| Ok(()));
        file.write(0, of(1, 8192), false).await.0.expect("written");
        file.write_atomic(0, of(2, 8192)).await.0.expect("written");
        assert_eq!(crate::locked(&syncs).first(), Some(&(1, false)));
    });
}

#[test]
fn record_that_is_not_cleared_stops_other_writes() {
    with_journal("not-cleared", async |spec, mut file| {
        // The second sync is that of the new blocks.
        _ = watch_syncs(spec, &mut file, |number, journal| {
            (number == 2).then(|| journal.reopen(false));
            Ok(())
        });
        Arc::get_mut(&mut file.medium.files).expect("not shared").through = None;
        file.write(0, of(1, 8192), false).await.0.expect("written");
        file.write_atomic(0, of(2, 8192)).await.0.expect_err("not cleared");
        assert!(matches!(file.try_write(0, &[1; 8192]), TryIo::WouldWait));
        file.write(0, of(1, 8192), true).await.0.expect_err("not cleared");
        file.write_zeroes(0, 8192, false).await.expect_err("not cleared");
        file.write_atomic(0, of(3, 8192)).await.0.expect_err("not cleared");
        file.journal.as_ref().expect("a journal").reopen(true);
        file.write(0, of(1, 8192), true).await.0.expect("cleared");
        assert!(!file.open.is_open());
        drop(file);
        let file = FileBackend::open(spec).expect("again");
        assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [1; 8192]);
    });
}

/// An atomic write whose record cannot be stored changes nothing, and blocks no other write.
async fn check_without_record(file: &FileBackend) {
    file.write(0, of(1, 8192), false).await.0.expect("written");
    file.write_atomic(0, of(2, 8192)).await.0.expect_err("no space for its record");
    assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [1; 8192]);
    assert!(!file.open.is_open());
    file.write(0, of(3, 8192), true).await.0.expect("a plain write needs no record");
    file.write_zeroes(0, 4096, false).await.expect("zeros need no record");
}

#[test]
fn record_without_space_stops_no_other_write() {
    use rustix::fs::{MemfdFlags, SealFlags};
    with_journal("no-record", async |_, file| {
        // As an empty file on a full file system: it can be truncated, but not extended.
        let full = rustix::fs::memfd_create("full", MemfdFlags::ALLOW_SEALING).expect("a file");
        rustix::fs::fcntl_add_seals(&full, SealFlags::GROW).expect("sealed");
        let path = file.journal.as_ref().expect("a journal").file_now();
        let number = std::os::fd::AsRawFd::as_raw_fd(&full);
        std::os::unix::fs::symlink(format!("/proc/self/fd/{number}"), path).expect("a link");
        check_without_record(&file).await;
    });
}

#[test]
fn full_state_folder_stops_no_other_write() {
    let Some(folder) = Tmpfs::mount("full-state", "64k") else { return };
    let room = || std::fs::remove_file(folder.0.join("other"));
    with_journal_in("full-state", Some(&folder.0), async |_, file| {
        std::fs::write(folder.0.join("other"), [0; 1 << 17]).expect_err("the file system is full");
        check_without_record(&file).await;
        room().expect("removed");
        file.write_atomic(0, of(4, 8192)).await.0.expect("there is space again");
    });
}

/// Unchanged blocks may be shared with another file, and there may be no space for a copy of them.
#[test]
fn undo_writes_no_block_that_has_not_changed() {
    with_journal("undo-same", async |spec, mut file| {
        file.write(0, of(1, 8192), false).await.0.expect("written");
        let reads = std::fs::File::open(&spec.path).expect("a file");
        file.syncer = Arc::new(Syncer::new(|| Ok(())));
        Arc::get_mut(&mut file.medium.files).expect("not shared").plain = reads;
        undo(&file, 0, 8192).await.expect("undo has nothing to write");
        assert!(!file.open.is_open());
    });
}

/// A file of ones, after an atomic write of twos failed without space.
async fn without_space(
    spec: &BackendSpec,
    file: &mut FileBackend,
    end: fn(usize, &WriteJournal) -> Result<(), Errno>,
) -> Syncs {
    file.write(0, of(1, 8192), false).await.0.expect("written");
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let syncs = watch_syncs(spec, file, end);
    Arc::get_mut(&mut file.medium.files).expect("not shared").through = Some(full);
    file.write_atomic(0, of(2, 8192)).await.0.expect_err("no space");
    syncs
}

#[test]
fn undo_is_stable_before_its_record_is_cleared() {
    with_journal("undo-stable", async |spec, mut file| {
        let syncs = without_space(spec, &mut file, |_, _| Ok(())).await;
        assert_eq!(*crate::locked(&syncs), [(1, false), (1, true)]);
        assert!(!file.journal.as_ref().expect("a journal").is_pending().expect("readable"));
    });
}

#[test]
fn undo_that_fails_keeps_its_record() {
    with_journal("undo-fails", async |spec, mut file| {
        let end = |number, _: &WriteJournal| if number == 2 { Err(Errno::IO) } else { Ok(()) };
        without_space(spec, &mut file, end).await;
        assert!(file.journal.as_ref().expect("a journal").is_pending().expect("readable"));
        file.write(0, of(1, 8192), false).await.0.expect_err("the record is valid");
        drop(file);
        let file = FileBackend::open(spec).expect("again");
        assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [2; 8192]);
    });
}

/// Two servers with the same identity for a medium, whose devices differ.
#[test]
fn record_of_another_device_with_the_same_identity_counts() {
    with_journal("shared-id", async |spec, file| {
        drop(file);
        let shared = BackendSpec { medium_id: Some("LUN serial 1".into()), ..spec.clone() };
        let first = FileBackend::open(&shared).expect("a file");
        first.write(0, of(1, 8192), true).await.0.expect("written");
        let journal = first.journal.as_ref().expect("a journal");
        journal.put(&journal.record(0, &[1; 8192], &[2; 8192])).expect("kept");
        let copy = spec.path.with_extension("copy");
        drop(first);
        std::fs::copy(&spec.path, &copy).expect("a copy");
        let second = |medium_id| BackendSpec { path: copy.clone(), medium_id, ..shared.clone() };
        for (medium_id, byte) in [(None, 1), (shared.medium_id.clone(), 2)] {
            let file = FileBackend::open(&second(medium_id)).expect("a file");
            assert_eq!(file.read(0, Buf::zeroed(8192)).await.1[..], [byte; 8192]);
        }
        std::fs::remove_file(copy).expect("a copy");
    });
}

#[test]
fn medium_without_a_journal_writes_nothing_atomically() {
    let file = nameless();
    assert_eq!(file.max_atomic(), 0);
    let runtime = compio::runtime::Runtime::new().expect("a runtime");
    let e = runtime.block_on(file.write_atomic(0, Buf::zeroed(512))).0.expect_err("no journal");
    assert_eq!(e.kind(), io::ErrorKind::Unsupported);
}

/// The write ends between the sync of the medium and the read of the old blocks.
#[test]
fn write_during_the_sync_is_stable_before_the_record() {
    with_journal("during", async |spec, mut file| {
        let syncs = watch_syncs(spec, &mut file, |_, _| Ok(()));
        file.write(0, of(1, 8192), false).await.0.expect("written");
        let mark = InFlightWrites::try_write(file.in_flight.clone(), RegionIndices::of(0, 512));
        let mut atomic = file.write_atomic(0, of(3, 8192));
        while crate::locked(&syncs).is_empty() {
            assert!(poll_once(&mut atomic).await.is_pending(), "a write is in flight");
            compio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        let other = std::fs::OpenOptions::new().write(true).open(&spec.path).expect("a file");
        std::os::unix::fs::FileExt::write_all_at(&other, &[2; 8192], 0).expect("written");
        drop(mark);
        atomic.await.0.expect("written");
        assert_eq!(crate::locked(&syncs)[..2], [(1, false), (2, false)]);
    });
}

/// The record is opened while the write waits for a reader.
#[test]
fn write_that_waits_does_not_begin_under_a_record() {
    with_journal("waits", async |spec, file| {
        let first = || std::fs::read(&spec.path).expect("a file")[0];
        file.write(0, of(1, 8192), false).await.0.expect("written");
        let reader = file.in_flight.still(RegionIndices::of(0, 8192)).await;
        let mut write = file.write(0, of(2, 8192), false);
        assert!(poll_once(&mut write).await.is_pending(), "a reader blocks it");
        let turn = file.atomic.lock(0..1, crate::range_lock::RangeAccess::Exclusive).await;
        file.open.fail(0, of(1, 8192));
        drop(reader);
        for _ in 0..20 {
            assert!(poll_once(&mut write).await.is_pending() && first() == 1, "the record is open");
            compio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        drop(turn);
        write.await.0.expect("written");
        assert!(first() == 2 && !file.open.is_open());
    });
}
