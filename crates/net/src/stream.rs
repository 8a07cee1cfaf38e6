//! Sockets by readiness: wait until there is something, then take it without waiting. An idle connection
//! holds no buffer, and one receive goes wherever its reader wants it.

use compio::net::{TcpListener, TcpStream};
use compio::runtime::fd::PollFd;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

/// A TCP connection. Belongs to one core.
pub struct Stream {
    fd: PollFd<Socket>,
}

impl Stream {
    /// Takes over a connected socket on this core. Small sends leave at once (TCP_NODELAY).
    pub fn new(socket: std::net::TcpStream) -> io::Result<Stream> {
        socket.set_nodelay(true)?;
        Ok(Stream { fd: TcpStream::from_std(socket)?.into_poll_fd()? })
    }

    /// Waits until there is something to receive, or the peer is gone.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.read_ready().await
    }

    /// Waits until something can be sent.
    pub async fn writable(&self) -> io::Result<()> {
        self.fd.write_ready().await
    }

    /// Takes what is there: Some(0) is the peer's end, None is nothing yet.
    #[inline]
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.fd, buf, RecvFlags::DONTWAIT) {
            Ok((n, _)) => Ok(Some(n)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The same into several buffers.
    pub fn receive_vectored(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let mut ancillary = RecvAncillaryBuffer::default();
        match rustix::net::recvmsg(&self.fd, into, &mut ancillary, RecvFlags::DONTWAIT) {
            Ok(r) => Ok(Some(r.bytes)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends what the socket takes now; None is nothing.
    #[inline]
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = match parts {
            // Costs the kernel less than a vector of one.
            [part] => rustix::net::send(&self.fd, part, flags),
            _ => rustix::net::sendmsg(&self.fd, parts, &mut SendAncillaryBuffer::default(), flags),
        };
        match sent {
            Ok(n) => Ok(Some(n)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Ends one or both directions; whoever waits on them wakes up.
    pub fn shutdown(&self, how: Shutdown) {
        // Already closed by the peer: nothing to do.
        let _ = SockRef::from(&self.fd).shutdown(how);
    }
}

/// A listening TCP socket.
pub struct Listener {
    inner: TcpListener,
}

impl Listener {
    /// Binds an address; an IPv6 one takes IPv6 only.
    ///
    /// # Errors
    /// Those of bind: the address is in use, or not ours.
    pub fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(socket.into())
    }

    /// Takes over a bound socket on this core.
    pub fn new(socket: std::net::TcpListener) -> io::Result<Listener> {
        Ok(Listener { inner: TcpListener::from_std(socket)? })
    }

    /// The next connection, ready to move to another core. Waits through a shortage of file descriptors.
    pub async fn accept(&self) -> io::Result<(std::net::TcpStream, SocketAddr)> {
        loop {
            match self.inner.accept().await {
                Ok((stream, peer)) => return Ok((into_std(&stream)?, peer)),
                Err(e) if is_shortage(&e) => compio::time::sleep(Duration::from_millis(50)).await,
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(e) => return Err(e),
            }
        }
    }
}

fn into_std(stream: &TcpStream) -> io::Result<std::net::TcpStream> {
    use std::os::fd::AsFd;
    let fd = stream.to_poll_fd()?.as_fd().try_clone_to_owned()?;
    Ok(fd.into())
}

fn is_shortage(e: &io::Error) -> bool {
    let shortage = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    e.raw_os_error().is_some_and(|n| shortage.iter().any(|s| s.raw_os_error() == n))
}
