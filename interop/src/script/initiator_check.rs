//! Checks each PDU of an initiator at ErrorRecoveryLevel 0: fixed bits, reserved fields, numbers
//! (RFC 7143 sections 11 and 4.2.2).

use crate::check::before;
use crate::pdu::{NONE, Pdu, op};
use std::collections::HashSet;

/// Opcode, mask and value of the fixed bits of byte 1, reserved byte ranges.
type Layout = (u8, u8, u8, &'static [(usize, usize)]);

const LAYOUTS: &[Layout] = &[
    (op::NOP_OUT, 0xff, 0x80, &[(2, 4), (32, 48)]),
    (op::SCSI, 0x18, 0x00, &[(2, 4)]),
    (op::TMF, 0x80, 0x80, &[(2, 4), (36, 48)]),
    (op::LOGIN, 0x30, 0x00, &[(2, 4), (22, 24), (32, 48)]),
    (op::TEXT, 0x3f, 0x00, &[(2, 4), (32, 48)]),
    (op::DATA_OUT, 0x7f, 0x00, &[(2, 4), (24, 28), (32, 36), (44, 48)]),
    (op::LOGOUT, 0x80, 0x80, &[(2, 4), (8, 16), (22, 24), (32, 48)]),
];

/// Data segments during login (RFC 7143 section 13.12).
const LOGIN_SEGMENT: usize = 8192;

/// The state of an initiator on one connection.
#[derive(Default)]
pub struct InitiatorCheck {
    /// CmdSN of its next command.
    cmd_sn: Option<u32>,
    exp_stat_sn: Option<u32>,
    live: HashSet<u32>,
}

/// Numbers and limits that the target has sent.
pub struct TargetLimits {
    pub stat_sn: u32,
    pub max_cmd_sn: u32,
    pub full_feature: bool,
    /// MaxRecvDataSegmentLength that the target declared.
    pub receive_max: usize,
}

impl InitiatorCheck {
    /// Checks a request. The error names the rule that it breaks.
    pub fn check(&mut self, pdu: &Pdu, limits: &TargetLimits) -> Result<(), String> {
        layout(pdu)?;
        content(pdu)?;
        let limit = if limits.full_feature { limits.receive_max } else { LOGIN_SEGMENT };
        if pdu.data.len() > limit {
            return Err(format!("data beyond the {limit} that the target declared"));
        }
        if (pdu.opcode() == op::LOGIN) == limits.full_feature {
            return Err("a login request after login, or another request during login".into());
        }
        self.tag(pdu)?;
        self.stat_sn(pdu, limits)?;
        self.cmd_sn(pdu, limits)
    }

    /// The target has sent the response of the task with this tag.
    pub fn answered(&mut self, tag: u32) {
        self.live.remove(&tag);
    }

    fn tag(&mut self, pdu: &Pdu) -> Result<(), String> {
        if pdu.opcode() == op::TMF && pdu.bhs[1] & 0x7f == 1 {
            self.live.remove(&pdu.transfer_tag()); // the scripted target ends the task
        }
        let goes_on = [op::LOGIN, op::TEXT, op::DATA_OUT].contains(&pdu.opcode());
        match pdu.tag() {
            NONE if pdu.opcode() != op::NOP_OUT => Err("the reserved task tag".into()),
            NONE => Ok(()),
            tag if goes_on || self.live.insert(tag) => Ok(()),
            tag => Err(format!("the tag {tag:08x} is in use")),
        }
    }

    fn stat_sn(&mut self, pdu: &Pdu, limits: &TargetLimits) -> Result<(), String> {
        let exp = pdu.exp_stat_sn_sent();
        let first = self.exp_stat_sn.is_none();
        if !first && before(limits.stat_sn, exp) {
            return Err(format!("ExpStatSN {exp} acknowledges more than {} answers", limits.stat_sn));
        }
        if self.exp_stat_sn.is_some_and(|last| before(exp, last)) && !self.is_second_login(pdu) {
            return Err(format!("ExpStatSN {exp} goes back"));
        }
        self.exp_stat_sn = Some(exp);
        if !limits.full_feature && !first && exp != limits.stat_sn {
            return Err(format!("ExpStatSN {exp} in login instead of {}", limits.stat_sn));
        }
        Ok(())
    }

    /// Whether ExpStatSN of the previous request is to be ignored: the first Login Request cannot know a StatSN.
    fn is_second_login(&self, pdu: &Pdu) -> bool {
        pdu.opcode() == op::LOGIN && self.exp_stat_sn == Some(0)
    }

    fn cmd_sn(&mut self, pdu: &Pdu, limits: &TargetLimits) -> Result<(), String> {
        if pdu.opcode() == op::DATA_OUT {
            return Ok(());
        }
        let (got, next) = (pdu.get32(24), self.cmd_sn.unwrap_or(pdu.get32(24)));
        if got != next {
            return Err(format!("CmdSN {got} instead of {next}"));
        }
        let immediate = pdu.bhs[0] & 0x40 != 0;
        if !immediate && before(limits.max_cmd_sn, got) {
            return Err(format!("CmdSN {got} beyond MaxCmdSN {}", limits.max_cmd_sn));
        }
        self.cmd_sn = Some(next.wrapping_add(u32::from(!immediate)));
        Ok(())
    }
}

fn layout(pdu: &Pdu) -> Result<(), String> {
    let opcode = pdu.opcode();
    let Some((_, mask, value, reserved)) = LAYOUTS.iter().find(|l| l.0 == opcode && pdu.bhs[0] < 0x80) else {
        return Err(format!("first byte {:#04x} is no opcode of an initiator at level 0", pdu.bhs[0]));
    };
    if pdu.bhs[1] & mask != *value {
        return Err(format!("byte 1 is {:#04x}, of which {mask:#04x} must be {value:#04x}", pdu.bhs[1]));
    }
    if opcode == op::DATA_OUT && pdu.bhs[0] & 0x40 != 0 {
        return Err("an immediate Data-Out".into());
    }
    match reserved.iter().find(|r| pdu.bhs[r.0..r.1].iter().any(|b| *b != 0)) {
        Some(range) => Err(format!("reserved bytes {range:?} are not zero")),
        None => Ok(()),
    }
}

fn content(pdu: &Pdu) -> Result<(), String> {
    let (f, immediate) = (pdu.is_final(), pdu.bhs[0] & 0x40 != 0);
    let (reads, writes) = (pdu.bhs[1] & 0x40 != 0, pdu.bhs[1] & 0x20 != 0);
    let wrong = match pdu.opcode() {
        _ if !pdu.ahs.is_empty() => "additional header segments for a CDB of at most 16 bytes",
        op::NOP_OUT if pdu.tag() == NONE && !immediate => "a NOP-Out without tag that is not immediate",
        op::NOP_OUT if pdu.tag() != NONE && pdu.transfer_tag() != NONE => "a NOP-Out with both tags",
        op::SCSI if !f && !writes => "neither W nor F",
        op::SCSI if !reads && !writes && pdu.get32(20) != 0 => "a length without a direction",
        op::SCSI if immediate => "an immediate SCSI Command",
        op::TMF | op::LOGOUT if !pdu.data.is_empty() => "a data segment in a PDU without data",
        op::LOGIN if !immediate => "a Login Request that is not immediate",
        op::LOGIN | op::TEXT if f && pdu.bhs[1] & 0x40 != 0 => "F or T, and C",
        op::DATA_OUT if pdu.data.is_empty() => "an empty Data-Out",
        _ => return Ok(()),
    };
    Err(wrong.into())
}

impl Pdu {
    /// ExpStatSN of an initiator's PDU.
    fn exp_stat_sn_sent(&self) -> u32 {
        self.get32(28)
    }
}
