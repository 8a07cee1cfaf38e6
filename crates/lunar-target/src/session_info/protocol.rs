//! The facts about a session that only its protocol has.

use super::SessionInfo;
use lunar_proto::parameters::Parameters;
use lunar_scsi::InitiatorPort;
use lunar_wire::srp::PortId;

/// The protocol of a session, with the facts that only this protocol has.
#[derive(Clone, Debug)]
pub enum SessionProtocol {
    /// iSCSI. Over RDMA it is iSER.
    Iscsi(IscsiSessionInfo),
    /// SRP. The session is one of the channels between two ports.
    Srp(SrpSessionInfo),
    /// NVMe over TCP. The session is one queue of a controller.
    Nvme(NvmeSessionInfo),
}

/// The facts about an iSCSI session (RFC 7143).
#[derive(Clone, Debug, Default)]
pub struct IscsiSessionInfo {
    /// ISID. With the initiator name it identifies the initiator port.
    pub isid: [u8; 6],
    /// Connection ID.
    pub cid: u16,
    /// InitiatorAlias.
    pub alias: Option<String>,
    /// Whether it is a Discovery session.
    pub discovery: bool,
    /// The negotiated parameters.
    pub parameters: Parameters,
}

/// The facts about an SRP session.
#[derive(Clone, Copy, Debug, Default)]
pub struct SrpSessionInfo {
    /// INITIATOR PORT IDENTIFIER.
    pub initiator_port: PortId,
}

/// The facts about a queue of an NVMe controller.
#[derive(Clone, Copy, Debug, Default)]
pub struct NvmeSessionInfo {
    /// Identifier of the host (HOSTID).
    pub host_id: [u8; 16],
    /// Identifier of the controller (CNTLID).
    pub controller: u16,
    /// Number of the queue; 0 is the admin queue.
    pub queue: u16,
    /// Entries of the queue.
    pub queue_len: u32,
    /// Keep Alive Timeout that the host has asked for at Connect, in milliseconds; 0: none.
    pub keep_alive_ms: u32,
    /// Whether it is a discovery controller.
    pub discovery: bool,
    /// Whether the host has authenticated itself.
    pub authenticated: bool,
}

impl SessionInfo {
    /// The port of the initiator.
    pub fn initiator_port(&self) -> InitiatorPort {
        match &self.protocol {
            SessionProtocol::Iscsi(iscsi) => {
                InitiatorPort::Iscsi { name: self.initiator.clone(), isid: iscsi.isid }
            }
            SessionProtocol::Srp(srp) => InitiatorPort::Srp(srp.initiator_port),
            SessionProtocol::Nvme(nvme) => {
                InitiatorPort::Nvme { name: self.initiator.clone(), id: nvme.host_id }
            }
        }
    }

    /// Whether it is a queue of a controller whose host has authenticated itself.
    pub fn is_authenticated_nvme(&self) -> bool {
        matches!(self.protocol, SessionProtocol::Nvme(NvmeSessionInfo { authenticated: true, .. }))
    }

    /// Whether it can only discover targets.
    #[inline]
    pub fn is_discovery(&self) -> bool {
        match &self.protocol {
            SessionProtocol::Iscsi(iscsi) => iscsi.discovery,
            SessionProtocol::Srp(_) => false,
            SessionProtocol::Nvme(nvme) => nvme.discovery,
        }
    }

    /// Whether it is an I/O queue of an NVMe controller, whose admin queue is a session of its own.
    #[inline]
    pub fn is_io_queue(&self) -> bool {
        matches!(self.protocol, SessionProtocol::Nvme(NvmeSessionInfo { queue: 1.., .. }))
    }

    /// Whether it is an I/O queue of the controller with this identifier.
    pub(crate) fn is_queue_of(&self, controller: u16) -> bool {
        matches!(self.protocol, SessionProtocol::Nvme(nvme) if nvme.queue > 0 && nvme.controller == controller)
    }

    /// The identifier of its connection within the session. None: a session of this protocol is one connection.
    pub fn connection_id(&self) -> Option<u16> {
        match &self.protocol {
            SessionProtocol::Iscsi(iscsi) => Some(iscsi.cid),
            SessionProtocol::Srp(_) | SessionProtocol::Nvme(_) => None,
        }
    }

    /// Whether both may be sessions of one host. An SRP initiator port does not identify a host: each HCA port of a
    /// host has its own.
    pub fn may_be_of_host(&self, other: &SessionInfo) -> bool {
        match (&self.protocol, &other.protocol) {
            (SessionProtocol::Iscsi(_), SessionProtocol::Iscsi(_)) => self.initiator == other.initiator,
            (SessionProtocol::Nvme(own), SessionProtocol::Nvme(other)) => own.host_id == other.host_id,
            // The names of a host differ by family.
            _ => true,
        }
    }
}
