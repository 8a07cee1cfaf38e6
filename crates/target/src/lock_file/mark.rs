//! A name that one process of a host has at a time, and that nobody can delete: an abstract socket (unix(7)), made of the
//! path of a lock file. Containers with a network of their own do not see it; the lock of the file stays the main one.

use proto::fnv::fnv1a;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::Path;

/// Questions that one look answers.
const MAX_QUESTIONS: usize = 4096;

#[derive(Debug)]
pub(super) struct Mark(UnixListener);

/// Another process has the mark.
pub(super) struct Taken;

impl Mark {
    /// None: this host has no such sockets, or a user who may not keep us out has the name.
    pub(super) fn take(path: &Path) -> Result<Option<Mark>, Taken> {
        let Ok(name) = name(path) else { return Ok(None) };
        // Its holder may end between the two questions.
        for _ in 0..2 {
            match UnixListener::bind_addr(&name) {
                Ok(socket) => return Ok(socket.set_nonblocking(true).is_ok().then_some(Mark(socket))),
                Err(e) if e.kind() != io::ErrorKind::AddrInUse => break,
                Err(_) if is_taken(path) => return Err(Taken),
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Ends the connections of those who asked for the holder.
    pub(super) fn answer(&self) {
        (0..MAX_QUESTIONS).map_while(|_| self.0.accept().ok()).for_each(drop);
    }
}

/// A process has the mark. The name is known to all users of the host, so only the own user and root count.
pub(super) fn is_taken(path: &Path) -> bool {
    let stream = match name(path).and_then(|name| UnixStream::connect_addr(&name)) {
        Ok(stream) => stream,
        // It has more questions than it answers.
        Err(e) => return e.kind() == io::ErrorKind::WouldBlock,
    };
    let uid = rustix::net::sockopt::socket_peercred(&stream).map(|peer| peer.uid);
    uid.is_ok_and(|uid| uid.is_root() || uid == rustix::process::geteuid())
}

/// A folder counts as what it leads to.
fn name(path: &Path) -> io::Result<SocketAddr> {
    let whole = std::path::absolute(path)?;
    let (folder, file) = (whole.parent().unwrap_or(&whole), whole.file_name().unwrap_or_default());
    let whole = folder.canonicalize().unwrap_or(folder.to_path_buf()).join(file);
    SocketAddr::from_abstract_name(format!("lunar-lock-{:016x}", fnv1a(whole.as_os_str().as_bytes())))
}
