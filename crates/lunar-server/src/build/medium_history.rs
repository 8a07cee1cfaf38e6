//! The record of the media of a LUN, in `LUN.medium` next to its state. Hosts may write anything to a disk,
//! including the magic of an image format, and depend on its block size. So both are fixed when a medium is first
//! served.
//!
//! The record is written only once the medium is served: a failed start or reload does not change it. It also lists
//! earlier paths, because a LUN may return to one of them.

use super::medium::Medium;
use super::reusable_media::ReusableMedia;
use super::{MAX_STATE_BYTES, UnitName, Units, notes_of_size};
use crate::config::{LunConfig, Source, one_name};
use crate::{Diagnostic, ErrorCode, io_text};
use lunar_block::Backend;
use lunar_scsi::PeripheralDeviceType;
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The default block size in bytes.
const USUAL: u32 = 512;
/// The largest block size that hosts support, in bytes.
const LARGEST: u32 = 4096;
/// The number of paths in a record.
const MAX_PATHS: usize = 8;
/// The attributes that identify a file.
const WANTED: StatxFlags = StatxFlags::INO.union(StatxFlags::BTIME);

#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct MediumRecord {
    path: PathBuf,
    /// Set for a file.
    inode: Option<u64>,
    /// Set for a file, because a file system reuses the inodes of deleted files. The device number is no identity: it
    /// may change at a restart.
    birth_ns: Option<i64>,
    format: Format,
    /// Size in bytes when it was last opened. Records of older versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Set for a device: its own block size, and the one that hosts see.
    device_block_size: Option<u32>,
    block_size: Option<u32>,
    /// The earlier media of the LUN at other paths, newest first. Their own lists are empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<MediumRecord>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Raw,
}

/// The history of a LUN: its media by path.
pub(crate) struct MediumHistory {
    file: PathBuf,
    newest: Option<MediumRecord>,
    /// Whether a server without such records has served it.
    has_state: bool,
}

/// A record to write once its medium is served.
#[derive(Clone)]
pub(super) struct PendingRecord {
    file: PathBuf,
    record: MediumRecord,
}

/// The block size that hosts see, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocks {
    /// The configured one.
    Defined(u32),
    /// The block size of the device.
    OfDevice(u32),
    /// The earlier one, although the device has blocks of the second size.
    OfBefore(u32, u32),
}

impl MediumRecord {
    fn location(&self) -> MediumLocation {
        MediumLocation { path: self.path.clone(), inode: self.inode, birth_ns: self.birth_ns }
    }
}

impl Units {
    /// Writes the records of the media of a setup. Must be called when the setup is in force. Outside of a trial, the setup
    /// is permanent, and the state that moved units had at their former places is removed.
    pub fn record(&mut self) {
        for open in self.open.values_mut() {
            open.medium.record.take().iter().for_each(PendingRecord::write);
        }
        if !self.kept.is_on_trial() {
            self.remove_former();
        }
        self.locks.release();
    }

    /// The medium of a path: the open one if it is open in the same way, otherwise a new one.
    pub(super) fn at_path(
        &self,
        name: &UnitName,
        lun: &LunConfig,
        media: &ReusableMedia<'_>,
    ) -> Result<Medium, Diagnostic> {
        let past = MediumHistory::read(&self.state_file(name, lun)?)?;
        let (blocks, is_new) = match media.find(name, lun) {
            Some(blocks) => (blocks, false),
            None => (self.open_anew(name, lun, media, &past)?, true),
        };
        let own = blocks.device_block_size();
        let seen = past.blocks(lun, own);
        let size = blocks.info().capacity;
        let faults = past.replaced(lun).into_iter().chain(past.shrunk(lun, size));
        // An open medium stays in use when its path is gone. The record then keeps the path.
        let is_there = blocks.missing().is_none();
        let record = is_there.then(|| past.followed_by(lun, own, seen, size)).flatten();
        if is_new {
            let lun = LunConfig { block_size: seen.bytes(), ..lun.clone() };
            let notes = faults.map(|problem| problem.line()).chain(seen.note());
            for note in notes.chain(notes_of_size(&lun, size)) {
                tracing::warn!("{name}: {note}");
            }
        }
        let (commands, rate, block_size) = (None, self.rate(lun, false), Some(seen.bytes()));
        Ok(Medium { blocks, commands, rate, block_size, shared: None, record })
    }

