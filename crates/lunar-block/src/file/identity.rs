//! The identity of a medium, independent of its path. The record of an atomic write belongs to one medium.

use super::loops;
use crate::FileId;
use lunar_wire::fnv::fnv1a;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The files in the directory of a disk in /sys that identify it. The first existing one counts.
const NAMES: [&str; 7] =
    ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid", "md/uuid", "device/cid"];

/// Directories of disks without a slot, whose numbers depend on the order in which they were added.
const SLOTLESS: [&str; 2] = ["/sys/devices/virtual", "/sys/devices/rbd"];

/// The identity of a medium, and the path by which it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MediumIdentity {
    /// Constant for the life of the medium, and unique.
    pub(super) id: String,
    pub(super) path: PathBuf,
}

impl MediumIdentity {
    /// The identity of an open medium of `size` bytes. `known`: the identity that its server gives it.
    pub(super) fn of(file: &File, path: &Path, size: u64, known: Option<&str>) -> io::Result<MediumIdentity> {
        let (found, path) = (file.metadata()?, one_name(path));
        if let Some(id) = known {
            return Ok(MediumIdentity { id: id.to_owned(), path });
        }
        let id = match found.file_type().is_block_device() {
            true => of_device(found.rdev(), size),
            false => of_file(&found, &path),
        };
        Ok(MediumIdentity { id, path })
    }

    /// A hash of the path. It must never change between versions: record files are named by it.
    pub(super) fn hash_of_path(&self) -> u64 {
        fnv1a(self.path.as_os_str().as_bytes())
    }
}

/// The canonical path of the directory, with the file name. A link in the last component is kept, because it may have
/// another target next time.
fn one_name(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let folder = path.parent().and_then(|folder| folder.canonicalize().ok());
    folder.zip(path.file_name()).map_or(path.clone(), |(folder, name)| folder.join(name))
}

/// Inode numbers are reused, so the birth time is part of the identity. File systems without one use the path instead.
fn of_file(found: &Metadata, path: &Path) -> String {
    let birth = found.created().ok().and_then(|birth| birth.duration_since(UNIX_EPOCH).ok());
    match birth {
        Some(birth) => {
            format!("inode {}, created @{}.{:09}", found.ino(), birth.as_secs(), birth.subsec_nanos())
        }
        None => format!("inode {} at {}", found.ino(), path.display()),
    }
}

fn of_device(number: u64, size: u64) -> String {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let block = node.canonicalize().unwrap_or(node);
    match (text(&block.join("start")), block.parent()) {
        (Some(start), Some(disk)) => format!("{} from sector {start}", of_disk(disk, size)),
        _ => of_disk(&block, size),
    }
}

/// The identity of a disk. With a name it does not contain the size, so the disk may grow.
fn of_disk(disk: &Path, size: u64) -> String {
    let named = NAMES.iter().find_map(|name| Some(format!("{name} {}", text(&disk.join(name))?)));
    named.or_else(|| of_loop(disk)).unwrap_or_else(|| format!("{}, {size} bytes", of_place(disk)))
}

/// The identity of a loop device: its file, and the offset there in bytes.
fn of_loop(disk: &Path) -> Option<String> {
    let path = PathBuf::from(text(&disk.join("loop/backing_file"))?);
    let below = loops::backing(&Path::new("/dev").join(disk.file_name()?));
    let is_below = |found: &Metadata| below.as_ref().is_some_and(|ids| ids.contains(&FileId::of(found)));
    let file = match fs::metadata(&path).ok().filter(is_below) {
        Some(found) => of_file(&found, &path),
        None => path.display().to_string(),
    };
    Some(format!("loop over {file} from byte {}", text(&disk.join("loop/offset")).unwrap_or_default()))
}

/// The identity of a disk without a name: its slot; without a slot, its number in this boot.
fn of_place(disk: &Path) -> String {
    let has_slot = disk.starts_with("/sys/devices") && !SLOTLESS.iter().any(|of| disk.starts_with(of));
    if has_slot {
        return disk.display().to_string();
    }
    let boot = text(Path::new("/proc/sys/kernel/random/boot_id")).unwrap_or_default();
    let number = text(&disk.join("diskseq")).unwrap_or_default();
    format!("{} number {number} of boot {boot}", disk.display())
}

fn text(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &Path) -> MediumIdentity {
        MediumIdentity::of(&File::open(path).expect("a file"), path, 0, None).expect("its identity")
    }

    #[test]
    fn medium_is_the_same_under_each_name() {
        let path = std::env::temp_dir().join(format!("lunar-identity-{}", std::process::id()));
        let [other, second] = ["other", "second"].map(|name| path.with_extension(name));
        fs::write(&path, [1]).expect("a file");
        fs::write(&other, [1]).expect("a file");
        _ = fs::remove_file(&second);
        fs::hard_link(&path, &second).expect("a link");
        let [a, b, c] = [&path, &other, &second].map(|path| of(path));
        assert_ne!(a.id, b.id);
        let has_birth = fs::metadata(&path).is_ok_and(|found| found.created().is_ok());
        assert_eq!(a.id == c.id, has_birth, "{a:?}");
        assert!(a.hash_of_path() != c.hash_of_path() && a.hash_of_path() == of(&path).hash_of_path());
        [path, other, second].iter().for_each(|path| fs::remove_file(path).expect("removed"));
    }

    /// A directory tree as in /sys: the existing files, and the identity that follows from them.
    #[test]
    fn disk_is_known_by_its_first_name() {
        let disk = std::env::temp_dir().join(format!("lunar-identity-sys-{}", std::process::id()));
        for (names, id) in [
            (&[("device/wwid", "naa.5000\n"), ("serial", "S1\n")][..], "device/wwid naa.5000"),
            (&[("wwid", "\n"), ("serial", " S1 ")], "serial S1"),
            (&[("dm/uuid", "LVM-1\n")], "dm/uuid LVM-1"),
            (&[("loop/backing_file", "/none\n"), ("loop/offset", "512\n")], "loop over /none from byte 512"),
        ] {
            _ = fs::remove_dir_all(&disk);
            for (name, text) in names {
                let file = disk.join(name);
                fs::create_dir_all(file.parent().expect("a folder")).expect("made");
                fs::write(file, text).expect("written");
            }
            // The identity does not change when the disk grows.
            assert_eq!([1, 2].map(|size| of_disk(&disk, size)), [id; 2]);
        }
        fs::remove_dir_all(&disk).expect("removed");
        for virtual_disk in [&disk, Path::new("/sys/devices/rbd/0/block/rbd0")] {
            let id = of_disk(virtual_disk, 512);
            assert!(id.contains(" of boot ") && id.ends_with(", 512 bytes"), "{id}");
        }
        let slot = "/sys/devices/pci0000:00/0000:00:02.0/virtio1/block/none";
        assert_eq!(of_disk(Path::new(slot), 512), format!("{slot}, 512 bytes"));
    }
}
