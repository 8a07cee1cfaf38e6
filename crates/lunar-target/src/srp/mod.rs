//! SRP: the same logical units over the SCSI RDMA Protocol (SRP r16a, as Linux implements it). Data are transferred
//! by RDMA Writes and Reads between buffers of tasks and the memory that commands describe.

mod connection;
mod login;
mod memory;
mod request;
mod request_table;
mod response;
mod session;
mod target_requests;
#[cfg(test)]
mod tests;

use crate::open_portal::OpenPortal;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_entry;
use crate::session_info::Addresses;
use connection::SrpConnection;
pub use login::port_id;
use login::{AcceptedLogin, IU_LEN};
use lunar_rdma::{ConnParam, ConnectRequest};
use lunar_runtime::Stream;
use lunar_wire::srp::LoginReject;
use session::SrpSession;
use std::io;
use std::sync::Arc;

/// Maximum number of RDMA Reads in flight on a connection, if the initiator accepts as many.
const MAX_READS: u16 = 64;
/// Receive buffers in addition to those for credits.
const EXTRA_RECEIVES: usize = 4;

/// Serves a connection over software iWARP to its end.
pub(crate) async fn serve_stream(
    shared: Arc<ServerState>,
    stream: Stream,
    Addresses { local, peer }: Addresses,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    let (limit, options) = (shared.config().limits.login_timeout, lunar_rdma::iwarp::Options::default());
    let request = lunar_rdma::iwarp::request(stream, Vec::new(), local, peer, &options);
    match count.evicted().or(limit, request).await {
        Ok(request) => serve(shared, request, portal, count).await,
        Err(e) => shared.log_closed_before_login(peer, &e.to_string()),
    }
}

/// Serves one connection to its end.
pub(crate) async fn serve(
    shared: Arc<ServerState>,
    request: Box<dyn ConnectRequest>,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    let (local, peer) = request.addresses();
    let limit = shared.config().limits.login_timeout;
    let evicted = count.evicted();
    let asked = login::log_in(&shared, request.private(), Addresses { local, peer }, portal, count);
    let answer = evicted.or(limit, async { Ok(asked.await) }).await;
    match answer.unwrap_or_else(|e| Err(login::login_cut_off(&shared, peer, &e))) {
        Ok(accepted) => {
            if let Err(e) = run(&shared, request, accepted).await {
                shared.log_closed_before_login(peer, &e.to_string());
            }
        }
        Err(reject) => request.reject(LoginReject::encode(&reject).to_vec()).await,
    }
}

async fn run(
    shared: &Arc<ServerState>,
    request: Box<dyn ConnectRequest>,
    accepted: AcceptedLogin,
) -> io::Result<()> {
    let AcceptedLogin { entered, login_context, response, immediate_offset, notifications } = accepted;
    let credits = response.credits as usize;
    let terms = ConnParam { ord: MAX_READS, ird: 1, receives: (credits + EXTRA_RECEIVES, IU_LEN) };
    let endpoint = request.accept(response.encode().to_vec(), terms).await?;
    session_entry::log_begin(shared, &entered.info, &entered.guard);
    let session = |connection| SrpSession::new(connection, credits, notifications);
    connection::run(shared, entered, login_context, session, SrpConnection::new(endpoint, immediate_offset))
        .await;
    Ok(())
}
