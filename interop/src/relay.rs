//! A way to a server that a test can cut, silence and restore.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// A portal that passes connections on to another one, while it is not cut.
pub struct Relay {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// Whether it is cut, and both ends of the connections that pass.
#[derive(Default)]
struct State {
    is_cut: bool,
    /// What comes is swallowed: shared by the connections of one time between two silences.
    silence: Arc<AtomicBool>,
    passing: Vec<TcpStream>,
}

impl Relay {
    /// A relay to this server; its threads live as long as the process.
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

    /// Where to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends all connections, and each new one at once.
    pub fn cut(&self) {
        let mut state = self.state.lock().expect("no thread panics with it");
        state.is_cut = true;
        state.passing.drain(..).for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    }

    /// Swallows all that comes from now on, and says nothing: a connection is half open, and so is a new one.
    pub fn silence(&self) {
        self.state.lock().expect("no thread panics with it").silence.store(true, Ordering::Relaxed);
    }

    /// Passes connections again; those that were silenced stay silent.
    pub fn restore(&self) {
        let mut state = self.state.lock().expect("no thread panics with it");
        state.is_cut = false;
        if state.silence.load(Ordering::Relaxed) {
            state.silence = Arc::default();
        }
    }
}

fn pass(client: TcpStream, server: SocketAddr, state: &Mutex<State>) {
    let mut state = state.lock().expect("no thread panics with it");
    if state.is_cut {
        return;
    }
    // A server that is not there is one that closes at once.
    let Ok(server) = TcpStream::connect(server) else { return };
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
        state.passing.push(stream.try_clone().expect("a descriptor"));
    }
    let clone = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
    let (there, back) = ((clone(&client), clone(&server)), (server, client));
    for (mut from, mut to) in [there, back] {
        let silence = state.silence.clone();
        thread::spawn(move || {
            copy(&mut from, &mut to, &silence);
            // However it ends, the other side is to see the end too; unless nothing is to be seen.
            if !silence.load(Ordering::Relaxed) {
                let _ = to.shutdown(Shutdown::Both);
            }
        });
    }
}

fn copy(from: &mut TcpStream, to: &mut TcpStream, silence: &AtomicBool) {
    let mut chunk = [0; 65536];
    while let Ok(n @ 1..) = from.read(&mut chunk) {
        if !silence.load(Ordering::Relaxed) && to.write_all(&chunk[..n]).is_err() {
            return;
        }
    }
}