    /// Opens a path, unless it leads to another medium than before.
    fn open_anew(
        &self,
        name: &UnitName,
        lun: &LunConfig,
        media: &ReusableMedia<'_>,
        past: &MediumHistory,
    ) -> Result<Arc<dyn Backend>, Diagnostic> {
        media.in_place(lun)?;
        past.check_there(lun)?;
        let opened = media.open(name, lun, past.is_raw(lun), &self.state_dir)?;
        // The path may have changed between the check and the open.
        media.in_place(lun)?;
        Ok(opened)
    }
}

/// Whether a server with this state folder has served the file or device. Then its content is that of a raw disk,
/// even if a host has written the magic of an image format. Unreadable records are ignored.
pub fn was_served(state_dir: &Path, path: &Path) -> bool {
    let path_buf = path.to_path_buf();
    let source = match path.metadata() {
        Ok(found) if found.is_file() => Source::File { path: path_buf, size: None },
        Ok(_) => Source::Device { path: path_buf },
        Err(_) => return false,
    };
    let lun = LunConfig::new(source, PeripheralDeviceType::Disk);
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let files = entries(state_dir.join("lu")).flat_map(|target| entries(target.path()));
    let mut records =
        files.map(|file| file.path()).filter(|file| file.extension() == Some("medium".as_ref()));
    records.any(|file| MediumHistory::read(&file).is_ok_and(|past| past.of(&lun).is_some()))
}

impl MediumHistory {
    /// Reads the history of the LUN with this state file.
    pub(crate) fn read(state_file: &Path) -> Result<MediumHistory, Diagnostic> {
        let file = state_file.with_extension("medium");
        let newest = read(&file)?;
        Ok(MediumHistory { file, newest, has_state: state_file.exists() })
    }

    /// Whether the medium is a raw disk: by configuration, or because it was served as one.
    pub(crate) fn is_raw(&self, lun: &LunConfig) -> bool {
        lun.raw || self.of(lun).is_some()
    }

