//! One connection without a portal: for measurements, and for tests of others.

use crate::setup::{Setup, Transports};
use crate::shared::{Bound, Counted, Shared};
use crate::{iser, srp};
use lunar_rdma::Request;
use lunar_runtime::cores::Place;
use std::sync::Arc;

/// Tag of the portal group that the targets of a setup must be in.
const TAG: u16 = 1;

/// Serves a connection that an initiator asks for to its end, on this event loop, as if it had come to a portal of
/// portal group 1 that carries SRP, or iSER.
///
/// # Errors
/// When the limits of the setup allow no connection.
pub async fn serve(
    setup: Setup,
    transports: Transports,
    place: Place,
    request: Box<dyn Request>,
) -> Result<(), &'static str> {
    let (address, peer) = request.addresses();
    let bound = Bound { address, tag: TAG, advertise: None, transports };
    let shared = Arc::new(Shared::new(setup, vec![bound]));
    let count = Counted::new(&shared, peer, place)?;
    match transports.srp {
        true => srp::serve(shared, request, 0, count).await,
        false => iser::serve(shared, request, 0, count).await,
    }
    Ok(())
}
