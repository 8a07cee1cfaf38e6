//! Facts about a session for other cores and for users.

#[cfg(test)]
pub(crate) mod account;

use crate::InstanceSession;
use crate::config::RdmaProvider;
use crate::fence::SessionFence;
use crate::nexus_list::NexusList;
use lunar_proto::parameters::Parameters;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The transport of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionTransport {
    /// iSCSI over TCP.
    Tcp,
    /// iSCSI over RDMA.
    Iser(RdmaProvider),
    /// SCSI over RDMA (SRP). The session is one of the channels between two ports.
    Srp(RdmaProvider),
}

/// Facts about a session: the result of its login, and its counters.
pub struct SessionInfo {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// InitiatorAlias.
    pub alias: Option<String>,
    /// Address of the initiator.
    pub address: SocketAddr,
    /// Address of the portal.
    pub portal: SocketAddr,
    /// iSCSI name of the target. None: unnamed discovery.
    pub target: Option<String>,
    /// Target portal group tag.
    pub tag: u16,
    /// ISID.
    pub isid: [u8; 6],
    /// Connection ID.
    pub cid: u16,
    /// Whether it is a Discovery session.
    pub discovery: bool,
    /// The transport.
    pub transport: SessionTransport,
    /// The CHAP account.
    pub user: Option<String>,
    /// The negotiated parameters.
    pub parameters: Parameters,
    /// The time of its login.
    pub since: Instant,
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
    /// Whether the other session has the same ports. For SRP it is another channel between them.
    pub fn has_same_ports(&self, other: &SessionInfo) -> bool {
        (&self.initiator, &self.target, self.tag) == (&other.initiator, &other.target, other.tag)
    }

    /// Releases the resources of the session while its core is stalled. Its fence is closed, so it executes nothing.
    pub(crate) fn release_all(&self) {
        self.nexuses.lose();
        self.instance_session.get().into_iter().for_each(InstanceSession::leave);
    }

    /// Whether both may be sessions of one host. An SRP initiator port does not identify a host: each HCA port of a
    /// host has its own.
    pub fn may_be_of_host(&self, other: &SessionInfo) -> bool {
        let is_srp = |info: &SessionInfo| matches!(info.transport, SessionTransport::Srp(_));
        self.initiator == other.initiator || is_srp(self) || is_srp(other)
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
    pub failures: SessionCounter,
}

/// A counter with one writer.
#[derive(Default)]
pub struct SessionCounter(AtomicU64);

impl SessionCounter {
    /// Adds to the counter. Only the core of the session may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
