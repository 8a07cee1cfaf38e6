//! Connection setup: the resources of the device, and the last steps on both sides.

use super::cm::{CmEvent, CmId, FdWatch, ReadDepths};
use super::domain::Domain;
use super::endpoint::endpoint;
use super::ffi::{ESTABLISHED, REJECTED};
use super::inbound::{Inbound, ReceiveShare};
use super::queues::QueuePair;
use super::receives::Receives;
use super::shared;
use crate::{ConnParam, ConnectError, ConnectedEndpoint, Endpoint};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// The parts of a connection before its endpoint exists. They may move to another thread. They are dropped in this
/// order.
pub struct ConnectionParts {
    pub queues: QueuePair,
    pub receives: Inbound,
    pub domain: Arc<Domain>,
    pub id: CmId,
}

impl ConnectionParts {
    /// Creates the queues for an id whose device is known, and posts the first receives: their number, and their
    /// length.
    ///
    /// # Errors
    /// When the device has exhausted a resource.
    pub fn new(id: CmId, first: (usize, usize)) -> io::Result<ConnectionParts> {
        let domain = Domain::of(id.library, id.context()?)?;
        let shared = if first.1 <= shared::LEN { domain.shared() } else { None };
        let queues = QueuePair::new(&id, &domain, shared.as_deref())?;
        let receives = match shared {
            Some(shared) => Inbound::Shared(ReceiveShare::new(shared)),
            None => Inbound::Own(Receives::new(domain.pool(), queues.depths.1)),
        };
        let mut parts = ConnectionParts { queues, receives, domain, id };
        parts.receives.add(&parts.queues, first.0, first.1)?;
        Ok(parts)
    }

    /// The requested limits of outstanding RDMA Reads, reduced to those of the device.
    pub fn depths(&self, ird: u16, ord: u16) -> ReadDepths {
        let least = |wanted: u16, max: i32| {
            u8::try_from(max.clamp(0, 255)).unwrap_or(u8::MAX).min(u8::try_from(wanted).unwrap_or(u8::MAX))
        };
        let attr = &self.domain.attr;
        ReadDepths { ird: least(ird, attr.max_qp_rd_atom), ord: least(ord, attr.max_qp_init_rd_atom) }
    }
}

/// Accepts a connection request, after posting the first receives.
///
/// # Errors
/// When the peer has disconnected, or the device has exhausted a resource.
pub async fn accept(
    id: CmId,
    requested: ReadDepths,
    private: Vec<u8>,
    terms: ConnParam,
) -> io::Result<Rc<dyn Endpoint>> {
    let parts = ConnectionParts::new(id, terms.receives)?;
    let wanted = parts.depths(terms.ird.min(requested.ird.into()), terms.ord.min(requested.ord.into()));
    // The first message may arrive before the event ESTABLISHED, so this does not wait for the event.
    parts.id.accept(&private, wanted)?;
    endpoint(parts, wanted.ord)
}

/// Connects with an id whose route is resolved.
///
/// # Errors
/// When the peer is unreachable, or rejects the connection.
pub async fn connect(
    id: CmId,
    watch: &FdWatch,
    private: Vec<u8>,
    terms: ConnParam,
) -> Result<ConnectedEndpoint, ConnectError> {
    let parts = ConnectionParts::new(id, terms.receives)?;
    let wanted = parts.depths(terms.ird, terms.ord);
    // With soft iWARP, this call blocks until TCP is connected.
    let begin = move || parts.id.connect(&private, wanted).map(|()| parts);
    let parts = lunar_runtime::blocking(begin).await?;
    let event = parts.id.next(watch).await?;
    match event.kind {
        ESTABLISHED => {
            let ord = granted(&parts.domain, wanted, &event);
            Ok((endpoint(parts, ord)?, event.private))
        }
        REJECTED if event.is_by_user() => Err(ConnectError::Rejected(event.private)),
        _ => Err(event.error(parts.id.library).into()),
    }
}

/// The maximum number of outstanding RDMA Reads of this end: the requested one, reduced to that of the peer. An iWARP
/// peer may announce none (RFC 5044).
fn granted(domain: &Domain, wanted: ReadDepths, event: &CmEvent) -> u8 {
    match event.initiator_depth {
        0 if domain.is_iwarp => wanted.ord,
        granted => granted.min(wanted.ord),
    }
}
