//! Detection of stale requests on a connection.

use super::pdu_queue::Digests;
use super::receive::last_opcode;
use crate::end_reason::EndReason;
use lunar_runtime::PeerState;
use lunar_wire::iscsi::{Bhs, opcode};
use lunar_wire::scsi::op;

/// Maximum number of bytes after the last command of a closed connection that are searched for a Logout. By default,
/// socket buffers are smaller (`tcp_rmem`, tcp(7)).
pub const MAX_UNREAD: usize = 8 << 20;

/// Whether the request may change state that others see.
#[inline]
pub fn changes(header: &Bhs) -> bool {
    match header.opcode() {
        opcode::SCSI_COMMAND => !op::is_read(header.cdb()),
        opcode::TASK_MANAGEMENT => true,
        _ => false,
    }
}

/// The reason why requests are stale on a connection with this peer state; None if they are not.
#[inline]
pub fn why(peer: PeerState, ends_with_logout: impl FnOnce() -> bool) -> Option<EndReason> {
    match peer {
        PeerState::Open => None,
        PeerState::Reset => Some(EndReason::ConnectionReset),
        PeerState::Closed => (!ends_with_logout()).then_some(EndReason::ClosedWithoutLogout),
    }
}

/// Whether the last of these PDUs is a Logout.
pub fn is_logout_last(digests: Digests, bytes: &[u8]) -> bool {
    is_logout(last_opcode(digests, bytes))
}

/// Whether the opcode is that of a Logout.
pub fn is_logout(opcode: Option<u8>) -> bool {
    opcode == Some(opcode::LOGOUT)
}
