//! The protocols of a portal.

use lunar_scsi::TransportProtocol;
use std::fmt;

/// The application protocol of a portal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortalProtocol {
    /// iSCSI, over TCP or iSER.
    Iscsi,
    /// SRP.
    Srp,
    /// NVMe over TCP.
    NvmeTcp,
    /// NVMe over TCP, for discovery only.
    NvmeDiscovery,
}

impl PortalProtocol {
    /// Whether it is NVMe over TCP.
    pub fn is_nvme(self) -> bool {
        matches!(self, PortalProtocol::NvmeTcp | PortalProtocol::NvmeDiscovery)
    }

    /// The SCSI transport protocol of its target port.
    pub fn scsi(self) -> TransportProtocol {
        match self {
            PortalProtocol::Iscsi => TransportProtocol::Iscsi,
            PortalProtocol::Srp => TransportProtocol::Srp,
            PortalProtocol::NvmeTcp | PortalProtocol::NvmeDiscovery => TransportProtocol::Nvme,
        }
    }
}

/// The protocols of a portal. One port may accept iSCSI over TCP and iSER: the first bytes of a connection select the
/// transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports {
    /// The only application protocol that the portal accepts.
    pub protocol: PortalProtocol,
    /// iSCSI over TCP.
    pub tcp: bool,
    /// iSCSI over RDMA (RFC 7145).
    pub iser: bool,
    /// The RDMA provider of the portal.
    pub provider: RdmaProvider,
    /// Whether hosts must begin with TLS 1.3. NVMe over TCP only.
    pub tls: bool,
}

/// An implementation of RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdmaProvider {
    /// Software iWARP, on the TCP port.
    #[default]
    Iwarp,
    /// The RDMA devices that own the address, through rdma-core.
    Verbs,
}

impl Transports {
    /// iSCSI over TCP only.
    pub const TCP: Transports = Transports {
        protocol: PortalProtocol::Iscsi,
        tcp: true,
        iser: false,
        provider: RdmaProvider::Iwarp,
        tls: false,
    };

    /// SRP only.
    pub const SRP: Transports = Transports { protocol: PortalProtocol::Srp, tcp: false, ..Transports::TCP };

    /// NVMe over TCP only.
    pub const NVME_TCP: Transports =
        Transports { protocol: PortalProtocol::NvmeTcp, tcp: true, ..Transports::TCP };
    /// NVMe over TCP for discovery only.
    pub const NVME_DISCOVERY: Transports =
        Transports { protocol: PortalProtocol::NvmeDiscovery, ..Transports::NVME_TCP };

    /// Whether the portal accepts a protocol over RDMA.
    pub fn by_rdma(self) -> bool {
        match self.protocol {
            PortalProtocol::Iscsi => self.iser,
            PortalProtocol::Srp => true,
            PortalProtocol::NvmeTcp | PortalProtocol::NvmeDiscovery => false,
        }
    }

    /// Whether connections arrive through RDMA devices.
    pub fn by_devices(self) -> bool {
        self.by_rdma() && self.provider == RdmaProvider::Verbs
    }

    /// Whether connections arrive through TCP.
    pub fn by_tcp(self) -> bool {
        match self.protocol {
            PortalProtocol::Iscsi => self.tcp || !self.by_devices(),
            PortalProtocol::Srp => !self.by_devices(),
            PortalProtocol::NvmeTcp | PortalProtocol::NvmeDiscovery => true,
        }
    }
}

/// The protocols as text: `TCP and iSER`, `SRP by RDMA devices`, `NVMe/TCP with TLS`.
impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.protocol, self.tcp, self.iser) {
            (PortalProtocol::Srp, ..) => "SRP",
            (PortalProtocol::NvmeTcp, ..) => "NVMe/TCP",
            (PortalProtocol::NvmeDiscovery, ..) => "NVMe/TCP discovery",
            (PortalProtocol::Iscsi, true, true) => "TCP and iSER",
            (PortalProtocol::Iscsi, false, true) => "iSER",
            (PortalProtocol::Iscsi, _, false) => "TCP",
        })?;
        f.write_str(if self.by_devices() { " by RDMA devices" } else { "" })?;
        f.write_str(if self.tls { " with TLS" } else { "" })
    }
}
