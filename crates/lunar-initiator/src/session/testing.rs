//! The session's machine without its socket, for fuzzers.

use super::carrier::Out;
use super::machine::{Machine, Online};
use super::numbers::Numbers;
use super::talk::Told;
use super::task::Waiter;
use crate::nexus::TargetPort;
use crate::{Command, Direction, Error, Kind};
use lunar_proto::parameters::Parameters;
use lunar_runtime::Buf;
use lunar_runtime::iscsi::out::Digests;
use lunar_runtime::iscsi::receive::{Receiver, encode};
use lunar_wire::iscsi::{Bhs, pdu};
use lunar_wire::scsi::cdb;
use std::task::Waker;
use std::time::Instant;

/// Bytes of a data segment that this side takes.
const SEGMENT: u32 = 65536;
/// Commands that are in flight at a time.
const COMMANDS: usize = 16;
/// Logical unit of the commands.
const LUN: u64 = 1 << 48;

/// A session that is logged in, and a target of which every byte is chosen.
pub struct Session {
    machine: Machine,
    receiver: Receiver,
    digests: Digests,
    commands: Vec<(u32, usize)>,
    told: Vec<Told>,
}

impl Session {
    /// A session with or without data digests.
    pub fn new(data_digest: bool) -> Session {
        let digests = Digests { header: false, data: data_digest };
        let mut session = Session {
            machine: Machine::new(COMMANDS as u16, Instant::now),
            receiver: Receiver::new(digests, SEGMENT as usize, Vec::new()),
            digests,
            commands: Vec::new(),
            told: Vec::new(),
        };
        session.machine.port = Some(TargetPort::Group(1));
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
        let numbers = Numbers { cmd_sn: 1, exp_cmd_sn: 1, max_cmd_sn: 64 };
        self.receiver = Receiver::new(self.digests, SEGMENT as usize, Vec::new());
        self.machine.connect(parameters, numbers, 1, Out::default());
        self.machine.online = Online::Yes;
        self.machine.pump();
    }

    /// Sends a command that reads or writes so many bytes, if there is room for one.
    pub fn submit(&mut self, reads: bool, len: usize) {
        if self.commands.len() >= COMMANDS {
            return;
        }
        let (cdb, data) = match (reads, len) {
            (_, 0) => (cdb::test_unit_ready(), Direction::None),
            (true, _) => (cdb::read_10(0, 1), Direction::In(Buf::zeroed(len))),
            (false, _) => (cdb::write_10(0, 1, false), Direction::Out(Buf::zeroed(len))),
        };
        if let Ok(tag) = self.machine.submit(Command::new(LUN, cdb, data), Waiter::Unknown) {
            self.commands.push((tag, len));
        }
    }

    /// Asks in key text.
    pub fn ask(&mut self, text: &[u8]) {
        // A few at a time are enough.
        if self.told.len() < COMMANDS {
            self.told.push(self.machine.talk(text.to_vec()));
        }
    }

    /// The tag of a text exchange that is under way.
    pub fn text_tag(&self) -> Option<u32> {
        self.machine.talk_tag()
    }

    /// The owner of a command wants its end, and the target has carried out ABORT TASK.
    pub fn abort(&mut self, which: usize) {
        let Some(tag) = self.tag(which) else { return };
        self.machine.abort(tag, &Error::new(Kind::Aborted, "aborted"));
        self.machine.ended_by_abort([tag], "aborted");
        self.receive(&[]);
    }

    /// The tag of a command in flight.
    pub fn tag(&self, which: usize) -> Option<u32> {
        (!self.commands.is_empty()).then(|| self.commands[which % self.commands.len()].0)
    }

    /// A PDU with the numbers that are due, as it travels.
    pub fn encode(&self, mut header: Bhs, data: &[u8]) -> Vec<u8> {
        let n = &self.machine.numbers;
        pdu::stamp(&mut header, self.machine.connection.exp_stat_sn(), n.cmd_sn, n.cmd_sn.wrapping_add(32));
        encode(self.digests, header, &[], data)
    }

    /// Bytes of the target arrive. A connection that cannot go on is followed by the next one. Commands that
    /// ended are checked and taken; what is sent is thrown away.
    pub fn receive(&mut self, bytes: &[u8]) {
        let broken = self.receiver.feed(bytes, &mut self.machine).is_err()
            || self.machine.connection.fault().is_some();
        self.machine.events.clear();
        if std::mem::take(&mut self.machine.to_check) {
            // The check found all as it was.
            self.machine.online = Online::Yes;
            self.machine.pump();
        }
        if broken {
            self.reconnect();
        }
        let sent = self.machine.connection.out().take_bytes();
        assert!(sent.len() < 32 << 20, "{} bytes were sent for {}", sent.len(), bytes.len());
        self.machine.settle();
        self.told.retain(|told| told.is_empty());
        let machine = &mut self.machine;
        self.commands.retain(|(tag, len)| match machine.poll(*tag, Waker::noop()) {
            None => true,
            Some((result, buf)) => {
                assert_eq!(buf.map_or(0, |buf| buf.len()), *len, "the buffer comes back");
                assert!(result.is_err() || result.is_ok_and(|done| done.transferred <= *len));
                false
            }
        });
        assert_eq!(self.machine.tasks.count(), self.commands.len(), "no task is forgotten");
    }

    /// The connection is lost, and there is another one.
    pub fn reconnect(&mut self) {
        self.machine.disconnect(&Error::new(Kind::Lost, "cut"));
        self.log_in();
    }
}
