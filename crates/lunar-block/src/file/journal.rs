//! The journal of atomic writes. The new data is on stable storage before its first byte is on the medium, so that an
//! interrupted write is replayed when the medium is opened next.
//!
//! There is one record at a time. It is cleared before its write completes, because a later replay would replace
//! newer data. A record has the identity of its medium. The record of another medium stays until that medium is back,
//! and new records go to another file. A record also has checksums of the old blocks. If the medium has neither old
//! nor new blocks, another program has changed it, and the record is put aside.

use super::identity::MediumIdentity;
use crate::{FileId, MAX_ATOMIC, locked};
use lunar_runtime::iscsi::digest::crc32c;
use rustix::fs::Advice;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const MAGIC: [u8; 8] = *b"LUNARWA2";
/// The magic of an older format, whose records lack the medium. They are left alone.
const OLD_MAGIC: [u8; 8] = *b"LUNARWA1";
/// Magic, offset, length of the data, checksum of the record, length of the medium's name.
const HEADER: usize = 28;
const CHECKSUM: Range<usize> = 20..24;
/// The unit that a medium writes atomically, in bytes.
pub(super) const SECTOR: usize = 512;
/// Bytes of the identity and path of a medium.
const MAX_NAME: usize = 16 << 10;
/// Bytes of a whole record.
const MAX_RECORD: u64 =
    (HEADER + MAX_NAME) as u64 + MAX_ATOMIC as u64 / SECTOR as u64 * 4 + MAX_ATOMIC as u64;
/// The limit of record files of one path: each medium that was there may have left one.
const FILES: u32 = 16;
/// The limit of records of one path that are put aside.
const ASIDE: u32 = 8;

/// The journal of one medium.
pub(super) struct WriteJournal {
    folder: PathBuf,
    medium: MediumIdentity,
    /// The file, from the first record on.
    file: Mutex<Option<JournalFile>>,
}

/// The record file, locked against other journals.
struct JournalFile {
    file: File,
    path: PathBuf,
}

/// A record: the data to write.
struct JournalRecord {
    medium: MediumIdentity,
    offset: u64,
    /// The checksum of each old sector.
    old: Vec<u32>,
    data: Vec<u8>,
}

/// The content of a record file.
enum RecordContent {
    Record(JournalRecord),
    /// A record of an older format, without its medium.
    Old,
}

impl RecordContent {
    /// No whole record.
    fn of(bytes: &[u8]) -> Option<RecordContent> {
        let record = JournalRecord::of(bytes).map(RecordContent::Record);
        record.or_else(|| bytes.starts_with(&OLD_MAGIC).then_some(RecordContent::Old))
    }
}

/// The outcome of a record of this medium, or of one that another medium left at its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplayOutcome {
    /// Its write was replayed.
    Done { offset: u64, len: usize },
    /// The medium rejects the write and has the old blocks; the host never got GOOD.
    Undone { offset: u64, len: usize, error: io::ErrorKind },
    /// The medium has changed since; the record was moved to this path.
    Aside { offset: u64, len: usize, path: PathBuf },
    /// The record waits at this path for its own medium.
    Other { id: String, path: PathBuf },
    /// It does not have its medium.
    Old { path: PathBuf },
}

/// A record that blocks its medium, and the reason.
#[derive(Debug)]
pub(super) struct StuckRecord {
    /// The path of the record, or of the directory.
    pub(super) path: PathBuf,
    pub(super) error: io::Error,
    /// Whether it is unreadable, so that the state of its write is unknown.
    pub(super) is_unread: bool,
}

impl StuckRecord {
    fn unread(path: &Path, error: io::Error) -> StuckRecord {
        StuckRecord { path: path.to_path_buf(), error, is_unread: true }
    }
}

