//! The session state without a socket, for fuzz targets.

use super::command_window::CommandWindow;
use super::session_state::{Online, SessionState};
use super::task::Waiter;
use super::text_exchange::TextResponse;
use super::transport::TransportSender;
use crate::nexus::TargetPort;
use crate::{Command, Direction, Error, ErrorCode};
use lunar_proto::parameters::Parameters;
use lunar_runtime::Buf;
use lunar_runtime::iscsi::pdu_queue::Digests;
use lunar_runtime::iscsi::receive::{PduReceiver, encode};
use lunar_wire::iscsi::{Bhs, pdu};
use lunar_wire::scsi::cdb;
use std::fmt;
use std::task::Waker;
use std::time::Instant;

/// MaxRecvDataSegmentLength of the initiator.
const SEGMENT: u32 = 65536;
/// The maximum number of commands in flight.
const COMMANDS: usize = 16;
/// The LUN of all commands.
const LUN: u64 = 1 << 48;

/// A session after login. The fuzzer supplies all bytes from the target.
pub struct Session {
    state: SessionState,
    receiver: PduReceiver,
    digests: Digests,
    commands: Vec<(u32, usize)>,
    answers: Vec<TextResponse>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("commands", &self.commands).finish_non_exhaustive()
    }
}

impl Session {
    /// A session with or without data digests.
    pub fn new(data_digest: bool) -> Session {
        let digests = Digests { header: false, data: data_digest };
        let mut session = Session {
            state: SessionState::new(COMMANDS as u16, Instant::now),
            receiver: PduReceiver::new(digests, SEGMENT as usize, Vec::new()),
            digests,
            commands: Vec::new(),
            answers: Vec::new(),
        };
        session.state.port = Some(TargetPort::PortalGroup(1));
        session.log_in();
        session
    }

    fn log_in(&mut self) {
        let parameters = Parameters {
            data_digest: self.digests.data,
            initial_r2t: false,
            first_burst_length: 1024,
            max_burst_length: 4096,
            max_xmit_data_segment_length: 512,
            max_recv_data_segment_length: SEGMENT,
            ..Parameters::default()
        };
        let command_window = CommandWindow { cmd_sn: 1, exp_cmd_sn: 1, max_cmd_sn: 64 };
        self.receiver = PduReceiver::new(self.digests, SEGMENT as usize, Vec::new());
        self.state.connect(parameters, command_window, 1, TransportSender::default());
        self.state.online = Online::Yes;
        self.state.pump();
    }

    /// Sends a command that reads or writes `len` bytes, if the limit permits.
    pub fn submit(&mut self, reads: bool, len: usize) {
        if self.commands.len() >= COMMANDS {
            return;
        }
        let (cdb, data) = match (reads, len) {
            (_, 0) => (cdb::test_unit_ready(), Direction::None),
            (true, _) => (cdb::read_10(0, 1), Direction::In(Buf::zeroed(len))),
            (false, _) => (cdb::write_10(0, 1, false), Direction::Out(Buf::zeroed(len))),
        };
        if let Ok(tag) = self.state.submit(Command::new(LUN, cdb, data), Waiter::Unknown) {
            self.commands.push((tag, len));
        }
    }

    /// Sends a text request.
    pub fn ask(&mut self, text: &[u8]) {
        // Limits the number of concurrent requests.
        if self.answers.len() < COMMANDS {
            self.answers.push(self.state.start_text(text.to_vec()));
        }
    }

    /// The tag of the text request in flight.
    pub fn text_tag(&self) -> Option<u32> {
        self.state.text_tag()
    }

    /// Aborts a command, and assumes that the target has executed ABORT TASK.
    pub fn abort(&mut self, which: usize) {
        let Some(tag) = self.tag(which) else { return };
        self.state.abort(tag, &Error::new(ErrorCode::Aborted, "aborted"));
        self.state.ended_by_abort([tag], "aborted");
        self.receive(&[]);
    }

    /// The tag of a command in flight.
    pub fn tag(&self, which: usize) -> Option<u32> {
        (!self.commands.is_empty()).then(|| self.commands[which % self.commands.len()].0)
    }

    /// Encodes a PDU of the target with the expected StatSN and a valid command window.
    pub fn encode(&self, mut header: Bhs, data: &[u8]) -> Vec<u8> {
        let n = &self.state.command_window;
        pdu::stamp(&mut header, self.state.connection.exp_stat_sn(), n.cmd_sn, n.cmd_sn.wrapping_add(32));
        encode(self.digests, header, &[], data)
    }

    /// Receives bytes from the target. Replaces a failed connection by the next one, checks the results of completed
    /// commands, and discards sent bytes.
    pub fn receive(&mut self, bytes: &[u8]) {
        let broken =
            self.receiver.feed(bytes, &mut self.state).is_err() || self.state.connection.fault().is_some();
        self.state.events.clear();
        if std::mem::take(&mut self.state.to_check) {
            // Assumes that the identity checks succeed.
            self.state.online = Online::Yes;
            self.state.pump();
        }
        if broken {
            self.reconnect();
        }
        let sent = self.state.connection.out().take_bytes();
        assert!(sent.len() < 32 << 20, "{} bytes were sent for {}", sent.len(), bytes.len());
        self.state.settle();
        self.answers.retain(|answer| answer.is_empty());
        let state = &mut self.state;
        self.commands.retain(|(tag, len)| match state.poll(*tag, Waker::noop()) {
            None => true,
            Some((result, buf)) => {
                assert_eq!(buf.map_or(0, |buf| buf.len()), *len, "the buffer is returned");
                assert!(result.is_err() || result.is_ok_and(|done| done.transferred <= *len));
                false
            }
        });
        assert_eq!(
            self.state.tasks.count(),
            self.commands.len(),
            "the number of tasks matches the number of commands"
        );
    }

    /// Loses the connection and makes the next one.
    pub fn reconnect(&mut self) {
        self.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        self.log_in();
    }
}
