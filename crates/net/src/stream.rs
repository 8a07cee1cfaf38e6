//! Sockets by readiness: wait until there is something, then take it without waiting. An idle connection
//! holds no buffer, and one receive goes wherever its reader wants it.

use compio::net::TcpSocket;
use compio::runtime::fd::PollFd;
use rustix::event::{PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

/// Bytes that wait in a Unix socket.
const UNIX_BUFFER: usize = 2 << 20;
/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;

/// A connection over TCP or a Unix socket. Belongs to one core.
pub struct Stream {
    fd: PollFd<Socket>,
}

impl Stream {
    /// Takes over a connected socket on this core. Small sends leave at once (TCP_NODELAY).
    pub fn new(socket: impl Into<Socket>) -> io::Result<Stream> {
        let socket = socket.into();
        match socket.domain()? {
            Domain::UNIX => widen(&socket)?,
            _ => socket.set_tcp_nodelay(true)?,
        }
        socket.set_nonblocking(true)?;
        Ok(Stream { fd: PollFd::new(socket)? })
    }

    /// Connects to an address.
    ///
    /// # Errors
    /// Those of connect: refused, unreachable, timed out.
    pub async fn connect(address: SocketAddr) -> io::Result<Stream> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4().await?,
            SocketAddr::V6(_) => TcpSocket::new_v6().await?,
        };
        leave_unpaced(&socket, address);
        let fd = socket.connect(address).await?.into_poll_fd()?;
        SockRef::from(&fd).set_tcp_nodelay(true)?;
        Ok(Stream { fd })
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Those of connect: no such socket, nobody listens, not allowed; a path that is too long.
    pub async fn connect_unix(path: &Path) -> io::Result<Stream> {
        let socket = compio::net::UnixStream::connect(path).await?;
        widen(&socket)?;
        Ok(Stream { fd: socket.into_poll_fd()? })
    }

    /// Has the kernel ask a peer that is silent for so long whether it is still there, as often and with the
    /// same time between; then the connection is lost. TCP only.
    pub fn keep_alive(&self, idle: Duration, tries: u32) -> io::Result<()> {
        let how = TcpKeepalive::new().with_time(idle).with_interval(idle).with_retries(tries);
        SockRef::from(&self.fd).set_tcp_keepalive(&how)
    }

    /// Sets both buffers of the socket in bytes, which bound the window of TCP. The kernel gives no more than
    /// its limits allow (tcp(7), socket(7): rmem_max and wmem_max), unless the process has CAP_NET_ADMIN.
    ///
    /// # Errors
    /// Those of setsockopt.
    pub fn set_window(&self, bytes: usize) -> io::Result<()> {
        use rustix::net::sockopt;
        if sockopt::set_socket_recv_buffer_size_force(&self.fd, bytes).is_err() {
            sockopt::set_socket_recv_buffer_size(&self.fd, bytes)?;
        }
        Ok(sockopt::set_socket_send_buffer_size(&self.fd, bytes)?)
    }

    /// The address of the other side.
    ///
    /// # Errors
    /// When there is none: it is gone, or this is a Unix socket.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        let address = SockRef::from(&self.fd).peer_addr()?;
        address.as_socket().ok_or_else(|| io::Error::other("it has no address"))
    }

    /// What the kernel says of the way of this connection.
    pub fn route(&self) -> Route {
        let socket = SockRef::from(&self.fd);
        let local = socket.local_addr().ok().and_then(|a| a.as_socket());
        let mtu = match local {
            Some(SocketAddr::V6(_)) => rustix::net::sockopt::ipv6_mtu(&self.fd),
            _ => rustix::net::sockopt::ip_mtu(&self.fd),
        };
        Route {
            local,
            mtu: mtu.ok(),
            mss: socket.tcp_mss().ok(),
            congestion_control: rustix::net::sockopt::tcp_congestion(&self.fd).ok(),
            receive_buffer: socket.recv_buffer_size().ok(),
            send_buffer: socket.send_buffer_size().ok(),
        }
    }

    /// The CPU on which the packets of this connection arrive, where the kernel knows it.
    pub fn arrives_on(socket: &TcpStream) -> Option<usize> {
        let cpu = rustix::net::sockopt::socket_incoming_cpu(socket).ok()?;
        usize::try_from(cpu).ok()
    }

    /// Waits until there is something to receive, or the peer is gone.
    pub async fn readable(&self) -> io::Result<()> {
        self.fd.read_ready().await
    }

    /// To see from any core whether the peer has gone.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub fn hangup(&self) -> io::Result<Hangup> {
        Ok(Hangup(self.fd.as_fd().try_clone_to_owned()?))
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

    /// Whether the end of this connection, also that by the death of the process, is a reset: then what the
    /// kernel still holds to be sent is thrown away, and not delivered at some later time. TCP only.
    ///
    /// # Errors
    /// Those of setsockopt.
    pub fn reset_on_close(&self, yes: bool) -> io::Result<()> {
        SockRef::from(&self.fd).set_linger(yes.then_some(Duration::ZERO))
    }

    /// Ends the connection by a reset, at once, whoever else still holds it: what has not left is thrown away.
    /// Whoever waits on it wakes up. TCP only.
    pub fn reset(&self) {
        // To connect to nowhere is how the kernel is told to abort a connection; it is over if that fails.
        _ = rustix::net::connect_unspec(&self.fd);
        self.shutdown(Shutdown::Both);
    }

    /// Ends one or both directions; whoever waits on them wakes up.
    pub fn shutdown(&self, how: Shutdown) {
        // Already closed by the peer: nothing to do.
        let _ = SockRef::from(&self.fd).shutdown(how);
    }
}

