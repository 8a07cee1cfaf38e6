//! Answers: status, Data-In, and the counters that every PDU carries.

use super::connection::Session;
use super::out::Payload;
use super::task::Command;
use crate::Reply;
use crate::exec::{Ended, Outcome};
use lunar_runtime::Buf;
use lunar_scsi::Failure;
use lunar_wire::iscsi::pdu::STATUS;
use lunar_wire::iscsi::status::RejectReason;
use lunar_wire::iscsi::{Bhs, NONE, opcode, pdu};
use lunar_wire::scsi::Status;
use std::rc::Rc;

/// Overflow and underflow of the residual count, in SCSI Response and Data-In alike.
const OVERFLOW: u8 = 0x04;
const UNDERFLOW: u8 = 0x02;

/// The flag and the residual count of a command that moves `actual` bytes (RFC 7143 section 11.4.5).
fn residual(expected: u32, actual: u64) -> (u8, u32) {
    let (expected, actual) = (expected as u64, actual);
    match actual.cmp(&expected) {
        std::cmp::Ordering::Equal => (0, 0),
        std::cmp::Ordering::Greater => (OVERFLOW, u32::try_from(actual - expected).unwrap_or(u32::MAX)),
        std::cmp::Ordering::Less => (UNDERFLOW, (expected - actual) as u32),
    }
}

/// How much of a command's Data-In has gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes.
    pub bytes: usize,
    /// PDUs: the next DataSN.
    pub pdus: u32,
}

/// What goes with the last of a command's Data-In.
#[derive(Clone, Copy)]
enum Close {
    /// Status, with the flag and the count of the residual.
    Status(u8, u32),
    /// Nothing: a response follows.
    Data,
    /// It is not the last.
    Open,
}

impl Session {
    /// Sends a PDU that carries status: StatSN advances.
    #[inline]
    pub fn reply(&mut self, mut header: Bhs, payload: Payload) {
        pdu::stamp(&mut header, self.stat_sn, self.window.exp_cmd_sn(), self.window.max_cmd_sn());
        self.stat_sn = self.stat_sn.wrapping_add(1);
        self.out.push(header, payload, self.digests);
    }

    /// Sends an R2T or a ping: StatSN is shown and stays.
    pub fn notice(&mut self, mut header: Bhs) {
        pdu::stamp(&mut header, self.stat_sn, self.window.exp_cmd_sn(), self.window.max_cmd_sn());
        self.out.push(header, Payload::Empty, self.digests);
    }

    /// Sends a Reject with the header that it is about.
    pub fn reject(&mut self, reason: RejectReason, header: &Bhs, ahs: &[u8]) {
        tracing::debug!(?reason, ?header, "rejected");
        let mut data = [&header.0[..], ahs].concat();
        data.truncate(self.parameters.max_xmit_data_segment_length as usize);
        self.reply(pdu::reject(reason as u8), Payload::Bytes(data));
    }

    /// Sends the status of a command whose data, `moved` bytes by its CDB, have gone.
    pub fn status(&mut self, c: &Command, status: Status, moved: u64, data_ins: u32) {
        let (flag, count) = residual(c.edtl, moved);
        let mut h = pdu::scsi_response(c.itt, flag, 0, status as u8);
        h.set_word(36, data_ins);
        h.set_word(44, count);
        self.reply(h, Payload::Empty);
    }

    /// Sends a failure, with its sense data.
    pub fn failure(&mut self, c: &Command, failure: Failure, descriptor: bool) {
        self.failure_after(c, failure, descriptor, Sent::default());
    }

    /// Sends a failure behind Data-In that has gone.
    pub fn failure_after(&mut self, c: &Command, failure: Failure, descriptor: bool, sent: Sent) {
        self.failed(c, failure, descriptor, sent.pdus, sent.bytes as u64);
    }

