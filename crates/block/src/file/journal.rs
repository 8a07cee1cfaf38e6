//! Atomic writes: what is to be written is on stable storage before the first byte of it is on the medium, so that a
//! write that was cut off is done again when the medium is opened the next time.
//!
//! One record at a time. It is cleared before its write is acknowledged: done again later, it would replace newer data.
//! It has checksums of what it replaces too. Where the medium has something else by then, neither old nor new, another
//! program has changed it, or it is another medium, and the record is dropped.

use crate::{MAX_ATOMIC, locked};
use net::iscsi::digest::crc32c;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

const MAGIC: [u8; 8] = *b"LUNARWA1";
/// Magic, offset, bytes, checksum of all.
const HEADER: usize = 24;
const CHECKSUM: std::ops::Range<usize> = 20..24;
/// Bytes that a medium changes as one.
const SECTOR: usize = 512;

/// Where records of one medium are kept.
pub(super) struct Journal {
    path: PathBuf,
    /// From the first record on.
    file: Mutex<Option<File>>,
}

/// What was to be written.
struct Record {
    offset: u64,
    /// Of each sector as it was.
    old: Vec<u32>,
    data: Vec<u8>,
}

/// What became of a record that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Replayed {
    /// There was none, or its write had not begun.
    Nothing,
    /// Its write is done.
    Done { offset: u64, len: usize },
    /// The medium has changed since.
    Dropped { offset: u64, len: usize },
}

/// A record as it is kept.
pub(super) fn record(offset: u64, old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + new.len() + new.len().div_ceil(SECTOR) * 4);
    bytes.extend(MAGIC);
    bytes.extend(offset.to_le_bytes());
    bytes.extend((new.len() as u32).to_le_bytes());
    bytes.extend([0; CHECKSUM.end - CHECKSUM.start]);
    old.chunks(SECTOR).for_each(|sector| bytes.extend(crc32c(&[sector]).to_le_bytes()));
    bytes.extend(new);
    let checksum = crc32c(&[&bytes]);
    bytes[CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

impl Record {
    /// None: it is cleared, or was not yet whole when its writer ended.
    fn of(bytes: &[u8]) -> Option<Record> {
        let (header, rest) = bytes.split_at_checked(HEADER)?;
        let offset = u64::from_le_bytes(header[8..16].try_into().ok()?);
        let len = u32::from_le_bytes(header[16..20].try_into().ok()?);
        if header[..8] != MAGIC || len == 0 || len > MAX_ATOMIC {
            return None;
        }
        let len = len as usize;
        let (old, rest) = rest.split_at_checked(len.div_ceil(SECTOR) * 4)?;
        let data = rest.get(..len)?;
        let checksum = crc32c(&[&header[..CHECKSUM.start], &[0; 4], old, data]);
        let old = old.as_chunks::<4>().0.iter().map(|crc| u32::from_le_bytes(*crc)).collect();
        (header[CHECKSUM] == checksum.to_le_bytes()).then(|| Record { offset, old, data: data.to_vec() })
    }

    /// Each sector of the medium is as it was before the write, or as it is after it.
    fn fits(&self, medium: &[u8]) -> bool {
        let sectors = medium.chunks(SECTOR).zip(self.data.chunks(SECTOR)).zip(&self.old);
        sectors.into_iter().all(|((now, new), old)| now == new || crc32c(&[now]) == *old)
    }
}

impl Journal {
    pub(super) fn new(path: PathBuf) -> Journal {
        Journal { path, file: Mutex::default() }
    }

    /// Keeps a record; may wait.
    pub(super) fn put(&self, record: &[u8]) -> io::Result<()> {
        let mut slot = locked(&self.file);
        let file = match &mut *slot {
            Some(file) => file,
            none => none.insert(create(&self.path)?),
        };
        file.write_all_at(record, 0)?;
        file.sync_data()
    }

    /// The write of the record is done, or given up; may wait.
    pub(super) fn clear(&self) -> io::Result<()> {
        locked(&self.file).as_ref().map_or(Ok(()), clear)
    }

    /// Does a write again that was cut off. Nobody else uses the medium yet.
    pub(super) fn replay(&self, medium: &File) -> io::Result<Replayed> {
        let bytes = match std::fs::read(&self.path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Replayed::Nothing),
            read => read?,
        };
        let Some(record) = Record::of(&bytes) else { return Ok(Replayed::Nothing) };
        let (offset, len) = (record.offset, record.data.len());
        let mut now = vec![0; len];
        let fits = match medium.read_exact_at(&mut now, offset) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => false,
            read => read.map(|()| record.fits(&now))?,
        };
        if fits {
            if now != record.data {
                medium.write_all_at(&record.data, offset)?;
            }
            // What was read here may be in the page cache only.
            medium.sync_data()?;
        }
        clear(&OpenOptions::new().write(true).open(&self.path)?)?;
        Ok(if fits { Replayed::Done { offset, len } } else { Replayed::Dropped { offset, len } })
    }

    /// Opens its file again, for reading only unless `writes`.
    #[cfg(test)]
    pub(super) fn reopen(&self, writes: bool) {
        let file = OpenOptions::new().read(true).write(writes).open(&self.path).expect("a journal");
        self.keep_in(file);
    }

    /// Keeps its records in this file.
    #[cfg(test)]
    pub(super) fn keep_in(&self, file: File) {
        *locked(&self.file) = Some(file);
    }

    /// A write was cut off that was not done again yet.
    pub(super) fn is_pending(&self) -> bool {
        std::fs::read(&self.path).is_ok_and(|bytes| Record::of(&bytes).is_some())
    }
}

