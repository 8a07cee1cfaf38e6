//! Who uses a file or a block device of this host, in words.

use std::fs;
use std::path::{Path, PathBuf};

/// Programs that look at every new device for a moment.
const PASSING: [&str; 2] = ["systemd-udevd", "(udev-worker)"];

/// Processes that have a file open, and loop devices over it.
pub fn of_file(path: &Path) -> Vec<String> {
    let mut users = processes(path);
    for entry in entries("/sys/block") {
        let backing = fs::read_to_string(entry.join("loop/backing_file")).unwrap_or_default();
        if Path::new(backing.trim_end()) == path {
            users.push(format!("/dev/{}", name(&entry)));
        }
    }
    users
}

/// Where a block device is mounted, devices that are made of it, processes that have it open, or somebody else.
pub fn of_device(path: &Path) -> Vec<String> {
    let block = Path::new("/sys/block").join(name(path));
    let number = fs::read_to_string(block.join("dev")).unwrap_or_default();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut users = mounted(&mounts, number.trim_end());
    let holders = entries(block.join("holders"));
    users.extend(holders.iter().map(|holder| format!("/dev/{}", name(holder))));
    users.extend(processes(path));
    if users.is_empty() && is_exclusive(path) {
        users.push("somebody who has it for himself".into());
    }
    users
}

/// Somebody has a block device for himself: a mount elsewhere, swap.
fn is_exclusive(path: &Path) -> bool {
    use std::os::unix::fs::OpenOptionsExt;
    let exclusive = rustix::fs::OFlags::EXCL.bits() as i32;
    let opened = fs::File::options().read(true).custom_flags(exclusive).open(path);
    opened.is_err_and(|e| e.kind() == std::io::ErrorKind::ResourceBusy)
}

/// Mount points of a device by its number, `MAJOR:MINOR` (proc(5), mountinfo).
fn mounted(mountinfo: &str, number: &str) -> Vec<String> {
    let place = |line: &str| {
        let mut words = line.split(' ').skip(2);
        (words.next() == Some(number)).then(|| words.nth(1).map(|dir| format!("mounted on {dir}"))).flatten()
    };
    mountinfo.lines().filter_map(place).collect()
}

/// Other processes that have it open.
fn processes(path: &Path) -> Vec<String> {
    let us = std::process::id().to_string();
    let open = |folder: &PathBuf| {
        let mut files = entries(folder.join("fd")).into_iter();
        files.any(|file| fs::read_link(file).is_ok_and(|open| open == path))
    };
    let folders = entries("/proc").into_iter();
    let others = folders.filter(|folder| {
        let id = name(folder);
        id.bytes().all(|byte| byte.is_ascii_digit()) && id != us && open(folder)
    });
    others.filter_map(|folder| told(&folder)).collect()
}

fn told(process: &Path) -> Option<String> {
    let program = fs::read_to_string(process.join("comm")).ok()?;
    let program = program.trim_end();
    (!PASSING.contains(&program)).then(|| format!("{program} (process {})", name(process)))
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
    fn a_process_that_has_a_file_open_is_told() {
        let path = std::env::temp_dir().join(format!("lunar-users-{}", std::process::id()));
        fs::write(&path, "x").unwrap();
        assert_eq!(of_file(&path), Vec::<String>::new());
        let file = fs::File::open(&path).unwrap();
        let mut sleeper = std::process::Command::new("sleep").arg("60").stdin(file).spawn().unwrap();
        let told = format!("sleep (process {})", sleeper.id());
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while of_file(&path) != [told.clone()] {
            assert!(std::time::Instant::now() < end, "{:?} is not {told}", of_file(&path));
        }
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn mounts_are_found_by_number() {
        let text =
            "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 259:3 / /mnt/a\\040b rw - xfs /dev/ublkb0 rw\n";
        assert_eq!(mounted(text, "259:3"), ["mounted on /mnt/a\\040b"]);
        assert_eq!(mounted(text, "259:30"), Vec::<String>::new());
    }
}
