//! The ports of a nexus, and their names in each protocol (SAM-5 annex A, SPC-5 sections 7.6.4 and 7.8.6).

use lunar_wire::srp::PortId;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// Set in the relative port identifiers of SRP ports, so that the ports of a portal group differ.
const SRP_PORTS: u16 = 0x8000;
/// The relative port identifier of NVMe ports. They all have the same one, because a registration of an NVMe host counts
/// for all of its controllers.
const NVME_PORT: u16 = 0xffff;

/// A SCSI transport protocol; the value is its PROTOCOL IDENTIFIER.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum TransportProtocol {
    /// SRP.
    Srp = 4,
    /// iSCSI, over TCP or iSER.
    Iscsi = 5,
    /// NVMe over TCP, which is no SCSI transport protocol: no protocol identifier names it.
    Nvme = 15,
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
    /// An NVMe host. It is one initiator port, whatever the number of its controllers.
    Nvme {
        /// NQN of the host (HOSTNQN).
        name: String,
        /// Identifier of the host (HOSTID).
        id: [u8; 16],
    },
}

impl InitiatorPort {
    /// The protocol that the port speaks.
    pub fn protocol(&self) -> TransportProtocol {
        match self {
            InitiatorPort::Iscsi { .. } => TransportProtocol::Iscsi,
            InitiatorPort::Srp(_) => TransportProtocol::Srp,
            InitiatorPort::Nvme { .. } => TransportProtocol::Nvme,
        }
    }

    /// The name by which access lists and logs refer to the port: the iSCSI name, the NQN, or the SRP port identifier as
    /// text.
    pub fn name(&self) -> Cow<'_, str> {
        match self {
            InitiatorPort::Iscsi { name, .. } | InitiatorPort::Nvme { name, .. } => name.into(),
            InitiatorPort::Srp(port) => port.to_string().into(),
        }
    }

    /// Whether it is an NVMe host, which learns of changes by events instead of unit attentions.
    pub fn is_nvme(&self) -> bool {
        self.protocol() == TransportProtocol::Nvme
    }

    /// Whether it is an iSCSI port of the initiator with this name.
    pub(crate) fn has_iscsi_name(&self, wanted: &str) -> bool {
        match self {
            InitiatorPort::Iscsi { name, .. } => name == wanted,
            InitiatorPort::Srp(_) | InitiatorPort::Nvme { .. } => false,
        }
    }
}

