//! The state of one connection of a session: what was negotiated on it, StatSN, its send queue, and its logout.

use super::transport::TransportSender;
use crate::Error;
use lunar_proto::parameters::Parameters;
use lunar_runtime::iscsi::pdu_queue::{Digests, Payload};
use lunar_wire::iscsi::Bhs;
use std::time::{Duration, Instant};

/// Answers to pings that may wait to be sent.
const MOST_PONGS: u32 = 65536;

/// One connection, in full feature phase.
pub struct ConnectionState {
    parameters: Parameters,
    digests: Digests,
    exp_stat_sn: u32,
    out: TransportSender,
    /// Why it cannot go on.
    fault: Option<Error>,
    /// When the latest PDU came.
    heard: Instant,
    /// Bytes that had left at the latest look.
    left: u64,
    /// Answers to pings that may still wait to be sent.
    pongs: u32,
    /// Seconds to wait before the next connection (RFC 7143 section 7.5).
    time2wait_s: u16,
    logout: Logout,
}

/// How far the logout has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Logout {
    /// The target wants it.
    is_asked: bool,
    /// When the request has to be sent at the latest.
    by: Option<Instant>,
    /// The request is on its way: nothing follows it on this connection (RFC 7143 section 11.14).
    is_sent: bool,
    /// The answer came, and the target has ended all tasks.
    is_done: bool,
}

impl ConnectionState {
    /// None yet.
    pub fn none(now: Instant) -> ConnectionState {
        ConnectionState::new(Parameters::default(), 0, TransportSender::default(), now)
    }

    /// A connection that has logged in.
    pub fn new(
        parameters: Parameters,
        exp_stat_sn: u32,
        out: TransportSender,
        now: Instant,
    ) -> ConnectionState {
        ConnectionState {
            digests: Digests { header: parameters.header_digest, data: parameters.data_digest },
            time2wait_s: parameters.default_time2wait,
            parameters,
            exp_stat_sn,
            out,
            fault: None,
            heard: now,
            left: 0,
            pongs: 0,
            logout: Logout::default(),
        }
    }

    /// What was negotiated.
    #[inline]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Which digests that means.
    #[inline]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// StatSN of the next answer.
    #[inline]
    pub fn exp_stat_sn(&self) -> u32 {
        self.exp_stat_sn
    }

    /// Takes the StatSN of an answer; false if it is not the next one.
    #[inline]
    pub fn take_stat_sn(&mut self, header: &Bhs) -> bool {
        let is_next = header.stat_sn() == self.exp_stat_sn;
        self.exp_stat_sn = self.exp_stat_sn.wrapping_add(is_next.into());
        is_next
    }

    /// The send queue.
    #[inline]
    pub fn out(&mut self) -> &mut TransportSender {
        &mut self.out
    }

    /// The send queue, with what was negotiated.
    #[inline]
    pub fn out_with_parameters(&mut self) -> (&mut TransportSender, &Parameters, Digests) {
        (&mut self.out, &self.parameters, self.digests)
    }

    /// Bytes that have left, and those that will have when all that waits now has.
    #[inline]
    pub fn progress(&self) -> (u64, u64) {
        (self.out.left(), self.out.end())
    }

    /// Queues a PDU.
    pub fn push(&mut self, header: Bhs, payload: Payload) {
        self.out.push(header, payload, self.digests);
    }

    /// It is over: nothing is sent any more.
    pub fn end(&mut self) {
        self.out = TransportSender::default();
    }

    /// It cannot go on. The first reason stays.
    pub fn fail(&mut self, error: Error) {
        self.fault.get_or_insert(error);
    }

    /// Why it cannot go on.
    pub fn fault(&self) -> Option<&Error> {
        self.fault.as_ref()
    }

    /// The same, once.
    pub fn take_fault(&mut self) -> Option<Error> {
        self.fault.take()
    }

    /// A PDU has come.
    pub fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// When the latest PDU came.
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Bytes that had left at the latest look, and at this one.
    pub fn look(&mut self) -> (u64, u64) {
        let left = self.out.left();
        (std::mem::replace(&mut self.left, left), left)
    }

    /// Counts an answer to a ping. False: the target does not read them.
    pub fn count_pong(&mut self) -> bool {
        self.pongs = if self.out.waiting() == 0 { 0 } else { self.pongs + 1 };
        self.pongs <= MOST_PONGS
    }

    /// Seconds to wait before the next connection.
    pub fn time2wait_s(&self) -> u16 {
        self.time2wait_s
    }

    /// The target has set another time to wait.
    pub fn set_time2wait_s(&mut self, seconds: u16) {
        self.time2wait_s = seconds;
    }

    /// The target wants a logout: no command is sent before it.
    pub fn ask_logout(&mut self) {
        self.logout.is_asked = true;
    }

    /// The target wants a logout within this time. The earliest deadline of several such messages counts.
    pub fn ask_logout_within(&mut self, within: Duration, now: Instant) {
        // The request has to arrive by then.
        let by = now + (within - (within / 4).min(Duration::from_secs(1)));
        self.logout.is_asked = true;
        self.logout.by = Some(self.logout.by.map_or(by, |before| before.min(by)));
    }

    /// The target wants a logout.
    #[inline]
    pub fn is_logout_asked(&self) -> bool {
        self.logout.is_asked
    }

    /// When the logout request has to be sent at the latest.
    pub fn logout_by(&self) -> Option<Instant> {
        self.logout.by
    }

    /// The logout request is on its way.
    pub fn send_logout(&mut self) {
        self.logout.is_sent = true;
    }

    /// The logout request is on its way: nothing follows it.
    #[inline]
    pub fn is_logging_out(&self) -> bool {
        self.logout.is_sent
    }

    /// The logout was answered; `is_done`: the target has ended all tasks (RFC 7143 section 11.14).
    pub fn end_logout(&mut self, is_done: bool) {
        self.logout.is_done = is_done;
    }

    /// The logout has ended all tasks.
    pub fn is_logged_out(&self) -> bool {
        self.logout.is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::iscsi::{opcode, pdu};

    /// SN-004: in serial number arithmetic.
    #[test]
    fn stat_sn_runs_on_through_the_wrap() {
        let mut connection =
            ConnectionState::new(Parameters::default(), u32::MAX, TransportSender::default(), Instant::now());
        let mut take = |stat_sn| {
            let mut header = Bhs::new(opcode::NOP_IN);
            pdu::stamp(&mut header, stat_sn, 0, 3);
            connection.take_stat_sn(&header)
        };
        assert!(take(u32::MAX) && !take(1));
        assert_eq!(connection.exp_stat_sn(), 0);
    }
}
