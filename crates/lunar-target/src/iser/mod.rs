//! iSER: iSCSI sessions over RDMA (RFC 7145). PDUs are messages. The data of commands are transferred by RDMA Writes
//! and Reads between buffers of the target and memory of the initiator.

mod datamover;
mod deferred;
mod login;
#[cfg(test)]
pub(crate) mod tests;

use crate::iscsi;
use crate::iscsi::login::login;
use crate::open_portal::OpenPortal;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_info::Addresses;
use lunar_rdma::{ConnParam, ConnectRequest};
use lunar_runtime::Stream;
use lunar_wire::iser::{IserCapabilities, LOGIN_LEN};
use std::sync::Arc;

/// Maximum number of RDMA Reads in flight on a connection, if the initiator accepts as many.
const MAX_READS: u16 = 64;

/// Serves a connection over software iWARP to its end. `begun`: bytes that were already received.
pub async fn serve_stream(
    shared: Arc<ServerState>,
    stream: Stream,
    begun: Vec<u8>,
    Addresses { local, peer }: Addresses,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    let (limit, options) = (shared.config().limits.login_timeout, lunar_rdma::iwarp::Options::default());
    let request = lunar_rdma::iwarp::request(stream, begun, local, peer, &options);
    match count.evicted().or(limit, request).await {
        Ok(request) => serve(shared, request, portal, count).await,
        Err(e) => shared.log_closed_before_login(peer, &e.to_string()),
    }
}

/// Serves one connection to its end.
pub async fn serve(
    shared: Arc<ServerState>,
    request: Box<dyn ConnectRequest>,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    let (local, peer) = request.addresses();
    let theirs = IserCapabilities::decode(request.private());
    let ours =
        IserCapabilities { zero_based: false, invalidate: theirs.invalidate && request.sends_invalidate() };
    let terms = ConnParam { ord: MAX_READS, ird: 1, receives: (1, LOGIN_LEN) };
    match request.accept(ours.encode().to_vec(), terms).await {
        Ok(endpoint) => {
            let fresh = login::IserLogin::new(endpoint, ours.invalidate);
            if let Some(session) = login(&shared, fresh, Addresses { local, peer }, portal, count).await {
                iscsi::run(session).await;
            }
        }
        Err(e) => shared.log_closed_before_login(peer, &e.to_string()),
    }
}
