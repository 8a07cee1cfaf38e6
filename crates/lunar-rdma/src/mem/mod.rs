//! Two connected endpoints in one process, on one core. For tests: only calls have effects, so the order of events is
//! deterministic.
//!
//! [`Endpoint::flush`] moves everything that is queued. The [`Faults`] of an endpoint delay, fail, and log its
//! operations.

mod endpoint;
mod faults;
mod link;
mod rendezvous;
mod side;
#[cfg(test)]
mod tests;

pub use faults::{EndpointOp, FaultGate, Faults};

use crate::{ConnParam, ConnectError, ConnectRequest, ConnectedEndpoint, Endpoint, LocalBoxFuture};
use link::MemLink;
use std::rc::Rc;

/// Both endpoints of an established connection, with the faults of each.
pub fn pair(a: ConnParam, b: ConnParam, faults: [Rc<Faults>; 2]) -> (Rc<dyn Endpoint>, Rc<dyn Endpoint>) {
    let [a, b] = endpoint::both(MemLink::new([a, b], faults));
    (a, b)
}

/// Both ends of a connection setup without faults: the request as the target sees it, and the result for the
/// initiator. The request has the private data `private`.
pub fn request(
    private: &[u8],
    terms: ConnParam,
) -> (Box<dyn ConnectRequest>, LocalBoxFuture<'static, Result<ConnectedEndpoint, ConnectError>>) {
    request_with(private, terms, [Rc::default(), Rc::default()])
}

/// The same, with the faults of the initiator and of the target.
pub fn request_with(
    private: &[u8],
    terms: ConnParam,
    faults: [Rc<Faults>; 2],
) -> (Box<dyn ConnectRequest>, LocalBoxFuture<'static, Result<ConnectedEndpoint, ConnectError>>) {
    rendezvous::meet(private, terms, faults)
}
