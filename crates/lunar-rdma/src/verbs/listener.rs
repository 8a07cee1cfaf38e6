//! Listening for connections.

use super::cm::{CmEvent, CmId, FdWatch, ReadDepths};
use super::domain::Domain;
use super::ffi::{ADDR_CHANGE, CONNECT_REQUEST, DEVICE_REMOVAL, OPTION_ID_AFONLY, OPTION_ID_REUSEADDR};
use super::parts;
use crate::{ConnParam, ConnectRequest, Endpoint, LocalBoxFuture};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// The options of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The maximum number of connection requests that wait in the kernel.
    pub backlog: u16,
}

impl Default for Options {
    fn default() -> Options {
        Options { backlog: 128 }
    }
}

/// The interval between attempts to listen again.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 2000 });

/// A listener at one address, for all devices with that address. It belongs to one core.
pub struct Listener {
    /// None while there is no device.
    device_listener: Option<DeviceListener>,
    addr: SocketAddr,
    options: Options,
}

/// Listens at an address. An IPv6 address accepts IPv6 only. The unspecified address covers all devices, even later ones.
/// With soft iWARP, no TCP listener may use the port.
///
/// # Errors
/// When the libraries or the kernel modules are missing, the address is in use, or no device has it.
pub fn listen(addr: SocketAddr, options: Options) -> io::Result<Listener> {
    let listener = DeviceListener::open(addr, options)?;
    let addr = listener.id.addresses().0;
    Ok(Listener { device_listener: Some(listener), addr, options })
}

/// Checks whether [`listen`] would succeed now, without accepting connections.
///
/// # Errors
/// Those of [`listen`].
pub fn can_listen(addr: SocketAddr) -> io::Result<()> {
    listener_id(addr)?.bind(addr)
}

/// A new id for a listener.
fn listener_id(addr: SocketAddr) -> io::Result<CmId> {
    let id = CmId::new()?;
    id.set(OPTION_ID_REUSEADDR)?;
    if addr.is_ipv6() {
        id.set(OPTION_ID_AFONLY)?;
    }
    Ok(id)
}

impl Listener {
    /// The listening address. Its port is the assigned one if port 0 was requested.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The next connection request, which may be accepted on another core. If the device of the address is removed,
    /// this waits until a device has the address again.
    pub async fn next(&mut self) -> PendingRequest {
        let at = self.addr;
        loop {
            match &self.device_listener {
                Some(listener) => match listener.next().await {
                    Ok(pending) => return pending,
                    Err(e) => {
                        tracing::error!(%at, error = %e, "the RDMA listener failed; the server reopens it");
                        self.device_listener = None;
                    }
                },
                None => {
                    compio::time::sleep(PAUSE).await;
                    let opened =
                        DeviceListener::open(at, self.options).inspect_err(|e| tracing::debug!("{e}"));
                    self.device_listener =
                        opened.ok().inspect(|_| tracing::info!(%at, "the RDMA listener is open again"));
                }
            }
        }
    }
}

/// The listener while a device has the address.
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
                    // A failed request does not end the listener.
                    Err(e) => tracing::warn!("{e}"),
                },
                DEVICE_REMOVAL if is_ours => return gone("the RDMA device is gone"),
                // A bond has moved to another link, and thus to another device.
                ADDR_CHANGE if is_ours => return gone("the address has moved to another RDMA device"),
                // Events of requests that ended before they were accepted.
                kind => tracing::debug!(kind, status = event.status, "an event of an RDMA listener"),
            }
        }
    }
}

/// A connection request that is not answered yet.
pub struct PendingRequest {
    private: Vec<u8>,
    requested: ReadDepths,
    /// None once it is accepted or rejected.
    id: Option<CmId>,
    addresses: (SocketAddr, SocketAddr),
    sends_invalidate: bool,
}

impl PendingRequest {
    fn new(id: CmId, event: CmEvent) -> PendingRequest {
        let requested = ReadDepths { ird: event.responder_resources, ord: event.initiator_depth };
        // If the device does not respond, accepting fails too.
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