impl JournalRecord {
    /// None if the record was cleared, or was incomplete when its writer died.
    fn of(bytes: &[u8]) -> Option<JournalRecord> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let offset = u64::from_le_bytes(header[8..16].try_into().ok()?);
        let number = |at: usize| Some(u32::from_le_bytes(header[at..at + 4].try_into().ok()?));
        let (len, name) = (number(16)?, number(24)?);
        if header[..8] != MAGIC || len == 0 || len > MAX_ATOMIC {
            return None;
        }
        let len = len as usize;
        let (name, rest) = rest.split_at_checked(name as usize)?;
        let (old, rest) = rest.split_at_checked(len.div_ceil(SECTOR) * 4)?;
        let data = rest.get(..len)?;
        let checksum =
            crc32c(&[&header[..CHECKSUM.start], &[0; 4], &header[CHECKSUM.end..], name, old, data]);
        if header[CHECKSUM] != checksum.to_le_bytes() {
            return None;
        }
        let old = old.as_chunks::<4>().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect();
        Some(JournalRecord { medium: medium_of(name)?, offset, old, data: data.to_vec() })
    }

    /// Whether each sector of the medium is old or new.
    fn fits(&self, medium: &[u8]) -> bool {
        let sectors = medium.chunks(SECTOR).zip(self.data.chunks(SECTOR)).zip(&self.old);
        sectors.into_iter().all(|((now, new), old)| now == new || crc32c(&[now]) == *old)
    }

    /// Whether each sector of the medium is old.
    fn is_undone(&self, medium: &[u8]) -> bool {
        medium.chunks(SECTOR).zip(&self.old).all(|(now, old)| crc32c(&[now]) == *old)
    }

    /// Replays the write on its own medium, unless another program has changed it.
    fn redo(&self, medium: &File) -> io::Result<RedoOutcome> {
        forget(medium, self.offset, self.data.len());
        let mut now = vec![0; self.data.len()];
        match medium.read_exact_at(&mut now, self.offset) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(RedoOutcome::Changed),
            read => read?,
        }
        if !self.fits(&now) {
            return Ok(RedoOutcome::Changed);
        }
        let write = || match now == self.data {
            // These reads may have come from the page cache.
            true => medium.sync_data(),
            false => medium.write_all_at(&self.data, self.offset).and_then(|()| medium.sync_data()),
        };
        let Err(e) = write() else { return Ok(RedoOutcome::Done) };
        match self.is_undone(&now) && self.restore(medium, &now)? {
            true => Ok(RedoOutcome::Undone(e.kind())),
            false => Err(e),
        }
    }

    /// Restores the old blocks where the medium has new ones; true if all old blocks are back.
    fn restore(&self, medium: &File, old: &[u8]) -> io::Result<bool> {
        let read = || {
            forget(medium, self.offset, old.len());
            let mut now = vec![0; old.len()];
            medium.read_exact_at(&mut now, self.offset).map(|()| now)
        };
        for changed in changed(&read()?, old) {
            medium.write_all_at(&old[changed.clone()], self.offset + changed.start as u64)?;
        }
        medium.sync_data()?;
        Ok(read()? == old)
    }
}

/// The outcome of a replayed write.
enum RedoOutcome {
    Done,
    /// It failed, and the medium has the old blocks.
    Undone(io::ErrorKind),
    /// Another program has changed the medium.
    Changed,
}

/// Drops these bytes from the page cache, which keeps showing data that the medium rejected.
fn forget(medium: &File, offset: u64, len: usize) {
    if let Some(len) = NonZeroU64::new(len as u64) {
        // If this fails, the cached bytes are compared.
        _ = rustix::fs::fadvise(medium, offset, Some(len), Advice::DontNeed);
    }
}

/// The changed sectors, with neighbours merged.
pub(super) fn changed(now: &[u8], old: &[u8]) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for (at, (now, old)) in now.chunks(SECTOR).zip(old.chunks(SECTOR)).enumerate() {
        let sector = at * SECTOR..at * SECTOR + old.len();
        match all.last_mut() {
            _ if now == old => {}
            Some(last) if last.end == sector.start => last.end = sector.end,
            _ => all.push(sector),
        }
    }
    all
}

/// The identity, a zero byte, the path.
fn medium_of(name: &[u8]) -> Option<MediumIdentity> {
    let (id, path) = name.split_at(name.iter().position(|byte| *byte == 0)?);
    let path = PathBuf::from(std::ffi::OsString::from_vec(path[1..].to_vec()));
    Some(MediumIdentity { id: String::from_utf8(id.to_vec()).ok()?, path })
}

