//! A lock on this host that no user can delete: an abstract socket (unix(7)). Its name is derived from the path of
//! the lock file and the mount namespace.
//!
//! Containers with their own network namespace do not see the socket, and those with their own mount namespace use
//! other names. The lock on the file therefore remains the main one.

use lunar_wire::fnv::fnv1a;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, shutdown, socket_with,
};
use std::fs::metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

/// Maximum number of connections that one check accepts.
const MAX_QUESTIONS: usize = 4096;

#[derive(Debug)]
pub(super) struct HostLock(UnixListener);

/// The error if another process holds the lock.
pub(super) struct HeldElsewhere;

impl HostLock {
    /// Takes the lock. None: this host has no such sockets, or a user who is not authorized to lock this host uses
    /// the name.
    pub(super) fn take(path: &Path) -> Result<Option<HostLock>, HeldElsewhere> {
        let Ok(name) = name(path).and_then(SocketAddr::from_abstract_name) else { return Ok(None) };
        // The holder may end between the two calls.
        for _ in 0..2 {
            match UnixListener::bind_addr(&name) {
                Ok(socket) => return Ok(socket.set_nonblocking(true).is_ok().then_some(HostLock(socket))),
                Err(e) if e.kind() != io::ErrorKind::AddrInUse => break,
                Err(_) if is_taken(path) => return Err(HeldElsewhere),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Closes the connections of processes that looked for the holder of the lock.
    pub(super) fn answer(&self) {
        (0..MAX_QUESTIONS).map_while(|_| self.0.accept().ok()).for_each(drop);
    }
}

impl Drop for HostLock {
    fn drop(&mut self) {
        // A child process that is being started may share the socket for a moment.
        _ = shutdown(&self.0, Shutdown::Both);
    }
}

/// Whether another process holds the lock. Any user of the host can bind the name, so only this user and root count.
pub(super) fn is_taken(path: &Path) -> bool {
    let socket = match name(path).and_then(|name| ask(&name)) {
        Ok(socket) => socket,
        // The backlog of the holder is full, so its owner cannot be determined: assume that it is authorized.
        Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
    };
    let uid = rustix::net::sockopt::socket_peercred(&socket).map(|peer| peer.uid);
    uid.is_ok_and(|uid| uid.is_root() || uid == rustix::process::geteuid())
}

/// Connects to the holder without blocking: a stopped holder accepts no connections (unix(7)).
fn ask(name: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// The name of the socket. Symbolic links in the folder are resolved. One path names different places in two mount
/// namespaces (mount_namespaces(7)).
fn name(path: &Path) -> io::Result<String> {
    let whole = std::path::absolute(path)?;
    let (folder, file) = (whole.parent().unwrap_or(&whole), whole.file_name().unwrap_or_default());
    let whole = folder.canonicalize().unwrap_or(folder.to_path_buf()).join(file);
    let mounts = metadata("/proc/self/ns/mnt").map_or(0, |found| found.ino());
    Ok(mark_of(mounts, &whole))
}

fn mark_of(mounts: u64, whole: &Path) -> String {
    format!("lunar-lock-{mounts}-{:016x}", fnv1a(whole.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lock_name_depends_on_mount_namespace() {
        let path = Path::new("/var/lib/lunar/a.lock");
        assert!(mark_of(1, path) != mark_of(2, path) && mark_of(1, path) == mark_of(1, path));
        let own = metadata("/proc/self/ns/mnt").expect("a namespace").ino();
        assert!(name(path).expect("a name").contains(&own.to_string()));
    }

    #[test]
    fn full_backlog_counts_as_held() {
        let path = std::env::temp_dir().join(format!("lunar-mark-full-{}", std::process::id()));
        let Ok(Some(mark)) = HostLock::take(&path) else { panic!("the mark is free") };
        rustix::net::listen(&mark.0, 1).expect("a short queue");
        let name = name(&path).expect("a name");
        let asked: Vec<_> = std::iter::from_fn(|| ask(&name).ok()).take(64).collect();
        assert!((1..64).contains(&asked.len()), "the queue is full: {}", asked.len());
        assert!(is_taken(&path) && HostLock::take(&path).is_err());
    }
}
