//! Control information units: task management, credits, asynchronous events, logout (SRP r16a sections 6.5 to 6.7 and
//! 6.10 to 6.13).

use super::SrpError;
use super::error::{of, whole};
use super::opcode;
use crate::be;

/// SOLNT.
const SOLICITED: u8 = 0x01;
/// Bytes of an information unit that holds a tag and at most one number.
const TAG_ONLY_LEN: usize = 16;

/// The tag of any information unit except a login.
pub(super) fn tag(iu: &[u8]) -> Result<u64, SrpError> {
    whole::<TAG_ONLY_LEN>(iu).map(|b| be::get64(&b[8..]))
}

fn tag_only(opcode: u8, second: u8, word: u32, tag: u64) -> [u8; TAG_ONLY_LEN] {
    let mut b = [0; TAG_ONLY_LEN];
    (b[0], b[1]) = (opcode, second);
    be::put32(&mut b[4..], word);
    be::put64(&mut b[8..], tag);
    b
}

/// Encodes a response to the credit request with this tag.
pub fn credit_response(tag: u64) -> [u8; TAG_ONLY_LEN] {
    tag_only(opcode::CREDIT_RESPONSE, 0, 0, tag)
}

/// Encodes a response to the asynchronous event with this tag.
pub fn aer_response(tag: u64) -> [u8; TAG_ONLY_LEN] {
    tag_only(opcode::AER_RESPONSE, 0, 0, tag)
}

/// Encodes an initiator logout. Linux does not use it: it disconnects.
pub fn logout(tag: u64) -> [u8; TAG_ONLY_LEN] {
    tag_only(opcode::INITIATOR_LOGOUT, 0, 0, tag)
}

/// A task management request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// Solicited notification (UCSOLNT, SCSOLNT): 0x02 for a successful response, 0x04 for any other.
    pub notifications: u8,
    /// Tag that the initiator chose.
    pub tag: u64,
    /// LUN field: eight bytes as SAM-5 section 4.7 encodes them.
    pub lun: u64,
    /// The [`function`](super::function).
    pub function: u8,
    /// Tag of the command that ABORT TASK aborts.
    pub task_tag: u64,
}

impl TaskManagement {
    /// Bytes of the information unit.
    pub const LEN: usize = 48;

    /// Encodes the information unit.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        (b[0], b[1], b[30]) = (opcode::TASK_MANAGEMENT, self.notifications, self.function);
        be::put64(&mut b[8..], self.tag);
        be::put64(&mut b[20..], self.lun);
        be::put64(&mut b[32..], self.task_tag);
        b
    }

    /// Decodes an information unit. Any function code is accepted.
    ///
    /// # Errors
    /// It is too short, or has another opcode.
    pub fn decode(iu: &[u8]) -> Result<TaskManagement, SrpError> {
        let b: &[u8; Self::LEN] = of(iu, 0, opcode::TASK_MANAGEMENT)?;
        Ok(TaskManagement {
            notifications: b[1],
            tag: be::get64(&b[8..]),
            lun: be::get64(&b[20..]),
            function: b[30],
            task_tag: be::get64(&b[32..]),
        })
    }
}

/// A credit request: the target changes the request limit. The answer is [`credit_response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditRequest {
    /// SOLNT: the message is a solicited notification.
    pub solicited: bool,
    /// Request limit delta.
    pub credits: i32,
    /// Tag that the target chose.
    pub tag: u64,
}

impl CreditRequest {
    /// Encodes the information unit.
    pub fn encode(&self) -> [u8; TAG_ONLY_LEN] {
        tag_only(opcode::CREDIT_REQUEST, u8::from(self.solicited), self.credits as u32, self.tag)
    }

    /// Decodes an information unit.
    ///
    /// # Errors
    /// It is too short, or has another opcode.
    pub fn decode(iu: &[u8]) -> Result<CreditRequest, SrpError> {
        let b: &[u8; TAG_ONLY_LEN] = of(iu, 0, opcode::CREDIT_REQUEST)?;
        let solicited = b[1] & SOLICITED != 0;
        Ok(CreditRequest { solicited, credits: be::get32(&b[4..]) as i32, tag: be::get64(&b[8..]) })
    }
}

/// A target logout: the target ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLogout {
    /// SOLNT: the message is a solicited notification.
    pub solicited: bool,
    /// Reason code; 0 for none.
    pub reason: u32,
    /// Tag that the target chose.
    pub tag: u64,
}

impl TargetLogout {
    /// Encodes the information unit.
    pub fn encode(&self) -> [u8; TAG_ONLY_LEN] {
        tag_only(opcode::TARGET_LOGOUT, u8::from(self.solicited), self.reason, self.tag)
    }

    /// Decodes an information unit.
    ///
    /// # Errors
    /// It is too short, or has another opcode.
    pub fn decode(iu: &[u8]) -> Result<TargetLogout, SrpError> {
        let b: &[u8; TAG_ONLY_LEN] = of(iu, 0, opcode::TARGET_LOGOUT)?;
        let solicited = b[1] & SOLICITED != 0;
        Ok(TargetLogout { solicited, reason: be::get32(&b[4..]), tag: be::get64(&b[8..]) })
    }
}

const AER_LEN: usize = 36;

/// An asynchronous event request. The answer is [`aer_response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aer<'a> {
    /// SOLNT: the message is a solicited notification.
    pub solicited: bool,
    /// Request limit delta.
    pub credits: i32,
    /// Tag that the target chose.
    pub tag: u64,
    /// LUN field: eight bytes as SAM-5 section 4.7 encodes them.
    pub lun: u64,
    /// Sense data that describe the event.
    pub sense: &'a [u8],
}

impl<'a> Aer<'a> {
    /// Bytes before the sense data.
    pub const LEN: usize = AER_LEN;

    /// Appends the encoded information unit.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let mut b = [0; AER_LEN];
        b[..TAG_ONLY_LEN].copy_from_slice(&tag_only(
            opcode::AER_REQUEST,
            u8::from(self.solicited),
            self.credits as u32,
            self.tag,
        ));
        be::put64(&mut b[20..], self.lun);
        be::put32(&mut b[28..], self.sense.len() as u32);
        into.extend_from_slice(&b);
        into.extend_from_slice(self.sense);
    }

    /// Decodes an information unit.
    ///
    /// # Errors
    /// It is shorter than its sense data, or has another opcode.
    pub fn decode(iu: &'a [u8]) -> Result<Aer<'a>, SrpError> {
        let b: &[u8; AER_LEN] = of(iu, 0, opcode::AER_REQUEST)?;
        let sense_len = be::get32(&b[28..]);
        let needed = Self::LEN as u64 + u64::from(sense_len);
        let short = SrpError::Short { needed, there: iu.len() };
        let sense = iu[Self::LEN..].get(..sense_len as usize).ok_or(short)?;
        let (solicited, tag, lun) = (b[1] & SOLICITED != 0, be::get64(&b[8..]), be::get64(&b[20..]));
        Ok(Aer { solicited, credits: be::get32(&b[4..]) as i32, tag, lun, sense })
    }
}