    /// Sends a failure of a command that moved `moved` bytes, or needs so many.
    fn failed(&mut self, c: &Command, failure: Failure, descriptor: bool, data_ins: u32, moved: u64) {
        self.info.counters.failures.add(1);
        let (flag, count) = residual(c.edtl, moved);
        let mut h = pdu::scsi_response(c.itt, flag, 0, failure.status as u8);
        h.set_word(36, data_ins);
        h.set_word(44, count);
        let payload = failure.sense.map_or(Payload::Empty, |sense| sense_segment(&sense.encode(descriptor)));
        self.reply(h, payload);
    }

    /// Sends what a logical unit elsewhere answered: its data, whatever its status, and its sense data.
    fn passed(&mut self, c: &Command, reply: Reply) {
        let Reply { status, sense, data, moved, fate: _ } = reply;
        let (room, whole) = (c.room() as usize, c.room().max(c.offered()));
        let sent = match data {
            Some(data) if c.reads && status == Status::Good as u8 => {
                let moved = if data.len() < room { data.len() } else { moved as usize };
                return self.data_in(c, Source::Buf(data), moved);
            }
            Some(data) if c.reads && !data.is_empty() => {
                let len = data.len().min(room);
                self.segments(c, Source::Buf(data).shared(), len, Sent::default(), Close::Data)
            }
            _ => Sent::default(),
        };
        if status != Status::Good as u8 {
            self.info.counters.failures.add(1);
        }
        let (flag, count) = residual(whole, moved);
        let mut h = pdu::scsi_response(c.itt, flag, 0, status);
        h.set_word(36, sent.pdus);
        h.set_word(44, count);
        self.reply(h, if sense.is_empty() { Payload::Empty } else { sense_segment(&sense) });
    }

    /// Sends the end of a command. `moved`: bytes of Data-Out that its CDB asked for.
    pub fn end(&mut self, c: &Command, ended: Ended, moved: u64, descriptor: bool) {
        match ended {
            // Who waits for data sends none.
            Ok(Outcome::Good) if c.offered() == 0 && c.room() > 0 => self.status(c, Status::Good, 0, 0),
            Ok(Outcome::Good) => self.status(c, Status::Good, moved, 0),
            Ok(Outcome::Data(d)) => {
                let len = d.len();
                self.data_in(c, Source::Bytes(d), len)
            }
            Ok(Outcome::Medium(b)) => {
                let len = b.len();
                self.info.counters.reads.add(1);
                self.info.counters.read_bytes.add(len as u64);
                self.data_in(c, Source::Buf(b), len)
            }
            Ok(Outcome::Zeros(n)) => {
                self.info.counters.reads.add(1);
                self.info.counters.read_bytes.add(n as u64);
                self.data_in(c, Source::Zeros, n)
            }
            Ok(Outcome::Passed(reply)) => self.passed(c, reply),
            // The residual shows how much more the command needs (RFC 7143 section 11.4.5.2).
            Err(f) if c.room() == 0 && moved > c.offered().into() => self.failed(c, f, descriptor, 0, moved),
            Err(f) => self.failure(c, f, descriptor),
        }
    }

    /// Sends part of a command's Data-In; more follows.
    pub fn data_in_part(&mut self, c: &Command, part: Buf, sent: Sent) -> Sent {
        let len = part.len();
        self.info.counters.read_bytes.add(len as u64);
        self.segments(c, Source::Buf(part).shared(), len, sent, Close::Open)
    }

    /// Sends the last part of a command's Data-In, and GOOD.
    pub fn data_in_rest(&mut self, c: &Command, part: Buf, sent: Sent) {
        let len = part.len();
        self.info.counters.reads.add(1);
        self.info.counters.read_bytes.add(len as u64);
        let (flag, count) = residual(c.room().max(c.offered()), (sent.bytes + len) as u64);
        self.segments(c, Source::Buf(part).shared(), len, sent, Close::Status(flag, count));
    }

