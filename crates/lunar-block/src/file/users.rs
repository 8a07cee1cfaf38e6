//! The users of a file or a device: processes, loop devices, mounts, and swap. Messages name them.

use super::loops;
use crate::FileId;
use std::fmt;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A user of a medium.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MediumUser {
    /// The text behind "is in use by".
    pub(super) who: String,
    /// The fix; None: that for a server.
    pub(super) remedy: Option<String>,
    /// The processes as text, if they are known.
    pub(super) processes: Option<String>,
    /// The processes that this user may see; None if the user is not a process.
    pub(super) pids: Option<Vec<i32>>,
}

impl MediumUser {
    fn of_system(who: impl Into<String>, remedy: String) -> MediumUser {
        MediumUser { who: who.into(), remedy: Some(remedy), processes: None, pids: None }
    }
}

/// A loop device or swap on the medium: these take no lock. A read-only loop device does not conflict with a reader.
pub(super) fn of_system(id: &FileId, write: bool) -> Option<MediumUser> {
    let over = |(block, path): (PathBuf, String)| is_over(&block, &path, id).then_some(block);
    loops().filter_map(over).find_map(|block| used_by_loop(&block, write)).or_else(|| is_swap(id))
}

/// The directories of loop devices in /sys, each with the path of its file.
fn loops() -> impl Iterator<Item = (PathBuf, String)> {
    let of_loop = |block: &PathBuf| name(block).starts_with("loop");
    entries("/sys/block").into_iter().filter(of_loop).filter_map(|block| {
        let path = fs::read_to_string(block.join("loop/backing_file")).ok()?;
        Some((block, path.trim_end_matches('\n').to_owned()))
    })
}

/// Whether a loop device is backed by this medium. Its path counts only if the device cannot be opened: the path may be
/// gone, or mean another file in another mount namespace.
fn is_over(block: &Path, path: &str, id: &FileId) -> bool {
    match loops::backing(&Path::new("/dev").join(name(block))) {
        Some(backing) => backing.contains(id),
        None => id.is_at(path),
    }
}

fn used_by_loop(block: &Path, write: bool) -> Option<MediumUser> {
    let reads_only = fs::read_to_string(block.join("ro")).is_ok_and(|text| text.trim() == "1");
    if reads_only && !write {
        return None;
    }
    let device = format!("/dev/{}", name(block));
    Some(match of_disk(block).first() {
        Some(user) => MediumUser::of_system(
            format!("the loop device {device}, which is {user}"),
            format!("end that use, then detach the loop device: losetup -d {device}"),
        ),
        None => MediumUser::of_system(
            format!("the loop device {device}"),
            format!("detach the loop device: losetup -d {device}"),
        ),
    })
}

fn is_swap(id: &FileId) -> Option<MediumUser> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(unescaped);
    let path = paths.find(|path| id.is_at(path))?;
    Some(MediumUser::of_system("the system as swap space", format!("stop swapping: swapoff {path}")))
}

/// The user that prevents an exclusive open of a device: a mount, a device made of it, or swap.
pub(super) fn of_busy(number: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let of_disk = of_disk(Path::new(&format!("/sys/dev/block/{major}:{minor}")));
    let swap = || is_swap(&FileId::Device(number)).map(|_| "swap space of the system".into());
    of_disk.into_iter().next().or_else(swap)
}

/// The mount of a block device, or of a partition of it, that allows writes. It may change the disk under a reader.
pub fn mounted_for_writing(device: &Path) -> Option<String> {
    let found = fs::metadata(device).ok().filter(|found| found.file_type().is_block_device())?;
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    let is_written =
        |line: &&str| line.split(' ').nth(5).is_some_and(|options| options.split(',').any(|o| o == "rw"));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts: Vec<&str> = mounts.lines().filter(is_written).collect();
    let users = of_disk_by(Path::new(&format!("/sys/dev/block/{major}:{minor}")), &mounts.join("\n"));
    users.into_iter().find(|user| matches!(user, DiskUser::Mount(_))).map(|user| user.to_string())
}

/// A user of a disk or of its partition.
#[derive(Debug, PartialEq, Eq)]
enum DiskUser {
    /// A mount, by its mount point.
    Mount(String),
    /// A device made of it, by its name in /dev.
    Device(String),
}

