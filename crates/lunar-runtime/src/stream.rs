//! Sockets by readiness: wait until there is something, then take it without waiting. An idle connection
//! holds no buffer, and one receive goes wherever its reader wants it.
//!
//! The alternative is to receive by completion, into a buffer for each receive that waits. Readiness needs one buffer per
//! core, and large segments land in place, because the receiver chooses the place after it has parsed the header. A receive
//! that leaves room has taken everything, so nobody asks twice. In measurements both were equal within a few percent.

use crate::Recheck;
use crate::multishot_poll::MultishotPoll;
use compio::driver::ToSharedFd;
use compio::net::TcpSocket;
use compio::runtime::Runtime;
use compio::runtime::fd::PollFd;
use rustix::event::{PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes that wait in a Unix socket.
const UNIX_BUFFER: usize = 2 << 20;
/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 1024;
/// Time between two shortages that the log names.
const SHORTAGE_LOGGED: Duration = Duration::from_secs(60);
/// Asks what a socket has sent and nobody has acknowledged (asm-generic/ioctls.h, linux/sockios.h).
const SIOCOUTQ: Opcode = 0x5411;
/// The peer sends no more, or the connection is broken.
const ENDED: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);

/// The state of the other side, as the kernel knows it. Bytes that came before may still be unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Nothing says that it has gone.
    Open,
    /// It sends no more (FIN).
    Closed,
    /// It has reset the connection, or the kernel has given the connection up.
    Reset,
}

