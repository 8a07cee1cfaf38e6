//! The ports of a nexus, and what the protocols call them (SAM-5 annex A, SPC-5 sections 7.6.4 and 7.8.6).

use lunar_wire::srp::PortId;
use std::sync::Arc;

/// Set in the relative identifiers of SRP ports: the ports of a portal group have different ones.
const SRP_PORTS: u16 = 0x8000;

/// A SCSI transport protocol; the value is its PROTOCOL IDENTIFIER.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TransportProtocol {
    /// SRP.
    Srp = 4,
    /// iSCSI, over whatever.
    Iscsi = 5,
}

impl TransportProtocol {
    /// The protocol that calls an initiator so. No name is one of both: `0x` and 32 hexadecimal digits is a port of SRP,
    /// and names of iSCSI begin otherwise (RFC 7143 section 4.2.7).
    pub fn of_initiator(name: &str) -> TransportProtocol {
        if name.parse::<PortId>().is_ok() { TransportProtocol::Srp } else { TransportProtocol::Iscsi }
    }
}

/// A port of a target: the portals of one group, for one protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TargetPort {
    /// Its protocol.
    pub protocol: TransportProtocol,
    /// Portal group tag; below 0x8000 if it is one of SRP.
    pub group: u16,
}

impl TargetPort {
    /// RELATIVE TARGET PORT IDENTIFIER: the tag of its group, with the highest bit set for SRP.
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
    /// iSCSI name of the initiator; over SRP its port: see [`PortId`].
    pub initiator: String,
    /// ISID of its session; zero over SRP.
    pub isid: [u8; 6],
    /// The CHAP user that logged in; empty without CHAP. An initiator that uses the name and the ISID of another one is a different
    /// initiator port.
    pub user: String,
    /// iSCSI name of the target.
    pub target: String,
    /// Target portal group tag.
    pub tag: u16,
    /// Every port of the target, those of a group together.
    pub ports: Arc<[TargetPort]>,
}

impl NexusPorts {
    /// The port of the target.
    pub fn own(&self) -> TargetPort {
        TargetPort { protocol: TransportProtocol::of_initiator(&self.initiator), group: self.tag }
    }

    /// The portal group tags of the target.
    pub fn groups(&self) -> impl Iterator<Item = u16> {
        self.ports.chunk_by(|a, b| a.group == b.group).map(|group| group[0].group)
    }

    /// Relative identifiers of its ports in a group.
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
