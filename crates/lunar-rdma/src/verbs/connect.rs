//! Connection setup of an initiator.

use super::cm::{CmEvent, CmId, FdWatch};
use super::ffi::{ADDR_RESOLVED, ROUTE_RESOLVED};
use super::parts;
use crate::{ConnParam, ConnectError, ConnectedEndpoint};
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;

/// The time limit of address and route resolution.
const RESOLVE_MS: c_int = 2000;

/// Connects to an address through the device with a route to it.
///
/// Private data have at most 56 bytes on InfiniBand and RoCE, and 255 on iWARP. The kernel sets the timeout for an
/// unresponsive peer, which is seconds with most devices. Drop the future to stop earlier.
///
/// # Errors
/// When the libraries are missing (the error contains [`super::MissingLibrary`]), no device has a route, no process
/// listens there, or the peer rejects the connection.
pub async fn connect(
    addr: SocketAddr,
    private: &[u8],
    terms: ConnParam,
) -> Result<ConnectedEndpoint, ConnectError> {
    let id = CmId::new()?;
    let watch = id.watch()?;
    id.resolve_addr(addr, RESOLVE_MS)?;
    expect(&id, &watch, ADDR_RESOLVED, &format!("no RDMA device leads to {addr}")).await?;
    id.resolve_route(RESOLVE_MS)?;
    expect(&id, &watch, ROUTE_RESOLVED, &format!("no RDMA device has a route to {addr}")).await?;
    parts::connect(id, &watch, private.to_vec(), terms).await
}

/// Waits for the next event, which must be of the type `kind`.
async fn expect(id: &CmId, watch: &FdWatch, kind: c_int, otherwise: &str) -> io::Result<CmEvent> {
    let event = id.next(watch).await?;
    if event.kind == kind {
        return Ok(event);
    }
    Err(lunar_runtime::error::with_context(event.error(id.library), otherwise))
}
