//! A network link slower than loopback: a relay in this process that delays data, or that listens at the remote
//! end of a line emulated by the kernel.

use crate::netem::FarEnd;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Bytes forwarded at once.
const CHUNK: usize = 16 << 10;
/// The maximum number of chunks queued in a direction of a connection, like the queue of a router.
const QUEUE: usize = 64;
/// The maximum delay of a new line.
const SOON: Duration = Duration::from_secs(5);

/// The properties of a link.
#[derive(Clone, Copy, Debug)]
pub struct LinkProfile {
    /// One-way delay.
    pub delay: Duration,
    /// Bytes per second in each direction, over all connections.
    pub bytes_per_s: f64,
    /// The maximum bytes in flight in each direction of a connection until their acknowledgement: the TCP
    /// window.
    pub window: usize,
}

/// No window: the queue limits the bytes in flight.
pub const WIDE: usize = usize::MAX;

/// A link to an address. Its connections end on drop.
pub struct RelayLink {
    address: SocketAddr,
    shared: Arc<RelayState>,
    accepting: Option<JoinHandle<()>>,
    /// The kernel's line, if there is one.
    far: Option<FarEnd>,
}

struct RelayState {
    line: LinkProfile,
    target: SocketAddr,
    ended: AtomicBool,
    /// When each direction becomes free.
    free: [Mutex<Instant>; 2],
    open: Mutex<VecDeque<TcpStream>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl RelayLink {
    /// Starts to forward connections to an address.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(target: SocketAddr, line: LinkProfile) -> io::Result<RelayLink> {
        RelayLink::carry_from(TcpListener::bind("127.0.0.1:0")?, target, line, None)
    }

    /// Like [`RelayLink::start`], over a line emulated by the kernel. The kernel's TCP window applies.
    ///
    /// # Errors
    /// If the line cannot be created; see [`FarEnd::start`].
    pub fn far(target: SocketAddr, line: LinkProfile) -> io::Result<RelayLink> {
        let far = FarEnd::start(&line)?;
        let at_once = LinkProfile { delay: Duration::ZERO, bytes_per_s: f64::INFINITY, window: WIDE };
        let listener = far.listen()?;
        // A firewall may block it.
        TcpStream::connect_timeout(&listener.local_addr()?, SOON)?;
        drop(listener.accept()?);
        RelayLink::carry_from(listener, target, at_once, Some(far))
    }

    fn carry_from(
        listener: TcpListener,
        target: SocketAddr,
        line: LinkProfile,
        far: Option<FarEnd>,
    ) -> io::Result<RelayLink> {
        let address = listener.local_addr()?;
        let now = Instant::now();
        let shared = Arc::new(RelayState {
            line,
            target,
            ended: AtomicBool::new(false),
            free: [Mutex::new(now), Mutex::new(now)],
            open: Mutex::default(),
            threads: Mutex::default(),
        });
        let accepting = Some(thread::spawn({
            let shared = shared.clone();
            move || shared.accept(&listener)
        }));
        Ok(RelayLink { address, shared, accepting, far })
    }

