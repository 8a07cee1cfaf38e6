//! What is known of a session from outside.

use crate::InstanceSession;
use crate::config::RdmaProvider;
use crate::fence::SessionFence;
use crate::nexus_list::NexusList;
use lunar_proto::parameters::Parameters;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What carries a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionTransport {
    /// iSCSI over TCP.
    Tcp,
    /// iSCSI over RDMA.
    Iser(RdmaProvider),
    /// SCSI over RDMA: the session is one of the channels between two ports.
    Srp(RdmaProvider),
}

/// What a session was found to be at login, and what it has done since.
pub struct SessionInfo {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// InitiatorAlias.
    pub alias: Option<String>,
    /// Where it comes from.
    pub address: SocketAddr,
    /// The portal that it came to.
    pub portal: SocketAddr,
    /// iSCSI name of the target; None in unnamed discovery.
    pub target: Option<String>,
    /// Target portal group tag.
    pub tag: u16,
    /// ISID.
    pub isid: [u8; 6],
    /// Connection ID.
    pub cid: u16,
    /// A discovery session.
    pub discovery: bool,
    /// What carries it.
    pub transport: SessionTransport,
    /// The CHAP user that logged in.
    pub user: Option<String>,
    /// What was negotiated.
    pub parameters: Parameters,
    /// When.
    pub since: Instant,
    /// What it has done.
    pub counters: SessionCounters,
    /// Its place in the SCSI routing instance of its target.
    pub instance_session: OnceLock<InstanceSession>,
    /// What of it is under way.
    pub fence: Arc<SessionFence>,
    /// Its nexuses.
    pub nexuses: Arc<NexusList>,
}

impl SessionInfo {
    /// The other has the same ports: over SRP it is another channel between them.
    pub fn is_beside(&self, other: &SessionInfo) -> bool {
        (&self.initiator, &self.target, self.tag) == (&other.initiator, &other.target, other.tag)
    }

    /// Ends what the session holds where others want it, while its core does not answer. Its fence is closed, and nothing of it
    /// is under way.
    pub(crate) fn give_up(&self) {
        self.nexuses.lose();
        self.instance_session.get().into_iter().for_each(InstanceSession::leave);
    }

    /// Both may be sessions of one host. An SRP initiator port names no host: each HCA port of one has another.
    pub fn may_be_of_host(&self, other: &SessionInfo) -> bool {
        let is_srp = |info: &SessionInfo| matches!(info.transport, SessionTransport::Srp(_));
        self.initiator == other.initiator || is_srp(self) || is_srp(other)
    }
}

/// Counters of a session. Written by one core alone.
#[derive(Default)]
pub struct SessionCounters {
    /// SCSI commands.
    pub commands: SessionCounter,
    /// Reads from the medium.
    pub reads: SessionCounter,
    /// Writes to it.
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
    /// Adds; only the core of the session may.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
