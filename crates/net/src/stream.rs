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

    /// Connects to an address.
    ///
    /// # Errors
    /// Those of connect: refused, unreachable, timed out.
    pub async fn connect(address: SocketAddr) -> io::Result<Stream> {
        let socket = TcpStream::connect(address).await?;
        let fd = socket.into_poll_fd()?;
        SockRef::from(&fd).set_tcp_nodelay(true)?;
        Ok(Stream { fd })
    }

    /// What the kernel says of the way of this connection.
    pub fn path(&self) -> Path {
        let socket = SockRef::from(&self.fd);
        let local = socket.local_addr().ok().and_then(|a| a.as_socket());
        let mtu = match local {
            Some(SocketAddr::V6(_)) => rustix::net::sockopt::ipv6_mtu(&self.fd),
            _ => rustix::net::sockopt::ip_mtu(&self.fd),
        };
        Path {
            local,
            mtu: mtu.ok(),
            mss: socket.tcp_mss().ok(),
            receive_buffer: socket.recv_buffer_size().ok(),
            send_buffer: socket.send_buffer_size().ok(),
        }
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
        match rustix::net::sendmsg(&self.fd, parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(n) => Ok(Some(n)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// The same for one piece.
    #[inline]
    pub fn send_bytes(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match rustix::net::send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
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

/// The way of a connection, as far as the kernel tells of it; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Our address.
    pub local: Option<SocketAddr>,
    /// Path MTU.
    pub mtu: Option<u32>,
    /// Maximum segment size of TCP.
    pub mss: Option<u32>,
    /// Receive buffer of the socket.
    pub receive_buffer: Option<usize>,
    /// Send buffer of the socket.
    pub send_buffer: Option<usize>,
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