/// A connection over TCP or a Unix socket. Belongs to one core.
pub struct Stream {
    fd: PollFd<Socket>,
    /// None where the event loop asks at each wait whether there is something to receive.
    watch: Option<MultishotPoll>,
    /// The peer was seen to be open.
    seen_open: Recheck,
    /// Bytes that were received.
    received: Cell<u64>,
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
        Ok(Stream::of(PollFd::new(socket)?))
    }

    fn of(fd: PollFd<Socket>) -> Stream {
        let watch = Runtime::with_current(|rt| rt.driver_type().is_iouring())
            .then(|| MultishotPoll::new(fd.to_shared_fd()));
        Stream { fd, watch, seen_open: Recheck::default(), received: Cell::default() }
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
        Ok(Stream::of(fd))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Those of connect: no such socket, nobody listens, not allowed; a path that is too long.
    pub async fn connect_unix(path: &Path) -> io::Result<Stream> {
        let socket = compio::net::UnixStream::connect(path).await?;
        widen(&socket)?;
        Ok(Stream::of(socket.into_poll_fd()?))
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
    pub fn route(&self) -> TcpInfo {
        let socket = SockRef::from(&self.fd);
        let local = socket.local_addr().ok().and_then(|a| a.as_socket());
        let mtu = match local {
            Some(SocketAddr::V6(_)) => rustix::net::sockopt::ipv6_mtu(&self.fd),
            _ => rustix::net::sockopt::ip_mtu(&self.fd),
        };
        TcpInfo {
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
        match &self.watch {
            Some(watch) => watch.readable().await,
            None => self.fd.read_ready().await,
        }
    }

    /// It is known without asking that there is something to receive, or that the peer is gone.
    pub fn is_readable(&self) -> bool {
        self.watch.as_ref().is_some_and(MultishotPoll::is_readable)
    }

    /// The state of the other side. The kernel is asked once in 100 microseconds at most: for the first of what a receive has
    /// brought, and again after a tick of its coarse clock.
    #[inline]
    pub fn peer_state(&self) -> PeerState {
        if !self.seen_open.is_due() {
            return PeerState::Open;
        }
        let state = self.ask_peer_state();
        if state != PeerState::Open {
            self.seen_open.forget();
        }
        state
    }

    /// Has the next [`Stream::peer_state`] ask the kernel, unless it did so just now (100 microseconds).
    pub fn look_anew(&self) {
        self.seen_open.next_batch();
    }

    fn ask_peer_state(&self) -> PeerState {
        let told = told_of_end(&self.fd);
        // A Unix socket tells of an orderly end by the same flag, and a TCP socket only when it is of no use any more.
        let is_unix = || SockRef::from(&self.fd).domain().is_ok_and(|domain| domain == Domain::UNIX);
        match told {
            told if told.is_empty() => PeerState::Open,
            told if told.contains(PollFlags::ERR) => PeerState::Reset,
            told if told.contains(PollFlags::HUP) && !is_unix() => PeerState::Reset,
            _ => PeerState::Closed,
        }
    }

    /// Bytes that were received so far.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Bytes that have come and were not received yet.
    pub fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.fd).unwrap_or(0)
    }

    /// Copies what has come and leaves it to be received; up to `most` bytes from the first.
    pub fn peek(&self, most: usize) -> Vec<u8> {
        let there = usize::try_from(self.unread()).unwrap_or(most).min(most);
        let mut bytes = vec![0; there];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let got = rustix::net::recv(&self.fd, &mut bytes[..], flags).map_or(0, |(got, _)| got);
        bytes.truncate(got);
        bytes
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
        let room = buf.len();
        let received = rustix::net::recv(&self.fd, buf, RecvFlags::DONTWAIT);
        self.took(received.map(|(n, _)| n), room)
    }

    /// The same into several buffers.
    pub fn receive_vectored(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let room = into.iter().map(|part| part.len()).sum();
        let mut ancillary = RecvAncillaryBuffer::default();
        let received = rustix::net::recvmsg(&self.fd, into, &mut ancillary, RecvFlags::DONTWAIT);
        self.took(received.map(|r| r.bytes), room)
    }

    /// What a receive came to, for which there was `room` in bytes.
    #[inline]
    fn took(&self, received: Result<usize, Errno>, room: usize) -> io::Result<Option<usize>> {
        match (received, &self.watch) {
            (Err(Errno::AGAIN), Some(watch)) => watch.found_nothing(),
            (Ok(n), Some(watch)) if n < room => watch.took_all(),
            _ => {}
        }
        match received {
            Ok(n) => {
                self.seen_open.next_batch();
                self.received.set(self.received.get() + n as u64);
                Ok(Some(n))
            }
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

    /// Bytes that were sent and that the peer's TCP has not acknowledged yet; none where the kernel does not tell.
    pub fn unacknowledged(&self) -> usize {
        // SAFETY: SIOCOUTQ (tcp(7)) writes an int to where it is told, and that is what the getter has room for.
        #[allow(unsafe_code)]
        let queued = unsafe { rustix::ioctl::ioctl(&self.fd, Getter::<SIOCOUTQ, i32>::new()) };
        queued.ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
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
        is_hung_up(&self.0)
    }
}

/// What the kernel says of the end of a connection, without waiting.
fn told_of_end(fd: &impl AsFd) -> PollFlags {
    let mut fds = [rustix::event::PollFd::new(fd, ENDED)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&now)) {
        Ok(1..) => fds[0].revents() & ENDED,
        _ => PollFlags::empty(),
    }
}

/// The peer of a socket has closed, or is gone. What it has sent before may still be unread.
pub fn is_hung_up(socket: &impl AsFd) -> bool {
    !told_of_end(socket).is_empty()
}

/// The way of a connection, as far as the kernel tells of it; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
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

/// A socket at an address; an IPv6 one takes IPv6 only.
fn bound(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A listening socket, of TCP or Unix.
pub struct Listener {
    fd: PollFd<Socket>,
    /// Since when connections wait for want of file descriptors or memory, and when that was in the log.
    shortage: Cell<Option<Instant>>,
    logged: Cell<Option<Instant>>,
}

impl Listener {
    /// Binds an address; an IPv6 one takes IPv6 only.
    ///
    /// # Errors
    /// Those of bind: the address is in use, or not ours.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        let socket = bound(address)?;
        leave_unpaced(&socket, address);
        socket.listen(BACKLOG)?;
        Ok(socket.into())
    }

    /// Looks whether [`Listener::bind`] would fail now. Nobody can connect meanwhile.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn can_bind(address: SocketAddr) -> io::Result<()> {
        bound(address).map(drop)
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
        Ok(Listener { fd: PollFd::new(socket)?, shortage: Cell::default(), logged: Cell::default() })
    }

    /// The next connection and its peer, ready to move to another core. Waits through a shortage of file
    /// descriptors.
    pub async fn accept(&self) -> io::Result<(Socket, SockAddr)> {
        loop {
            match SockRef::from(&self.fd).accept() {
                Ok(accepted) => {
                    self.shortage_is_over();
                    return Ok(accepted);
                }
                Err(e) if is_shortage(&e) => {
                    self.shortage(&e);
                    compio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(e) => match e.kind() {
                    io::ErrorKind::WouldBlock => self.fd.accept_ready().await?,
                    io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {}
                    _ => return Err(e),
                },
            }
        }
    }
}

impl Listener {
    /// The log has the beginning of a shortage, and no line for each try.
    fn shortage(&self, error: &io::Error) {
        let now = Instant::now();
        let is_new = self.logged.get().is_none_or(|then| now - then >= SHORTAGE_LOGGED);
        if self.shortage.get().is_none() {
            self.shortage.set(Some(now));
            if is_new {
                self.logged.set(Some(now));
                let hint = "raise the hard limit on open files (ulimit -Hn, LimitNOFILE=), or have fewer connections";
                tracing::error!(%error, hint, "connections wait to be accepted");
            }
        }
    }

    fn shortage_is_over(&self) {
        if let Some(since) = self.shortage.take()
            && self.logged.get() == Some(since)
        {
            tracing::info!(waited_ms = since.elapsed().as_millis() as u64, "connections are accepted again");
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
mod tests;
