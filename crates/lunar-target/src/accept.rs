//! Accepting the TCP connections of a portal.

use crate::connection_slots::AdmissionError;
use crate::open_portal::OpenPortal;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::tcp_portals;
use lunar_runtime::{Cores, Listener, Stream};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of connections of a portal that wait for room, number of attempts of each, and the interval.
const MAX_WAITING_CONNECTIONS: usize = 64;
const MAX_TRIES: usize = 20;
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Accepts the connections of one portal, and distributes them over the cores: to a core with the fewest connections,
/// and among those to the one where the packets of the connection arrive.
pub async fn accept(
    shared: Arc<ServerState>,
    cores: Arc<Cores>,
    socket: TcpListener,
    portal: Arc<OpenPortal>,
) {
    let listener = match Listener::new(socket) {
        Ok(l) => l,
        Err(e) => return tracing::error!(error = %e, "cannot accept connections on a portal"),
    };
    let waiting = Rc::new(());
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(peer) = peer.as_socket() else { continue };
                if lunar_runtime::stream::is_hung_up(&stream) {
                    // The peer has given up, and slots are for connections that still wait.
                    tracing::debug!(%peer, "a connection was closed before the server accepted it");
                    continue;
                }
                let stream = stream.into();
                let (shared, cores, portal) = (shared.clone(), cores.clone(), portal.clone());
                let connection = AcceptedConnection { shared, cores, stream, peer, portal };
                if ConnectionGuard::has_room(&connection.shared, peer)
                    || Rc::strong_count(&waiting) > MAX_WAITING_CONNECTIONS
                {
                    connection.hand_over();
                } else {
                    let waiting = waiting.clone();
                    lunar_runtime::spawn(async move {
                        connection.wait_for_room().await;
                        drop(waiting);
                    });
                }
            }
            Err(e) => {
                tracing::error!(error = %e, "cannot accept a connection on a portal");
                compio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// An accepted connection.
struct AcceptedConnection {
    shared: Arc<ServerState>,
    cores: Arc<Cores>,
    stream: TcpStream,
    peer: SocketAddr,
    portal: Arc<OpenPortal>,
}

impl AcceptedConnection {
    /// Waits a moment for room. Connections that their peers have closed still count, until the cores notice.
    async fn wait_for_room(self) {
        for _ in 0..MAX_TRIES {
            compio::time::sleep(RETRY_INTERVAL).await;
            if ConnectionGuard::has_room(&self.shared, self.peer) {
                break;
            }
        }
        self.hand_over();
    }

    fn hand_over(self) {
        let AcceptedConnection { shared, cores, stream, peer, portal } = self;
        // Choose the core that receives the packets, because waking another CPU costs more than most commands.
        let admitted = ConnectionGuard::new(&shared, peer, cores.place(Stream::arrives_on(&stream)));
        shared.events.connection(portal.bound().tag, admitted.as_ref().err().copied());
        match admitted {
            Err(AdmissionError::FileDescriptors) => shared.out_of_descriptors(peer),
            Err(reason) => shared.log_closed_before_login(peer, &reason.to_string()),
            Ok(count) => cores.run_on(count.core(), move || {
                lunar_runtime::spawn(tcp_portals::serve(shared, stream, peer, portal, count));
            }),
        }
    }
}
