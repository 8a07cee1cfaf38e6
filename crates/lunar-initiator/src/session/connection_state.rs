//! The state of one connection of a session: negotiated parameters, StatSN, send queue and logout.

use super::transport::TransportSender;
use crate::Error;
use lunar_proto::parameters::Parameters;
use lunar_runtime::iscsi::pdu_queue::{Digests, Payload};
use lunar_wire::iscsi::Bhs;
use std::time::{Duration, Instant};

/// The maximum number of queued replies to NOP-Ins.
const MAX_PONGS: u32 = 65536;

/// A connection in the full feature phase.
pub struct ConnectionState {
    parameters: Parameters,
    digests: Digests,
    exp_stat_sn: u32,
    out: TransportSender,
    /// The error that ends the connection.
    fault: Option<Error>,
    /// The time of the last received PDU.
    heard: Instant,
    /// Bytes sent at the time of the last check.
    left: u64,
    /// The number of queued replies to NOP-Ins.
    pongs: u32,
    /// Seconds to wait before the next connection (RFC 7143 section 7.5).
    time2wait_s: u16,
    logout: Logout,
}

/// The progress of the logout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Logout {
    /// Whether the target has requested a logout.
    is_asked: bool,
    /// The deadline to send the request.
    by: Option<Instant>,
    /// Whether the request is queued. No PDU may follow it on this connection (RFC 7143 section 11.14).
    is_sent: bool,
    /// Whether the response was received and the target has ended all tasks.
    is_done: bool,
}

impl ConnectionState {
    /// The state before the first connection.
    pub fn none(now: Instant) -> ConnectionState {
        ConnectionState::new(Parameters::default(), 0, TransportSender::default(), now)
    }

    /// The state of a connection after login.
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

    /// The negotiated parameters.
    #[inline]
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The negotiated digests.
    #[inline]
    pub fn digests(&self) -> Digests {
        self.digests
    }

    /// The StatSN of the next response.
    #[inline]
    pub fn exp_stat_sn(&self) -> u32 {
        self.exp_stat_sn
    }

    /// Checks and advances StatSN. Returns false if it is not the expected one.
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

    /// The send queue and the negotiated parameters.
    #[inline]
    pub fn out_with_parameters(&mut self) -> (&mut TransportSender, &Parameters, Digests) {
        (&mut self.out, &self.parameters, self.digests)
    }

    /// The number of bytes sent, and the total including all queued bytes.
    #[inline]
    pub fn progress(&self) -> (u64, u64) {
        (self.out.left(), self.out.end())
    }

    /// Queues a PDU.
    pub fn push(&mut self, header: Bhs, payload: Payload) {
        self.out.push(header, payload, self.digests);
    }

    /// Records that the connection has ended: nothing more is sent.
    pub fn end(&mut self) {
        self.out = TransportSender::default();
    }

    /// Records the error that ends the connection, unless one is recorded already.
    pub fn fail(&mut self, error: Error) {
        self.fault.get_or_insert(error);
    }

    /// The error that ends the connection.
    pub fn fault(&self) -> Option<&Error> {
        self.fault.as_ref()
    }

    /// Takes the error that ends the connection.
    pub fn take_fault(&mut self) -> Option<Error> {
        self.fault.take()
    }

    /// Records that a PDU was received.
    pub fn hear(&mut self, now: Instant) {
        self.heard = now;
    }

    /// The time of the last received PDU.
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Bytes sent at the time of the previous check, and now.
    pub fn send_progress(&mut self) -> (u64, u64) {
        let left = self.out.left();
        (std::mem::replace(&mut self.left, left), left)
    }

    /// Counts a reply to a NOP-In. Returns false if too many are queued because the target does not read.
    pub fn count_pong(&mut self) -> bool {
        self.pongs = if self.out.waiting() == 0 { 0 } else { self.pongs + 1 };
        self.pongs <= MAX_PONGS
    }

    /// Seconds to wait before the next connection.
    pub fn time2wait_s(&self) -> u16 {
        self.time2wait_s
    }

    /// Sets the Time2Wait that the target has sent.
    pub fn set_time2wait_s(&mut self, seconds: u16) {
        self.time2wait_s = seconds;
    }

    /// Records that the target requests a logout: no further command is sent on this connection.
    pub fn ask_logout(&mut self) {
        self.logout.is_asked = true;
    }

    /// Records that the target requests a logout within this time. Of several deadlines, the earliest applies.
    pub fn ask_logout_within(&mut self, within: Duration, now: Instant) {
        // The request must arrive before the deadline.
        let by = now + (within - (within / 4).min(Duration::from_secs(1)));
        self.logout.is_asked = true;
        self.logout.by = Some(self.logout.by.map_or(by, |before| before.min(by)));
    }

    /// Whether the target has requested a logout.
    #[inline]
    pub fn is_logout_asked(&self) -> bool {
        self.logout.is_asked
    }

    /// The deadline to send the logout request.
    pub fn logout_by(&self) -> Option<Instant> {
        self.logout.by
    }

    /// Records that the logout request is queued: no PDU may follow it.
    pub fn send_logout(&mut self) {
        self.logout.is_sent = true;
    }

    /// Whether the logout request is queued.
    #[inline]
    pub fn is_logging_out(&self) -> bool {
        self.logout.is_sent
    }

    /// Records the Logout Response. `is_done`: the target has ended all tasks (RFC 7143 section 11.14).
    pub fn end_logout(&mut self, is_done: bool) {
        self.logout.is_done = is_done;
    }

    /// Whether the logout has ended all tasks.
    pub fn is_logged_out(&self) -> bool {
        self.logout.is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::iscsi::{opcode, pdu};

    /// SN-004: StatSN uses serial number arithmetic.
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
