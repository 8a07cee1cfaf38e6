//! Sockets by readiness: wait for it, then receive without waiting. An idle connection holds no buffer, and the
//! reader chooses the destination of each receive.
//!
//! The alternative is to receive by completion, into a buffer for each receive that waits. Readiness needs one buffer per
//! core, and large segments land in place, because the receiver chooses the place after it has parsed the header. A receive
//! that leaves room has taken everything, so no second call follows. In measurements both were equal within a few percent.

use crate::multishot_poll::MultishotPoll;
use crate::{PipedBytes, Recheck, begin_batch};
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

/// Buffer size of a Unix socket, in bytes.
const UNIX_BUFFER: usize = 2 << 20;
/// Backlog of a listening socket.
const BACKLOG: i32 = 1024;
/// The shortest time between two logged shortages.
const SHORTAGE_LOGGED: Duration = Duration::from_secs(60);
/// The ioctl that returns the unacknowledged bytes of a socket (asm-generic/ioctls.h, linux/sockios.h).
const SIOCOUTQ: Opcode = 0x5411;
/// The peer sends no more (FIN), or the connection is broken.
const ENDED: PollFlags = PollFlags::RDHUP.union(PollFlags::HUP).union(PollFlags::ERR);

/// The state of the peer, as the kernel knows it. Earlier bytes may still be unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// No sign of an end.
    Open,
    /// The peer sends no more (FIN).
    Closed,
    /// The peer reset the connection, or the kernel gave it up.
    Reset,
}

/// The outcome of a receive into a pipe.
pub(crate) enum PipeReceive {
    /// Nothing has arrived.
    Nothing,
    /// The pipe has no room, and the socket was not asked.
    Full,
    /// This many bytes were received; 0 is the end of the stream.
    Received(usize),
}

/// A connection over TCP or a Unix socket. Belongs to one core.
pub struct Stream {
    fd: PollFd<Socket>,
    /// None with the polling driver, which checks readiness at each wait.
    watch: Option<MultishotPoll>,
    /// When the peer was last known to be open.
    seen_open: Recheck,
    /// Received bytes.
    received: Cell<u64>,
    /// The connection of the peer, if another thread relays its data to this socket.
    carrier: Option<Socket>,
}

