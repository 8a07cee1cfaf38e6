//! A portal that accepts connections.

use crate::config::{PortalProtocol, Transports};
use crate::session_info::{SessionInfo, SessionProtocol, SessionTransport};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, PoisonError, RwLock};

/// A bound portal.
#[derive(Clone, Debug)]
pub struct BoundPortal {
    /// Its address, with the actual port.
    pub address: SocketAddr,
    /// Tag of its portal group.
    pub tag: u16,
    /// The address that SendTargets reports instead.
    pub advertise: Option<String>,
    /// The protocols that it accepts.
    pub transports: Transports,
}

impl BoundPortal {
    /// Whether the session could log in again here, as the same nexus.
    pub fn serves(&self, session: &SessionInfo) -> bool {
        let (own, used) = (self.address, session.portal);
        let is_at = own.ip() == used.ip() || own.ip().is_unspecified() && own.is_ipv4() == used.is_ipv4();
        let transports = self.transports;
        let accepts = match (&session.protocol, session.transport) {
            (SessionProtocol::Iscsi(_), SessionTransport::Tcp) => transports.tcp,
            (SessionProtocol::Iscsi(_), SessionTransport::Rdma(_)) => transports.iser,
            (SessionProtocol::Srp(_) | SessionProtocol::Nvme(_), _) => true,
        };
        let protocol = match session.protocol {
            SessionProtocol::Iscsi(_) => PortalProtocol::Iscsi,
            SessionProtocol::Srp(_) => PortalProtocol::Srp,
            SessionProtocol::Nvme(nvme) if nvme.discovery => transports.protocol,
            SessionProtocol::Nvme(_) => PortalProtocol::NvmeTcp,
        };
        let is_same_port = own.port() == used.port() && self.tag == session.portal_group_tag;
        let is_as_safe = transports.tls == session.tls.is_some();
        is_at && is_same_port && accepts && is_as_safe && protocol == transports.protocol
    }
}

/// A portal while it accepts connections. Its group and its protocols may change.
pub struct OpenPortal {
    bound: RwLock<Arc<BoundPortal>>,
    is_closed: AtomicBool,
}

impl OpenPortal {
    /// An open portal.
    pub fn new(bound: BoundPortal) -> Arc<OpenPortal> {
        Arc::new(OpenPortal { bound: RwLock::new(Arc::new(bound)), is_closed: AtomicBool::new(false) })
    }

    /// The portal now.
    pub fn bound(&self) -> Arc<BoundPortal> {
        self.bound.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the portal.
    pub(crate) fn set(&self, bound: BoundPortal) {
        *self.bound.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(bound);
    }

    /// Ends logins that have not begun.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, SeqCst);
    }

    /// The portal now, if it was not removed. A login asks before it begins, and when its session is registered: earlier,
    /// the session could not get the message that ends those of a removed portal.
    pub fn open(&self) -> io::Result<Arc<BoundPortal>> {
        match self.is_closed.load(SeqCst) {
            true => Err(io::Error::other("the portal was removed")),
            false => Ok(self.bound()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RdmaProvider;
    use crate::session_info::{Addresses, IscsiSessionInfo, SrpSessionInfo};

    #[test]
    fn session_is_served_by_its_address_group_and_protocol() {
        let at = |address: &str| address.parse::<SocketAddr>().expect("an address");
        let session = |transport, protocol| {
            let addresses = Addresses { local: at("192.0.2.1:3260"), peer: at("192.0.2.9:1") };
            SessionInfo::new("iqn.x".into(), addresses, (Some("iqn.a".into()), 2), transport, protocol)
        };
        let rdma = SessionTransport::Rdma(RdmaProvider::Iwarp);
        let iscsi = || SessionProtocol::Iscsi(IscsiSessionInfo::default());
        let tcp = session(SessionTransport::Tcp, iscsi());
        let iser = session(rdma, iscsi());
        let initiator_port = lunar_wire::srp::PortId::new(1, 2);
        let srp = session(rdma, SessionProtocol::Srp(SrpSessionInfo { initiator_port }));
        let both = Transports { iser: true, ..Transports::TCP };
        let iser_only = Transports { tcp: false, ..both };
        for (address, tag, transports, served) in [
            ("192.0.2.1:3260", 2, Transports::TCP, [true, false, false]),
            ("0.0.0.0:3260", 2, both, [true, true, false]),
            ("192.0.2.1:3260", 2, iser_only, [false, true, false]),
            ("0.0.0.0:3260", 2, Transports::SRP, [false, false, true]),
            ("[::]:3260", 2, both, [false; 3]),
            ("192.0.2.2:3260", 2, both, [false; 3]),
            ("192.0.2.1:3261", 2, both, [false; 3]),
            ("192.0.2.1:3260", 1, both, [false; 3]),
        ] {
            let bound = BoundPortal { address: at(address), tag, advertise: None, transports };
            assert_eq!([&tcp, &iser, &srp].map(|one| bound.serves(one)), served, "{bound:?}");
        }
    }
}