/// The end of a connection that is another's. The connection goes only when this does, too.
pub struct Hangup(OwnedFd);

impl Hangup {
    /// The peer has closed, or is gone. What it has sent before may still be unread.
    pub fn is_hung_up(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let mut fds = [rustix::event::PollFd::new(&self.0, gone)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&now)), Ok(1..)) && fds[0].revents().intersects(gone)
    }
}

/// The way of a connection, as far as the kernel tells of it; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// Our address.
    pub local: Option<SocketAddr>,
    /// Path MTU.
    pub mtu: Option<u32>,
    /// Maximum segment size of TCP.
    pub mss: Option<u32>,
    /// What controls how much is sent: `cubic`, `bbr`.
    pub congestion_control: Option<String>,
    /// Receive buffer of the socket.
    pub receive_buffer: Option<usize>,
    /// Send buffer of the socket.
    pub send_buffer: Option<usize>,
}

/// Lets a Unix socket take several messages with data at once. By itself it holds one of 200 KB, and both sides take turns.
fn widen(socket: impl AsFd) -> io::Result<()> {
    use rustix::net::sockopt;
    if sockopt::set_socket_send_buffer_size_force(&socket, UNIX_BUFFER).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, UNIX_BUFFER)?;
    }
    Ok(())
}

/// Has Reno control what is sent within this host. Nothing is lost there, and nobody shares the line; BBR, which many hosts
/// have for all connections, holds each burst back by a timer all the same. Pacing that has begun does not end, so this comes
/// before the connection; who is accepted has what the listener has.
fn leave_unpaced(socket: impl AsFd, address: SocketAddr) {
    if address.ip().is_loopback() {
        // Every kernel has it, and everybody may set it; where not, it is slower.
        _ = rustix::net::sockopt::set_tcp_congestion(socket, "reno");
    }
}

/// A listening socket, of TCP or Unix.
pub struct Listener {
    fd: PollFd<Socket>,
}

impl Listener {
    /// Binds an address; an IPv6 one takes IPv6 only.
    ///
    /// # Errors
    /// Those of bind: the address is in use, or not ours.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        leave_unpaced(&socket, address);
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    }

    /// Binds a Unix socket at a path. What a process that is gone has left there is replaced.
    ///
    /// # Errors
    /// Those of bind; `AddrInUse` when somebody listens there, or something else than a socket is there.
    pub fn bind_unix(path: &Path) -> io::Result<UnixListener> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        let address = SockAddr::unix(path)?;
        match socket.bind(&address) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse && is_deserted(path, &address)? => {
                std::fs::remove_file(path)?;
                socket.bind(&address)?;
            }
            result => result?,
        }
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    }

    /// Takes over a bound socket on this core.
    pub fn new(socket: impl Into<Socket>) -> io::Result<Listener> {
        let socket = socket.into();
        socket.set_nonblocking(true)?;
        Ok(Listener { fd: PollFd::new(socket)? })
    }

    /// The next connection and its peer, ready to move to another core. Waits through a shortage of file
    /// descriptors.
    pub async fn accept(&self) -> io::Result<(Socket, SockAddr)> {
        loop {
            match SockRef::from(&self.fd).accept() {
                Ok(accepted) => return Ok(accepted),
                Err(e) if is_shortage(&e) => compio::time::sleep(Duration::from_millis(50)).await,
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => self.fd.accept_ready().await?,
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => return Err(e),
                },
            }
        }
    }
}