/// By name, then by ISID or host identifier. Saved registrations and reports have this order.
impl Ord for InitiatorPort {
    fn cmp(&self, other: &Self) -> Ordering {
        use InitiatorPort::{Iscsi, Nvme, Srp};
        match (self, other) {
            (Iscsi { name, isid }, Iscsi { name: other, isid: other_isid }) => {
                (name, isid).cmp(&(other, other_isid))
            }
            // The digits of the text have a fixed number, so the order is the same.
            (Srp(port), Srp(other)) => port.cmp(other),
            (Nvme { name, id }, Nvme { name: other, id: other_id }) => (name, id).cmp(&(other, other_id)),
            _ => self.name().cmp(&other.name()).then(self.protocol().cmp(&other.protocol())),
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
    /// RELATIVE TARGET PORT IDENTIFIER.
    pub relative: u16,
}

impl TargetPort {
    /// The port of a portal group. `number` is its relative identifier, by default the tag. An SRP port has the highest
    /// bit set too.
    pub fn new(protocol: TransportProtocol, portal_group_tag: u16, number: Option<u16>) -> TargetPort {
        let number = number.unwrap_or(portal_group_tag);
        let relative = match protocol {
            TransportProtocol::Iscsi => number,
            TransportProtocol::Srp => number | SRP_PORTS,
            TransportProtocol::Nvme => NVME_PORT,
        };
        TargetPort { protocol, portal_group_tag, relative }
    }
}

/// The ports of a target. The ports of a portal group are adjacent. The list may change while a nexus exists, so it is no
/// part of the identity of a nexus: all lists are equal.
#[derive(Debug)]
pub struct TargetPorts(Mutex<Arc<[TargetPort]>>);

impl TargetPorts {
    /// A list.
    pub fn new(ports: impl Into<Arc<[TargetPort]>>) -> TargetPorts {
        TargetPorts(Mutex::new(ports.into()))
    }

    /// The ports now.
    pub fn get(&self) -> Arc<[TargetPort]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the list. Returns whether it differs.
    pub fn replace(&self, ports: Arc<[TargetPort]>) -> bool {
        let mut list = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let differs = *list != ports;
        *list = ports;
        differs
    }
}

impl Clone for TargetPorts {
    fn clone(&self) -> Self {
        TargetPorts::new(self.get())
    }
}

impl PartialEq for TargetPorts {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TargetPorts {}

impl Hash for TargetPorts {
    fn hash<H: Hasher>(&self, _: &mut H) {}
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
    /// The target port, as it was when the session began.
    pub own: TargetPort,
    /// All target ports of the target.
    pub ports: TargetPorts,
}

impl NexusPorts {
    /// The portal group tags of the target.
    pub fn portal_group_tags(&self) -> Vec<u16> {
        let mut tags: Vec<u16> = self.ports.get().iter().map(|port| port.portal_group_tag).collect();
        tags.dedup();
        tags
    }

    /// The relative identifiers of the target's ports in a group.
    pub fn relative_in(&self, group: u16) -> Vec<u16> {
        let ports = self.ports.get();
        ports.iter().filter(|port| port.portal_group_tag == group).map(|port| port.relative).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_a_group_have_relative_identifiers_of_their_own() {
        let protocols = [TransportProtocol::Iscsi, TransportProtocol::Srp];
        let of = |group, number| protocols.map(|protocol| TargetPort::new(protocol, group, number));
        let ports = TargetPorts::new([of(1, Some(9)), of(7, None)].concat());
        let at = NexusPorts { ports, ..(*crate::testing::port("iqn.a")).clone() };
        assert_eq!(at.portal_group_tags(), [1, 7]);
        assert_eq!([at.relative_in(1), at.relative_in(7)], [[9, 0x8009], [7, 0x8007]]);
    }

    #[test]
    fn list_of_ports_is_no_part_of_the_identity() {
        let before = (*crate::testing::port("iqn.a")).clone();
        let after = before.clone();
        let ports: Arc<[TargetPort]> = [TargetPort::new(TransportProtocol::Iscsi, 1, None)].into();
        assert!(after.ports.replace(ports.clone()) && !after.ports.replace(ports));
        assert_eq!((before.portal_group_tags(), after.portal_group_tags()), (vec![1, 2], vec![1]));
        assert_eq!(before, after);
    }

    #[test]
    fn initiator_ports_of_all_protocols_sort_by_name() {
        let iscsi = |name: &str, isid| InitiatorPort::Iscsi { name: name.into(), isid: [isid; 6] };
        let srp = |extension| InitiatorPort::Srp(PortId::new(extension, 2));
        let nvme = |name: &str, id| InitiatorPort::Nvme { name: name.into(), id: [id; 16] };
        let sorted = [
            iscsi("-odd", 1),
            srp(1),
            srp(u64::MAX),
            iscsi("0xodd", 1),
            iscsi("iqn.a", 1),
            iscsi("iqn.a", 2),
            nvme("iqn.a", 0),
            iscsi("iqn.b", 0),
            nvme("nqn.a", 1),
            nvme("nqn.a", 2),
        ];
        for (i, one) in sorted.iter().enumerate() {
            for (j, other) in sorted.iter().enumerate() {
                assert_eq!((one.cmp(other), one == other), (i.cmp(&j), i == j), "{one:?}, {other:?}");
            }
        }
    }
}
