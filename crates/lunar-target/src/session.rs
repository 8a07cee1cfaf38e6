//! What is known of a session from outside.

use crate::Visit;
use crate::fence::Fence;
use crate::nexuses::Nexuses;
use crate::setup::Provider;
use lunar_proto::parameters::Parameters;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What carries a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// iSCSI over TCP.
    Tcp,
    /// iSCSI over RDMA.
    Iser(Provider),
    /// SCSI over RDMA: the session is one of the channels between two ports.
    Srp(Provider),
}

/// What a session was found to be at login, and what it has done since.
pub struct Info {
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
    pub transport: Transport,
    /// The CHAP user that logged in.
    pub user: Option<String>,
    /// What was negotiated.
    pub parameters: Parameters,
    /// When.
    pub since: Instant,
    /// What it has done.
    pub counters: Counters,
    /// Its place in the SCSI routing instance of its target.
    pub visit: OnceLock<Visit>,
    /// What of it is under way.
    pub fence: Arc<Fence>,
    /// Its nexuses.
    pub nexuses: Arc<Nexuses>,
}

impl Info {
    /// The other has the same ports: over SRP it is another channel between them.
    pub fn is_beside(&self, other: &Info) -> bool {
        (&self.initiator, &self.target, self.tag) == (&other.initiator, &other.target, other.tag)
    }

    /// Ends what the session holds where others want it, while its core does not answer. Its fence is closed, and nothing of it
    /// is under way.
    pub(crate) fn give_up(&self) {
        self.nexuses.lose();
        self.visit.get().into_iter().for_each(Visit::leave);
    }

    /// Both may be sessions of one host. An SRP initiator port names no host: each HCA port of one has another.
    pub fn may_be_of_host(&self, other: &Info) -> bool {
        let is_srp = |info: &Info| matches!(info.transport, Transport::Srp(_));
        self.initiator == other.initiator || is_srp(self) || is_srp(other)
    }
}

/// Counters of a session. Written by one core alone.
#[derive(Default)]
pub struct Counters {
    /// SCSI commands.
    pub commands: Count,
    /// Reads from the medium.
    pub reads: Count,
    /// Writes to it.
    pub writes: Count,
    /// Bytes read.
    pub read_bytes: Count,
    /// Bytes written.
    pub write_bytes: Count,
    /// Commands that did not end with GOOD.
    pub failures: Count,
}

/// A counter with one writer.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
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
