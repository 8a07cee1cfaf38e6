//! A relay to a portal that holds back bytes in both directions, and delivers them later or drops them.

use rustix::net::sockopt::set_socket_linger;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Login Response with T, from any stage to full feature phase.
const LOGGED_IN: [u8; 2] = [0x23, 0x83];

/// How the relay ends the two connections of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Reset,
    Close,
}

/// A relay in front of a portal. Its threads end with their connections, the listening thread with the process.
pub struct HoldingRelay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    refuses: bool,
    links: Vec<RelayedConnection>,
}

/// A client's connection, and the relay's connection to the portal.
#[derive(Default)]
struct RelayedConnection {
    is_held: bool,
    cut: Option<Cut>,
    /// ISID of the first successful login.
    isid: Option<[u8; 6]>,
    lanes: [Direction; 2],
}

/// Bytes of one direction that the relay has received and not sent on.
#[derive(Default)]
struct Direction {
    bytes: Vec<u8>,
    has_ended: bool,
}

/// Indices of `lanes`: to the portal, and back to the client.
const THERE: usize = 0;
const BACK: usize = 1;

impl HoldingRelay {
    /// A relay in front of this portal.
    pub fn to(portal: SocketAddr) -> HoldingRelay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let own = shared.clone();
        thread::spawn(move || listener.incoming().flatten().for_each(|client| pass(client, portal, &own)));
        HoldingRelay { address, shared }
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether an initiator port with a held connection has logged in again. True if no held connection has logged
    /// in.
    pub fn is_back(&self) -> bool {
        let state = self.shared.state();
        let ports = |is_held: bool| {
            state.links.iter().filter(move |link| link.is_held == is_held).filter_map(|link| link.isid)
        };
        let mut held = ports(true).peekable();
        held.peek().is_none() || held.any(|isid| ports(false).any(|other| other == isid))
    }

    /// Whether a logged-in connection is open in both directions.
    pub fn is_used(&self) -> bool {
        let is_used =
            |link: &RelayedConnection| link.isid.is_some() && !link.lanes.iter().any(|lane| lane.has_ended);
        self.shared.state().links.iter().any(is_used)
    }

    /// Stops all traffic, and closes new connections.
    pub fn hold(&self) {
        let mut state = self.shared.state();
        state.refuses = true;
        state.links.iter_mut().for_each(|link| link.is_held = true);
    }

    /// Accepts new connections again.
    pub fn open(&self) {
        self.shared.state().refuses = false;
    }

    /// Delivers the held bytes, and then the ends of the connections. Returns the number of bytes to the portal.
    pub fn release(&self) -> u64 {
        let mut state = self.shared.state();
        let held = state.links.iter_mut().filter(|link| link.is_held);
        let bytes = held.map(|link| {
            link.is_held = false;
            link.lanes[THERE].bytes.len() as u64
        });
        let bytes = bytes.sum();
        drop(state);
        self.shared.changed.notify_all();
        bytes
    }

    /// Drops the held bytes, and ends their connections.
    pub fn cut(&self, how: Cut) {
        self.shared
            .state()
            .links
            .iter_mut()
            .filter(|link| link.is_held)
            .for_each(|link| link.cut = Some(how));
        self.shared.changed.notify_all();
    }
}

impl Drop for HoldingRelay {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.refuses = true;
        state.links.iter_mut().for_each(|link| link.cut = Some(Cut::Reset));
        drop(state);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds the lock")
    }
}

fn pass(client: TcpStream, portal: SocketAddr, shared: &Arc<Shared>) {
    let mut state = shared.state();
    if state.refuses {
        return;
    }
    // If the portal does not accept, the client's connection closes at once.
    let Ok(server) = TcpStream::connect(portal) else { return };
    let number = state.links.len();
    state.links.push(RelayedConnection::default());
    drop(state);
    let (client, server) = (Arc::new(client), Arc::new(server));
    for stream in [&client, &server] {
        stream.set_nodelay(true).expect("a socket");
    }
    for (lane, from, to) in [(THERE, &client, &server), (BACK, &server, &client)] {
        let (from, to) = (from.clone(), to.clone());
        let (taker, bringer) = (shared.clone(), shared.clone());
        thread::spawn(move || take(&from, &taker, number, lane));
        thread::spawn(move || bring(&to, &bringer, number, lane));
    }
}

/// Receives bytes for this direction until the stream ends.
fn take(mut from: &TcpStream, shared: &Shared, number: usize, lane: usize) {
    let mut chunk = [0; 65536];
    loop {
        let count = from.read(&mut chunk).unwrap_or(0);
        let mut state = shared.state();
        let link = &mut state.links[number];
        if lane == BACK && count >= 48 && is_login(&chunk) && link.isid.is_none() {
            link.isid = Some(chunk[8..14].try_into().expect("6 bytes"));
        }
        let lane = &mut link.lanes[lane];
        lane.bytes.extend_from_slice(&chunk[..count]);
        lane.has_ended = count == 0;
        drop(state);
        shared.changed.notify_all();
        if count == 0 {
            return;
        }
    }
}

/// A Login Response that ends the login phase with success.
fn is_login(bytes: &[u8]) -> bool {
    bytes[0] == LOGGED_IN[0] && bytes[1] & LOGGED_IN[1] == LOGGED_IN[1] && bytes[36] == 0
}

/// Sends the bytes of this direction on, except while the connection is held.
fn bring(mut to: &TcpStream, shared: &Shared, number: usize, lane: usize) {
    loop {
        let state = shared.state();
        let waits = |state: &mut State| {
            let link = &state.links[number];
            let lane = &link.lanes[lane];
            link.cut.is_none() && (link.is_held || lane.bytes.is_empty() && !lane.has_ended)
        };
        let mut state =
            shared.changed.wait_while(state, waits).expect("no thread panics while it holds the lock");
        let link = &mut state.links[number];
        if let Some(how) = link.cut {
            drop(state);
            if how == Cut::Reset {
                // The reset is sent when the last descriptor closes, after the reading thread has seen the end.
                let _ = set_socket_linger(to, Some(Duration::ZERO));
            }
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
        let bytes = std::mem::take(&mut link.lanes[lane].bytes);
        let has_ended = link.lanes[lane].has_ended;
        drop(state);
        let is_gone = to.write_all(&bytes).is_err();
        if has_ended {
            let _ = to.shutdown(Shutdown::Write);
        }
        if has_ended || is_gone {
            return;
        }
    }
}
