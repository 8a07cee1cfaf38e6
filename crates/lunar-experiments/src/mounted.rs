//! A file system on a logical unit, attached to this host with `lunar attach`.

use crate::media::{LoopDevice, WorkDir, write_file};
use crate::process::PeerProcess;
use lunar_bench::CleanupGuard;
use lunar_bench::TargetSpec;
use rustix::process::geteuid;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const START: Duration = Duration::from_secs(20);
const STOP: Duration = Duration::from_secs(20);
/// How long a process may keep files open.
const CLOSING: Duration = Duration::from_secs(5);

/// The name of the file for dd.
const FILE: &str = "q";

/// How a logical unit is attached to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttachMethod {
    /// As a block device.
    Ublk,
    /// As a file with a loop device.
    Fuse,
}

/// A mounted ext3 file system on a logical unit. On drop, everything is removed in this order.
pub struct MountedFs {
    mount: Option<CleanupGuard>,
    device: PathBuf,
    looped: Option<LoopDevice>,
    attach: PeerProcess,
    dir: WorkDir,
}

impl MountedFs {
    /// Attaches a logical unit, creates the file system and mounts it.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn attach(lunar: &Path, target: &TargetSpec, dir: WorkDir) -> Result<MountedFs, String> {
        let attach_method = attach_method()?;
        for name in ["fuse", "mnt"] {
            fs::create_dir(dir.join(name)).map_err(|e| e.to_string())?;
        }
        let attach = attach(lunar, target, attach_method, &dir)?;
        let device = PathBuf::new();
        let mut mounted = MountedFs { mount: None, device, looped: None, attach, dir };
        let file = mounted.attached_path()?;
        mounted.device = match attach_method {
            AttachMethod::Ublk => file,
            AttachMethod::Fuse => {
                let looped = LoopDevice::over(&file)
                    .ok_or("losetup cannot create a loop device over the attached file")?;
                mounted.looped.insert(looped).path().to_owned()
            }
        };
        run(Command::new("mkfs.ext3").args(["-q", "-F", "-E", "nodiscard"]).arg(&mounted.device))?;
        mounted.mount()?;
        Ok(mounted)
    }

    /// Creates a file of this size.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn file(&self, size: u64) -> Result<PathBuf, String> {
        let path = self.dir().join(FILE);
        let made = File::create(&path).and_then(|file| file.set_len(size));
        made.map(|()| path).map_err(|e| format!("cannot create a file on the mounted file system: {e}"))
    }

    /// Replaces the file by `many` files of this size, filled with data.
    ///
    /// # Errors
    /// If they cannot be created.
    pub fn files(&self, many: usize, size: u64) -> Result<Vec<PathBuf>, String> {
        let cannot = |e: std::io::Error| format!("cannot create files on the mounted file system: {e}");
        fs::remove_file(self.dir().join(FILE)).map_err(cannot)?;
        let paths: Vec<PathBuf> = (0..many).map(|n| self.dir().join(format!("mix{n}"))).collect();
        paths.iter().try_for_each(|path| write_file(path, size)).map_err(cannot)?;
        Ok(paths)
    }

    /// Drops all files from the page cache of this host.
    ///
    /// # Errors
    /// If it cannot be mounted again.
    pub fn make_cold(&mut self) -> Result<(), String> {
        run(Command::new("umount").arg(self.dir()))?;
        self.mount.take().into_iter().for_each(CleanupGuard::forget);
        crate::media::make_cold(&self.device);
        self.mount()
    }

    fn dir(&self) -> PathBuf {
        self.dir.join("mnt")
    }

    fn mount(&mut self) -> Result<(), String> {
        let dir = self.dir();
        let ((), cleanup) = CleanupGuard::create(|| {
            run(Command::new("mount").arg(&self.device).arg(&dir))?;
            Ok::<_, String>(((), move || unmount(&dir)))
        })?;
        self.mount = Some(cleanup);
        Ok(())
    }

    /// The device or file that `lunar attach` prints when it is ready.
    fn attached_path(&self) -> Result<PathBuf, String> {
        let stdout = self.attach.stdout().ok_or("the output of lunar attach is not readable")?;
        let (send, lines) = mpsc::channel();
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).for_each(|line| drop(send.send(line)))
        });
        lines.recv_timeout(START).map(PathBuf::from).map_err(|_| {
            let said = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            let said = said.replace(&self.dir.display().to_string(), "");
            format!("lunar attach did not become ready: {}", said.lines().next().unwrap_or("no output"))
        })
    }
}

fn attach_method() -> Result<AttachMethod, String> {
    let there = |device: &str| Path::new(device).exists();
    match (geteuid().is_root(), there("/dev/ublk-control"), there("/dev/fuse")) {
        (false, ..) => Err("mounting a file system requires root".into()),
        (_, true, _) => Ok(AttachMethod::Ublk),
        (_, _, true) => Ok(AttachMethod::Fuse),
        _ => Err("the kernel has neither ublk nor FUSE".into()),
    }
}

fn attach(
    lunar: &Path,
    target: &TargetSpec,
    attach_method: AttachMethod,
    dir: &WorkDir,
) -> Result<PeerProcess, String> {
    let log = File::create(dir.join("log")).map_err(|e| e.to_string())?;
    let mut command = Command::new(lunar);
    command.args(["attach", &target.to_string(), "--foreground", "--name", "reproduce"]);
    command.args(["--recovery-timeout", "10"]);
    match attach_method {
        AttachMethod::Ublk => command.arg("--ublk"),
        AttachMethod::Fuse => command.arg("--fuse").arg(dir.join("fuse")),
    };
    command.env("LUNAR_RUN_DIR", &**dir).env("XDG_STATE_HOME", &**dir);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    PeerProcess::start(&mut command, STOP).map_err(|e| format!("cannot run lunar attach: {e}"))
}

fn unmount(dir: &Path) {
    let last = Instant::now() + CLOSING;
    while run(Command::new("umount").arg(dir)).is_err() && Instant::now() < last {
        thread::sleep(Duration::from_millis(50));
    }
}

/// Runs a program to its end, in its own process group, so that ^C does not reach it.
fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ran = command
        .process_group(0)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot run {name}: {e}"))?;
    let said = || format!("{name} failed: {}", String::from_utf8_lossy(&ran.stderr).trim());
    if ran.status.success() { Ok(()) } else { Err(said()) }
}