impl Stream {
    /// Takes over a connected socket on this core, with TCP_NODELAY.
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
        Stream { fd, watch, seen_open: Recheck::default(), received: Cell::default(), carrier: None }
    }

    /// The same stream, whose data another thread relays from this connection. The peer has left when its connection has ended,
    /// even if the relay has not noticed yet.
    pub fn carried_by(self, carrier: OwnedFd) -> Stream {
        Stream { carrier: Some(carrier.into()), ..self }
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
        // A splice from the socket waits by this flag, and would stop the core.
        SockRef::from(&fd).set_nonblocking(true)?;
        Ok(Stream::of(fd))
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// Those of connect: no such socket, no listener, not permitted; a path that is too long.
    pub async fn connect_unix(path: &Path) -> io::Result<Stream> {
        let socket = compio::net::UnixStream::connect(path).await?;
        widen(&socket)?;
        let fd = socket.into_poll_fd()?;
        SockRef::from(&fd).set_nonblocking(true)?;
        Ok(Stream::of(fd))
    }

    /// Sets TCP keepalive: after `idle`, the kernel probes the peer `tries` times at the same interval, then the
    /// connection is lost. TCP only.
    pub fn keep_alive(&self, idle: Duration, tries: u32) -> io::Result<()> {
        keep_alive(&self.fd, idle, tries)
    }

    /// Sets both socket buffers, in bytes, which bound the TCP window. Without CAP_NET_ADMIN the kernel caps them at
    /// `rmem_max` and `wmem_max` (socket(7)).
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

    /// The address of the peer.
    ///
    /// # Errors
    /// When the peer is gone, or this is a Unix socket.
    pub fn peer(&self) -> io::Result<SocketAddr> {
        let address = SockRef::from(&self.fd).peer_addr()?;
        address.as_socket().ok_or_else(|| io::Error::other("the peer of a Unix socket has no IP address"))
    }

    /// The kernel's parameters of this connection.
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

    /// The CPU on which the packets of this connection arrive, if the kernel knows it.
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

    /// Whether the socket is known to be readable, or the peer to be gone. Makes no system call.
    pub fn is_readable(&self) -> bool {
        self.watch.as_ref().is_some_and(MultishotPoll::is_readable)
    }

    /// The state of the peer. It is cached: at most one system call in 100 microseconds, and a new one after each
    /// receive or tick of the coarse clock.
    #[inline]
    pub fn peer_state(&self) -> PeerState {
        if !self.seen_open.take_due() {
            return PeerState::Open;
        }
        let state = self.ask_peer_state();
        if state != PeerState::Open {
            self.seen_open.forget();
        }
        state
    }

    /// Makes the next [`Stream::peer_state`] ask the kernel, unless it did so within 100 microseconds.
    pub fn recheck_peer(&self) {
        self.seen_open.next_batch();
    }

    fn ask_peer_state(&self) -> PeerState {
        match (peer_state(&self.fd), &self.carrier) {
            (PeerState::Open, Some(carrier)) => peer_state(carrier),
            (state, _) => state,
        }
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.get()
    }

    /// Bytes in the receive buffer of the socket.
    pub fn unread(&self) -> u64 {
        rustix::io::ioctl_fionread(&self.fd).unwrap_or(0)
    }

    /// Copies up to `max` bytes without receiving them.
    pub fn peek(&self, max: usize) -> Vec<u8> {
        let there = usize::try_from(self.unread()).unwrap_or(max).min(max);
        let mut bytes = vec![0; there];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let got = rustix::net::recv(&self.fd, &mut bytes[..], flags).map_or(0, |(got, _)| got);
        bytes.truncate(got);
        bytes
    }

    /// A handle that shows from any core whether the peer is gone.
    ///
    /// # Errors
    /// When there are no more file descriptors.
    pub fn hangup(&self) -> io::Result<Hangup> {
        Ok(Hangup(self.fd.as_fd().try_clone_to_owned()?))
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &impl AsFd {
        &self.fd
    }

    /// Waits until something can be sent.
    pub async fn writable(&self) -> io::Result<()> {
        self.fd.write_ready().await
    }

    /// Receives without waiting: Some(0) is the end of the stream, None is nothing yet.
    #[inline]
    pub fn receive(&self, buf: &mut [u8]) -> io::Result<Option<usize>> {
        let room = buf.len();
        let received = rustix::net::recv(&self.fd, buf, RecvFlags::DONTWAIT);
        self.took(received.map(|(n, _)| n), room)
    }

    /// As [`Stream::receive`] into several buffers.
    pub fn receive_vectored(&self, into: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        let room = into.iter().map(|part| part.len()).sum();
        let mut ancillary = RecvAncillaryBuffer::default();
        let received = rustix::net::recvmsg(&self.fd, into, &mut ancillary, RecvFlags::DONTWAIT);
        self.took(received.map(|r| r.bytes), room)
    }

    /// As [`Stream::receive`] of up to `max` bytes into a pipe.
    pub(crate) fn receive_piped(&self, into: &mut PipedBytes, max: usize) -> io::Result<PipeReceive> {
        let received = into.receive(&self.fd, max);
        // The kernel looks at the pipe first. So the socket may have bytes, or have reached its end.
        if received == Err(Errno::AGAIN) && into.is_full() {
            return Ok(PipeReceive::Full);
        }
        // Fewer bytes than `max` do not mean that there are no more.
        let received = self.took(received, received.unwrap_or(max))?;
        Ok(received.map_or(PipeReceive::Nothing, PipeReceive::Received))
    }

    /// Evaluates a receive of up to `room` bytes.
    #[inline]
    fn took(&self, received: Result<usize, Errno>, room: usize) -> io::Result<Option<usize>> {
        match (received, &self.watch) {
            (Err(Errno::AGAIN), Some(watch)) => watch.found_nothing(),
            (Ok(n), Some(watch)) if n < room => watch.took_all(),
            _ => {}
        }
        match received {
            Ok(n) => {
                begin_batch();
                self.seen_open.next_batch();
                self.received.set(self.received.get() + n as u64);
                Ok(Some(n))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends what the socket takes without waiting; None if nothing. `more`: other bytes follow at once.
    #[inline]
    pub fn send(&self, parts: &[IoSlice<'_>], more: bool) -> io::Result<Option<usize>> {
        let more = if more { SendFlags::MORE } else { SendFlags::empty() };
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | more;
        let sent = match parts {
            // Cheaper in the kernel than a vector of one.
            [part] => rustix::net::send(&self.fd, part, flags),
            _ => rustix::net::sendmsg(&self.fd, parts, &mut SendAncillaryBuffer::default(), flags),
        };
        match sent {
            Ok(n) => Ok(Some(n)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Sends all bytes, and waits while the socket takes none.
    ///
    /// # Errors
    /// Those of send: the connection is closed or lost.
    pub async fn send_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.send(&[IoSlice::new(bytes)], false)? {
                Some(sent) => bytes = &bytes[sent..],
                None => self.writable().await?,
            }
        }
        Ok(())
    }

    /// Sent bytes that the peer's TCP has not acknowledged; 0 if the kernel does not report them.
    pub fn unacknowledged(&self) -> usize {
        // SAFETY: SIOCOUTQ (tcp(7)) writes one int, and the getter has room for one.
        #[allow(unsafe_code)]
        let queued = unsafe { rustix::ioctl::ioctl(&self.fd, Getter::<SIOCOUTQ, i32>::new()) };
        queued.ok().and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0)
    }

    /// Sets whether every end of this connection is a reset, even when the process dies. A reset discards unsent data
    /// in the kernel instead of delivering it later. TCP only.
    ///
    /// # Errors
    /// Those of setsockopt.
    pub fn reset_on_close(&self, yes: bool) -> io::Result<()> {
        SockRef::from(&self.fd).set_linger(yes.then_some(Duration::ZERO))
    }

    /// Resets the connection at once, even if other handles hold it. Discards unsent data and wakes its waiters. TCP
    /// only.
    pub fn reset(&self) {
        // connect(2) with AF_UNSPEC aborts the connection; it is already over if that fails.
        _ = rustix::net::connect_unspec(&self.fd);
        self.shutdown(Shutdown::Both);
    }

    /// Ends one or both directions and wakes their waiters.
    pub fn shutdown(&self, how: Shutdown) {
        // An error means that the peer has closed already.
        let _ = SockRef::from(&self.fd).shutdown(how);
    }
}

/// A duplicate handle that shows the end of a connection. It keeps the socket open until it is dropped.
pub struct Hangup(OwnedFd);

impl Hangup {
    /// Whether the peer has closed or is gone. Earlier bytes may still be unread.
    pub fn is_hung_up(&self) -> bool {
        is_hung_up(&self.0)
    }
}

/// The end flags of a connection, without waiting.
/// See [`Stream::keep_alive`].
///
/// # Errors
/// Those of setsockopt.
pub fn keep_alive(socket: &impl AsFd, idle: Duration, tries: u32) -> io::Result<()> {
    let how = TcpKeepalive::new().with_time(idle).with_interval(idle).with_retries(tries);
    SockRef::from(socket).set_tcp_keepalive(&how)
}

fn peer_state(socket: &impl AsFd) -> PeerState {
    let events = poll_end(socket);
    // POLLHUP is an orderly end on a Unix socket; on TCP, it means that the connection is dead.
    let is_unix = || SockRef::from(socket).domain().is_ok_and(|domain| domain == Domain::UNIX);
    match events {
        events if events.is_empty() => PeerState::Open,
        events if events.contains(PollFlags::ERR) => PeerState::Reset,
        events if events.contains(PollFlags::HUP) && !is_unix() => PeerState::Reset,
        _ => PeerState::Closed,
    }
}

fn poll_end(fd: &impl AsFd) -> PollFlags {
    let mut fds = [rustix::event::PollFd::new(fd, ENDED)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut fds, Some(&now)) {
        Ok(1..) => fds[0].revents() & ENDED,
        _ => PollFlags::empty(),
    }
}

/// Whether the peer of a socket has closed or is gone. Earlier bytes may still be unread.
pub fn is_hung_up(socket: &impl AsFd) -> bool {
    !poll_end(socket).is_empty()
}

/// The kernel's parameters of a connection; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// The local address.
    pub local: Option<SocketAddr>,
    /// Path MTU.
    pub mtu: Option<u32>,
    /// Maximum segment size of TCP.
    pub mss: Option<u32>,
    /// The congestion control algorithm, such as `cubic`.
    pub congestion_control: Option<String>,
    /// The receive buffer of the socket.
    pub receive_buffer: Option<usize>,
    /// The send buffer of the socket.
    pub send_buffer: Option<usize>,
}

/// Enlarges the buffers of a Unix socket, so that several messages with data fit. The default of 200 KB makes both
/// sides alternate.
fn widen(socket: impl AsFd) -> io::Result<()> {
    use rustix::net::sockopt;
    if sockopt::set_socket_send_buffer_size_force(&socket, UNIX_BUFFER).is_err() {
        sockopt::set_socket_send_buffer_size(&socket, UNIX_BUFFER)?;
    }
    Ok(())
}

/// Selects Reno for connections within this host, where nothing is lost. BBR, the default of many hosts, would pace
/// each burst by a timer. Pacing that has begun does not end, so this precedes connect; accepted sockets inherit it
/// from the listener.
fn leave_unpaced(socket: impl AsFd, address: SocketAddr) {
    if address.ip().is_loopback() {
        // Every kernel has Reno and permits it to all; a failure only costs speed.
        _ = rustix::net::sockopt::set_tcp_congestion(socket, "reno");
    }
}

/// A bound socket; IPv6 sockets are IPv6-only. With `shares`, other sockets may have the port too.
fn bound(address: SocketAddr, shares: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shares)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// A listening socket. It shares its port only until it listens.
fn listening(address: SocketAddr, shares: bool) -> io::Result<TcpListener> {
    let socket = bound(address, shares)?;
    leave_unpaced(&socket, address);
    socket.listen(BACKLOG)?;
    socket.set_reuse_port(false)?;
    Ok(socket.into())
}

/// Whether one of two addresses is the unspecified address for the other one.
fn overlap(a: SocketAddr, b: SocketAddr) -> bool {
    let has_all = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() == b.port() && a.port() != 0 && a.is_ipv4() == b.is_ipv4() && has_all
}

/// A listening socket, of TCP or Unix.
pub struct Listener {
    fd: PollFd<Socket>,
    /// The start of a shortage of file descriptors or memory, and the time of its last log line.
    shortage: Cell<Option<Instant>>,
    logged: Cell<Option<Instant>>,
}

impl Listener {
    /// Binds an address; IPv6 sockets are IPv6-only.
    ///
    /// # Errors
    /// Those of bind: the address is in use or not local.
    pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
        listening(address, false)
    }

    /// As [`Listener::bind`], also if `own` sockets have the port: one on the unspecified address, or some on other
    /// addresses. They share the port for a moment only, so that no other server shares it by accident.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind_beside(address: SocketAddr, own: &[&TcpListener]) -> io::Result<TcpListener> {
        let overlaps = |own: &&&TcpListener| own.local_addr().is_ok_and(|other| overlap(other, address));
        let overlapping: Vec<&TcpListener> = own.iter().filter(overlaps).copied().collect();
        let share =
            |may: bool| overlapping.iter().try_for_each(|open| SockRef::from(*open).set_reuse_port(may));
        let opened = share(true).and_then(|()| listening(address, !overlapping.is_empty()));
        let ended = share(false);
        opened.and_then(|socket| ended.map(|()| socket))
    }

    /// Checks whether [`Listener::bind`] would fail now, without accepting connections.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn can_bind(address: SocketAddr) -> io::Result<()> {
        bound(address, false).map(drop)
    }

    /// Binds a Unix socket at a path and replaces a stale socket of a dead process.
    ///
    /// # Errors
    /// Those of bind; `AddrInUse` when a process listens there, or the path is not a socket.
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

    /// Accepts the next connection, which may move to another core. Waits through a shortage of file descriptors.
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
    /// Logs the start of a shortage, not each attempt.
    fn shortage(&self, error: &io::Error) {
        let now = Instant::now();
        let is_new = self.logged.get().is_none_or(|then| now - then >= SHORTAGE_LOGGED);
        if self.shortage.get().is_none() {
            self.shortage.set(Some(now));
            if is_new {
                self.logged.set(Some(now));
                let hint =
                    "raise the hard limit on open files (ulimit -Hn, LimitNOFILE=), or use fewer connections";
                tracing::error!(%error, hint, "new connections wait: the process has no free file descriptor");
            }
        }
    }

    fn shortage_is_over(&self) {
        if let Some(since) = self.shortage.take()
            && self.logged.get() == Some(since)
        {
            tracing::info!(
                waited_ms = since.elapsed().as_millis() as u64,
                "new connections are accepted again"
            );
        }
    }
}

/// Whether no process listens on the socket at this path any more.
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