impl WriteJournal {
    /// Opens the journal in an existing directory.
    pub(super) fn new(folder: &Path, medium: MediumIdentity) -> WriteJournal {
        WriteJournal { folder: folder.to_path_buf(), medium, file: Mutex::default() }
    }

    /// The encoded record.
    pub(super) fn record(&self, offset: u64, old: &[u8], new: &[u8]) -> Vec<u8> {
        let name = [self.medium.id.as_bytes(), &[0], self.medium.path.as_os_str().as_bytes()].concat();
        let mut bytes = Vec::with_capacity(HEADER + name.len() + new.len() + new.len().div_ceil(SECTOR) * 4);
        bytes.extend(MAGIC);
        bytes.extend(offset.to_le_bytes());
        bytes.extend((new.len() as u32).to_le_bytes());
        bytes.extend([0; CHECKSUM.end - CHECKSUM.start]);
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(name);
        old.chunks(SECTOR).for_each(|sector| bytes.extend(crc32c(&[sector]).to_le_bytes()));
        bytes.extend(new);
        let checksum = crc32c(&[&bytes]);
        bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Writes a record; may block.
    pub(super) fn put(&self, record: &[u8]) -> io::Result<()> {
        let mut slot = locked(&self.file);
        // The file may have been removed, and its record would be lost.
        let kept = slot.take().filter(|kept| is_at(&kept.file, &kept.path));
        let kept = match kept {
            Some(kept) => slot.insert(kept),
            None => slot.insert(self.create()?),
        };
        kept.file.write_all_at(record, 0)?;
        kept.file.sync_data()
    }

    /// Clears the record after its write ended or was abandoned; may block.
    pub(super) fn clear(&self) -> io::Result<()> {
        locked(&self.file).as_ref().map_or(Ok(()), |kept| clear(&kept.file))
    }

    /// Replays an interrupted write, before the medium is in use.
    pub(super) fn replay(&self, medium: &File) -> Result<Vec<ReplayOutcome>, StuckRecord> {
        let mut all = Vec::new();
        let found = self.found()?;
        for (path, record) in self.ours(&found)? {
            let done = self.end(record, path, medium);
            all.push(done.map_err(|error| StuckRecord { path: path.clone(), error, is_unread: false })?);
        }
        all.extend(found.into_iter().filter_map(|(path, content)| self.waiting(path, content)));
        Ok(all)
    }

    /// Whether an interrupted write is pending.
    pub(super) fn is_pending(&self) -> Result<bool, StuckRecord> {
        Ok(!self.ours(&self.found()?)?.is_empty())
    }

    /// The records of this medium. A copy of a whole file system duplicates media identities: of several records,
    /// those of this path count.
    fn ours<'a>(
        &self,
        found: &'a [(PathBuf, RecordContent)],
    ) -> Result<Vec<(&'a PathBuf, &'a JournalRecord)>, StuckRecord> {
        let ours = found.iter().filter_map(|(path, content)| match content {
            RecordContent::Record(record) if record.medium.id == self.medium.id => Some((path, record)),
            _ => None,
        });
        let mut ours: Vec<_> = ours.collect();
        if ours.len() < 2 {
            return Ok(ours);
        }
        let first = ours[0].0;
        ours.retain(|(_, record)| record.medium.path == self.medium.path);
        match ours.is_empty() {
            true => Err(StuckRecord::unread(
                first,
                io::Error::other("several records belong to this medium, and none of them to this path"),
            )),
            false => Ok(ours),
        }
    }

    /// Handles a record at this path that is not replayed.
    fn waiting(&self, path: PathBuf, content: RecordContent) -> Option<ReplayOutcome> {
        match content {
            RecordContent::Record(JournalRecord { medium: MediumIdentity { id, path: at }, .. }) => {
                (id != self.medium.id && at == self.medium.path).then_some(ReplayOutcome::Other { id, path })
            }
            RecordContent::Old => (path == self.path(0)).then_some(ReplayOutcome::Old { path }),
        }
    }

