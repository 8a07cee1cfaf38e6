//! Commands that come too late. The kernel keeps what a connection has brought when the connection is over, so a core that
//! was held up may find commands of an initiator that has long gone, repeated them on another path, and written newer data.
//!
//! No command begins after the initiator has reset the connection, closed it without a logout, or logged in again; and none
//! that had arrived before a task management function of another session was carried out begins after that.

use super::carrier::Line;
use super::connection::{Connection, Life, Session};
use super::luns::Found;
use super::receive::{Arrived, Received, Sink, last_opcode};
use super::task::Aborted;
use crate::fence::{self, Fence, InFlight};
use crate::registry::{LOGGED_IN_AGAIN, Which};
use crate::session::Info;
use lunar_runtime::PeerState;
use lunar_wire::iscsi::{Bhs, opcode};
use lunar_wire::scsi::op;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

const RESET: &str = "the initiator reset the connection";
const CLOSED: &str = "the initiator closed the connection";
const NO_LOGOUT: &str = "the initiator closed the connection without a logout";
const LOST: &str = "the connection was lost";

/// READ changes nothing, so nobody is harmed by one that begins late.
pub const READS: [u8; 4] = [op::READ_6, op::READ_10, op::READ_12, op::READ_16];

/// Bytes behind the last command of a closed connection, among which a logout is looked for. Sockets hold less by default
/// (tcp_rmem, tcp(7)).
const MOST_UNREAD: usize = 8 << 20;

/// Begins something that may change what others see.
#[inline]
pub fn changes(header: &Bhs) -> bool {
    match header.opcode() {
        opcode::SCSI_COMMAND => !READS.contains(&header.cdb()[0]),
        opcode::TASK_MANAGEMENT => true,
        _ => false,
    }
}

/// Whether a task had to wait before it could begin.
#[derive(Default)]
pub struct Waited(Cell<bool>);

impl Waited {
    /// It has waited for its data.
    pub fn for_data() -> Waited {
        Waited(Cell::new(true))
    }

    /// Does this, and takes note if it waits.
    pub async fn at<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let polled = work.as_mut().poll(cx);
            self.0.set(self.0.get() || polled.is_pending());
            polled
        })
        .await
    }
}

impl Session {
    /// Whether a request comes too late to begin; then the session is over. `behind` was received and is not taken yet; None:
    /// that is with the receiver.
    #[inline]
    pub fn is_late(&mut self, behind: Option<&[u8]>) -> bool {
        let Some(conn) = self.conn.upgrade() else { return false };
        let Some(why) = conn.why_late(self, behind) else { return false };
        self.is_over(why);
        true
    }

    /// Whether commands of this session that have arrived and were not taken yet belong before a function of another one. Those
    /// of other initiators do not: nobody has repeated them elsewhere.
    fn is_recalled(&mut self, which: &Which, from: &Info) -> bool {
        match which {
            Which::Units(_) => self.info.may_be_of_host(from),
            Which::Nexuses(list) => self.luns.used().any(|h| list.contains(&h.nexus.id())),
        }
    }
}

impl Session {
    /// Whether a function about these ends commands with this LUN field.
    pub fn is_about(&mut self, which: &Which, lun: u64) -> bool {
        match self.luns.find(lun) {
            Found::Unit(handle) => which.names(&handle.unit, handle.nexus.id()),
            Found::WellKnown | Found::Absent => false,
        }
    }

    /// Commands that wait for their turn do not begin after a function of another session about these.
    fn recall_held(&mut self, which: &Which) {
        let mut held = std::mem::take(&mut self.held);
        for held in held.values_mut().filter(|held| self.is_about(which, held.lun())) {
            held.recall(which);
        }
        self.held = held;
    }

    /// Takes a command that a data mover has kept; with `recalled`, a function of another session comes before it.
    pub fn take_kept(&mut self, pdu: Arrived<'_>, recalled: Option<Which>) -> bool {
        let outer = self.recalling.clone();
        self.recalling = recalled.or(self.recalling.take());
        let more = self.take(pdu);
        self.recalling = outer;
        more
    }
}

impl Connection {
    /// Why nothing may begin any more. `behind` was received and is not taken yet; None: that is with the receiver.
    #[inline]
    pub fn why_late(&self, session: &Session, behind: Option<&[u8]>) -> Option<&'static str> {
        match self.line.peer_state() {
            PeerState::Open => None,
            PeerState::Reset => Some(RESET),
            PeerState::Closed => (!self.ends_with_logout(session, behind)).then_some(NO_LOGOUT),
        }
    }

    /// A closed connection ends with a Logout (RFC 7143 section 11.14): it did not fail, and its commands count. Its initiator
    /// sends no more, so there is one answer.
    #[cold]
    fn ends_with_logout(&self, session: &Session, behind: Option<&[u8]>) -> bool {
        if let Some(known) = self.logs_out.get() {
            return known;
        }
        let unread = match &self.line {
            Line::Tcp(stream) => stream.peek(MOST_UNREAD),
            Line::Moved(_) => Vec::new(),
        };
        let last = match behind {
            Some(behind) => last_opcode(session.digests, &[behind, &unread[..]].concat()),
            None => self.incoming.borrow().last_opcode(&unread),
        };
        let logs_out = last == Some(opcode::LOGOUT) || session.last_word.is_some();
        self.logs_out.set(Some(logs_out));
        logs_out
    }

    /// Begins a task, which is under way while what comes back lives. None: it may not begin any more, and the session is over.
    pub fn lets_begin(&self, serial: u64, waited: &Waited) -> Option<InFlight<Arc<Fence>>> {
        if waited.0.get() {
            self.line.look_anew();
        }
        let mut session = self.session.borrow_mut();
        let late = match session.life {
            Life::Over => session.end.or(Some(CLOSED)),
            Life::Running | Life::Leaving => self.why_late(&session, None),
        };
        // The last question: from here on the end of the session waits for this task.
        let under_way = fence::enter(self.fence.clone());
        let why = match (late, under_way) {
            (None, Some(under_way)) => return Some(under_way),
            (Some(why), _) => why,
            (None, None) => LOGGED_IN_AGAIN,
        };
        session.is_over(why);
        session.abort(|task| task.serial == serial, Aborted::Silently, false);
        drop(session);
        self.close();
        None
    }

    /// Takes the commands that have arrived before a function of another session: they do not begin after it. They were in
    /// no task set, so they are not aborted but answered BUSY: an initiator that lives sends them again.
    pub fn recall(&self, which: &Which, from: &Info) {
        let mut session = self.session.borrow_mut();
        if session.life == Life::Over || !session.is_recalled(which, from) {
            return;
        }
        session.recall_held(which);
        if let Some(mover) = session.out.mover() {
            mover.recall(&mut session, which);
        }
        session.recalling = Some(which.clone());
        let received = self.incoming.borrow_mut().take_arrived(&self.line, &mut session);
        session.recalling = None;
        match received {
            Ok(Received::More | Received::Full) => return,
            Ok(Received::End) => session.is_over(CLOSED),
            Err(_) => session.is_over(LOST),
        }
        drop(session);
        self.close();
    }
}
