//! NOP, Text, Logout, SNACK, and the keepalive of a connection.

use super::connection::{Connection, Life, Session};
use super::out::Payload;
use super::task::{Aborted, Task};
use crate::access::target_address;
use crate::setup::Target;
use lunar_proto::login::SessionType;
use lunar_proto::name::fold;
use lunar_proto::text::{SendTargets, TargetRecord, TextStep};
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::{Bhs, NONE, pdu};
use std::borrow::Cow;
use std::rc::Weak;
use std::time::{Duration, Instant};

/// How long the last answers may take to leave.
pub const FAREWELL: Duration = Duration::from_secs(3);

/// Logout reasons and responses (RFC 7143 sections 11.14.1 and 11.15.1).
const CLOSE_SESSION: u8 = 0;
const CLOSE_CONNECTION: u8 = 1;
const RECOVERY: u8 = 2;
const CID_NOT_FOUND: u8 = 1;
const RECOVERY_UNSUPPORTED: u8 = 2;

/// The keepalive of a connection.
#[derive(Default)]
pub struct Pings {
    /// Something was received since this was looked at last.
    heard: bool,
    /// The tag of a ping that is not answered.
    pub open: Option<u32>,
    last: u32,
}

impl Pings {
    /// Something was received.
    #[inline]
    pub fn heard(&mut self) {
        self.heard = true;
    }
}

impl Session {
    /// NOP-Out: a ping to answer, or the answer to ours (RFC 7143 section 11.18).
    pub fn nop_out(&mut self, header: &Bhs, data: &[u8]) {
        if header.itt() == NONE {
            if Some(header.word20()) == self.pings.open {
                self.pings.open = None;
            }
            return;
        }
        let len = data.len().min(self.parameters.max_xmit_data_segment_length as usize);
        self.reply(pdu::nop_in(header.lun(), header.itt(), NONE), Payload::Bytes(data[..len].to_vec()));
    }

    /// Text Request (RFC 7143 section 11.10).
    pub fn text_request(&mut self, header: &Bhs, ahs: &[u8], data: &[u8]) {
        let max = self.parameters.max_xmit_data_segment_length;
        let mut text =
            std::mem::replace(&mut self.text, lunar_proto::text::Exchange::new(SessionType::Normal, 0));
        let setup = self.shared.setup();
        let target = self.info.target.clone();
        let own = |key: &str, value: &str| setup.answers.ask(target.as_deref(), key, value);
        let step = text.request(header, data, max, |wanted| self.records(wanted), own);
        self.text = text;
        match step {
            TextStep::Reject(reason) => self.reject(reason, header, ahs),
            TextStep::Reply { pdu, max_xmit_data_segment_length } => {
                self.reply(pdu.header, Payload::Bytes(pdu.data));
                if let Some(len) = max_xmit_data_segment_length
                    && self.out.heeds_declarations()
                {
                    self.parameters.max_xmit_data_segment_length = len;
                }
            }
        }
    }

    /// The targets that this initiator may see, with every address of theirs. One that cannot be told any is left out:
    /// without an address it would be looked for here (RFC 7143 appendix C).
    fn records(&self, wanted: SendTargets<'_>) -> Vec<TargetRecord> {
        let setup = self.shared.setup();
        let door = crate::access::Door { setup: setup.clone(), group: self.door.group, peer: self.door.peer };
        let own = self.info.target.as_deref();
        let named = if let SendTargets::Named(name) = wanted { fold(name) } else { Cow::default() };
        let asked = |name: &str| match wanted {
            SendTargets::All => true,
            SendTargets::Named(_) => named == name && (self.info.discovery || own == Some(name)),
            SendTargets::Empty => own == Some(name),
        };
        let visible =
            setup.targets.values().filter(|t| asked(&t.name) && door.shows(t, &self.info.initiator));
        let record =
            |t: &Target| TargetRecord { name: t.name.clone(), addresses: self.addresses(&t.portal_groups) };
        visible.map(record).filter(|record| !record.addresses.is_empty()).collect()
    }

    fn addresses(&self, groups: &[u16]) -> Vec<String> {
        let portals = self.shared.portals.iter().filter(|p| groups.contains(&p.tag) && !p.transports.srp);
        portals.filter_map(|p| target_address(p.advertise.as_deref(), p.address, self.local, p.tag)).collect()
    }