    /// The identity of this medium.
    pub(super) fn medium(&self) -> &str {
        &self.medium.id
    }

    fn end(&self, record: &JournalRecord, path: &Path, medium: &File) -> io::Result<ReplayOutcome> {
        let (offset, len) = (record.offset, record.data.len());
        let redone = record.redo(medium)?;
        if !matches!(redone, RedoOutcome::Changed) {
            clear(&OpenOptions::new().write(true).open(path)?)?;
        }
        match redone {
            RedoOutcome::Done => return Ok(ReplayOutcome::Done { offset, len }),
            RedoOutcome::Undone(error) => return Ok(ReplayOutcome::Undone { offset, len, error }),
            RedoOutcome::Changed => {}
        }
        let aside = self.aside();
        std::fs::rename(path, &aside)?;
        sync_folder(&self.folder)?;
        Ok(ReplayOutcome::Aside { offset, len, path: aside })
    }

    /// The records that are not cleared, in the order of their names.
    fn found(&self) -> Result<Vec<(PathBuf, RecordContent)>, StuckRecord> {
        let mut found = Vec::new();
        for path in journals(&self.folder).map_err(|e| StuckRecord::unread(&self.folder, e))? {
            match read(&path) {
                Ok(bytes) => found.extend(bytes.and_then(|bytes| Some((path, RecordContent::of(&bytes)?)))),
                Err(e) if self.is_of_path(&path) => return Err(StuckRecord::unread(&path, e)),
                // It most likely belongs to another medium. This medium must stay usable.
                Err(e) => tracing::warn!(
                    "{}: cannot read this journal record of an atomic write: {e}; the record may belong to {}; hint: repair \
                     the record, or remove the record if its medium is gone",
                    path.display(),
                    self.medium.path.display()
                ),
            }
        }
        Ok(found)
    }

    /// Whether the record was written for this path.
    fn is_of_path(&self, journal: &Path) -> bool {
        let name = journal.file_name().unwrap_or_default().as_bytes();
        name.starts_with(format!("{:016x}.", self.medium.hash_of_path()).as_bytes())
    }

    fn path(&self, number: u32) -> PathBuf {
        let number = if number == 0 { String::new() } else { format!(".{number}") };
        self.folder.join(format!("{:016x}{number}.journal", self.medium.hash_of_path()))
    }

    /// The path to move a record aside to: a free one, or that of the oldest record moved aside.
    fn aside(&self) -> PathBuf {
        let path = |number| self.folder.join(format!("{:016x}.{number}.aside", self.medium.hash_of_path()));
        let age = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok();
        // A free path has the age None, which sorts first.
        (0..ASIDE).map(path).min_by_key(age).unwrap_or_else(|| path(0))
    }

    /// Opens a record file that holds no record and has no other user.
    fn create(&self) -> io::Result<JournalFile> {
        // The directory may have been deleted.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.folder);
        made.map_err(|e| {
            io::Error::new(e.kind(), format!("cannot create the folder {}: {e}", self.folder.display()))
        })?;
        for path in (0..FILES).map(|number| self.path(number)) {
            let file = open(&path)?;
            if is_locked_by_others(&file) || !is_at(&file, &path) {
                continue;
            }
            if read(&path)?.is_some_and(|bytes| RecordContent::of(&bytes).is_some()) {
                continue;
            }
            file.sync_all()?;
            sync_folder(&self.folder)?;
            return Ok(JournalFile { file, path });
        }
        let all = self.folder.display();
        let what = format!("{all} is full: it has records of {FILES} other media that were at this path");
        Err(io::Error::new(io::ErrorKind::StorageFull, what))
    }

    /// Reopens the record file, read-only unless `writes`.
    #[cfg(test)]
    pub(super) fn reopen(&self, writes: bool) {
        let path = locked(&self.file).as_ref().expect("a record").path.clone();
        let file = OpenOptions::new().read(true).write(writes).open(&path).expect("a journal");
        *locked(&self.file) = Some(JournalFile { file, path });
    }

