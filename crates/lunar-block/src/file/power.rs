//! A model of power loss. Stable storage has all bytes of the last sync, and any subset of the sectors written after
//! it. After the medium is opened again, it must have either the old or the new blocks of an atomic write.

use super::identity::MediumIdentity;
use super::journal::WriteJournal;
use super::sync::Syncer;
use super::{Backend, FileBackend};
use crate::{BackendKind, BackendSpec, locked, random};
use lunar_runtime::Buf;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

const SECTOR: usize = 512;
const OFFSET: usize = 3 * SECTOR;
const LEN: usize = 9 * SECTOR;
const SIZE: usize = 16 * SECTOR;
/// Simulated losses at each point, each with a different subset of sectors.
const LOSSES: u64 = 16;

/// The bytes of a medium and of its journal.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MediumAndJournal {
    medium: Vec<u8>,
    journal: Vec<u8>,
}

impl MediumAndJournal {
    fn at(spec: &BackendSpec) -> MediumAndJournal {
        let folder = spec.journal.as_deref().expect("a folder");
        let journal = std::fs::read(journal_in(folder)).unwrap_or_default();
        MediumAndJournal { medium: std::fs::read(&spec.path).expect("a medium"), journal }
    }
}

/// The only journal in a folder.
fn journal_in(folder: &Path) -> PathBuf {
    let paths = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("one").path());
    paths.into_iter().next().unwrap_or_else(|| folder.join("0.journal"))
}

/// A medium and its journal directory, both removed on drop.
struct MediumDir(BackendSpec);

impl MediumDir {
    fn new(name: &str) -> MediumDir {
        let path = std::env::temp_dir().join(format!("lunar-power-{name}-{}", std::process::id()));
        let journal = Some(path.with_extension("records"));
        let spec = BackendSpec {
            kind: BackendKind::File,
            size: Some(SIZE as u64),
            create: true,
            journal,
            ..BackendSpec::path(&path)
        };
        let place = MediumDir(spec);
        place.remove();
        std::fs::create_dir(place.folder()).expect("a folder");
        place
    }

    fn folder(&self) -> &Path {
        self.0.journal.as_deref().expect("a folder")
    }

    fn remove(&self) {
        _ = std::fs::remove_file(&self.0.path);
        _ = std::fs::remove_dir_all(self.folder());
    }

    /// Restores the state after a loss, and returns the medium as it reads when opened.
    async fn opened(&self, left: &MediumAndJournal) -> Vec<u8> {
        std::fs::write(&self.0.path, &left.medium).expect("a medium");
        std::fs::write(journal_in(self.folder()), &left.journal).expect("a journal");
        let file = FileBackend::open(&self.0).expect("opened");
        file.read(0, Buf::zeroed(SIZE)).await.1.to_vec()
    }
}

impl Drop for MediumDir {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A random mix of old and new sectors.
fn mixed(old: &[u8], new: &[u8], seed: u64) -> Vec<u8> {
    let len = old.len().max(new.len());
    let sector = |at: usize| {
        let from = if random(seed, at as u64) & 1 == 0 { old } else { new };
        from.get(at..from.len().min(at + SECTOR)).unwrap_or_default()
    };
    (0..len).step_by(SECTOR).flat_map(|at| sector(at).iter().copied()).collect()
}

/// A medium of ones after the atomic write of this byte.
fn with(byte: u8) -> Vec<u8> {
    let mut bytes = vec![1; SIZE];
    bytes[OFFSET..][..LEN].fill(byte);
    bytes
}

fn of(byte: u8, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len);
    buf.fill(byte);
    buf
}

/// Records the medium and the journal at each sync of the medium.
fn watch(place: &MediumDir, file: &mut FileBackend) -> Arc<Mutex<Vec<MediumAndJournal>>> {
    let syncs = Arc::<Mutex<Vec<MediumAndJournal>>>::default();
    let (spec, seen) = (place.0.clone(), syncs.clone());
    file.syncer = Arc::new(Syncer::new(move || {
        locked(&seen).push(MediumAndJournal::at(&spec));
        Ok(())
    }));
    // Without the O_DSYNC descriptor, a FUA write is a write and a sync.
    Arc::get_mut(&mut file.medium.files).expect("not shared").through = None;
    syncs
}

