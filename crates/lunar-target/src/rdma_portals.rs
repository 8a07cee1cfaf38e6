//! Connections through RDMA devices.

use crate::config::PortalProtocol;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::{iser, srp};
use lunar_rdma::verbs::{self, Listener, Options, PendingRequest};
use lunar_runtime::Cores;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Listens at the address of a portal, on one core. Connections are distributed over all cores.
///
/// # Errors
/// No device has the address, or RDMA devices cannot be used on this host.
pub fn listen(shared: &Arc<ServerState>, cores: &Arc<Cores>, at: usize, portal: usize) -> io::Result<()> {
    let address = shared.portals[portal].address;
    let (shared, to) = (shared.clone(), cores.clone());
    let begun = cores.wait(at, move || async move {
        let listener = verbs::listen(address, Options::default())?;
        lunar_runtime::spawn(accept(shared, to, listener, portal));
        Ok(())
    })?;
    begun.map_err(|e| named(address, e))
}

/// Checks whether [`listen`] would fail, without listening.
///
/// # Errors
/// The same as for [`listen`].
pub fn can_listen(address: SocketAddr) -> io::Result<()> {
    verbs::can_listen(address).map_err(|e| named(address, e))
}

fn named(address: SocketAddr, e: io::Error) -> io::Error {
    let e = lunar_rdma::explained(e);
    lunar_runtime::error::with_context(e, format!("cannot listen on {address} with RDMA devices"))
}

async fn serve(shared: Arc<ServerState>, request: PendingRequest, portal: usize, count: ConnectionGuard) {
    match shared.portals[portal].transports.protocol {
        PortalProtocol::Srp => srp::serve(shared, Box::new(request), portal, count).await,
        PortalProtocol::Iscsi => iser::serve(shared, Box::new(request), portal, count).await,
    }
}

async fn accept(shared: Arc<ServerState>, cores: Arc<Cores>, mut listener: Listener, portal: usize) {
    loop {
        let request = listener.next().await;
        let peer = lunar_rdma::ConnectRequest::addresses(&request).1;
        let admitted = ConnectionGuard::new(&shared, peer, cores.place(None));
        shared.events.connection(shared.portals[portal].tag, admitted.as_ref().err().copied());
        match admitted {
            Ok(count) => {
                let shared = shared.clone();
                cores.run_on(count.core(), move || {
                    lunar_runtime::spawn(serve(shared, request, portal, count));
                });
            }
            Err(reason) => shared.log_closed_before_login(peer, &reason.to_string()),
        }
    }
}
