//! A loop device for tests of block devices, which may be overwritten.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::root;

/// The variable that names the device to the test (`crates/lunar-block/tests/contract.rs`).
pub const VARIABLE: &str = "LUNAR_TEST_DEVICE";
/// The size that the test needs.
const SIZE: u64 = 640 << 10;

/// A loop device. The kernel detaches it when its last user closes it, however the process ends.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches a device; the inner error is the reason why that is not possible here.
    pub fn attach() -> Result<Result<LoopDevice, String>> {
        if fs::metadata("/proc/self")?.uid() != 0 {
            return Ok(Err("a loop device needs root".into()));
        }
        if !root::is_installed("losetup") || !Path::new("/dev/loop-control").exists() {
            return Ok(Err("losetup or /dev/loop-control is missing".into()));
        }
        let file = root::target_dir().join(format!("disk-{}", std::process::id()));
        fs::create_dir_all(root::target_dir())?;
        File::create(&file)?.set_len(SIZE)?;
        let attached = losetup(&["--find", "--show", &file.display().to_string()]);
        fs::remove_file(&file)?;
        let path = match attached {
            Ok(path) => PathBuf::from(path),
            Err(error) => return Ok(Err(format!("{error:#}"))),
        };
        let open = File::open(&path);
        // Closing this file detaches the device.
        losetup(&["--detach", &path.display().to_string()])?;
        Ok(Ok(LoopDevice { _open: open.with_context(|| path.display().to_string())?, path }))
    }

    /// Its device node.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Runs losetup; returns its output.
fn losetup(arguments: &[&str]) -> Result<String> {
    let output = root::command("losetup").args(arguments).output().context("losetup")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "losetup {}: {}", arguments[0], said.trim());
    Ok(String::from_utf8(output.stdout)?.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn loop_device_is_detached_on_drop() {
        let disk = match LoopDevice::attach().expect("no other error than a missing loop device") {
            Ok(disk) => disk,
            Err(why) => return println!("skipped: {why}"),
        };
        let name = disk.path().file_name().expect("a name").to_string_lossy().into_owned();
        let backing = format!("/sys/block/{name}/loop/backing_file");
        let is_ours = || {
            let file = fs::read_to_string(&backing).unwrap_or_default();
            file.contains(&format!("disk-{} (deleted)", std::process::id()))
        };
        let sectors = fs::read_to_string(format!("/sys/block/{name}/size")).expect("the size");
        assert_eq!(sectors.trim().parse::<u64>().expect("a number") * 512, SIZE);
        assert!(is_ours(), "the open file keeps it attached");
        drop(disk);
        let end = Instant::now() + Duration::from_secs(20);
        while is_ours() {
            assert!(Instant::now() < end, "{name} is still attached");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
