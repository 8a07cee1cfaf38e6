//! A TCP proxy. A test can cut its connections, discard or hold their data, and restore it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// A portal that forwards connections to a server, unless it is cut.
pub struct Relay {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// Whether the relay is cut, and both ends of its connections.
#[derive(Default)]
struct State {
    is_cut: bool,
    /// Whether received data are discarded. Connections opened between two calls of `silence` share this flag.
    silence: Arc<AtomicBool>,
    /// Holds data of clients. Connections share it in the same way.
    gate: Arc<ConnectionHold>,
    passing: Vec<TcpStream>,
}

/// Holds the bytes of clients until [`ConnectionHold::open`].
#[derive(Default)]
pub struct ConnectionHold {
    state: Mutex<Waiting>,
    opened: Condvar,
}

#[derive(Default)]
struct Waiting {
    is_shut: bool,
    connections: usize,
}

impl ConnectionHold {
    /// The number of connections whose bytes wait.
    pub fn waiting(&self) -> usize {
        self.lock().connections
    }

    /// Forwards the held bytes of all connections, also of those whose clients have disconnected.
    pub fn open(&self) {
        self.lock().is_shut = false;
        self.opened.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }

    /// Waits while the hold is shut. True: it was shut.
    fn pass(&self) -> bool {
        let mut waiting = self.lock();
        let is_shut = waiting.is_shut;
        waiting.connections += 1;
        let mut waiting =
            self.opened.wait_while(waiting, |w| w.is_shut).expect("no thread panics while it holds the lock");
        waiting.connections -= 1;
        is_shut
    }
}

impl Relay {
    /// A relay to this server. Its threads live as long as the process.
    pub fn to(server: SocketAddr) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        thread::spawn(move || {
            listener.incoming().map_while(Result::ok).for_each(|client| pass(client, server, &shared));
        });
        Relay { address, state }
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections, and each new connection at once.
    pub fn cut(&self) {
        let mut state = self.state.lock().expect("no thread panics while it holds the lock");
        state.is_cut = true;
        state.passing.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Discards all further data of existing and new connections, which stay open.
    pub fn silence(&self) {
        self.state
            .lock()
            .expect("no thread panics while it holds the lock")
            .silence
            .store(true, Ordering::Relaxed);
    }

    /// Holds all further data of clients, on new connections too, until the hold is released. The server receives nothing more
    /// from a client that disconnects meanwhile.
    pub fn hold(&self) -> Arc<ConnectionHold> {
        let gate = self.state.lock().expect("no thread panics while it holds the lock").gate.clone();
        gate.lock().is_shut = true;
        gate
    }

    /// Forwards new connections again. Silenced connections stay silent, and held connections stay held.
    pub fn restore(&self) {
        let mut state = self.state.lock().expect("no thread panics while it holds the lock");
        state.is_cut = false;
        state.gate = Arc::default();
        if state.silence.load(Ordering::Relaxed) {
            state.silence = Arc::default();
        }
    }
}

fn pass(client: TcpStream, server: SocketAddr, state: &Mutex<State>) {
    let mut state = state.lock().expect("no thread panics while it holds the lock");
    if state.is_cut {
        return;
    }
    // If the server is down, the client sees a close.
    let Ok(server) = TcpStream::connect(server) else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
        state.passing.push(stream.try_clone().expect("a descriptor"));
    }
    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    let there = (clone(&client), clone(&server), state.gate.clone());
    for (mut from, mut to, gate) in [there, (server, client, Arc::default())] {
        let silence = state.silence.clone();
        thread::spawn(move || {
            let was_held = copy(&mut from, &mut to, &silence, &gate);
            // Forwards the end of the connection, unless its data are discarded or were held.
            if !was_held && !silence.load(Ordering::Relaxed) {
                let _ = to.shutdown(Shutdown::Both);
            }
        });
    }
}

/// Forwards data until the stream ends. Returns true if any data were held.
fn copy(from: &mut TcpStream, to: &mut TcpStream, silence: &AtomicBool, gate: &ConnectionHold) -> bool {
    let (mut chunk, mut was_held) = ([0; 65536], false);
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        was_held |= gate.pass();
        if !silence.load(Ordering::Relaxed) && to.write_all(&chunk[..n]).is_err() {
            break;
        }
    }
    was_held
}