impl fmt::Display for DiskUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskUser::Mount(folder) => write!(f, "mounted on {folder}"),
            DiskUser::Device(name) => write!(f, "part of /dev/{name}"),
        }
    }
}

/// The mounts of a disk and of its partitions, and the devices made of them, by its directory in /sys.
fn of_disk(block: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    of_disk_by(block, &mounts).iter().map(DiskUser::to_string).collect()
}

fn of_disk_by(block: &Path, mounts: &str) -> Vec<DiskUser> {
    let parts = entries(block).into_iter().filter(|entry| entry.join("partition").exists());
    let folders = std::iter::once(block.to_path_buf()).chain(parts);
    let users = folders.flat_map(|folder| {
        let number = fs::read_to_string(folder.join("dev")).unwrap_or_default();
        let holders = entries(folder.join("holders"));
        let holders = holders.iter().map(|holder| DiskUser::Device(name(holder)));
        mounted(mounts, number.trim()).into_iter().chain(holders).collect::<Vec<_>>()
    });
    users.collect()
}

/// The mount points of a device by its number, `MAJOR:MINOR` (proc(5), mountinfo).
fn mounted(mountinfo: &str, number: &str) -> Vec<DiskUser> {
    let place = |line: &str| {
        let mut words = line.split(' ').skip(2);
        let is_it = words.next() == Some(number);
        is_it.then(|| words.nth(1)).flatten().map(|dir| DiskUser::Mount(unescaped(dir)))
    };
    mountinfo.lines().filter_map(place).collect()
}

/// The kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockKind {
    /// flock, which servers take.
    Server,
    /// Byte locks, which other programs take.
    Program,
}

/// The holders of locks on a medium, as far as /proc shows them to this user. `kind` is reported if it shows none.
pub(super) fn lockers(id: &FileId, kind: LockKind) -> MediumUser {
    programs(with_open(|fd| has_lock(fd, id)).collect(), kind)
}

/// A process that holds a lock.
pub(super) fn process(pid: i32) -> MediumUser {
    programs(vec![pid], LockKind::Program)
}

/// An unknown program.
pub(super) fn unknown() -> MediumUser {
    programs(Vec::new(), LockKind::Server)
}

fn programs(pids: Vec<i32>, kind: LockKind) -> MediumUser {
    let names: Vec<Option<String>> = pids.iter().map(|pid| comm(*pid)).collect();
    // /proc shows no more of a process of another user than the name of its program.
    let is_server = !names.is_empty() && names.iter().all(|name| name.as_deref() == Some("lunar"));
    let holders = pids.iter().zip(&names).map(|(pid, name)| in_words(*pid, name.as_deref()));
    let holders: Vec<String> = holders.collect();
    let processes = (!holders.is_empty()).then(|| holders.join(", "));
    let (kind, remedy) = match kind {
        LockKind::Program if !is_server => {
            let stop = stop(processes.as_deref(), "that program");
            ("another program", Some(format!("{stop}, or let both only read the file")))
        }
        LockKind::Program | LockKind::Server => ("another server", None),
    };
    let who = processes.as_ref().map_or(kind.into(), |processes| format!("{kind}: {processes}"));
    MediumUser { who, remedy, processes, pids: Some(pids) }
}

/// The request to stop these processes. If /proc shows none to this user, root can find them.
pub(super) fn stop(processes: Option<&str>, unknown: &str) -> String {
    match processes {
        Some(processes) => format!("stop {processes}"),
        None => format!("stop {unknown} (find it with fuser -v)"),
    }
}

/// Programs that open every new device for a moment.
const PASSING: [&str; 2] = ["systemd-udevd", "(udev-worker)"];

/// Other processes that have a file open, and loop devices over it. This does not access its file system.
pub fn of_file(path: &Path) -> Vec<String> {
    let mut users = others(path);
    let over = loops().filter(|(_, file)| Path::new(file) == path);
    users.extend(over.map(|(block, _)| format!("/dev/{}", name(&block))));
    users
}