    /// Rejects a missing or empty file if this unit was served from its path. With an empty disk under the old
    /// identity, hosts would see all data lost.
    pub(crate) fn check_there(&self, lun: &LunConfig) -> Result<(), Diagnostic> {
        let path = match &lun.source {
            Source::File { path, .. } => path,
            // A device node does not vanish with its data, and the others have no path.
            _ => return Ok(()),
        };
        let Some(record) = self.at(&one_name(path)) else { return Ok(()) };
        let fault = match std::fs::metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => io_text(&e),
            Ok(found) if found.is_file() && found.len() == 0 => "is empty".into(),
            _ => return Ok(()),
        };
        let (path, file, before) = (path.display(), self.file.display(), record.location());
        let what = format!("{path}: {fault}; the path held the data of this LUN before ({before})");
        let hint = format!(
            "restore the image, or mount its file system; to start with an empty disk, remove the record {file}"
        );
        Err(Diagnostic::new(what, hint).with_code(ErrorCode::NotFound))
    }

    /// Reports that the path leads to another file than the one that was served.
    pub(crate) fn replaced(&self, lun: &LunConfig) -> Option<Diagnostic> {
        let now = MediumLocation::of(lun)?;
        let before = self.at(&now.path)?.location();
        let is_other = now.inode.is_some() && !now.is(&before);
        let path = now.path.display();
        let what = format!(
            "{path} is not the file that was served before: the old file was {before}, the file now is {now}"
        );
        let hint = "unless you replaced the file on purpose, stop the server and restore the old file";
        is_other.then(|| Diagnostic::new(what, hint))
    }

    /// Reports that the medium is smaller than when it was last served from this path.
    pub(crate) fn shrunk(&self, lun: &LunConfig, size: u64) -> Option<Diagnostic> {
        let path = MediumLocation::of(lun)?.path;
        let before = self.at(&path)?.size.filter(|before| size < *before)?;
        let what =
            format!("{} shrank from {before} to {size} bytes since it was served before", path.display());
        Some(Diagnostic::new(what, "unless you shrank the medium on purpose, stop the hosts and restore it"))
    }

    /// Whether the LUN was last served from its current path.
    pub(crate) fn is_newest(&self, lun: &LunConfig) -> bool {
        let (now, newest) = (MediumLocation::of(lun), self.newest.as_ref());
        now.zip(newest).is_some_and(|(now, newest)| now.path == newest.path)
    }

    /// The record of a path.
    fn at(&self, path: &Path) -> Option<&MediumRecord> {
        let newest = self.newest.as_ref()?;
        std::iter::once(newest).chain(&newest.earlier).find(|record| record.path == path)
    }

    /// The record of the medium of a LUN.
    fn of(&self, lun: &LunConfig) -> Option<&MediumRecord> {
        let now = MediumLocation::of(lun)?;
        self.at(&now.path).filter(|record| now.is(&record.location()))
    }

    /// The block size of a LUN. `of_device` is that of the device in bytes; None for a file.
    pub(crate) fn blocks(&self, lun: &LunConfig, of_device: Option<u32>) -> Blocks {
        let Some(own) = of_device.filter(|_| !lun.has_block_size && lun.kind == PeripheralDeviceType::Disk)
        else {
            return Blocks::Defined(lun.block_size);
        };
        let known = self.of(lun).filter(|record| record.device_block_size == Some(own));
        let before = match known.and_then(|record| record.block_size) {
            Some(size) => Some(size),
            None if (self.newest.is_none() && self.has_state) || has_table_of_usual(lun) => Some(USUAL),
            None => None,
        };
        let natural = own.clamp(USUAL, LARGEST);
        match before {
            Some(size) if size != natural => Blocks::OfBefore(size, own),
            _ if natural != lun.block_size => Blocks::OfDevice(natural),
            _ => Blocks::Defined(lun.block_size),
        }
    }

    /// The record to write for a medium; None if the file has it already.
    fn followed_by(
        &self,
        lun: &LunConfig,
        of_device: Option<u32>,
        blocks: Blocks,
        size: u64,
    ) -> Option<PendingRecord> {
        let MediumLocation { path, inode, birth_ns } = MediumLocation::of(lun)?;
        let block_size = of_device.filter(|_| !lun.has_block_size).map(|_| blocks.bytes());
        // A configured block size is not recorded: the earlier one counts again without it.
        let before = self.of(lun).and_then(|record| record.block_size);
        let block_size = block_size.or(before);
        let (format, device_block_size, size) = (Format::Raw, of_device, Some(size));
        let earlier = self.without(&path);
        let record =
            MediumRecord { path, inode, birth_ns, format, size, device_block_size, block_size, earlier };
        (self.newest.as_ref() != Some(&record)).then(|| PendingRecord { file: self.file.clone(), record })
    }

    /// The newest records of other paths, leaving room for one more.
    fn without(&self, path: &Path) -> Vec<MediumRecord> {
        let Some(newest) = &self.newest else { return Vec::new() };
        let all = std::iter::once(newest).chain(&newest.earlier).filter(|record| record.path != path);
        all.map(|record| MediumRecord { earlier: Vec::new(), ..record.clone() }).take(MAX_PATHS - 1).collect()
    }
}

