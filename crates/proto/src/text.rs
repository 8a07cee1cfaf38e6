//! Text Requests in full feature phase, as the target answers them (RFC 7143 sections 6.4, 11.10, 11.11, appendix C).

use std::collections::BTreeSet;

use wire::iscsi::status::RejectReason;
use wire::iscsi::text::{pairs, push};
use wire::iscsi::{Bhs, NONE, pdu};

use crate::Pdu;
use crate::gather::{Gather, piece};
use crate::keys::{self, Kind, Phase, Sender};
use crate::login::SessionType;
use crate::parameters::{Offer, Parameters};

/// F and C bits of the flags byte.
const FINAL: u8 = 0x80;
const CONTINUE: u8 = 0x40;

/// Keys of one sequence.
const KEYS: usize = 1024;

/// What an initiator asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTargets<'a> {
    /// Every target that it may use. Comes in Discovery sessions alone.
    All,
    /// The target of this name: in a Discovery session any that All would list, else the session's own alone.
    Named(&'a str),
    /// The target of this session. Comes in Normal sessions alone.
    Empty,
}

/// One target of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetRecord {
    /// TargetName.
    pub name: String,
    /// TargetAddress values: host:port,tag.
    pub addresses: Vec<String>,
}

/// What to do after a Text Request.
#[derive(Debug, PartialEq, Eq)]
pub enum TextStep {
    /// Send this; the caller stamps StatSN, ExpCmdSN and MaxCmdSN.
    Reply {
        /// The Text Response.
        pdu: Pdu,
        /// After this PDU the peer takes data segments of so many bytes.
        max_xmit_data_segment_length: Option<u32>,
    },
    /// Send a Reject; the sequence is forgotten.
    Reject(RejectReason),
}

/// A sequence of Text Requests under way.
#[derive(Debug)]
struct Sequence {
    itt: u32,
    gather: Gather,
    seen: BTreeSet<String>,
    /// Text that is still to be sent.
    out: Vec<u8>,
    declared: Option<u32>,
}

/// The text exchanges of one connection, one at a time.
#[derive(Debug)]
pub struct Exchange {
    session_type: SessionType,
    text_limit: usize,
    /// The latest Target Transfer Tag.
    ttt: u32,
    sequence: Option<Sequence>,
}

impl Exchange {
    /// A connection without a sequence. `text_limit` bounds the key text of one sequence, in bytes.
    pub fn new(session_type: SessionType, text_limit: usize) -> Self {
        Exchange { session_type, text_limit, ttt: 0, sequence: None }
    }

    /// Takes a Text Request with its whole data segment. `max_xmit` is the peer's MaxRecvDataSegmentLength in bytes;
    /// `targets` answers SendTargets with what this initiator may see.
    pub fn request(
        &mut self,
        header: &Bhs,
        data: &[u8],
        max_xmit: u32,
        targets: impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
    ) -> TextStep {
        self.advance(header, data, max_xmit, targets).unwrap_or_else(|reason| {
            self.sequence = None;
            TextStep::Reject(reason)
        })
    }

    fn advance(
        &mut self,
        header: &Bhs,
        data: &[u8],
        max_xmit: u32,
        targets: impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
    ) -> Result<TextStep, RejectReason> {
        if header.is_final() && header.continues() {
            return Err(RejectReason::Protocol);
        }
        let mut sequence = self.sequence_of(header)?;
        let asks = data.is_empty() && !header.continues();
        if !sequence.out.is_empty() && !asks {
            return Err(RejectReason::Protocol);
        }
        if sequence.out.is_empty() {
            let text =
                sequence.gather.take(data, header.continues()).map_err(|_| RejectReason::LongOperation)?;
            match text {
                Some(text) => sequence.take(&text, self.session_type, targets)?,
                None => return Ok(self.reply(header, sequence, 0, vec![])),
            }
        }
        let rest = sequence.out.split_off(piece(&sequence.out, max_xmit.max(1) as usize));
        let data = std::mem::replace(&mut sequence.out, rest);
        let flags = match (sequence.out.is_empty(), header.is_final()) {
            (false, _) => CONTINUE,
            (true, true) => FINAL,
            (true, false) => 0,
        };
        Ok(self.reply(header, sequence, flags, data))
    }