/// The mounts of a block device, the devices made of it, and the processes that have it open; or an unknown exclusive
/// user.
pub fn of_device(path: &Path) -> Vec<String> {
    let mut users = of_disk(&Path::new("/sys/block").join(name(path)));
    users.extend(others(path));
    if users.is_empty() && is_exclusive(path) {
        users.push("an unknown exclusive user".into());
    }
    users
}

/// Whether a device is open exclusively, such as by a mount in another namespace, or by swap.
fn is_exclusive(path: &Path) -> bool {
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let opened = fs::File::options().read(true).custom_flags(exclusive).open(path);
    opened.is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy)
}

/// Other processes that have a path open.
fn others(path: &Path) -> Vec<String> {
    let us = std::process::id();
    let open = with_open(|fd| fs::read_link(fd).is_ok_and(|open| open == path));
    let others = open
        .filter(|pid| pid.unsigned_abs() != us && comm(*pid).is_some_and(|comm| !PASSING.contains(&&*comm)));
    others.map(|pid| in_words(pid, comm(pid).as_deref())).collect()
}

/// A process as text: `qemu-io (process 7)`.
fn in_words(pid: i32, name: Option<&str>) -> String {
    match name {
        Some(program) => format!("{program} (process {pid})"),
        None => format!("process {pid}"),
    }
}

/// The name of a program.
fn comm(pid: i32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// Processes with a matching descriptor, which is a path `/proc/PID/fd/N`.
fn with_open(is_such: impl Fn(&Path) -> bool) -> impl Iterator<Item = i32> {
    let pids = entries("/proc").into_iter().filter_map(|folder| name(&folder).parse().ok());
    pids.filter(move |pid: &i32| entries(format!("/proc/{pid}/fd")).iter().any(|fd| is_such(fd)))
}

/// Whether a descriptor is of this file and holds a lock.
fn has_lock(fd: &Path, id: &FileId) -> bool {
    // First the check that does not access the file system.
    let known = fd.parent().map(|folder| folder.with_file_name("fdinfo").join(name(fd)));
    let known = known.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    known.lines().any(|line| line.starts_with("lock:")) && id.is_at(fd)
}

/// Decodes the octal escapes of blanks and backslashes in /proc (proc(5)).
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
        let mounts = |number| mounted(text, number).iter().map(DiskUser::to_string).collect::<Vec<_>>();
        assert_eq!(mounts("259:3"), ["mounted on /mnt/a b"]);
        assert_eq!(mounts("259:30"), Vec::<String>::new());
    }

    #[test]
    fn unused_file_has_no_user() {
        let path = std::env::temp_dir().join(format!("lunar-unused-{}", std::process::id()));
        fs::write(&path, "x").expect("a file");
        let key = FileId::of(&fs::metadata(&path).expect("there"));
        assert_eq!(of_system(&key, true), None);
        let unknown = lockers(&key, LockKind::Program);
        assert_eq!((&*unknown.who, unknown.processes), ("another program", None));
        assert!(unknown.remedy.is_some_and(|remedy| remedy.starts_with("stop that program (find it with")));
        fs::remove_file(path).expect("its name");
    }

    #[test]
    fn remedy_names_a_known_process() {
        let name = comm(std::process::id() as i32).expect("the name of this program");
        let own = process(std::process::id() as i32);
        let stop = format!("stop {name} (process {})", std::process::id());
        assert_eq!(own.remedy, Some(format!("{stop}, or let both only read the file")));
        assert_eq!(super::stop(own.processes.as_deref(), "that server"), stop);
    }

    #[test]
    fn process_with_the_file_open_is_named() {
        let path = std::env::temp_dir().join(format!("lunar-users-{}", std::process::id()));
        fs::write(&path, "x").expect("a file");
        assert_eq!(of_file(&path), Vec::<String>::new());
        let file = fs::File::open(&path).expect("there");
        let forking = crate::fork_lock::lock();
        let mut sleeper = std::process::Command::new("sleep").arg("60").stdin(file).spawn().expect("sleep");
        drop(forking);
        let named = format!("sleep (process {})", sleeper.id());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while of_file(&path) != [named.clone()] {
            assert!(std::time::Instant::now() < end, "{:?} is not {named}", of_file(&path));
        }
        sleeper.kill().expect("it sleeps");
        sleeper.wait().expect("its end");
        fs::remove_file(path).expect("its name");
    }
}
