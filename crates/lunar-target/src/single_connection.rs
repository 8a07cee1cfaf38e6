//! One connection without a portal: for measurements, and for tests of others.

use crate::config::{TargetConfig, Transports};
use crate::connection_slots::AdmissionError;
use crate::server_state::{BoundPortal, ConnectionGuard, ServerState};
use crate::{iser, srp};
use lunar_rdma::ConnectRequest;
use lunar_runtime::cores::CorePlacement;
use std::sync::Arc;

/// Tag of the portal group that the targets of a setup must be in.
const TAG: u16 = 1;

/// Serves a connection that an initiator asks for to its end, on this event loop, as if it had come to a portal of
/// portal group 1 that carries SRP, or iSER.
///
/// # Errors
/// When the limits of the setup allow no connection.
pub async fn serve(
    config: TargetConfig,
    transports: Transports,
    place: CorePlacement,
    request: Box<dyn ConnectRequest>,
) -> Result<(), AdmissionError> {
    let (address, peer) = request.addresses();
    let bound = BoundPortal { address, tag: TAG, advertise: None, transports };
    let shared = Arc::new(ServerState::new(config, vec![bound]));
    let count = ConnectionGuard::new(&shared, peer, place)?;
    match transports.srp {
        true => srp::serve(shared, request, 0, count).await,
        false => iser::serve(shared, request, 0, count).await,
    }
    Ok(())
}