    /// Whether the kernel emulates the line.
    pub fn is_of_the_kernel(&self) -> bool {
        self.far.is_some()
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for RelayLink {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let threads = || std::mem::take(&mut *locked(&self.shared.threads));
        // Wakes the accepting thread, unless the line is down.
        if TcpStream::connect_timeout(&self.address, SOON).is_ok() {
            self.accepting.take().map(JoinHandle::join);
        }
        locked(&self.shared.open).iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        threads().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl RelayState {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for near in listener.incoming() {
            if self.ended.load(Ordering::SeqCst) {
                return;
            }
            // An unreachable target closes the connection.
            if let Ok((near, far)) = near.and_then(|near| Ok((near, TcpStream::connect(self.target)?))) {
                drop(self.carry(&near, &far));
            }
        }
    }

    fn carry(self: &Arc<Self>, near: &TcpStream, far: &TcpStream) -> io::Result<()> {
        for (direction, (from, to)) in [(near, far), (far, near)].into_iter().enumerate() {
            to.set_nodelay(true)?;
            let (send, receive) = sync_channel(QUEUE);
            let (shared, from, to) = (self.clone(), from.try_clone()?, to.try_clone()?);
            locked(&self.open).push_back(from.try_clone()?);
            let taking = thread::spawn(move || shared.take(direction, from, &send));
            let giving = thread::spawn(move || give(to, &receive));
            locked(&self.threads).extend([taking, giving]);
        }
        Ok(())
    }

    /// Receives data and computes its arrival time.
    fn take(&self, direction: usize, mut from: TcpStream, queue: &SyncSender<(Instant, Vec<u8>)>) {
        let mut chunk = vec![0; CHUNK];
        let mut window = SendWindow::new(self.line.window);
        while let Ok(len) = from.read(&mut chunk[..window.room()])
            && len > 0
        {
            let arrival = self.arrival(direction, len);
            window.take(len, arrival + self.line.delay);
            if queue.send((arrival, chunk[..len].to_vec())).is_err() {
                break;
            }
        }
    }

    /// The arrival time of data sent now, after earlier data has left.
    fn arrival(&self, direction: usize, len: usize) -> Instant {
        let mut free = locked(&self.free[direction]);
        *free = (*free).max(Instant::now()) + Duration::from_secs_f64(len as f64 / self.line.bytes_per_s);
        *free + self.line.delay
    }
}

/// The bytes of a connection in flight in one direction, and the times of their acknowledgement.
struct SendWindow {
    whole: usize,
    free: usize,
    in_flight: VecDeque<(Instant, usize)>,
}

impl SendWindow {
    fn new(whole: usize) -> SendWindow {
        let whole = whole.max(1);
        SendWindow { whole, free: whole, in_flight: VecDeque::new() }
    }

    /// The number of bytes that may be sent next. Waits until a chunk, or the whole window, is free, so that no
    /// small pieces are sent.
    fn room(&mut self) -> usize {
        let enough = CHUNK.min(self.whole);
        while let Some((back, len)) = self.in_flight.front().copied() {
            let wait = back.saturating_duration_since(Instant::now());
            if self.free >= enough && !wait.is_zero() {
                break;
            }
            thread::sleep(wait);
            self.in_flight.pop_front();
            self.free += len;
        }
        enough
    }

    fn take(&mut self, len: usize, back: Instant) {
        self.free -= len;
        self.in_flight.push_back((back, len));
    }
}

fn give(mut to: TcpStream, queue: &Receiver<(Instant, Vec<u8>)>) {
    for (due, chunk) in queue {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&chunk).is_err() {
            break;
        }
    }
    // The other direction ends separately.
    let _ = to.shutdown(Shutdown::Write);
}

/// Locks even after a panic: no holder leaves an inconsistent state.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An echo server for one connection.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            let mut copy = stream.try_clone().expect("a copy");
            let _ = io::copy(&mut stream, &mut copy);
        });
        address
    }

    #[test]
    fn relayed_bytes_arrive_complete_ordered_and_delayed() {
        let line = LinkProfile { delay: Duration::from_millis(20), bytes_per_s: 10e6, window: WIDE };
        let link = RelayLink::start(echo(), line).expect("a link");
        let mut stream = TcpStream::connect(link.address()).expect("connected");
        let sent: Vec<u8> = (0..100_000u32).map(|n| (n % 251) as u8).collect();
        let started_at = Instant::now();
        let mut copy = stream.try_clone().expect("a copy");
        let bytes = sent.clone();
        let sending = thread::spawn(move || copy.write_all(&bytes).expect("sent"));
        let mut came = vec![0; sent.len()];
        stream.read_exact(&mut came).expect("all bytes");
        sending.join().expect("sent");
        assert!(came == sent, "other bytes");
        // Twice the delay, and one hundred thousand bytes at ten million per second.
        assert!(started_at.elapsed() >= Duration::from_millis(50), "{:?}", started_at.elapsed());
    }

    #[test]
    fn window_limits_the_throughput() {
        let line = LinkProfile { delay: Duration::from_millis(20), bytes_per_s: 1e9, window: CHUNK };
        let link = RelayLink::start(echo(), line).expect("a link");
        let mut stream = TcpStream::connect(link.address()).expect("connected");
        let started_at = Instant::now();
        let sent = vec![7; 4 * CHUNK];
        stream.write_all(&sent).expect("sent");
        let mut came = vec![0; sent.len()];
        stream.read_exact(&mut came).expect("all bytes");
        assert!(came == sent, "other bytes");
        // Three windows are acknowledged before the fourth leaves, which then travels both ways.
        assert!(started_at.elapsed() >= Duration::from_millis(3 * 40 + 40), "{:?}", started_at.elapsed());
    }

    #[test]
    fn connections_end_with_the_link() {
        let line = LinkProfile { delay: Duration::ZERO, bytes_per_s: 1e9, window: WIDE };
        let link = RelayLink::start(echo(), line).expect("a link");
        let mut stream = TcpStream::connect(link.address()).expect("connected");
        stream.write_all(b"x").expect("sent");
        stream.read_exact(&mut [0]).expect("back");
        let address = link.address();
        drop(link);
        assert!(!matches!(stream.read(&mut [0]), Ok(1..)), "the connection still transfers data");
        assert!(TcpStream::connect(address).is_err(), "the relay still listens");
    }
}
