//! iSCSI: login, then full feature phase, of one connection per session; over TCP, or whatever carries it.

pub mod carrier;
mod command;
pub mod connection;
mod data_out;
mod dispatch;
mod letters;
pub mod login;
mod luns;
mod manage;
mod parts;
mod pass;
mod respond;
mod services;
mod task;
pub mod testing;

use crate::server::{Counted, Shared};
use login::Ends;
use net::Stream;
pub use net::iscsi::{out, receive};
use std::net::SocketAddr;
use std::sync::Arc;

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
    let fresh = login::Tcp::new(stream, Vec::new());
    if let Some(session) = login::login(&shared, fresh, ends, portal, count).await {
        connection::run(session).await;
    }
}