/// A socket on whose path nobody listens any more.
fn is_deserted(path: &Path, address: &SockAddr) -> io::Result<bool> {
    let there = std::fs::symlink_metadata(path)?.file_type();
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    let refused = || probe.connect(address).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    Ok(there.is_socket() && refused())
}

fn is_shortage(e: &io::Error) -> bool {
    let shortage = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
    e.raw_os_error().is_some_and(|n| shortage.iter().any(|s| s.raw_os_error() == n))
}

#[cfg(test)]
mod tests {
    use super::*;
    use compio::driver::{DriverType, ProactorBuilder};
    use compio::runtime::RuntimeBuilder;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// With each driver that can be had here.
    fn in_loops(body: impl AsyncFn()) {
        let mut polling = ProactorBuilder::new();
        polling.driver_type(DriverType::Poll);
        for proactor in [ProactorBuilder::new(), polling] {
            let runtime = RuntimeBuilder::new().with_proactor(proactor).build();
            runtime.expect("a runtime").block_on(body());
        }
    }

    /// Sends five bytes from a client and five back, whatever the family.
    async fn echo(listener: Listener, client: Socket) {
        let (accepted, _) = listener.accept().await.expect("a connection");
        let stream = Stream::new(accepted).expect("a stream");
        let mut client = client;
        client.write_all(b"hello").expect("sent");
        stream.readable().await.expect("bytes");
        let mut bytes = [0; 8];
        assert_eq!(stream.receive(&mut bytes).expect("bytes"), Some(5));
        stream.send(&[IoSlice::new(&bytes[..5])]).expect("sent");
        client.read_exact(&mut bytes[..5]).expect("an answer");
        assert_eq!(&bytes[..5], b"hello");
    }

    #[test]
    fn both_families_carry_bytes() {
        in_loops(async || {
            let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
            let client = std::net::TcpStream::connect(bound.local_addr().expect("bound")).expect("connected");
            echo(Listener::new(bound).expect("a listener"), client.into()).await;
        });
        let path = std::env::temp_dir().join(format!("lunar-net-{}.sock", std::process::id()));
        in_loops(async || {
            let bound = Listener::bind_unix(&path).expect("bound");
            let client = UnixStream::connect(&path).expect("connected");
            echo(Listener::new(bound).expect("a listener"), client.into()).await;
        });
        std::fs::remove_file(path).expect("the socket");
    }

    #[test]
    fn what_stays_in_this_host_is_not_paced() {
        let control =
            |socket: &dyn AsFd| rustix::net::sockopt::tcp_congestion(socket.as_fd()).expect("a name");
        in_loops(async || {
            let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
            let stream = Stream::connect(bound.local_addr().expect("bound")).await.expect("connected");
            let (accepted, _) = bound.accept().expect("a connection");
            assert_eq!([control(&stream.fd), control(&accepted)], ["reno", "reno"]);
            let anywhere = Listener::bind("0.0.0.0:0".parse().expect("an address")).expect("bound");
            let untouched = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
            assert_eq!(control(&anywhere), control(&untouched));
        });
    }

    /// The peer sees a reset, and of what it has not read no more than its own buffer held.
    #[test]
    fn a_reset_throws_away_what_has_not_left() {
        in_loops(async || {
            let bound = Listener::bind("127.0.0.1:0".parse().expect("an address")).expect("bound");
            let stream = Stream::connect(bound.local_addr().expect("bound")).await.expect("connected");
            stream.reset_on_close(true).expect("an option");
            let (mut peer, _) = bound.accept().expect("a connection");
            let (part, mut sent) = (vec![7; 1 << 16], 0);
            while let Some(n) = stream.send(&[IoSlice::new(&part)]).expect("it is open") {
                sent += n;
            }
            stream.reset();
            let (mut got, mut all) = (0, vec![0; 1 << 16]);
            let end = loop {
                match peer.read(&mut all) {
                    Ok(0) => break None,
                    Ok(n) => got += n,
                    Err(e) => break Some(e.kind()),
                }
            };
            assert_eq!(end, Some(io::ErrorKind::ConnectionReset));
            assert!(got < sent, "{got} of {sent} bytes came");
        });
    }

    #[test]
    fn a_deserted_socket_is_replaced_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("lunar-net-{}.deserted", std::process::id()));
        drop(Listener::bind_unix(&path).expect("the first"));
        let alive = Listener::bind_unix(&path).expect("the first is gone");
        let taken = Listener::bind_unix(&path).expect_err("the second lives");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        drop(alive);
        std::fs::remove_file(&path).expect("the socket");
        std::fs::write(&path, "kept").expect("a file");
        Listener::bind_unix(&path).expect_err("a file is there");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "kept");
        std::fs::remove_file(path).expect("the file");
    }
}
