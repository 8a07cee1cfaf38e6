//! The I_T_L nexus: one initiator port, one target port, one logical unit.

use crate::{Answer, Lu};
use std::sync::Arc;

/// Names a nexus within the process; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NexusId(pub u64);

/// The two ports of a nexus (RFC 7143 section 4.4.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Port {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// ISID of its session.
    pub isid: [u8; 6],
    /// iSCSI name of the target.
    pub target: String,
    /// Target portal group tag; the relative target port identifier is made of it.
    pub tag: u16,
    /// Every portal group tag of the target, for VPD 88 and REPORT TARGET PORT GROUPS.
    pub all_tags: Arc<[u16]>,
}

/// An I_T_L nexus. Owned by the core of its connection.
pub struct Nexus {
    lu: Arc<Lu>,
    id: NexusId,
    port: Arc<Port>,
    read_only: bool,
}

impl Nexus {
    /// Its name.
    pub fn id(&self) -> NexusId {
        self.id
    }

    /// Its logical unit.
    pub fn lu(&self) -> &Arc<Lu> {
        &self.lu
    }

    /// Its ports.
    pub fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// The access list lets this initiator read only.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// Decides what a command does. `cdb` has 16 bytes or more (up to 260), unused ones zero.
    #[inline]
    pub fn begin(&mut self, cdb: &[u8]) -> Answer {
        self.dispatch(cdb, None)
    }

    /// Goes on with a command whose plan was [`Plan::Parameters`](crate::Plan::Parameters). `data` may be shorter
    /// than asked for when the initiator sent less.
    pub fn parameters(&mut self, cdb: &[u8], data: &[u8]) -> Answer {
        self.dispatch(cdb, Some(data))
    }
}