impl PendingRecord {
    /// Writes the record. A failure is logged, and the LUN is served.
    fn write(&self) {
        lunar_target::remove_leftovers(&self.file);
        let bytes = serde_json::to_vec(&self.record).map_err(std::io::Error::from);
        if let Err(e) = bytes.and_then(|bytes| lunar_target::replace_file(&self.file, &bytes)) {
            let file = self.file.display();
            tracing::warn!("{file}: {}; the next start examines the medium again", io_text(&e));
        }
    }
}

impl Blocks {
    pub(crate) fn bytes(self) -> u32 {
        let (Blocks::Defined(bytes) | Blocks::OfDevice(bytes) | Blocks::OfBefore(bytes, _)) = self;
        bytes
    }

    /// A note for users if the block size is not the default.
    pub(crate) fn note(self) -> Option<String> {
        match self {
            Blocks::Defined(_) => None,
            Blocks::OfDevice(bytes) => Some(format!(
                "the block size is {bytes} bytes, that of the device; set block_size to change it"
            )),
            Blocks::OfBefore(bytes, own) => Some(format!(
                "the LUN keeps the block size of {bytes} bytes that hosts have used, though the device has {own}; \
                 block_size = {own} changes it, and requires new partitions"
            )),
        }
    }
}

/// The path of a medium, and the identity of its file.
struct MediumLocation {
    path: PathBuf,
    inode: Option<u64>,
    birth_ns: Option<i64>,
}

impl MediumLocation {
    fn of(lun: &LunConfig) -> Option<MediumLocation> {
        let (path, found) = match &lun.source {
            Source::File { path, .. } => (path, statx(CWD, path, AtFlags::empty(), WANTED).ok()),
            Source::Device { path } => (path, None),
            _ => return None,
        };
        let inode = found.as_ref().map(|found| found.stx_ino);
        Some(MediumLocation { path: one_name(path), inode, birth_ns: found.as_ref().and_then(birth_ns) })
    }

    /// Whether both are the same. A birth time counts only if both have one: older records and some file systems have
    /// none.
    fn is(&self, other: &MediumLocation) -> bool {
        let is_as_old = self.birth_ns.zip(other.birth_ns).is_none_or(|(a, b)| a == b);
        self.path == other.path && self.inode == other.inode && is_as_old
    }
}

/// The identity as `inode 12, created 2026-11-26T17:50:03Z`.
impl fmt::Display for MediumLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inode {
            Some(inode) => write!(f, "inode {inode}")?,
            None => f.write_str("a device")?,
        }
        let birth_ns = self.birth_ns.and_then(|birth_ns| u64::try_from(birth_ns).ok());
        let birth = birth_ns.map(|birth_ns| SystemTime::UNIX_EPOCH + Duration::from_nanos(birth_ns));
        birth.map_or(Ok(()), |birth| write!(f, ", created {}", humantime::format_rfc3339_seconds(birth)))
    }
}

/// The birth time; None if the file system does not store it.
fn birth_ns(found: &Statx) -> Option<i64> {
    let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
    let at = has_birth.then_some(found.stx_btime)?;
    at.tv_sec.checked_mul(1_000_000_000)?.checked_add(at.tv_nsec.into())
}

/// Whether the device has a GPT at byte 512 and none at byte 4096, which shows that hosts used blocks of 512 bytes.
fn has_table_of_usual(lun: &LunConfig) -> bool {
    const HEADER: &[u8] = b"EFI PART";
    let Some(path) = lun.source.path().filter(|_| lun.source.has_own_block_size()) else { return false };
    let mut start = [0; 8192];
    let read = File::open(path).and_then(|mut device| device.read_exact(&mut start));
    let is_at = |at: u32| start[at as usize..].starts_with(HEADER);
    read.is_ok() && is_at(USUAL) && !is_at(LARGEST)
}

