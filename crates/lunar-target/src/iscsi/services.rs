//! NOP, Text, Logout and SNACK.

use super::dispatch::PduDispatcher;
use super::pdu_queue::Payload;
use super::session::IscsiSession;
use crate::core::AbortResponse;
use crate::end_reason::EndReason;
use lunar_proto::text::{SendTargets, TextStep};
use lunar_wire::iscsi::status::{RejectReason, logout_response};
use lunar_wire::iscsi::{Bhs, NONE, pdu};

/// Logout reasons (RFC 7143 section 11.14.1).
const CLOSE_SESSION: u8 = 0;
const CLOSE_CONNECTION: u8 = 1;
const RECOVERY: u8 = 2;

impl PduDispatcher<'_> {
    /// NOP-Out: a ping of the initiator, or its answer to a ping of the target (RFC 7143 section 11.18).
    pub(super) fn nop_out(&mut self, header: &Bhs, data: &[u8]) {
        if header.itt() == NONE {
            return self.connection.keepalive().answered(header.ttt());
        }
        let len = data.len().min(self.connection.max_xmit());
        self.reply(pdu::nop_in(header.lun(), header.itt(), NONE), Payload::Bytes(data[..len].to_vec()));
    }

    /// Text Request (RFC 7143 section 11.10).
    pub(super) fn text_request(&mut self, header: &Bhs, ahs: &[u8], data: &[u8]) {
        let (session, connection) = (self.state.front(), self.connection);
        let directory = session.directory();
        let own = |key: &str, value: &str| directory.ask(key, value);
        let records = |wanted: SendTargets<'_>| directory.records(wanted, connection.local());
        let max = connection.max_xmit() as u32;
        let step = connection.text().borrow_mut().request(header, data, max, records, own);
        match step {
            TextStep::Reject(reason) => self.reject(reason, header, ahs),
            TextStep::Reply { pdu, max_xmit_data_segment_length } => {
                self.reply(pdu.header, Payload::Bytes(pdu.data));
                if let Some(len) = max_xmit_data_segment_length {
                    self.connection.set_max_xmit(len);
                }
            }
        }
    }

    /// Logout (RFC 7143 section 11.14). A login negotiates MaxConnections=1, so closing the connection closes the
    /// session.
    pub(super) fn logout(&mut self, header: &Bhs, ahs: &[u8]) {
        let (reason, cid) = (header.flags() & 0x7f, header.cid());
        if self.state.info().is_discovery() && reason != CLOSE_SESSION {
            return self.reject(RejectReason::Protocol, header, ahs);
        }
        let p = self.state.front().parameters();
        let (wait, retain) = (p.default_time2wait, p.default_time2retain);
        let response = match reason {
            CLOSE_SESSION => logout_response::CLOSED,
            CLOSE_CONNECTION | RECOVERY if !self.state.front().has_cid(cid) => logout_response::CID_NOT_FOUND,
            CLOSE_CONNECTION => logout_response::CLOSED,
            RECOVERY => logout_response::RECOVERY_UNSUPPORTED,
            _ => return self.reject(RejectReason::Protocol, header, ahs),
        };
        let answer = pdu::logout_response(header.itt(), response, wait, retain);
        if response != logout_response::CLOSED {
            self.reply(answer, Payload::Empty);
        } else if reason == CLOSE_CONNECTION && self.state.front().has_others(cid) {
            self.close_connection(cid, answer);
        } else {
            self.state.end_with(EndReason::Logout);
            self.connection.set_logout_response(self.connection.cid(), answer);
        }
    }

    /// Begins to close one of several connections. Its receive loop does the rest.
    fn close_connection(&self, cid: u16, answer: Bhs) {
        let Some(connection) = self.state.front().connection(cid) else { return };
        connection.set_logout_response(self.connection.cid(), answer);
        connection.begin_close();
        if cid != self.connection.cid() {
            connection.stop_receiving();
        }
    }

    /// SNACK: at ErrorRecoveryLevel 0 nothing is retransmitted. A task whose data are requested again fails (RFC 7143
    /// section 11.16).
    pub(super) fn snack(&mut self, header: &Bhs, ahs: &[u8]) {
        let is_data = header.flags() & 0x0f == 0;
        self.reject(RejectReason::Snack, header, ahs);
        if is_data {
            self.state.abort_tag(header.itt(), AbortResponse::RetransmissionRefused);
        }
    }
}

impl IscsiSession {
    fn has_cid(&self, cid: u16) -> bool {
        self.connection(cid).is_some()
    }
}
