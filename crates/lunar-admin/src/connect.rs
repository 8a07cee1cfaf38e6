//! A connection to an admin socket within a time: a server that hangs lets the connections wait once their queue is full.

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Time limit of a check for a listener.
const LOOK: Duration = Duration::from_secs(1);

/// Connects. Each write to the stream has the same time. When it is over the error is that of a call that would block.
pub(super) fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // unix(7): connect waits as long as a send.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    let address = SocketAddrUnix::new(path)?;
    retry_on_intr(|| rustix::net::connect(&socket, &address))?;
    Ok(UnixStream::from(socket))
}

/// A server has the socket at this path, whether it hangs or not.
pub(super) fn is_answered(path: &Path) -> bool {
    match connect(path, LOOK) {
        Ok(_) => true,
        Err(e) => e.kind() == io::ErrorKind::WouldBlock,
    }
}