fn read(file: &Path) -> Result<Option<MediumRecord>, Diagnostic> {
    let failed = |what: String| {
        let hint = "remove the record: the next start then examines the medium again";
        Diagnostic::new(format!("the record {} {what}", file.display()), hint)
    };
    let opened = match File::open(file) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|e| failed(format!("cannot be read: {}", io_text(&e))))?,
    };
    let mut bytes = Vec::new();
    let read = opened.take(MAX_STATE_BYTES).read_to_end(&mut bytes);
    read.map_err(|e| failed(format!("cannot be read: {}", io_text(&e))))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|e| failed(format!("is damaged: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::Folder;

    fn device(path: &Path) -> LunConfig {
        LunConfig::new(Source::Device { path: path.into() }, PeripheralDeviceType::Disk)
    }

    fn past(folder: &Folder) -> MediumHistory {
        MediumHistory::read(&folder.0.join("0.state")).unwrap()
    }

    /// Records the medium as served.
    fn keep(folder: &Folder, lun: &LunConfig, of_device: Option<u32>, blocks: Blocks, size: u64) {
        past(folder).followed_by(lun, of_device, blocks, size).iter().for_each(PendingRecord::write);
    }

    #[test]
    fn time_of_birth_is_shown_as_a_date() {
        let location =
            MediumLocation { path: "/a".into(), inode: Some(12), birth_ns: Some(1_795_343_400_900_000_000) };
        assert_eq!(location.to_string(), "inode 12, created 2026-11-22T10:30:00Z");
    }

    #[test]
    fn device_has_its_own_blocks_unless_it_had_others() {
        let folder = Folder::new("record-blocks");
        let disk = device(&folder.file("disk", vec![0; 8192], 0o600));
        let fresh = |own| past(&folder).blocks(&disk, Some(own));
        assert_eq!(fresh(512), Blocks::Defined(512));
        assert_eq!(fresh(4096), Blocks::OfDevice(4096));
        assert_eq!(fresh(16384), Blocks::OfDevice(4096));
        let defined = LunConfig { has_block_size: true, ..disk.clone() };
        assert_eq!(past(&folder).blocks(&defined, Some(4096)), Blocks::Defined(512));
        keep(&folder, &disk, Some(4096), Blocks::OfBefore(512, 4096), 8192);
        assert_eq!(fresh(4096), Blocks::OfBefore(512, 4096));
        keep(&folder, &defined, Some(4096), Blocks::Defined(512), 8192);
        assert_eq!(fresh(4096), Blocks::OfBefore(512, 4096), "a configured block size is not recorded");
        assert_eq!(fresh(512), Blocks::Defined(512), "a device with another block size");
    }

    #[test]
    fn device_that_was_served_before_keeps_its_blocks() {
        let folder = Folder::new("record-before");
        let mut table = vec![0; 8192];
        table[512..520].copy_from_slice(b"EFI PART");
        let used = device(&folder.file("used", table.clone(), 0o600));
        assert_eq!(past(&folder).blocks(&used, Some(4096)), Blocks::OfBefore(512, 4096));
        table[4096..4104].copy_from_slice(b"EFI PART");
        let other = device(&folder.file("other", table, 0o600));
        assert_eq!(past(&folder).blocks(&other, Some(4096)), Blocks::OfDevice(4096));
        folder.file("0.state", "", 0o600);
        assert_eq!(past(&folder).blocks(&other, Some(4096)), Blocks::OfBefore(512, 4096));
    }

    #[test]
    fn file_that_was_served_stays_raw_and_another_does_not() {
        let folder = Folder::new("record-raw");
        let path = folder.file("disk", vec![0; 8192], 0o600);
        let lun = LunConfig::new(Source::File { path: path.clone(), size: None }, PeripheralDeviceType::Disk);
        assert!(!past(&folder).is_raw(&lun) && past(&folder).is_raw(&LunConfig { raw: true, ..lun.clone() }));
        keep(&folder, &lun, None, Blocks::Defined(512), 8192);
        assert!(past(&folder).is_raw(&lun));
        let other = folder.file("other", vec![0; 8192], 0o600);
        std::fs::rename(other, path).unwrap();
        assert!(!past(&folder).is_raw(&lun), "another file is at the path");
    }

    #[test]
    fn new_file_with_the_inode_of_an_old_one_is_not_raw() {
        let folder = Folder::new("record-birth");
        let path = folder.file("disk", vec![0; 8192], 0o600);
        let lun = LunConfig::new(Source::File { path, size: None }, PeripheralDeviceType::Disk);
        keep(&folder, &lun, None, Blocks::Defined(512), 8192);
        let mut record = past(&folder).newest.unwrap();
        let Some(birth_ns) = record.birth_ns else { return println!("skipped: no time of birth") };
        let mut of_birth = |birth_ns| {
            record.birth_ns = birth_ns;
            folder.file("0.medium", serde_json::to_vec(&record).unwrap(), 0o600);
        };
        of_birth(Some(birth_ns - 1));
        assert!(!past(&folder).is_raw(&lun), "another birth time, so another file");
        of_birth(None);
        assert!(past(&folder).is_raw(&lun), "records of older versions have no birth time");
    }

    #[test]
    fn birth_that_one_side_does_not_know_is_no_difference() {
        let location = |birth_ns| MediumLocation { path: "/a".into(), inode: Some(7), birth_ns };
        for (a, b, is) in
            [(None, None, true), (Some(1), None, true), (None, Some(1), true), (Some(1), Some(2), false)]
        {
            assert_eq!(location(a).is(&location(b)), is, "{a:?} {b:?}");
        }
    }

    #[test]
    fn missing_or_empty_file_of_a_served_lun_is_refused() {
        let folder = Folder::new("record-there");
        let path = folder.file("disk", vec![0; 8192], 0o600);
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let of = |path: &Path| {
            LunConfig::new(Source::File { path: path.into(), size: Some(8192) }, PeripheralDeviceType::Disk)
        };
        assert!(past(&folder).check_there(&of(&path)).is_ok());
        keep(&folder, &of(&path), None, Blocks::Defined(512), 8192);
        assert!(past(&folder).check_there(&of(&path)).is_ok());
        let refused = |path: &Path| past(&folder).check_there(&of(path)).err().unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(refused(&path).what.contains("disk: is empty; the path held the data"), "{}", refused(&path));
        std::fs::remove_file(&path).unwrap();
        for path in [&path, &link] {
            let problem = refused(path);
            assert!(
                problem.what.contains(": no such file or directory; the path held the data"),
                "{problem}"
            );
            assert!(problem.hint.as_ref().unwrap().contains("0.medium"), "{problem}");
            assert_eq!(problem.code, ErrorCode::NotFound);
        }
        assert!(
            past(&folder).check_there(&of(&folder.0.join("other"))).is_ok(),
            "this path was never served"
        );
    }

    #[test]
    fn replaced_file_is_named_with_the_previous_one() {
        let folder = Folder::new("record-other");
        let path = folder.file("disk", vec![0; 8192], 0o600);
        let lun = LunConfig::new(Source::File { path: path.clone(), size: None }, PeripheralDeviceType::Disk);
        keep(&folder, &lun, None, Blocks::Defined(512), 8192);
        assert!(past(&folder).replaced(&lun).is_none());
        std::fs::rename(folder.file("other", vec![0; 8192], 0o600), &path).unwrap();
        let (before, now) = (past(&folder).newest.unwrap().location(), MediumLocation::of(&lun).unwrap());
        let note = past(&folder).replaced(&lun).unwrap().line();
        assert!(
            note.contains(&format!("the old file was {before}, the file now is {now}; hint: ")),
            "{note}"
        );
        keep(&folder, &lun, None, Blocks::Defined(512), 8192);
        assert!(past(&folder).replaced(&lun).is_none(), "said once");
    }

    #[test]
    fn shrunk_medium_is_reported_with_both_sizes() {
        let folder = Folder::new("record-shrunk");
        let path = folder.file("disk", vec![0; 8192], 0o600);
        let lun = LunConfig::new(Source::File { path, size: None }, PeripheralDeviceType::Disk);
        keep(&folder, &lun, None, Blocks::Defined(512), 8192);
        assert!(past(&folder).shrunk(&lun, 8192).is_none() && past(&folder).shrunk(&lun, 9000).is_none());
        let shrunk = past(&folder).shrunk(&lun, 4096).unwrap();
        assert!(
            shrunk.what.ends_with("disk shrank from 8192 to 4096 bytes since it was served before"),
            "{shrunk}"
        );
        let mut older = past(&folder).newest.unwrap();
        older.size = None;
        folder.file("0.medium", serde_json::to_vec(&older).unwrap(), 0o600);
        assert!(past(&folder).shrunk(&lun, 4096).is_none(), "a record without a size");
    }

    #[test]
    fn device_that_comes_back_keeps_its_blocks() {
        let folder = Folder::new("record-back");
        let [a, b] = ["a", "b"].map(|name| device(&folder.file(name, vec![0; 8192], 0o600)));
        keep(&folder, &a, Some(4096), Blocks::OfBefore(512, 4096), 8192);
        keep(&folder, &b, Some(4096), Blocks::OfDevice(4096), 8192);
        assert!(past(&folder).is_newest(&b) && !past(&folder).is_newest(&a));
        for _ in 0..2 {
            assert_eq!(past(&folder).blocks(&a, Some(4096)), Blocks::OfBefore(512, 4096));
            assert_eq!(past(&folder).blocks(&b, Some(4096)), Blocks::OfDevice(4096));
            keep(&folder, &a, Some(4096), Blocks::OfBefore(512, 4096), 8192);
        }
        assert!(past(&folder).is_newest(&a) && !past(&folder).is_newest(&b));
    }

    #[test]
    fn record_knows_the_newest_paths_once_each() {
        let folder = Folder::new("record-paths");
        let paths: Vec<_> = (0..MAX_PATHS + 2).map(|i| folder.file(&i.to_string(), "", 0o600)).collect();
        let of = |path: &PathBuf| {
            LunConfig::new(Source::File { path: path.clone(), size: None }, PeripheralDeviceType::Disk)
        };
        for path in paths.iter().chain(&paths) {
            keep(&folder, &of(path), None, Blocks::Defined(512), 8192);
        }
        for (i, path) in paths.iter().enumerate() {
            assert_eq!(past(&folder).is_raw(&of(path)), i >= 2, "{i}");
            assert_eq!(past(&folder).check_there(&of(path)).is_err(), i >= 2, "{i}");
        }
        let record = past(&folder).newest.unwrap();
        assert!(record.earlier.len() == MAX_PATHS - 1 && record.earlier.iter().all(|r| r.earlier.is_empty()));
    }

    #[test]
    fn record_of_one_path_of_an_older_version_is_read() {
        let folder = Folder::new("record-older");
        let path = folder.file("disk", vec![0; 8192], 0o600);
        let lun = LunConfig::new(Source::File { path, size: None }, PeripheralDeviceType::Disk);
        let MediumLocation { path, inode, .. } = MediumLocation::of(&lun).unwrap();
        let older = format!(
            r#"{{"path":{path:?},"inode":{},"birth_ns":null,"format":"raw","device_block_size":null,"block_size":null}}"#,
            inode.unwrap()
        );
        folder.file("0.medium", older, 0o600);
        assert!(past(&folder).is_raw(&lun) && past(&folder).is_newest(&lun));
    }

    #[test]
    fn damaged_record_is_refused_by_its_name() {
        let folder = Folder::new("record-damaged");
        folder.file("0.medium", "{", 0o600);
        let problem = MediumHistory::read(&folder.0.join("0.state")).err().unwrap();
        assert!(problem.what.contains("0.medium is damaged"), "{}", problem.what);
    }
}
