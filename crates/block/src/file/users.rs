//! Programs and parts of the system that use a file or a device, in words.

use super::lock::Key;
use std::fs;
use std::path::{Path, PathBuf};

/// Who uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    /// Follows "is in use by".
    pub(super) who: String,
    /// How it is made to end; None: as a server is.
    pub(super) remedy: Option<String>,
}

/// What of the system uses it without a lock: a loop device or swap. A loop device that only reads leaves readers alone.
pub(super) fn of_system(key: &Key, write: bool) -> Option<User> {
    loop_devices(key).find_map(|block| used_by_loop(&block, write)).or_else(|| is_swap(key))
}

/// Loop devices over it.
fn loop_devices(key: &Key) -> impl Iterator<Item = PathBuf> {
    let of_loop = |block: &PathBuf| name(block).starts_with("loop");
    entries("/sys/block").into_iter().filter(of_loop).filter(move |block| {
        let path = fs::read_to_string(block.join("loop/backing_file")).unwrap_or_default();
        is_at(key, path.trim_end_matches('\n'))
    })
}

fn used_by_loop(block: &Path, write: bool) -> Option<User> {
    let reads_only = fs::read_to_string(block.join("ro")).is_ok_and(|text| text.trim() == "1");
    if reads_only && !write {
        return None;
    }
    let device = format!("/dev/{}", name(block));
    Some(match of_disk(block) {
        Some(user) => User {
            who: format!("the loop device {device}, which is {user}"),
            remedy: Some(format!("end that use, then detach it: losetup -d {device}")),
        },
        None => User {
            who: format!("the loop device {device}"),
            remedy: Some(format!("detach it: losetup -d {device}")),
        },
    })
}

fn is_swap(key: &Key) -> Option<User> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(unescaped);
    let path = paths.find(|path| is_at(key, path))?;
    Some(User {
        who: "the system, which swaps to it".into(),
        remedy: Some(format!("take it out of use: swapoff {path}")),
    })
}

/// Where a device is mounted, or what is made of it: what keeps it from being opened alone.
pub(super) fn of_device(number: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    of_disk(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
        .or_else(|| is_swap(&Key::Device(number)).map(|_| "the system swaps to it".into()))
}

/// A disk by its folder in /sys, with its partitions.
fn of_disk(block: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let parts = entries(block).into_iter().filter(|entry| entry.join("partition").exists());
    let mut folders = std::iter::once(block.to_path_buf()).chain(parts);
    folders.find_map(|folder| {
        let number = fs::read_to_string(folder.join("dev")).unwrap_or_default();
        let holder =
            entries(folder.join("holders")).first().map(|holder| format!("part of /dev/{}", name(holder)));
        mounted(&mounts, number.trim()).or(holder)
    })
}

/// The mount point of a device by its number, `MAJOR:MINOR` (proc(5), mountinfo).
fn mounted(mountinfo: &str, number: &str) -> Option<String> {
    mountinfo.lines().find_map(|line| {
        let mut words = line.split(' ').skip(2);
        let is_it = words.next() == Some(number);
        is_it.then(|| words.nth(1)).flatten().map(|dir| format!("mounted on {}", unescaped(dir)))
    })
}

pub(super) const SERVER: &str = "another server";
pub(super) const PROGRAM: &str = "another program";

/// Who holds locks on it, as far as /proc lets this user see that; `kind` says what else is known of them.
pub(super) fn lockers(key: &Key, kind: &str) -> User {
    programs(&processes().filter(|pid| has_lock(*pid, key)).map(in_words).collect::<Vec<_>>(), kind)
}

/// A process that holds a lock.
pub(super) fn process(pid: i32) -> User {
    programs(&[in_words(pid)], PROGRAM)
}

/// A program that nobody can name.
pub(super) fn unknown() -> User {
    programs(&[], SERVER)
}

fn programs(holders: &[String], kind: &str) -> User {
    let is_server = !holders.is_empty() && holders.iter().all(|program| program.starts_with("lunar "));
    let kind = if is_server { SERVER } else { kind };
    let who = if holders.is_empty() { kind.into() } else { format!("{kind}: {}", holders.join(", ")) };
    let remedy = "stop that program (fuser -v tells which), or let both only read the file";
    User { who, remedy: (kind == PROGRAM).then(|| remedy.into()) }
}

/// `qemu-io (process 7)`
fn in_words(pid: i32) -> String {
    match fs::read_to_string(format!("/proc/{pid}/comm")) {
        Ok(program) => format!("{} (process {pid})", program.trim_end()),
        Err(_) => format!("process {pid}"),
    }
}

fn processes() -> impl Iterator<Item = i32> {
    entries("/proc").into_iter().filter_map(|folder| name(&folder).parse().ok())
}

/// One of its descriptors of this file holds a lock.
fn has_lock(pid: i32, key: &Key) -> bool {
    let folder = PathBuf::from(format!("/proc/{pid}"));
    entries(folder.join("fd")).iter().any(|fd| {
        // First what needs no answer of a file system.
        let known = fs::read_to_string(folder.join("fdinfo").join(name(fd))).unwrap_or_default();
        known.lines().any(|line| line.starts_with("lock:")) && is_at(key, fd)
    })
}

fn is_at(key: &Key, path: impl AsRef<Path>) -> bool {
    fs::metadata(path).is_ok_and(|found| Key::of(&found) == *key)
}

/// Blanks in the names of /proc are octal (proc(5)).
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

fn entries(folder: impl AsRef<Path>) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_found_by_number() {
        let text =
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 259:3 / /mnt/a\\040b rw - xfs /dev/nvme0n1 rw\n";
        assert_eq!(mounted(text, "259:3").as_deref(), Some("mounted on /mnt/a b"));
        assert_eq!(mounted(text, "259:30"), None);
    }

    #[test]
    fn a_file_that_nobody_uses_has_no_user() {
        let path = std::env::temp_dir().join(format!("lunar-unused-{}", std::process::id()));
        fs::write(&path, "x").expect("a file");
        let key = Key::of(&fs::metadata(&path).expect("there"));
        assert_eq!(of_system(&key, true), None);
        assert_eq!(lockers(&key, PROGRAM).who, "another program");
        fs::remove_file(path).expect("its name");
    }
}
