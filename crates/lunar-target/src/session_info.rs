//! Facts about a session for other cores and for users.

#[cfg(test)]
pub(crate) mod account;
mod protocol;
#[cfg(test)]
mod tests;

use crate::InstanceSession;
use crate::config::RdmaProvider;
use crate::fence::SessionFence;
use crate::nexus_list::NexusList;
use crate::session_counter::SessionCounter;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

pub use protocol::{IscsiSessionInfo, NvmeSessionInfo, SessionProtocol, SrpSessionInfo};

/// The transport that carries the protocol of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionTransport {
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma(RdmaProvider),
}

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The local address.
    pub local: SocketAddr,
    /// The address of the initiator.
    pub peer: SocketAddr,
}

/// TLS of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSessionInfo {
    /// The identity of the PSK: version and hash, the name of the host, and the name of the subsystem.
    pub identity: String,
    /// The cipher suite, such as `TLS_AES_128_GCM_SHA256`.
    pub cipher: String,
}

impl TlsSessionInfo {
    /// Whether the PSK is that of this host and this subsystem.
    pub(crate) fn is_of(&self, host: &str, subsystem: &str) -> bool {
        // No name in an identity has a blank.
        let mut parts = self.identity.split(' ').skip(1);
        parts.next() == Some(host) && parts.next() == Some(subsystem)
    }
}

/// Facts about a session: the result of its login, and its counters.
pub struct SessionInfo {
    /// Name of the initiator: its iSCSI name, or its SRP port identifier as text.
    pub initiator: String,
    /// Address of the initiator.
    pub address: SocketAddr,
    /// Address of the portal.
    pub portal: SocketAddr,
    /// Name of the target. None: unnamed discovery.
    pub target: Option<String>,
    /// Tag of the portal group, which is the port of the target.
    pub portal_group_tag: u16,
    /// The transport.
    pub transport: SessionTransport,
    /// The protocol, with the facts that only it has.
    pub protocol: SessionProtocol,
    /// The CHAP account.
    pub user: Option<String>,
    /// TLS of its connection. None: it has none.
    pub tls: Option<TlsSessionInfo>,
    /// The time of its login.
    pub started_at: Instant,
    /// Counters of its commands and bytes.
    pub counters: SessionCounters,
    /// Its place in the SCSI routing instance of its target.
    pub instance_session: OnceLock<InstanceSession>,
    /// Counts the work in progress.
    pub fence: Arc<SessionFence>,
    /// Its I_T_L nexuses.
    pub nexuses: Arc<NexusList>,
}

impl SessionInfo {
    /// A session that begins now, without a CHAP account. `portal_group_tag`: tag of the portal group.
    pub fn new(
        initiator: String,
        addresses: Addresses,
        (target, portal_group_tag): (Option<String>, u16),
        transport: SessionTransport,
        protocol: SessionProtocol,
    ) -> SessionInfo {
        SessionInfo {
            initiator,
            address: addresses.peer,
            portal: addresses.local,
            target,
            portal_group_tag,
            transport,
            protocol,
            user: None,
            tls: None,
            started_at: Instant::now(),
            counters: SessionCounters::default(),
            instance_session: OnceLock::new(),
            fence: Arc::default(),
            nexuses: Arc::default(),
        }
    }

    /// Whether the other session has the same ports. For SRP it is another channel between them.
    pub fn has_same_ports(&self, other: &SessionInfo) -> bool {
        (&self.target, self.portal_group_tag) == (&other.target, other.portal_group_tag)
            && self.initiator_port() == other.initiator_port()
    }

    /// Releases the resources of the session while its core is stalled. Its fence is closed, so it executes nothing.
    pub(crate) fn release_all(&self) {
        self.nexuses.lose();
        self.instance_session.get().into_iter().for_each(InstanceSession::leave);
    }
}

/// Counters of a session. Only its core writes them.
#[derive(Default)]
pub struct SessionCounters {
    /// SCSI commands.
    pub commands: SessionCounter,
    /// Commands that read the medium.
    pub reads: SessionCounter,
    /// Commands that write to the medium.
    pub writes: SessionCounter,
    /// Bytes read.
    pub read_bytes: SessionCounter,
    /// Bytes written.
    pub write_bytes: SessionCounter,
    /// Commands that did not end with GOOD.
    pub errors: SessionCounter,
}
