//! A way to a server that a test can cut and restore.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
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

    /// Passes connections again.
    pub fn restore(&self) {
        self.state.lock().expect("no thread panics with it").is_cut = false;
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
        thread::spawn(move || {
            // However it ends, the other side is to see the end too.
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}
