//! Mounting and unmounting: by fusermount3, which needs no privileges, or as root by system calls.
//!
//! A small watcher process unmounts when this process ends for any reason. The option `auto_unmount` of fusermount3
//! is not enough: if an io_uring waits for the device, the kernel closes the device a moment after the socket.
//! fusermount3 then leaves the mount in place.

use crate::Error;
use lunar_runtime::child;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The programs that mount for unprivileged users, in order of preference.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
const DEVICE: &str = "/dev/fuse";
/// The file system type in the list of mounts.
const TYPE: &str = "fuse.lunar";
/// A shell script that runs its arguments at the end of its input, unless the input is `leave`.
const WATCHER: &str = r#"cd /; trap "" INT TERM HUP; read -r word; [ "$word" = leave ] || exec "$@""#;
const LEAVE: &[u8] = b"leave\n";
/// The time limit for unmounting this mount, or an earlier one whose process has just died.
const PATIENCE: Duration = Duration::from_secs(5);

/// The watcher. It unmounts when this process closes its input, or dies.
pub(super) struct MountGuard {
    watcher: Child,
}

/// Mounts on `dir`, an absolute path. Returns the open FUSE device and the watcher.
pub(super) fn mount(dir: &Path, read_only: bool) -> Result<(OwnedFd, MountGuard), Error> {
    let subject = dir.display().to_string();
    check(dir, &subject)?;
    let (device, unmount) = match HELPERS.into_iter().find_map(|program| with(program, dir, read_only)) {
        Some((program, mounted)) => {
            let device = mounted.map_err(|e| {
                Error::refused(&subject, "mount a file system here", e, "choose a folder that this user owns")
            })?;
            (device, vec![program, "-u", "-z", "-q", "--"])
        }
        None => {
            let hint = "install fusermount3 (Debian: apt-get install fuse3), or run this program as root; /dev/fuse must exist";
            let mounted = by_system_call(dir, read_only);
            (
                mounted.map_err(|e| Error::refused(&subject, "mount a file system here", e, hint))?,
                vec!["umount", "-l", "--"],
            )
        }
    };
    let watcher = watch(dir, &unmount).map_err(|e| {
        // Unmount: there is no watcher, and nothing serves the mount.
        let _ = child::command(unmount[0]).args(&unmount[1..]).arg(dir).status();
        Error::refused(
            &subject,
            "start /bin/sh, which unmounts the folder later",
            e,
            "install a shell as /bin/sh",
        )
    })?;
    Ok((device, MountGuard { watcher }))
}

/// Mounts with this helper. None if the program is missing.
fn with<'a>(program: &'a str, dir: &Path, read_only: bool) -> Option<(&'a str, io::Result<OwnedFd>)> {
    match by_helper(program, dir, read_only) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        mounted => Some((program, mounted)),
    }
}

fn watch(dir: &Path, unmount: &[&str]) -> io::Result<Child> {
    let mut command = child::command("/bin/sh");
    command.args(["-c", WATCHER, "sh"]).args(unmount).arg(dir).process_group(0);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

/// Checks that `dir` is an empty directory. Waits a bounded time until a dead mount there is gone.
fn check(dir: &Path, subject: &str) -> Result<(), Error> {
    let end = Instant::now() + PATIENCE;
    loop {
        let refused = match std::fs::metadata(dir) {
            Ok(found) if found.is_dir() => return empty(dir, subject),
            Ok(_) => return Err(Error::new(subject, "is not a directory", "choose an empty folder")),
            Err(e) => e,
        };
        if refused.raw_os_error() != Some(Errno::NOTCONN.raw_os_error()) {
            return Err(Error::refused(
                subject,
                "use the folder",
                refused,
                "create an empty folder at this path",
            ));
        }
        if Instant::now() > end {
            let hint = format!("unmount the folder: fusermount3 -u {subject}, or umount {subject}");
            return Err(Error::refused(
                subject,
                "use the folder, a FUSE mount whose process has ended",
                refused,
                hint,
            ));
        }
        sleep(Duration::from_millis(20));
    }
}

/// Checks that the directory is empty, since the mount would hide its files.
fn empty(dir: &Path, subject: &str) -> Result<(), Error> {
    let first = std::fs::read_dir(dir).map(|mut entries| entries.next());
    match first
        .map_err(|e| Error::refused(subject, "list the folder", e, "choose a folder that this user owns"))?
    {
        None => Ok(()),
        Some(_) => Err(Error::new(subject, "the folder is not empty", "choose an empty folder")),
    }
}

/// Mounts with the helper, which sends the open device over its standard input, a socket. `NotFound` if the program
/// is missing.
fn by_helper(program: &str, dir: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mode = if read_only { "ro" } else { "rw" };
    let options = format!("{mode},nosuid,nodev,default_permissions,fsname=lunar,subtype=lunar");
    let mut command = child::command(program);
    command.args(["-o", &options, "--"]).arg(dir).env("_FUSE_COMMFD", "0");
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // Close our copy of the helper's end; otherwise its exit would not end the receive.
    drop(command);
    let device = receive(&ours)?;
    let mut said = String::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(4096).read_to_string(&mut said)?;
    }
    child.wait()?;
    device.ok_or_else(|| io::Error::other(said.trim().to_owned()))
}

/// Receives the descriptor from the helper. None if the helper exits without sending one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let mut messages = ancillary.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

fn by_system_call(dir: &Path, read_only: bool) -> io::Result<OwnedFd> {
    let device = OwnedFd::from(std::fs::File::options().read(true).write(true).open(DEVICE)?);
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let descriptor = device.as_raw_fd();
    let data = format!("fd={descriptor},rootmode=40000,user_id={uid},group_id={gid},default_permissions");
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, read_only);
    let data = CString::new(data).map_err(io::Error::other)?;
    rustix::mount::mount("lunar", dir, TYPE, flags, &*data)?;
    Ok(device)
}

impl MountGuard {
    /// Unmounts even if the file is open: its users get errors from then on. `is_there` is false if something else
    /// has already unmounted it.
    pub fn unmount(mut self, dir: &Path, is_there: bool) -> Result<(), Error> {
        if let Some(mut word) = self.watcher.stdin.take()
            && !is_there
        {
            // If the watcher is dead, nothing has unmounted.
            let _ = word.write_all(LEAVE);
        }
        let end = Instant::now() + PATIENCE;
        loop {
            match self.watcher.try_wait() {
                Ok(None) if Instant::now() < end => sleep(Duration::from_millis(5)),
                Ok(Some(status)) if status.success() || !is_there => return Ok(()),
                _ => break,
            }
        }
        let subject = dir.display().to_string();
        // The watcher was killed. As root, this process can unmount by itself.
        rustix::mount::unmount(dir, UnmountFlags::DETACH).map_err(|e| {
            let hint = format!("unmount the folder by hand: fusermount3 -uz {subject}");
            Error::refused(&subject, "unmount the folder", e.into(), hint)
        })
    }
}
