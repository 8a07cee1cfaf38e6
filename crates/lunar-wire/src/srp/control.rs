//! The other information units: task management, credits, asynchronous events, and the end (SRP r16a sections 6.5 to
//! 6.7 and 6.10 to 6.13).

use super::SrpError;
use super::error::{of, whole};
use super::opcode;
use crate::be;

/// It is a solicited notification.
const SOLICITED: u8 = 0x01;
/// Bytes of the information units that are little more than a tag.
const TAG_ONLY_LEN: usize = 16;

/// The tag of an information unit, in the place where all but login have it.
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

/// The initiator took credits: the tag of the request.
pub fn credit_response(tag: u64) -> [u8; TAG_ONLY_LEN] {
    tag_only(opcode::CREDIT_RESPONSE, 0, 0, tag)
}

/// The initiator took an asynchronous event: the tag of the request.
pub fn aer_response(tag: u64) -> [u8; TAG_ONLY_LEN] {
    tag_only(opcode::AER_RESPONSE, 0, 0, tag)
}

/// The initiator ends the connection. Linux neither says nor hears this: it disconnects.
pub fn logout(tag: u64) -> [u8; TAG_ONLY_LEN] {
    tag_only(opcode::INITIATOR_LOGOUT, 0, 0, tag)
}

/// A task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskManagement {
    /// Solicited notification wanted for a response that tells of success 0x02, or of anything else 0x04.
    pub notifications: u8,
    /// The initiator's name for it.
    pub tag: u64,
    /// Logical unit number.
    pub lun: u64,
    /// The [`function`](super::function).
    pub function: u8,
    /// The tag of the command that ABORT TASK is about.
    pub task_tag: u64,
}

impl TaskManagement {
    /// How many bytes it has.
    pub const LEN: usize = 48;

    /// Its bytes.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        (b[0], b[1], b[30]) = (opcode::TASK_MANAGEMENT, self.notifications, self.function);
        be::put64(&mut b[8..], self.tag);
        be::put64(&mut b[20..], self.lun);
        be::put64(&mut b[32..], self.task_tag);
        b
    }

    /// Reads one, whatever its function.
    ///
    /// # Errors
    /// When it is too short, or not one.
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

/// A target gives credits, or takes some. It is answered with [`credit_response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditRequest {
    /// It is a solicited notification.
    pub solicited: bool,
    /// How many.
    pub credits: i32,
    /// The target's name for it.
    pub tag: u64,
}

impl CreditRequest {
    /// Its bytes.
    pub fn encode(&self) -> [u8; TAG_ONLY_LEN] {
        tag_only(opcode::CREDIT_REQUEST, u8::from(self.solicited), self.credits as u32, self.tag)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is too short, or not one.
    pub fn decode(iu: &[u8]) -> Result<CreditRequest, SrpError> {
        let b: &[u8; TAG_ONLY_LEN] = of(iu, 0, opcode::CREDIT_REQUEST)?;
        let solicited = b[1] & SOLICITED != 0;
        Ok(CreditRequest { solicited, credits: be::get32(&b[4..]) as i32, tag: be::get64(&b[8..]) })
    }
}

/// A target ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetLogout {
    /// It is a solicited notification.
    pub solicited: bool,
    /// Why: 0 for no reason.
    pub reason: u32,
    /// The target's name for it.
    pub tag: u64,
}

impl TargetLogout {
    /// Its bytes.
    pub fn encode(&self) -> [u8; TAG_ONLY_LEN] {
        tag_only(opcode::TARGET_LOGOUT, u8::from(self.solicited), self.reason, self.tag)
    }

    /// Reads one.
    ///
    /// # Errors
    /// When it is too short, or not one.
    pub fn decode(iu: &[u8]) -> Result<TargetLogout, SrpError> {
        let b: &[u8; TAG_ONLY_LEN] = of(iu, 0, opcode::TARGET_LOGOUT)?;
        let solicited = b[1] & SOLICITED != 0;
        Ok(TargetLogout { solicited, reason: be::get32(&b[4..]), tag: be::get64(&b[8..]) })
    }
}

const AER_LEN: usize = 36;

/// An asynchronous event. It is answered with [`aer_response`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aer<'a> {
    /// It is a solicited notification.
    pub solicited: bool,
    /// Credits that come with it.
    pub credits: i32,
    /// The target's name for it.
    pub tag: u64,
    /// Logical unit number.
    pub lun: u64,
    /// What happened, as sense data.
    pub sense: &'a [u8],
}

impl<'a> Aer<'a> {
    /// Bytes before the sense data.
    pub const LEN: usize = AER_LEN;

    /// Appends its bytes.
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

    /// Reads one.
    ///
    /// # Errors
    /// When it is too short for its sense data, or not one.
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
