//! Proofs that a target has ended commands of a lost connection.

use super::task::Task;
use crate::nexus::TargetPort;
use std::time::Instant;

/// Why the target carries some orphans out no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A login with the same name and ISID has succeeded at this target port. Before it answers, a target ends the session
    /// of the same nexus with its tasks (RFC 7143 section 6.3.5). Another target port means another nexus.
    Login(TargetPort),
    /// A logical unit, or with None all of the target, was reset by a function that was sent at this time: that ends the
    /// tasks of all nexuses (SAM-5 section 7.7). What was lost later may have arrived after the reset.
    Reset(Option<u64>, Instant),
    /// The target has answered ABORT TASK for this tag, on the connection of the command.
    Aborted(u32),
}

impl Proof {
    /// The target carries this command out no more.
    pub fn covers(self, task: &Task) -> bool {
        match self {
            Proof::Login(port) => task.port.as_deref() == Some(&port),
            Proof::Reset(lun, at) => lun.is_none_or(|lun| task.lun == lun) && task.sent <= at,
            Proof::Aborted(tag) => task.tag == tag,
        }
    }
}
