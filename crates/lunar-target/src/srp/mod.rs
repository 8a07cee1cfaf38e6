//! SRP: the same logical units over the SCSI RDMA Protocol (SRP r16a, as Linux speaks it). Data move by RDMA Writes and Reads
//! between buffers of tasks and the memory that commands describe.

mod answer;
mod asking;
mod connection;
mod login;
mod memory;
mod request;
mod session;
mod slots;
#[cfg(test)]
mod tests;

use crate::entry::{self, Ends};
use crate::shared::{Counted, Shared};
use connection::Connection;
pub use login::port_id;
use login::{Granted, IU_LEN};
use lunar_rdma::{ConnParam, Request};
use lunar_runtime::Stream;
use lunar_wire::srp::LoginReject;
use session::Session;
use std::io;
use std::sync::Arc;

/// RDMA Reads that one connection may have under way, if the initiator takes as many.
const READS: u16 = 64;
/// Messages that are taken beside those that credits are given for.
const BESIDE: usize = 4;

/// Serves a connection over software iWARP to its end.
pub(crate) async fn serve_stream(
    shared: Arc<Shared>,
    stream: Stream,
    Ends { local, peer }: Ends,
    portal: usize,
    count: Counted,
) {
    let (limit, options) = (shared.setup().limits.login_timeout, lunar_rdma::iwarp::Options::default());
    let request = lunar_rdma::iwarp::request(stream, Vec::new(), local, peer, &options);
    match count.evicted().or(limit, request).await {
        Ok(request) => serve(shared, request, portal, count).await,
        Err(e) => shared.turned_away(peer, &e.to_string()),
    }
}

/// Serves one connection to its end.
pub(crate) async fn serve(shared: Arc<Shared>, request: Box<dyn Request>, portal: usize, count: Counted) {
    let (local, peer) = request.addresses();
    let limit = shared.setup().limits.login_timeout;
    let evicted = count.evicted();
    let asked = login::log_in(&shared, request.private(), Ends { local, peer }, portal, count);
    let answer = evicted.or(limit, async { Ok(asked.await) }).await;
    match answer.unwrap_or_else(|e| Err(login::cut_off(&shared, peer, &e))) {
        Ok(granted) => {
            if let Err(e) = run(&shared, request, granted).await {
                shared.turned_away(peer, &e.to_string());
            }
        }
        Err(reject) => request.reject(LoginReject::encode(&reject).to_vec()).await,
    }
}

async fn run(shared: &Arc<Shared>, request: Box<dyn Request>, granted: Granted) -> io::Result<()> {
    let Granted { entered, door, response, immediate_offset, notifications } = granted;
    let credits = response.credits as usize;
    let terms = ConnParam { ord: READS, ird: 1, receives: (credits + BESIDE, IU_LEN) };
    let endpoint = request.accept(response.encode().to_vec(), terms).await?;
    entry::log_begin(shared, &entered.info, &entered.seat);
    let parameters = entered.info.parameters.clone();
    let session = |connection| Session::new(connection, parameters, credits, notifications);
    connection::run(shared, entered, door, session, Connection::new(endpoint, immediate_offset)).await;
    Ok(())
}