    /// Sends `len` bytes, or as many as the initiator takes, and GOOD with the last of them
    /// (RFC 7143 section 11.7).
    #[inline]
    pub fn data_in(&mut self, c: &Command, source: Source, len: usize) {
        let send = len.min(c.room() as usize);
        let (flag, count) = residual(c.room().max(c.offered()), len as u64);
        if send == 0 {
            // Who meant to send data gets none, and none of it was taken.
            let moved = if c.offered() > 0 { 0 } else { len };
            return self.status(c, Status::Good, moved as u64, 0);
        }
        let most = self.out.longest_data_in(self.parameters.max_xmit_data_segment_length);
        if send <= most && send <= self.parameters.max_burst_length as usize {
            let mut h = data_in_header(c, 0, 0);
            h.0[1] = 0x80 | STATUS | flag;
            h.set_word(44, count);
            return self.reply(h, source.whole(send));
        }
        self.segments(c, source.shared(), send, Sent::default(), Close::Status(flag, count));
    }

    /// Several Data-In PDUs of `len` bytes, behind what was `sent` already: F at the end of every burst and of
    /// all, status in the last.
    fn segments(
        &mut self,
        c: &Command,
        source: SharedSource,
        len: usize,
        mut sent: Sent,
        close: Close,
    ) -> Sent {
        let most = self.out.longest_data_in(self.parameters.max_xmit_data_segment_length);
        let burst = self.parameters.max_burst_length as usize;
        let mut at = 0;
        while at < len {
            let to_burst = burst - sent.bytes % burst;
            let n = most.min(len - at).min(to_burst);
            let last = at + n == len;
            let mut h = data_in_header(c, sent.pdus, sent.bytes);
            let is_final = n == to_burst || (last && !matches!(close, Close::Open));
            h.0[1] = if is_final { 0x80 } else { 0 };
            match close {
                Close::Status(flag, count) if last => {
                    h.0[1] |= STATUS | flag;
                    h.set_word(44, count);
                    self.reply(h, source.part(at, n));
                }
                _ => {
                    h.set_word(28, self.window.exp_cmd_sn());
                    h.set_word(32, self.window.max_cmd_sn());
                    self.out.push(h, source.part(at, n), self.digests);
                }
            }
            at += n;
            sent = Sent { bytes: sent.bytes + n, pdus: sent.pdus + 1 };
        }
        sent
    }
}

/// The data segment of a SCSI Response (RFC 7143 section 11.4.7).
fn sense_segment(sense: &[u8]) -> Payload {
    Payload::Bytes([&(sense.len() as u16).to_be_bytes()[..], sense].concat())
}

#[inline]
fn data_in_header(c: &Command, data_sn: u32, offset: usize) -> Bhs {
    let mut h = Bhs::new(opcode::DATA_IN);
    h.set_word(16, c.itt);
    h.set_word(20, NONE);
    h.set_word(36, data_sn);
    h.set_word(40, offset as u32);
    h
}

/// Where Data-In comes from.
pub enum Source {
    /// Nowhere.
    Zeros,
    /// Parameter data.
    Bytes(Vec<u8>),
    /// What was read.
    Buf(Buf),
}

/// The same, for several PDUs.
enum SharedSource {
    Zeros,
    Bytes(Vec<u8>),
    Buf(Rc<Buf>),
}

impl Source {
    fn whole(self, len: usize) -> Payload {
        match self {
            Source::Zeros => Payload::Zeros(len),
            Source::Bytes(mut b) => {
                b.truncate(len);
                Payload::Bytes(b)
            }
            Source::Buf(b) => Payload::Buf(b, len),
        }
    }

    fn shared(self) -> SharedSource {
        match self {
            Source::Zeros => SharedSource::Zeros,
            Source::Bytes(b) => SharedSource::Bytes(b),
            Source::Buf(b) => SharedSource::Buf(Rc::new(b)),
        }
    }
}

impl SharedSource {
    fn part(&self, at: usize, len: usize) -> Payload {
        match self {
            SharedSource::Zeros => Payload::Zeros(len),
            SharedSource::Bytes(b) => Payload::Bytes(b[at..at + len].to_vec()),
            SharedSource::Buf(b) => Payload::Part(b.clone(), at, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn residuals_both_ways() {
        assert_eq!(residual(512, 512), (0, 0));
        assert_eq!(residual(512, 4096), (OVERFLOW, 3584));
        assert_eq!(residual(255, 96), (UNDERFLOW, 159));
        assert_eq!(residual(0, u64::MAX), (OVERFLOW, u32::MAX));
    }
}