    /// Logout (RFC 7143 section 11.14). The session has one connection: closing either closes both.
    pub fn logout(&mut self, header: &Bhs, ahs: &[u8]) {
        let (reason, cid) = (header.flags() & 0x7f, (header.word20() >> 16) as u16);
        if self.info.discovery && reason != CLOSE_SESSION {
            return self.reject(RejectReason::Protocol, header, ahs);
        }
        let p = &self.parameters;
        let (wait, retain) = (p.default_time2wait, p.default_time2retain);
        let response = match reason {
            CLOSE_SESSION => 0,
            CLOSE_CONNECTION | RECOVERY if cid != self.info.cid => CID_NOT_FOUND,
            CLOSE_CONNECTION => 0,
            RECOVERY => RECOVERY_UNSUPPORTED,
            _ => return self.reject(RejectReason::Protocol, header, ahs),
        };
        let answer = pdu::logout_response(header.itt(), response, wait, retain);
        if response == 0 {
            self.is_over("logout");
            self.last_word = Some(answer);
        } else {
            self.reply(answer, Payload::Empty);
        }
    }

    /// SNACK: nothing is sent again at ErrorRecoveryLevel 0. A task that asks for its data again cannot end
    /// well (RFC 7143 section 11.16).
    pub fn snack(&mut self, header: &Bhs, ahs: &[u8]) {
        let is_data = header.flags() & 0x0f == 0;
        self.reject(RejectReason::Snack, header, ahs);
        if is_data {
            let asked = |t: &Task| t.command.itt == header.itt();
            self.abort(asked, Aborted::Unrecoverable, false);
        }
    }

    /// Tells the initiator something (RFC 7143 section 11.9).
    pub fn announce(&mut self, lun: u64, event: u8, parameters: [u16; 3], data: Vec<u8>) {
        self.reply(pdu::async_message(lun, event, parameters), Payload::Bytes(data));
    }

    /// Something was received, or what waited to be sent was taken, since this was asked last.
    fn is_alive(&mut self) -> bool {
        std::mem::take(&mut self.pings.heard) | self.out.has_moved()
    }

    /// It is silent, and may be asked for a sign of life.
    fn is_to_be_asked(&mut self) -> bool {
        !self.is_alive() && self.out.may_speak()
    }

    /// Sends a ping; false if the one before it is still open.
    fn ping(&mut self) -> bool {
        if self.pings.open.is_some() {
            return false;
        }
        self.pings.last = (self.pings.last + 1) & 0x7fff_ffff;
        self.pings.open = Some(self.pings.last);
        self.notice(pdu::nop_in(0, NONE, self.pings.last));
        true
    }
}

/// Ends a discovery session that asks nothing any more: who has learned the targets has no use for it.
async fn end_idle_discovery(conn: Weak<Connection>, timeout: Duration) {
    loop {
        lunar_runtime::sleep_until(Instant::now() + timeout).await;
        let Some(c) = conn.upgrade() else { return };
        let mut session = c.session.borrow_mut();
        if session.life == Life::Over {
            return;
        }
        if !session.is_alive() {
            session.end.get_or_insert("a discovery session was idle for too long");
            drop(session);
            return c.line.close();
        }
    }
}

/// Pings a silent initiator, and ends the connection when a ping stays without any answer. Discovery sessions get no
/// NOP-In.
pub async fn keep_alive(conn: Weak<Connection>) {
    if let Some(timeout) = discovery(&conn) {
        return end_idle_discovery(conn, timeout).await;
    }
    let Some((interval, timeout)) = schedule(&conn) else { return };
    loop {
        lunar_runtime::sleep_until(Instant::now() + interval).await;
        let Some(c) = conn.upgrade() else { return };
        if c.session.borrow().life == Life::Over {
            return;
        }
        if !c.session.borrow_mut().is_to_be_asked() {
            continue;
        }
        c.session.borrow_mut().ping();
        c.flush();
        // The ping itself proves nothing.
        c.session.borrow_mut().out.has_moved();
        drop(c);
        lunar_runtime::sleep_until(Instant::now() + timeout).await;
        let Some(c) = conn.upgrade() else { return };
        if !c.session.borrow_mut().is_alive() {
            c.session.borrow_mut().end.get_or_insert("no answer to a ping");
            c.line.close();
            return;
        }
        c.session.borrow_mut().pings.open = None;
    }
}

/// How long a discovery session may be silent; None for a normal session.
fn discovery(conn: &Weak<Connection>) -> Option<Duration> {
    let conn = conn.upgrade()?;
    let session = conn.session.borrow();
    session.info.discovery.then_some(session.door.setup.limits.discovery_timeout)
}

/// The times of the keepalive; None if there is to be none.
fn schedule(conn: &Weak<Connection>) -> Option<(Duration, Duration)> {
    let conn = conn.upgrade()?;
    let session = conn.session.borrow();
    let times = &session.door.setup.session;
    Some((times.nop_interval?, times.nop_timeout))
}
