//! TCP connections: selects the front end of each.

use crate::access::LoginContext;
use crate::config::PortalProtocol;
use crate::open_portal::OpenPortal;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_info::Addresses;
use crate::tls::TlsConnection;
use crate::{iscsi, iser, nvme, srp};
use lunar_runtime::Stream;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Silence after which the kernel probes a peer, and maximum number of probes.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_TRIES: u32 = 4;

/// The first bytes of an initiator, which identify its protocol. Empty: the peer closed the connection without
/// sending anything.
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
    shared: Arc<ServerState>,
    socket: std::net::TcpStream,
    peer: SocketAddr,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    let local = socket.local_addr();
    if let (true, Ok(local)) = (portal.bound().transports.tls, &local) {
        return serve_tls(shared, socket, Addresses { local: *local, peer }, portal, count).await;
    }
    let (stream, addresses) = match (Stream::new(socket), local) {
        (Ok(stream), Ok(local)) => (stream, Addresses { local, peer }),
        (Err(e), _) | (_, Err(e)) => {
            return tracing::debug!(%peer, error = %e, "a connection ended at once");
        }
    };
    // For phases in which the session sends no pings: login and discovery.
    if let Err(e) = stream.keep_alive(KEEPALIVE, KEEPALIVE_TRIES) {
        tracing::debug!(%peer, error = %e, "TCP keepalive could not be enabled");
    }
    match portal.bound().transports.protocol {
        PortalProtocol::Srp => srp::serve_stream(shared, stream, addresses, portal, count).await,
        PortalProtocol::Iscsi => serve_iscsi(shared, stream, addresses, portal, count).await,
        PortalProtocol::NvmeTcp | PortalProtocol::NvmeDiscovery => {
            nvme::serve_stream(shared, stream, addresses, portal, (count, None)).await;
        }
    }
}

/// Serves NVMe over TCP with TLS, of which the relay makes a Unix socket.
async fn serve_tls(
    shared: Arc<ServerState>,
    socket: std::net::TcpStream,
    addresses: Addresses,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    if let Err(e) = lunar_runtime::stream::keep_alive(&socket, KEEPALIVE, KEEPALIVE_TRIES) {
        tracing::debug!(peer = %addresses.peer, error = %e, "TCP keepalive could not be enabled");
    }
    let limit = shared.config().limits.login_timeout;
    let context = LoginContext::new(&shared.config(), portal.bound().tag, addresses);
    let accepted = count.evicted().or(limit, shared.tls.accept(socket, context)).await;
    let accepted = accepted.and_then(|TlsConnection { stream, carrier, tls, open }| {
        Ok((Stream::new(stream)?.carried_by(carrier), tls, open))
    });
    match accepted {
        Ok((stream, tls, open)) => {
            nvme::serve_stream(shared, stream, addresses, portal, (count, Some(tls))).await;
            drop(open);
        }
        Err(e) => shared.log_closed_before_login(addresses.peer, &e.to_string()),
    }
}

/// Serves iSCSI over TCP, or iSER over software iWARP.
async fn serve_iscsi(
    shared: Arc<ServerState>,
    stream: Stream,
    addresses: Addresses,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    let (transports, peer) = (portal.bound().transports, addresses.peer);
    let mut begun = Vec::new();
    if transports.iser && !transports.by_devices() {
        let limit = shared.config().limits.login_timeout;
        begun = match count.evicted().or(limit, first_bytes(&stream)).await {
            Ok(bytes) => bytes,
            Err(e) => return shared.log_closed_before_login(peer, &e.to_string()),
        };
        if lunar_rdma::iwarp::is_request(&begun) || !transports.tcp {
            return iser::serve_stream(shared, stream, begun, addresses, portal, count).await;
        }
    }
    let fresh = iscsi::login::TcpLogin::new(stream, begun);
    if let Some(session) = iscsi::login::login(&shared, fresh, addresses, portal, count).await {
        // Not in this task: its polls reserve more than 100 KiB of stack for the login, and probe each page.
        lunar_runtime::spawn(iscsi::run(session));
    }
}
