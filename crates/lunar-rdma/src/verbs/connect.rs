//! Connecting.

use super::cm::{CmEvent, CmId, FdWatch};
use super::ffi::{ADDR_RESOLVED, ROUTE_RESOLVED};
use super::parts;
use crate::{ConnParam, ConnectError, ConnectedEndpoint};
use std::ffi::c_int;
use std::io;
use std::net::SocketAddr;

/// For finding the device, and then the way.
const RESOLVE_MS: c_int = 2000;

/// Connects to an address by the device that leads there.
///
/// Private data is at most 56 bytes on InfiniBand and RoCE, and 255 on iWARP. How long a silent other side is waited
/// for is up to the kernel (seconds with most devices); who wants less drops the future.
///
/// # Errors
/// When the libraries are missing ([`super::MissingLibrary`] is in the error), no device leads there, nobody listens there, or
/// the other side turns it down.
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

/// The next event must be of this kind.
async fn expect(id: &CmId, watch: &FdWatch, kind: c_int, otherwise: &str) -> io::Result<CmEvent> {
    let event = id.next(watch).await?;
    if event.kind == kind {
        return Ok(event);
    }
    Err(lunar_runtime::error::with_context(event.error(id.library), otherwise))
}
