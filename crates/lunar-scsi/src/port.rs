//! The ports of a nexus, and their names in each protocol (SAM-5 annex A, SPC-5 sections 7.6.4 and 7.8.6).

use lunar_wire::srp::PortId;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::sync::Arc;

/// Set in the relative port identifiers of SRP ports, so that the ports of a portal group differ.
const SRP_PORTS: u16 = 0x8000;

/// A SCSI transport protocol; the value is its PROTOCOL IDENTIFIER.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TransportProtocol {
    /// SRP.
    Srp = 4,
    /// iSCSI, over TCP or iSER.
    Iscsi = 5,
}

/// The identifier of an initiator port. Ports of different protocols are different ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum InitiatorPort {
    /// An iSCSI initiator port (RFC 7143 section 4.4.2).
    Iscsi {
        /// iSCSI name of the initiator. Names are folded at login, so they are compared byte by byte.
        name: String,
        /// ISID of the sessions.
        isid: [u8; 6],
    },
    /// An SRP initiator port.
    Srp(PortId),
}

impl InitiatorPort {
    /// The protocol that the port speaks.
    pub fn protocol(&self) -> TransportProtocol {
        match self {
            InitiatorPort::Iscsi { .. } => TransportProtocol::Iscsi,
            InitiatorPort::Srp(_) => TransportProtocol::Srp,
        }
    }

    /// The name by which access lists and logs refer to the port: the iSCSI name, or the SRP port identifier as text.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            InitiatorPort::Iscsi { name, .. } => name.into(),
            InitiatorPort::Srp(port) => port.to_string().into(),
        }
    }

    /// Whether it is an iSCSI port of the initiator with this name.
    pub(crate) fn has_iscsi_name(&self, wanted: &str) -> bool {
        match self {
            InitiatorPort::Iscsi { name, .. } => name == wanted,
            InitiatorPort::Srp(_) => false,
        }
    }
}

/// By name, then by ISID. Saved registrations and reports have this order.
impl Ord for InitiatorPort {
    fn cmp(&self, other: &Self) -> Ordering {
        use InitiatorPort::{Iscsi, Srp};
        match (self, other) {
            (Iscsi { name, isid }, Iscsi { name: other, isid: other_isid }) => {
                (name, isid).cmp(&(other, other_isid))
            }
            // The digits of the text have a fixed number, so the order is the same.
            (Srp(port), Srp(other)) => port.cmp(other),
            (Iscsi { .. }, Srp(_)) => self.name().cmp(&other.name()).then(Ordering::Greater),
            (Srp(_), Iscsi { .. }) => other.cmp(self).reverse(),
        }
    }
}

impl PartialOrd for InitiatorPort {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A target port: the portals of one portal group, for one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetPort {
    /// Its protocol.
    pub protocol: TransportProtocol,
    /// Portal group tag; below 0x8000 for SRP.
    pub portal_group_tag: u16,
}

impl TargetPort {
    /// RELATIVE TARGET PORT IDENTIFIER: the portal group tag, with the highest bit set for SRP.
    pub fn relative(self) -> u16 {
        match self.protocol {
            TransportProtocol::Iscsi => self.portal_group_tag,
            TransportProtocol::Srp => self.portal_group_tag | SRP_PORTS,
        }
    }
}

/// The two ports of a nexus (RFC 7143 section 4.4.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NexusPorts {
    /// The initiator port.
    pub initiator: InitiatorPort,
    /// The CHAP user that logged in; empty without CHAP. Another user of the same initiator port is a different
    /// initiator.
    pub user: String,
    /// iSCSI name of the target.
    pub target: String,
    /// Target portal group tag.
    pub portal_group_tag: u16,
    /// All target ports of the target. The ports of a portal group are adjacent.
    pub ports: Arc<[TargetPort]>,
}

impl NexusPorts {
    /// The target port of the nexus.
    pub fn own(&self) -> TargetPort {
        TargetPort { protocol: self.initiator.protocol(), portal_group_tag: self.portal_group_tag }
    }

    /// The portal group tags of the target.
    pub fn portal_group_tags(&self) -> impl Iterator<Item = u16> {
        self.ports
            .chunk_by(|a, b| a.portal_group_tag == b.portal_group_tag)
            .map(|group| group[0].portal_group_tag)
    }

    /// The relative identifiers of the target's ports in a group.
    pub fn relative_in(&self, group: u16) -> impl Iterator<Item = u16> {
        self.ports.iter().filter(move |port| port.portal_group_tag == group).map(|port| port.relative())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_group_have_relative_identifiers_of_their_own() {
        let port = |protocol, group| TargetPort { protocol, portal_group_tag: group };
        let of = |group| [port(TransportProtocol::Iscsi, group), port(TransportProtocol::Srp, group)];
        let ports = Arc::from([of(1), of(7)].concat());
        let at = NexusPorts { ports, portal_group_tag: 1, ..(*crate::testing::port("iqn.a")).clone() };
        assert_eq!(at.portal_group_tags().collect::<Vec<_>>(), [1, 7]);
        assert_eq!(at.relative_in(7).collect::<Vec<_>>(), [7, 0x8007]);
        assert_eq!(at.own().relative(), 1);
        let srp = NexusPorts { initiator: InitiatorPort::Srp(PortId::new(1, 2)), ..at };
        assert_eq!(srp.own().relative(), 0x8001);
    }

    #[test]
    fn initiator_ports_of_all_protocols_sort_by_name() {
        let iscsi = |name: &str, isid| InitiatorPort::Iscsi { name: name.into(), isid: [isid; 6] };
        let srp = |extension| InitiatorPort::Srp(PortId::new(extension, 2));
        let sorted = [
            iscsi("-odd", 1),
            srp(1),
            srp(u64::MAX),
            iscsi("0xodd", 1),
            iscsi("iqn.a", 1),
            iscsi("iqn.a", 2),
            iscsi("iqn.b", 0),
        ];
        for (i, one) in sorted.iter().enumerate() {
            for (j, other) in sorted.iter().enumerate() {
                assert_eq!((one.cmp(other), one == other), (i.cmp(&j), i == j), "{one:?}, {other:?}");
            }
        }
    }
}
