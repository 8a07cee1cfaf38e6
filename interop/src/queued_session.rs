//! A session with many commands in flight.

use crate::pdu::op;
use crate::raw::{Raw, Received};
use crate::scsi::{READ, WRITE, place, sense};
use std::collections::HashMap;
use std::time::Duration;

/// Task attributes (RFC 7143 section 11.3.1).
pub const SIMPLE: u8 = 1;
pub const ORDERED: u8 = 2;
pub const HEAD_OF_QUEUE: u8 = 3;

/// A command to send.
#[derive(Clone, Debug)]
pub struct Command {
    pub lun: u16,
    pub attribute: u8,
    pub cdb: Vec<u8>,
    pub out: Vec<u8>,
    /// Bytes to read.
    pub expected: u32,
    /// The command contains as much immediate data as the session permits. Otherwise all data are sent in response to R2Ts.
    pub is_immediate: bool,
}

impl Command {
    /// A SIMPLE command without data for LUN 0.
    pub fn new(cdb: &[u8]) -> Command {
        let (out, cdb) = (Vec::new(), cdb.to_vec());
        Command { lun: 0, attribute: SIMPLE, cdb, out, expected: 0, is_immediate: true }
    }

    /// Adds Data-Out.
    pub fn writes(self, out: Vec<u8>) -> Command {
        Command { out, ..self }
    }

    /// Sets the number of bytes to read.
    pub fn reads(self, expected: u32) -> Command {
        Command { expected, ..self }
    }
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    pub tag: u32,
    /// The SCSI status; 0xff if the response code is not 0.
    pub status: u8,
    pub sense: u32,
    pub data: Vec<u8>,
}

impl Completion {
    /// Whether the status is GOOD.
    pub fn is_good(&self) -> bool {
        self.status == 0
    }

    /// Status and sense as text.
    pub fn text(&self) -> String {
        format!("status {:#04x}, sense {:06x}", self.status, self.sense)
    }
}

/// The next event of a session.
#[derive(Debug)]
pub enum SessionEvent {
    Completion(Completion),
    Closed,
    /// The time limit expired.
    Nothing,
}

/// A session and its tasks.
pub struct QueuedSession {
    pub raw: Raw,
    tasks: HashMap<u32, Task>,
}

struct Task {
    out: Vec<u8>,
    data: Vec<u8>,
}

impl QueuedSession {
    /// Wraps a session in full feature phase.
    pub fn new(raw: Raw) -> QueuedSession {
        QueuedSession { raw, tasks: HashMap::new() }
    }

    /// Commands in flight.
    pub fn in_flight(&self) -> usize {
        self.tasks.len()
    }

    /// Whether the command window admits one more (RFC 7143 section 4.2.2.1).
    pub fn has_window(&self) -> bool {
        self.raw.window.is_none_or(|(_, max)| !crate::check::before(max, self.raw.cmd_sn))
    }

    /// Sends a command and returns its tag.
    pub fn send(&mut self, command: Command) -> u32 {
        let Command { lun, attribute, cdb, out, expected, is_immediate } = command;
        let (flags, length) = match out.len() {
            0 if expected == 0 => (0x80, 0),
            0 => (0x80 | READ, expected),
            length => (0x80 | WRITE, length as u32),
        };
        let limit = self.raw.first_burst.min(self.raw.send_max);
        let now = if is_immediate && self.raw.immediate_data { out.len().min(limit) } else { 0 };
        let pdu = self.raw.request(op::SCSI).flags(flags | attribute).lun(lun);
        let pdu = pdu.set32(20, length).bytes(32, &cdb).data(&out[..now]);
        self.raw.send(&pdu);
        self.tasks.insert(pdu.tag(), Task { out, data: Vec::new() });
        pdu.tag()
    }

    /// Waits for the end of any command.
    pub fn next(&mut self, limit: Duration) -> SessionEvent {
        loop {
            let pdu = match self.raw.get(limit) {
                Received::Pdu(pdu) => pdu,
                Received::Closed => return SessionEvent::Closed,
                Received::Nothing => return SessionEvent::Nothing,
            };
            if pdu.opcode() == op::ASYNC {
                continue;
            }
            let tag = pdu.tag();
            let task = self.tasks.get_mut(&tag).unwrap_or_else(|| panic!("a PDU without a task: {pdu:?}"));
            match pdu.opcode() {
                op::R2T => self.raw.answer(&pdu, &task.out),
                op::DATA_IN => place(&mut task.data, &pdu),
                op::SCSI_RESPONSE => {}
                _ => panic!("not of a SCSI task: {pdu:?}"),
            }
            let has_status = pdu.opcode() == op::SCSI_RESPONSE || is_last(&pdu);
            if has_status {
                let data = self.tasks.remove(&tag).expect("found before").data;
                return SessionEvent::Completion(ended(&pdu, data));
            }
        }
    }

    /// Sends a command and waits for its end. The error is the reason if it does not end.
    pub fn ask(&mut self, command: Command, limit: Duration) -> Result<Completion, &'static str> {
        let tag = self.send(command);
        loop {
            match self.next(limit) {
                SessionEvent::Completion(end) if end.tag == tag => return Ok(end),
                SessionEvent::Completion(_) => {}
                SessionEvent::Closed => return Err("the connection is closed"),
                SessionEvent::Nothing => return Err("no answer"),
            }
        }
    }
}

fn is_last(pdu: &crate::Pdu) -> bool {
    pdu.opcode() == op::DATA_IN && pdu.bhs[1] & 1 != 0
}

fn ended(pdu: &crate::Pdu, data: Vec<u8>) -> Completion {
    let is_response = pdu.opcode() == op::SCSI_RESPONSE;
    let status = if is_response && pdu.bhs[2] != 0 { 0xff } else { pdu.bhs[3] };
    let sense = if is_response { pdu.data.get(2..).map_or(0, sense) } else { 0 };
    Completion { tag: pdu.tag(), status, sense, data }
}
