//! Proofs that the target no longer executes commands of a lost connection.

use super::task::Task;
use crate::nexus::TargetPort;
use std::time::Instant;

/// The reason why the target no longer executes some orphans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A login with the same name and ISID has succeeded at this target port. The target ends the old session of the
    /// nexus and its tasks before it responds (RFC 7143 section 6.3.5). Another target port means another nexus.
    Login(TargetPort),
    /// A logical unit was reset, or with None the whole target. The reset was sent at this time. It ends the tasks of
    /// all nexuses (SAM-5 section 7.7), but commands of connections that were lost later may have arrived after it.
    Reset(Option<u64>, Instant),
    /// The target has responded to ABORT TASK for this tag, on the connection of the command.
    Aborted(u32),
}

impl Proof {
    /// Whether this proof covers a command.
    pub fn covers(self, task: &Task) -> bool {
        match self {
            Proof::Login(port) => task.port.as_deref() == Some(&port),
            Proof::Reset(lun, at) => lun.is_none_or(|lun| task.lun == lun) && task.sent <= at,
            Proof::Aborted(tag) => task.tag == tag,
        }
    }
}