/// Keeps the space for the next record. Without space for a header, the file becomes empty: a file system that is full
/// does that too.
fn clear(file: &File) -> io::Result<()> {
    let overwritten = file.write_all_at(&[0; HEADER], 0).and_then(|()| file.sync_data());
    overwritten.or_else(|_| file.set_len(0).and_then(|()| file.sync_all()))
}

/// Opens it; its name is stable when it was made.
fn create(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.sync_all()?;
    File::open(path.parent().unwrap_or(Path::new("/")))?.sync_all()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 5 * SECTOR;

    /// A medium of ones, and a journal, both gone at the end.
    struct Place(PathBuf, Journal);

    impl Place {
        fn new(name: &str) -> Place {
            let path = std::env::temp_dir().join(format!("lunar-{name}-{}", std::process::id()));
            std::fs::write(&path, [1; 8 * SECTOR]).expect("a medium");
            let journal = Journal::new(path.with_extension("journal"));
            Place(path, journal)
        }

        fn medium(&self) -> File {
            OpenOptions::new().read(true).write(true).open(&self.0).expect("a medium")
        }

        /// What is there once it was opened again.
        fn replayed(&self) -> (Replayed, Vec<u8>) {
            let replayed = Journal::new(self.1.path.clone()).replay(&self.medium()).expect("replayed");
            (replayed, std::fs::read(&self.0).expect("a medium")[SECTOR..][..LEN].to_vec())
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            _ = std::fs::remove_file(&self.0);
            _ = std::fs::remove_file(&self.1.path);
        }
    }

    fn put(place: &Place) {
        place.1.put(&record(SECTOR as u64, &[1; LEN], &[2; LEN])).expect("kept");
    }

    #[test]
    fn a_write_that_was_cut_off_anywhere_is_done_again() {
        let done = Replayed::Done { offset: SECTOR as u64, len: LEN };
        for sectors in 0..=5 {
            let place = Place::new("cut-off");
            put(&place);
            place.medium().write_all_at(&[2; LEN][..sectors * SECTOR], SECTOR as u64).expect("a part");
            assert!(place.1.is_pending());
            assert_eq!(place.replayed(), (done, vec![2; LEN]), "after {sectors} sectors");
            assert_eq!(place.replayed().0, Replayed::Nothing, "once");
        }
    }

    #[test]
    fn a_record_that_is_not_whole_changes_nothing() {
        let place = Place::new("not-whole");
        let whole = record(SECTOR as u64, &[1; LEN], &[2; LEN]);
        for cut in [0, 7, HEADER - 1, HEADER, HEADER + 20, whole.len() - 1] {
            std::fs::write(&place.1.path, &whole[..cut]).expect("a part");
            assert_eq!(place.replayed(), (Replayed::Nothing, vec![1; LEN]), "{cut} bytes");
        }
        for at in 0..whole.len() {
            let mut wrong = whole.clone();
            wrong[at] ^= 1;
            assert!(Record::of(&wrong).is_none(), "byte {at}");
        }
    }

    #[test]
    fn a_medium_that_another_program_changed_is_left_alone() {
        let place = Place::new("changed");
        put(&place);
        place.medium().write_all_at(&[3], 2 * SECTOR as u64).expect("changed");
        let (replayed, now) = place.replayed();
        assert_eq!(replayed, Replayed::Dropped { offset: SECTOR as u64, len: LEN });
        assert_eq!((now[0], now[SECTOR], now[SECTOR + 1]), (1, 3, 1));
        put(&place);
        place.medium().set_len(2 * SECTOR as u64).expect("shorter");
        let replayed = Journal::new(place.1.path.clone()).replay(&place.medium()).expect("replayed");
        assert_eq!(replayed, Replayed::Dropped { offset: SECTOR as u64, len: LEN });
    }

    #[test]
    fn a_write_that_has_ended_is_not_done_again() {
        let place = Place::new("ended");
        put(&place);
        place.medium().write_all_at(&[2; LEN], SECTOR as u64).expect("written");
        place.1.clear().expect("cleared");
        place.medium().write_all_at(&[1; LEN], SECTOR as u64).expect("a later write");
        assert_eq!(place.replayed(), (Replayed::Nothing, vec![1; LEN]));
    }
}
