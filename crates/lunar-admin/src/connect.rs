//! Connects to an admin socket with a timeout. Connections to a server that hangs block once its backlog is full.

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time limit of a check for a listener.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Connects. `timeout` also applies to each write to the stream. A timeout is reported as `WouldBlock`.
pub fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The send timeout also limits connect (unix(7)).
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(UnixStream::from(socket))
}

/// Whether a server listens at this path, even one that hangs.
pub fn is_answered(path: &Path) -> bool {
    match connect(path, CHECK_INTERVAL) {
        Ok(_) => true,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}