fn run(test: impl Future<Output = ()>) {
    compio::runtime::Runtime::new().expect("a runtime").block_on(test);
}

#[test]
fn power_loss_leaves_an_atomic_write_whole_or_undone() {
    run(async {
        let place = MediumDir::new("steps");
        let mut file = FileBackend::open(&place.0).expect("a file");
        let syncs = watch(&place, &mut file);
        file.write(0, of(1, SIZE), false).await.0.expect("written");
        // Leaves a cleared record, which the next record overwrites.
        file.write_atomic(OFFSET as u64, of(2, LEN)).await.0.expect("written");
        let before = MediumAndJournal::at(&place.0);
        locked(&syncs).clear();
        file.write_atomic(OFFSET as u64, of(3, LEN)).await.0.expect("written");
        let end = MediumAndJournal::at(&place.0);
        let [first, second] = &locked(&syncs).clone()[..] else { panic!("two syncs") };
        assert_eq!((first, &second.medium, &end.medium), (&before, &with(3), &with(3)));
        assert!(first.journal != second.journal && second.journal != end.journal);
        drop(file);
        for seed in 0..LOSSES {
            let both = |medium: &[u8], journal: &[u8]| MediumAndJournal {
                medium: medium.into(),
                journal: journal.into(),
            };
            let kept = place.opened(&both(&with(2), &mixed(&first.journal, &second.journal, seed))).await;
            assert!(kept == with(2) || kept == with(3), "loss during the write of the record, seed {seed}");
            let written = mixed(&with(2), &second.medium, seed);
            let written = place.opened(&both(&written, &second.journal)).await;
            assert!(written == with(3), "loss during the write of the blocks, seed {seed}");
            let cleared = place.opened(&both(&with(3), &mixed(&second.journal, &end.journal, seed))).await;
            assert!(cleared == with(3), "loss while the record is cleared, seed {seed}");
        }
        assert!(place.opened(&end).await == with(3), "acknowledged");
    });
}

#[test]
fn power_loss_after_an_atomic_write_spares_later_writes() {
    run(async {
        let place = MediumDir::new("later");
        let mut file = FileBackend::open(&place.0).expect("a file");
        let syncs = watch(&place, &mut file);
        file.write(0, of(1, SIZE), false).await.0.expect("written");
        file.write_atomic(OFFSET as u64, of(2, LEN)).await.0.expect("written");
        let mut acknowledged = Vec::new();
        for (byte, is_flushed) in [(3, false), (4, true)] {
            locked(&syncs).clear();
            file.write(OFFSET as u64, of(byte, LEN), !is_flushed).await.0.expect("written");
            if is_flushed {
                file.flush().await.expect("flushed");
            }
            acknowledged.push((byte, locked(&syncs).last().cloned().expect("a sync")));
        }
        let stable = MediumAndJournal::at(&place.0);
        file.write(OFFSET as u64, of(5, LEN), false).await.0.expect("written");
        drop(file);
        for (byte, stable) in acknowledged {
            assert!(place.opened(&stable).await == with(byte), "acknowledged as stable: {byte}");
        }
        for seed in 0..LOSSES {
            let lost = MediumAndJournal { medium: mixed(&stable.medium, &with(5), seed), ..stable.clone() };
            let found = place.opened(&lost).await;
            assert!(found == lost.medium, "a record replaced a later write, seed {seed}");
        }
    });
}

/// An atomic write must not write to the medium before its record is stable.
#[test]
fn atomic_write_without_a_record_does_not_begin() {
    run(async {
        let place = MediumDir::new("unkept");
        let mut file = FileBackend::open(&place.0).expect("a file");
        let medium = MediumIdentity::of(&file.medium.files.plain, &place.0.path, SIZE as u64, None)
            .expect("its identity");
        let no_folder = place.folder().join("none");
        std::fs::write(&no_folder, []).expect("a file");
        file.journal = Some(Arc::new(WriteJournal::new(&no_folder, medium)));
        file.write(0, of(1, SIZE), false).await.0.expect("written");
        file.write_atomic(OFFSET as u64, of(2, LEN)).await.0.expect_err("no record");
        assert!(MediumAndJournal::at(&place.0).medium == with(1));
    });
}
