//! Checks each PDU of a target: direction, fixed bits, reserved fields (RFC 7143 sections 11 and 4.2.2).

use crate::pdu::{NONE, Pdu, op};

/// Opcode, mask and value of the fixed bits of byte 1, reserved byte ranges.
type Layout = (u8, u8, u8, &'static [(usize, usize)]);

const LAYOUTS: &[Layout] = &[
    (op::NOP_IN, 0xff, 0x80, &[(2, 4), (36, 48)]),
    (op::SCSI_RESPONSE, 0xe1, 0x80, &[(8, 16)]),
    (op::TMF_RESPONSE, 0xff, 0x80, &[(3, 8), (8, 16), (20, 24), (36, 48)]),
    (op::LOGIN_RESPONSE, 0x30, 0x00, &[(20, 24), (38, 48)]),
    (op::TEXT_RESPONSE, 0x3f, 0x00, &[(2, 4), (36, 48)]),
    (op::DATA_IN, 0x78, 0x00, &[(2, 3), (8, 16)]),
    (op::LOGOUT_RESPONSE, 0xff, 0x80, &[(3, 8), (8, 16), (20, 24), (36, 40), (44, 48)]),
    (op::R2T, 0xff, 0x80, &[(2, 8)]),
    (op::ASYNC, 0xff, 0x80, &[(2, 4), (20, 24), (44, 48)]),
    (op::REJECT, 0xff, 0x80, &[(3, 4), (8, 16), (20, 24), (40, 48)]),
];

/// Checks the layout of a PDU that a target sent at ErrorRecoveryLevel 0. The error names the first fault.
pub fn layout(pdu: &Pdu) -> Result<(), String> {
    let Some((_, mask, value, reserved)) = LAYOUTS.iter().find(|l| l.0 == pdu.bhs[0]) else {
        return Err(format!("first byte {:#04x} is no opcode of a target", pdu.bhs[0]));
    };
    if pdu.bhs[1] & mask != *value {
        return Err(format!("byte 1 is {:#04x}, of which {mask:#04x} must be {value:#04x}", pdu.bhs[1]));
    }
    if let Some(range) = reserved.iter().find(|r| pdu.bhs[r.0..r.1].iter().any(|b| *b != 0)) {
        return Err(format!("reserved bytes {range:?} are not zero"));
    }
    if !pdu.ahs.is_empty() {
        return Err("additional header segments from a target".into());
    }
    by_opcode(pdu)
}

fn by_opcode(pdu: &Pdu) -> Result<(), String> {
    let (f, c) = (pdu.is_final(), pdu.bhs[1] & 0x40 != 0);
    let wrong = match pdu.opcode() {
        op::NOP_IN if pdu.tag() == NONE && !pdu.data.is_empty() => "unsolicited NOP-In with data",
        op::NOP_IN if pdu.tag() != NONE && pdu.transfer_tag() != NONE => "NOP-In response with a TTT",
        op::DATA_IN if pdu.transfer_tag() != NONE => "Data-In has a TTT without A",
        op::DATA_IN if pdu.bhs[1] & 1 == 0 && (pdu.bhs[3] != 0 || pdu.bhs[1] & 6 != 0) => {
            "Data-In: status without S"
        }
        op::DATA_IN if pdu.bhs[1] & 1 != 0 && !f => "Data-In: S without F",
        op::DATA_IN if pdu.bhs[1] & 1 != 0 && pdu.bhs[3] == 2 => "Data-In: CHECK CONDITION without sense",
        op::R2T if pdu.transfer_tag() == NONE || pdu.get32(44) == 0 => "R2T without tag or length",
        op::R2T if !pdu.data.is_empty() => "R2T with data",
        op::ASYNC | op::REJECT if pdu.tag() != NONE => "ITT is not reserved",
        op::REJECT if !matches!(pdu.bhs[2], 2..=0x0a | 0x0c) => "Reject: reason is reserved or obsolete",
        op::REJECT if pdu.data.len() < 48 => "Reject without the header of the bad PDU",
        op::TEXT_RESPONSE if f != (pdu.transfer_tag() == NONE) => "Text Response: F and TTT disagree",
        op::TEXT_RESPONSE if f && c => "Text Response: F and C",
        op::LOGIN_RESPONSE if f && c => "Login Response: T and C",
        op::SCSI_RESPONSE if pdu.bhs[1] & 0x06 == 0x06 || pdu.bhs[1] & 0x18 == 0x18 => {
            "SCSI Response: overflow and underflow"
        }
        op::SCSI_RESPONSE if pdu.bhs[2] != 0 && (pdu.bhs[1] & 0x1e != 0 || pdu.get32(36) != 0) => {
            "SCSI Response: residual without command completion"
        }
        _ => return Ok(()),
    };
    Err(wrong.into())
}

/// Whether this PDU increments StatSN (sections 11.4.9, 11.7.3, 11.8.3, 11.19.2).
pub fn counts(pdu: &Pdu) -> bool {
    match pdu.opcode() {
        op::R2T => false,
        op::NOP_IN => pdu.tag() != NONE,
        op::DATA_IN => pdu.bhs[1] & 1 != 0,
        _ => true,
    }
}

/// Whether the StatSN field of this PDU is valid.
pub fn has_stat_sn(pdu: &Pdu) -> bool {
    pdu.opcode() != op::DATA_IN || counts(pdu)
}

/// `a` is before `b` in 32-bit serial number arithmetic (RFC 1982).
pub fn before(a: u32, b: u32) -> bool {
    (b.wrapping_sub(a) as i32) > 0
}
