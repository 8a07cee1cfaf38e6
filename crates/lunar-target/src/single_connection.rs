//! A single connection without a portal, for measurements and for tests of other crates.

use crate::config::{PortalProtocol, TargetConfig, Transports};
use crate::connection_slots::AdmissionError;
use crate::open_portal::{BoundPortal, OpenPortal};
use crate::server_state::{ConnectionGuard, ServerState};
use crate::{iser, srp};
use lunar_rdma::ConnectRequest;
use lunar_runtime::cores::CorePlacement;
use std::sync::Arc;

/// Tag of the portal group to which the targets of the configuration must belong.
const TAG: u16 = 1;

/// Serves a requested connection to its end, on this event loop, like a portal of portal group 1 for SRP or iSER.
///
/// # Errors
/// The limits of the configuration allow no connection.
pub async fn serve(
    config: TargetConfig,
    transports: Transports,
    place: CorePlacement,
    request: Box<dyn ConnectRequest>,
) -> Result<(), AdmissionError> {
    let (address, peer) = request.addresses();
    let bound = BoundPortal { address, tag: TAG, advertise: None, transports };
    let shared = Arc::new(ServerState::new(config, [bound.clone()].into()));
    let portal = OpenPortal::new(bound);
    let count = ConnectionGuard::new(&shared, peer, place)?;
    match transports.protocol {
        PortalProtocol::Srp => srp::serve(shared, request, portal, count).await,
        PortalProtocol::Iscsi => iser::serve(shared, request, portal, count).await,
        PortalProtocol::NvmeTcp | PortalProtocol::NvmeDiscovery => {}
    }
    Ok(())
}
