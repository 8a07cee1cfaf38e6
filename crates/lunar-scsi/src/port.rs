//! The ports of a nexus, and their names in each protocol (SAM-5 annex A, SPC-5 sections 7.6.4 and 7.8.6).

use lunar_wire::srp::PortId;
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

impl TransportProtocol {
    /// The protocol of an initiator name. No name is valid in both protocols: an SRP port is `0x` and 32 hexadecimal
    /// digits, and an iSCSI name does not begin with `0x` (RFC 7143 section 4.2.7).
    pub fn of_initiator(name: &str) -> TransportProtocol {
        if name.parse::<PortId>().is_ok() { TransportProtocol::Srp } else { TransportProtocol::Iscsi }
    }
}

/// A target port: the portals of one portal group, for one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetPort {
    /// Its protocol.
    pub protocol: TransportProtocol,
    /// Portal group tag; below 0x8000 for SRP.
    pub group: u16,
}

impl TargetPort {
    /// RELATIVE TARGET PORT IDENTIFIER: the portal group tag, with the highest bit set for SRP.
    pub fn relative(self) -> u16 {
        match self.protocol {
            TransportProtocol::Iscsi => self.group,
            TransportProtocol::Srp => self.group | SRP_PORTS,
        }
    }
}

/// The two ports of a nexus (RFC 7143 section 4.4.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NexusPorts {
    /// iSCSI name of the initiator; for SRP its port identifier as text (see [`PortId`]).
    pub initiator: String,
    /// ISID of the session; zero for SRP.
    pub isid: [u8; 6],
    /// The CHAP user that logged in; empty without CHAP. Another user with the same name and ISID is a different
    /// initiator port.
    pub user: String,
    /// iSCSI name of the target.
    pub target: String,
    /// Target portal group tag.
    pub tag: u16,
    /// All target ports of the target. The ports of a portal group are adjacent.
    pub ports: Arc<[TargetPort]>,
}

impl NexusPorts {
    /// The target port of the nexus.
    pub fn own(&self) -> TargetPort {
        TargetPort { protocol: TransportProtocol::of_initiator(&self.initiator), group: self.tag }
    }

    /// The portal group tags of the target.
    pub fn groups(&self) -> impl Iterator<Item = u16> {
        self.ports.chunk_by(|a, b| a.group == b.group).map(|group| group[0].group)
    }

    /// The relative identifiers of the target's ports in a group.
    pub fn relative_in(&self, group: u16) -> impl Iterator<Item = u16> {
        self.ports.iter().filter(move |port| port.group == group).map(|port| port.relative())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_group_have_relative_identifiers_of_their_own() {
        let port = |protocol, group| TargetPort { protocol, group };
        let of = |group| [port(TransportProtocol::Iscsi, group), port(TransportProtocol::Srp, group)];
        let ports = Arc::from([of(1), of(7)].concat());
        let at = NexusPorts { ports, tag: 1, ..(*crate::testing::port("iqn.a")).clone() };
        assert_eq!(at.groups().collect::<Vec<_>>(), [1, 7]);
        assert_eq!(at.relative_in(7).collect::<Vec<_>>(), [7, 0x8007]);
        assert_eq!(at.own().relative(), 1);
        let srp = NexusPorts { initiator: PortId::new(1, 2).to_string(), ..at };
        assert_eq!(srp.own().relative(), 0x8001);
    }
}
