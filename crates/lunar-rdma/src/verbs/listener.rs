//! Taking connections.

use super::cm::{CmEvent, CmId, FdWatch, ReadDepths};
use super::domain::Domain;
use super::ffi::{ADDR_CHANGE, CONNECT_REQUEST, DEVICE_REMOVAL, OPTION_ID_AFONLY, OPTION_ID_REUSEADDR};
use super::parts;
use crate::{ConnParam, ConnectRequest, Endpoint, LocalBoxFuture};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// How to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections that the kernel holds until they are asked for.
    pub backlog: u16,
}

impl Default for Options {
    fn default() -> Options {
        Options { backlog: 128 }
    }
}

/// Between attempts to listen again.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });

/// Takes connections at one address, of all devices that have it. Belongs to one core.
pub struct Listener {
    /// None while there is no device.
    device_listener: Option<DeviceListener>,
    addr: SocketAddr,
    options: Options,
}

/// Listens at an address; an IPv6 one takes IPv6 only. An address without a host is that of all devices, also of those
/// that come later. With soft iWARP the port must not be that of a TCP listener.
///
/// # Errors
/// When the libraries or the kernel's modules are missing, or the address is in use, or not that of a device.
pub fn listen(addr: SocketAddr, options: Options) -> io::Result<Listener> {
    let listener = DeviceListener::open(addr, options)?;
    let addr = listener.id.addresses().0;
    Ok(Listener { device_listener: Some(listener), addr, options })
}

/// Looks whether [`listen`] would fail now. Nobody can connect meanwhile.
///
/// # Errors
/// As [`listen`].
pub fn can_listen(addr: SocketAddr) -> io::Result<()> {
    listener_id(addr)?.bind(addr)
}

/// An id to listen with.
fn listener_id(addr: SocketAddr) -> io::Result<CmId> {
    let id = CmId::new()?;
    id.set(OPTION_ID_REUSEADDR)?;
    if addr.is_ipv6() {
        id.set(OPTION_ID_AFONLY)?;
    }
    Ok(id)
}

impl Listener {
    /// Where it listens, with the port that was found if none was asked for.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next connection that somebody wants; it may be accepted on another core. When the device of the address goes,
    /// this waits until there is one again.
    pub async fn next(&mut self) -> PendingRequest {
        let at = self.addr;
        loop {
            match &self.device_listener {
                Some(listener) => match listener.next().await {
                    Ok(pending) => return pending,
                    Err(e) => {
                        tracing::error!(%at, error = %e, "no connections come by RDMA until that is over");
                        self.device_listener = None;
                    }
                },
                None => {
                    compio::time::sleep(PAUSE).await;
                    let opened =
                        DeviceListener::open(at, self.options).inspect_err(|e| tracing::debug!("{e}"));
                    self.device_listener =
                        opened.ok().inspect(|_| tracing::info!(%at, "connections come by RDMA again"));
                }
            }
        }
    }
}

/// Where connections come in, as long as the device of the address is there.
struct DeviceListener {
    watch: FdWatch,
    id: CmId,
}

impl DeviceListener {
    fn open(addr: SocketAddr, options: Options) -> io::Result<DeviceListener> {
        let id = listener_id(addr)?;
        let watch = id.watch()?;
        id.listen(addr, options.backlog.into())?;
        Ok(DeviceListener { watch, id })
    }

    async fn next(&self) -> io::Result<PendingRequest> {
        loop {
            let event = self.id.next(&self.watch).await?;
            let is_ours = event.id == self.id.as_ptr();
            let gone = |text| Err(io::Error::new(io::ErrorKind::NotConnected, text));
            match event.kind {
                CONNECT_REQUEST => match self.id.of_request(&event) {
                    Ok(id) => return Ok(PendingRequest::new(id, event)),
                    // One that cannot be taken is no reason to take no others.
                    Err(e) => tracing::warn!("{e}"),
                },
                DEVICE_REMOVAL if is_ours => return gone("the RDMA device is gone"),
                // Of a bond that uses another link now, and with it another device.
                ADDR_CHANGE if is_ours => return gone("the address has moved to another RDMA device"),
                // Of requests that have ended before they were taken.
                kind => tracing::debug!(kind, status = event.status, "an event of an RDMA listener"),
            }
        }
    }
}

/// A connection that somebody wants.
pub struct PendingRequest {
    private: Vec<u8>,
    requested: ReadDepths,
    /// Taken by accepting it or turning it down.
    id: Option<CmId>,
    addresses: (SocketAddr, SocketAddr),
    sends_invalidate: bool,
}

impl PendingRequest {
    fn new(id: CmId, event: CmEvent) -> PendingRequest {
        let requested = ReadDepths { ird: event.responder_resources, ord: event.initiator_depth };
        // One whose device does not answer cannot be accepted either.
        let domain = id.context().and_then(|context| Domain::of(id.library, context));
        let sends_invalidate = domain.is_ok_and(|domain| domain.sends_invalidate());
        let addresses = id.addresses();
        PendingRequest { private: event.private, requested, addresses, sends_invalidate, id: Some(id) }
    }
}

impl Drop for PendingRequest {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            id.reject(&[]);
        }
    }
}

impl ConnectRequest for PendingRequest {
    fn private(&self) -> &[u8] {
        &self.private
    }

    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.addresses
    }

    fn sends_invalidate(&self) -> bool {
        self.sends_invalidate
    }

    fn accept(
        mut self: Box<Self>,
        private: Vec<u8>,
        terms: ConnParam,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Endpoint>>> {
        let (id, requested) = (self.id.take(), self.requested);
        Box::pin(async move {
            let id = id.ok_or(io::ErrorKind::NotConnected)?;
            parts::accept(id, requested, private, terms).await
        })
    }

    fn reject(mut self: Box<Self>, private: Vec<u8>) -> LocalBoxFuture<'static, ()> {
        if let Some(id) = self.id.take() {
            id.reject(&private);
        }
        Box::pin(async {})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_connection_may_move_to_another_core() {
        fn moves<T: Send + ConnectRequest>() {}
        moves::<PendingRequest>();
    }
}
