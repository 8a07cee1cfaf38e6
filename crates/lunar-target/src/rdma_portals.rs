//! Connections through RDMA devices.

use crate::config::PortalProtocol;
use crate::listening::until_end;
use crate::open_portal::OpenPortal;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::{iser, srp};
use lunar_rdma::verbs::{self, Listener, Options, PendingRequest};
use lunar_runtime::Cores;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Listens at the address of a portal, on one core, for [`until_end`]. Connections are distributed over all cores.
///
/// # Errors
/// No device has the address, or RDMA devices cannot be used on this host.
pub fn listen(
    shared: &Arc<ServerState>,
    cores: &Arc<Cores>,
    at: usize,
    (address, portal): (SocketAddr, Arc<OpenPortal>),
) -> io::Result<flume::Sender<()>> {
    let (shared, to) = (shared.clone(), cores.clone());
    let (handle, end) = flume::bounded(1);
    let begun = cores.wait(at % cores.count(), move || async move {
        let listener = verbs::listen(address, Options::default())?;
        lunar_runtime::spawn(until_end(end, accept(shared, to, listener, portal)));
        Ok(())
    })?;
    begun.map(|()| handle).map_err(|e| named(address, e))
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

async fn serve(
    shared: Arc<ServerState>,
    request: PendingRequest,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) {
    match portal.bound().transports.protocol {
        PortalProtocol::Srp => srp::serve(shared, Box::new(request), portal, count).await,
        PortalProtocol::Iscsi => iser::serve(shared, Box::new(request), portal, count).await,
        // A portal of NVMe over TCP does not listen at RDMA devices.
        PortalProtocol::NvmeTcp | PortalProtocol::NvmeDiscovery => {}
    }
}

async fn accept(
    shared: Arc<ServerState>,
    cores: Arc<Cores>,
    mut listener: Listener,
    portal: Arc<OpenPortal>,
) {
    loop {
        let request = listener.next().await;
        let peer = lunar_rdma::ConnectRequest::addresses(&request).1;
        let admitted = ConnectionGuard::new(&shared, peer, cores.place(None));
        shared.events.connection(portal.bound().tag, admitted.as_ref().err().copied());
        match admitted {
            Ok(count) => {
                let (shared, portal) = (shared.clone(), portal.clone());
                cores.run_on(count.core(), move || {
                    lunar_runtime::spawn(serve(shared, request, portal, count));
                });
            }
            Err(reason) => shared.log_closed_before_login(peer, &reason.to_string()),
        }
    }
}
