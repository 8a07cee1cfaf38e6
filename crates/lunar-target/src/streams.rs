//! Connections that come by TCP: which front end serves each.

use crate::entry::Ends;
use crate::shared::{Counted, Shared};
use crate::{iscsi, iser, srp};
use lunar_runtime::Stream;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// After so much silence the kernel asks a peer whether it is still there, so often.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TRIES: u32 = 4;

/// What an initiator says first; it tells which protocol it speaks. Nothing, if it goes without a word.
async fn first_bytes(stream: &Stream) -> io::Result<Vec<u8>> {
    let mut first = [0; 4096];
    loop {
        stream.readable().await?;
        if let Some(len) = stream.receive(&mut first)? {
            return Ok(first[..len].to_vec());
        }
    }
}

/// Serves one connection to its end.
pub async fn serve(
    shared: Arc<Shared>,
    socket: std::net::TcpStream,
    peer: SocketAddr,
    portal: usize,
    count: Counted,
) {
    let local = socket.local_addr();
    let (stream, ends) = match (Stream::new(socket), local) {
        (Ok(stream), Ok(local)) => (stream, Ends { local, peer }),
        (Err(e), _) | (_, Err(e)) => {
            return tracing::debug!(%peer, error = %e, "a connection was gone at once");
        }
    };
    // For what no ping of the session reaches: logins, and discovery.
    if let Err(e) = stream.keep_alive(KEEPALIVE, KEEPALIVE_TRIES) {
        tracing::debug!(%peer, error = %e, "TCP keepalive could not be switched on");
    }
    let transports = shared.portals[portal].transports;
    if transports.srp {
        return srp::serve_stream(shared, stream, ends, portal, count).await;
    }
    let mut begun = Vec::new();
    if transports.iser && !transports.by_devices() {
        let limit = shared.setup().limits.login_timeout;
        begun = match count.evicted().or(limit, first_bytes(&stream)).await {
            Ok(bytes) => bytes,
            Err(e) => return shared.turned_away(peer, &e.to_string()),
        };
        if lunar_rdma::iwarp::is_request(&begun) || !transports.tcp {
            return iser::serve_stream(shared, stream, begun, ends, portal, count).await;
        }
    }
    let fresh = iscsi::login::Tcp::new(stream, begun);
    if let Some(session) = iscsi::login::login(&shared, fresh, ends, portal, count).await {
        iscsi::run(session).await;
    }
}
