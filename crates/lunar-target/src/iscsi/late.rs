//! What tells that requests of a connection come too late to begin.

use super::connection::Connection;
use super::dispatch::Ingress;
use super::out::Digests;
use super::receive::{Received, last_opcode};
use super::session::Session;
use crate::core::{READS, State};
use crate::registry::Which;
use lunar_runtime::PeerState;
use lunar_wire::iscsi::{Bhs, opcode};
use std::rc::Rc;

const RESET: &str = "the initiator reset the connection";
const CLOSED: &str = "the initiator closed the connection";
const NO_LOGOUT: &str = "the initiator closed the connection without a logout";
const LOST: &str = "the connection was lost";

/// Bytes behind the last command of a closed connection, among which a logout is looked for. Sockets hold less by default
/// (tcp_rmem, tcp(7)).
pub const MOST_UNREAD: usize = 8 << 20;

/// Begins something that may change what others see.
#[inline]
pub fn changes(header: &Bhs) -> bool {
    match header.opcode() {
        opcode::SCSI_COMMAND => !READS.contains(&header.cdb()[0]),
        opcode::TASK_MANAGEMENT => true,
        _ => false,
    }
}

/// Why nothing may begin any more on a connection whose peer is so.
#[inline]
pub fn why(peer: PeerState, ends_with_logout: impl FnOnce() -> bool) -> Option<&'static str> {
    match peer {
        PeerState::Open => None,
        PeerState::Reset => Some(RESET),
        PeerState::Closed => (!ends_with_logout()).then_some(NO_LOGOUT),
    }
}

/// Whether the last of these PDUs is a Logout.
pub fn is_logout_last(digests: Digests, bytes: &[u8]) -> bool {
    is_logout(last_opcode(digests, bytes))
}

/// Whether this opcode is that of a Logout.
pub fn is_logout(opcode: Option<u8>) -> bool {
    opcode == Some(opcode::LOGOUT)
}

/// Has what has arrived come behind a function of another session about these.
///
/// # Errors
/// Why the session is over.
pub fn recall(state: &mut State<Session>, which: &Which) -> Result<(), &'static str> {
    recall_held(state, which);
    let connections: Vec<Rc<Connection>> = state.front().connections().to_vec();
    for connection in &connections {
        let take = |state: &mut State<Session>| connection.take_arrived(&mut Ingress::new(state, connection));
        match state.behind(Some(which.clone()), take) {
            Ok(Received::More | Received::Full) => {}
            Ok(Received::End) => return Err(CLOSED),
            Err(_) => return Err(LOST),
        }
    }
    Ok(())
}

/// Commands that wait for their turn do not begin after a function of another session about these.
fn recall_held(state: &mut State<Session>, which: &Which) {
    let mut held = std::mem::take(&mut state.front_mut().held);
    for pdu in held.values_mut().filter(|pdu| state.is_about(which, pdu.lun())) {
        pdu.recall(which);
    }
    state.front_mut().held = held;
}