    /// The path of its record file. Before the first record, the path that the file will have.
    #[cfg(test)]
    pub(super) fn file_now(&self) -> PathBuf {
        locked(&self.file).as_ref().map_or(self.path(0), |kept| kept.path.clone())
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    FileId::of_open(file).is_ok_and(|id| id.is_at(path))
}

/// Without support for locks, journals are separate only by the file names that derive from their paths.
fn is_locked_by_others(file: &File) -> bool {
    matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

/// Clears the header and keeps the space for the next record. If a full file system cannot even store a cleared
/// header, the file is truncated, which works without space.
fn clear(file: &File) -> io::Result<()> {
    let overwritten = file.write_all_at(&[0; MAGIC.len()], 0).and_then(|()| file.sync_data());
    overwritten.or_else(|_| file.set_len(0).and_then(|()| file.sync_all()))
}

/// The record files, sorted by name.
fn journals(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "journal"));
    paths.sort();
    Ok(paths)
}

/// The content of a record file; None if it is cleared.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?.take(MAX_RECORD),
    };
    let mut bytes = Vec::new();
    file.by_ref().take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
    if bytes != MAGIC && bytes != OLD_MAGIC {
        return Ok(None);
    }
    file.read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Makes the names of files durable.
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags};
    use std::os::unix::fs::MetadataExt;

    const LEN: usize = 5 * SECTOR;

    /// A medium of ones and its record directory, both removed on drop.
    struct Place {
        path: PathBuf,
        folder: PathBuf,
    }

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("lunar-{name}-{}", std::process::id()));
            let folder = path.with_extension("records");
            _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir(&folder).expect("a folder");
            std::fs::write(&path, [1; 8 * SECTOR]).expect("a medium");
            Place { path, folder }
        }

        fn medium(&self) -> File {
            OpenOptions::new().read(true).write(true).open(&self.path).expect("a medium")
        }

        fn journal(&self) -> WriteJournal {
            let medium = MediumIdentity::of(&self.medium(), &self.path, 0, None).expect("its identity");
            WriteJournal::new(&self.folder, medium)
        }

        fn whole(&self) -> Vec<u8> {
            self.journal().record(SECTOR as u64, &[1; LEN], &[2; LEN])
        }

        fn put(&self) -> WriteJournal {
            let journal = self.journal();
            journal.put(&self.whole()).expect("kept");
            journal
        }

        /// Replays as the next open does, and returns the outcome and the range of the write.
        fn replayed(&self) -> (Vec<ReplayOutcome>, Vec<u8>) {
            let replayed = self.journal().replay(&self.medium()).map_err(|stuck| stuck.error);
            let medium = std::fs::read(&self.path).expect("a medium");
            (replayed.expect("replayed"), medium[SECTOR..][..LEN].to_vec())
        }

        /// The number of record files with this extension.
        fn files(&self, extension: &str) -> usize {
            let paths =
                std::fs::read_dir(&self.folder).expect("a folder").map(|entry| entry.expect("one").path());
            paths.filter(|path| path.extension().is_some_and(|found| found == extension)).count()
        }

        /// Moves the medium away, and creates another file of ones at its path. Returns the new path of the first
        /// medium.
        fn replace(&self) -> PathBuf {
            let away = self.path.with_extension("away");
            std::fs::rename(&self.path, &away).expect("moved");
            std::fs::write(&self.path, [1; 8 * SECTOR]).expect("another medium");
            away
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            _ = std::fs::remove_file(&self.path);
            _ = std::fs::remove_dir_all(&self.folder);
        }
    }

    const DONE: ReplayOutcome = ReplayOutcome::Done { offset: SECTOR as u64, len: LEN };

    #[test]
    fn write_cut_off_at_any_byte_is_replayed() {
        for sectors in 0..=5 {
            let place = Place::new("cut-off");
            place.put();
            place.medium().write_all_at(&[2; LEN][..sectors * SECTOR], SECTOR as u64).expect("a part");
            assert!(place.journal().is_pending().expect("readable"));
            assert_eq!(place.replayed(), (vec![DONE], vec![2; LEN]), "after {sectors} sectors");
            assert_eq!(place.replayed().0, [], "once");
        }
    }

    #[test]
    fn record_that_is_not_whole_changes_nothing() {
        let place = Place::new("not-whole");
        let path = place.put().file_now();
        let whole = place.whole();
        for cut in [0, 7, HEADER - 1, HEADER, HEADER + 20, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).expect("a part");
            assert_eq!(place.replayed(), (vec![], vec![1; LEN]), "{cut} bytes");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 1;
            assert!(JournalRecord::of(&wrong).is_none(), "byte {at}");
        }
    }

    #[test]
    fn medium_that_another_program_changed_is_left_alone() {
        let place = Place::new("changed");
        place.put();
        place.medium().write_all_at(&[3], 2 * SECTOR as u64).expect("changed");
        let (replayed, now) = place.replayed();
        assert!(matches!(replayed[..], [ReplayOutcome::Aside { .. }]), "{replayed:?}");
        assert_eq!((now[0], now[SECTOR], now[SECTOR + 1]), (1, 3, 1));
        place.put();
        place.medium().set_len(2 * SECTOR as u64).expect("shorter");
        let replayed = place.journal().replay(&place.medium()).map_err(|stuck| stuck.error);
        let [ReplayOutcome::Aside { path, .. }] = &replayed.expect("replayed")[..] else {
            panic!("not put aside")
        };
        assert!(
            std::fs::read(path).is_ok_and(|bytes| JournalRecord::of(&bytes).is_some()),
            "the record is kept"
        );
        for _ in 0..ASIDE {
            place.put();
            _ = place.journal().replay(&place.medium());
        }
        assert_eq!((place.files("aside"), place.files("journal")), (ASIDE as usize, 0));
    }

    /// A medium that rejects writes: ones, and twos in the first `new` sectors of the write.
    fn sealed(new: usize) -> File {
        let mut bytes = [1; 8 * SECTOR];
        bytes[SECTOR..][..new * SECTOR].fill(2);
        let file = File::from(rustix::fs::memfd_create("sealed", MemfdFlags::ALLOW_SEALING).expect("a file"));
        file.write_all_at(&bytes, 0).expect("written");
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE).expect("sealed");
        file
    }

    #[test]
    fn record_that_its_medium_refuses_is_dropped_if_all_is_old() {
        let place = Place::new("refused");
        place.put();
        let stuck = place.journal().replay(&sealed(1)).expect_err("new and old blocks");
        assert_eq!(stuck.error.kind(), io::ErrorKind::PermissionDenied);
        assert!(place.journal().is_pending().expect("readable"));
        let replayed = place.journal().replay(&sealed(0)).map_err(|stuck| stuck.error).expect("undone");
        assert!(matches!(replayed[..], [ReplayOutcome::Undone { .. }]), "{replayed:?}");
        assert!(!place.journal().is_pending().expect("readable"));
    }

    #[test]
    fn another_medium_at_the_path_is_left_alone() {
        let place = Place::new("another");
        place.put();
        let record = place.medium().metadata().expect("a medium").ino();
        place.medium().write_all_at(&[2; SECTOR], SECTOR as u64).expect("a part");
        let away = place.replace();
        for _ in 0..2 {
            let (replayed, now) = place.replayed();
            let [ReplayOutcome::Other { id, .. }] = &replayed[..] else { panic!("{replayed:?}") };
            assert!(id.starts_with(&format!("inode {record}")), "{id}");
            assert_eq!(now, [1; LEN]);
        }
        // Records of the new medium must not replace that of the first one.
        place.put();
        assert_eq!(place.files("journal"), 2);
        assert_eq!(place.replayed().1, [2; LEN]);
        std::fs::rename(&away, &place.path).expect("the first medium is back");
        assert_eq!(place.replayed(), (vec![DONE], vec![2; LEN]));
        assert_eq!(place.replayed().0, []);
    }

    #[test]
    fn medium_at_another_path_finds_its_record() {
        let mut place = Place::new("moved");
        place.put();
        if place.journal().medium().contains(" at ") {
            return println!("skipped: needs a file system with times of birth");
        }
        let to = place.path.with_extension("moved");
        std::fs::rename(&place.path, &to).expect("moved");
        place.path = to;
        assert_eq!(place.replayed(), (vec![DONE], vec![2; LEN]));
    }

    #[test]
    fn records_of_other_media_have_a_limit() {
        let place = Place::new("limit");
        let record = place.whole();
        for number in 0..FILES {
            std::fs::write(place.journal().path(number), &record).expect("a record");
        }
        let away = place.replace();
        let e = place.journal().put(&place.whole()).expect_err("no free record file");
        assert!(e.to_string().contains("16 other media"), "{e}");
        std::fs::remove_file(away).expect("removed");
        assert_eq!(place.files("journal"), FILES as usize);
    }

    #[test]
    fn record_of_an_older_format_is_left_alone() {
        let place = Place::new("older");
        let path = place.journal().path(0);
        std::fs::write(&path, [&OLD_MAGIC[..], &[1; 100]].concat()).expect("a record");
        assert_eq!(place.replayed(), (vec![ReplayOutcome::Old { path: path.clone() }], vec![1; LEN]));
        place.put();
        assert!(std::fs::read(path).expect("there").starts_with(&OLD_MAGIC));
        assert_eq!(place.replayed().0[0], DONE);
    }

    #[test]
    fn unreadable_record_of_another_path_is_ignored() {
        let place = Place::new("unreadable");
        std::fs::create_dir(place.folder.join("0123456789abcdef.journal")).expect("unreadable");
        assert_eq!(place.replayed().0, []);
        assert!(!place.journal().is_pending().expect("readable"));
        place.put();
        assert_eq!(place.replayed(), (vec![DONE], vec![2; LEN]));
    }

    #[test]
    fn unreadable_record_of_this_path_is_an_error() {
        let place = Place::new("unreadable-own");
        let path = place.journal().path(3);
        std::fs::create_dir(&path).expect("unreadable");
        let refused = [
            place.journal().replay(&place.medium()).expect_err("unreadable"),
            place.journal().is_pending().expect_err("unreadable"),
        ];
        assert!(refused.iter().all(|stuck| stuck.is_unread && stuck.path == path), "{refused:?}");
    }

    /// A copy of a file system has the same inodes and birth times.
    #[test]
    fn of_records_of_one_identity_that_of_the_path_counts() {
        let place = Place::new("clones");
        let medium = |path: &str| MediumIdentity { path: path.into(), ..place.journal().medium };
        let journal = |path: &str| WriteJournal::new(&place.folder, medium(path));
        for path in ["/first", "/second"] {
            let record = journal(path).record(SECTOR as u64, &[1; LEN], &[2; LEN]);
            journal(path).put(&record).expect("kept");
        }
        let stuck = journal("/third").replay(&place.medium()).expect_err("two records match");
        assert!(stuck.error.to_string().contains("several records belong to this medium"), "{stuck:?}");
        assert_eq!(journal("/second").replay(&place.medium()).expect("replayed"), [DONE]);
        assert!(journal("/first").is_pending().expect("readable"), "it waits");
    }

    #[test]
    fn two_journals_of_one_path_keep_apart() {
        let place = Place::new("apart");
        let (first, second) = (place.put(), place.put());
        assert_ne!(first.file_now(), second.file_now());
        second.clear().expect("cleared");
        assert!(place.journal().is_pending().expect("readable"));
    }

    #[test]
    fn record_is_kept_though_its_file_was_removed() {
        let place = Place::new("removed");
        let journal = place.put();
        journal.clear().expect("cleared");
        std::fs::remove_file(journal.file_now()).expect("removed");
        journal.put(&place.whole()).expect("kept");
        journal.clear().expect("cleared");
        std::fs::remove_dir_all(&place.folder).expect("removed");
        journal.put(&place.whole()).expect("kept");
        assert_eq!(place.replayed().0, [DONE]);
    }

    #[test]
    fn write_that_has_ended_is_not_done_again() {
        let place = Place::new("ended");
        let journal = place.put();
        place.medium().write_all_at(&[2; LEN], SECTOR as u64).expect("written");
        journal.clear().expect("cleared");
        place.medium().write_all_at(&[1; LEN], SECTOR as u64).expect("a later write");
        assert_eq!(place.replayed(), (vec![], vec![1; LEN]));
    }
}