    /// A new sequence, which ends any other, or the one that the tags name.
    fn sequence_of(&mut self, header: &Bhs) -> Result<Sequence, RejectReason> {
        if header.word20() == NONE {
            let gather = Gather::new(self.text_limit);
            let (itt, seen, out) = (header.itt(), BTreeSet::new(), vec![]);
            return Ok(Sequence { itt, gather, seen, out, declared: None });
        }
        let current = self.sequence.take().filter(|s| s.itt == header.itt() && self.ttt == header.word20());
        current.ok_or(RejectReason::InvalidField)
    }

    /// Ends the sequence with F, else keeps it under a new tag.
    fn reply(&mut self, header: &Bhs, sequence: Sequence, flags: u8, data: Vec<u8>) -> TextStep {
        if flags & FINAL != 0 {
            self.sequence = None;
            let pdu = Pdu::new(pdu::text_response(header, flags, NONE), data);
            return TextStep::Reply { pdu, max_xmit_data_segment_length: sequence.declared };
        }
        self.ttt = self.ttt.wrapping_add(1) & 0x7fff_ffff;
        self.sequence = Some(sequence);
        let pdu = Pdu::new(pdu::text_response(header, flags, self.ttt), data);
        TextStep::Reply { pdu, max_xmit_data_segment_length: None }
    }
}

impl Sequence {
    /// Takes the text of one C-bit series and appends the answers.
    fn take(
        &mut self,
        text: &[u8],
        session_type: SessionType,
        mut targets: impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
    ) -> Result<(), RejectReason> {
        for pair in pairs(text) {
            let (key, value) = pair.map_err(|_| RejectReason::Protocol)?;
            if self.seen.len() == KEYS || !self.seen.insert(key.to_owned()) {
                return Err(RejectReason::Protocol);
            }
            let row = keys::find(key).map(|row| &keys::TABLE[row]);
            match row {
                Some(row) if matches!(row.kind, Kind::Request) => {
                    self.send_targets(value, session_type, &mut targets)
                }
                _ if session_type == SessionType::Discovery => return Err(RejectReason::Protocol),
                Some(row) => self.declare(row, value)?,
                None => push(&mut self.out, key, "NotUnderstood"),
            }
        }
        // SendTargets stands alone (RFC 7143 appendix C).
        if self.seen.contains("SendTargets") && self.seen.len() > 1 {
            return Err(RejectReason::Protocol);
        }
        Ok(())
    }

    /// A declaration of full feature phase; keys of login are refused (RFC 7143 section 13).
    fn declare(&mut self, row: &keys::Key, value: &str) -> Result<(), RejectReason> {
        if row.sender == Sender::Target || !row.may_stand(Phase::FullFeature, true) {
            return Err(RejectReason::Protocol);
        }
        let mut now = Parameters::default();
        keys::settle(row, value, &Offer::default(), &mut now).map_err(|_| RejectReason::Protocol)?;
        if matches!(row.kind, Kind::DeclaredNumber(..)) {
            self.declared = Some(now.max_xmit_data_segment_length);
        }
        Ok(())
    }

    fn send_targets(
        &mut self,
        value: &str,
        session_type: SessionType,
        targets: &mut impl FnMut(SendTargets<'_>) -> Vec<TargetRecord>,
    ) {
        let asked = match (value, session_type) {
            ("All", SessionType::Discovery) => SendTargets::All,
            ("", SessionType::Normal) => SendTargets::Empty,
            ("All" | "", _) => return push(&mut self.out, "SendTargets", "Reject"),
            (name, _) => SendTargets::Named(name),
        };
        for record in targets(asked) {
            push(&mut self.out, "TargetName", &record.name);
            record.addresses.iter().for_each(|a| push(&mut self.out, "TargetAddress", a));
        }
    }
}
