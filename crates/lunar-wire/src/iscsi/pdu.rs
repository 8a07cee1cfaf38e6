//! Headers of the PDUs that a target sends. StatSN, ExpCmdSN and MaxCmdSN are stamped when they leave.

use super::{Bhs, NONE, opcode, status::LoginStatus};

/// S of a Data-In: it brings the status of its command (RFC 7143 section 11.7.3).
pub const STATUS: u8 = 0x01;

/// Fields that every target PDU carries: StatSN, ExpCmdSN, MaxCmdSN at offsets 24, 28, 32.
pub fn stamp(b: &mut Bhs, stat_sn: u32, exp_cmd_sn: u32, max_cmd_sn: u32) {
    b.set_word(24, stat_sn);
    b.set_word(28, exp_cmd_sn);
    b.set_word(32, max_cmd_sn);
}

/// A Login Response (RFC 7143 section 11.13) to `request`, without T, CSG and NSG unless `flags` says so.
pub fn login_response(request: &Bhs, flags: u8, tsih: u16, status: LoginStatus) -> Bhs {
    let mut b = Bhs::new(opcode::LOGIN_RESPONSE);
    b.0[1] = flags;
    b.0[8..14].copy_from_slice(&request.0[8..14]);
    b.0[14..16].copy_from_slice(&tsih.to_be_bytes());
    b.set_word(16, request.itt());
    b.0[36] = status.0;
    b.0[37] = status.1;
    b
}

/// A SCSI Response (RFC 7143 section 11.4): flags, response code, SCSI status.
pub fn scsi_response(itt: u32, flags: u8, response: u8, status: u8) -> Bhs {
    let mut b = Bhs::new(opcode::SCSI_RESPONSE);
    b.0[1] = 0x80 | flags;
    b.0[2] = response;
    b.0[3] = status;
    b.set_word(16, itt);
    b
}

/// A Ready To Transfer (RFC 7143 section 11.8).
pub fn r2t(lun: u64, itt: u32, ttt: u32, r2t_sn: u32, offset: u32, len: u32) -> Bhs {
    let mut b = Bhs::new(opcode::R2T);
    b.set_lun(lun);
    b.set_word(16, itt);
    b.set_word(20, ttt);
    b.set_word(36, r2t_sn);
    b.set_word(40, offset);
    b.set_word(44, len);
    b
}

/// A Task Management Function Response (RFC 7143 section 11.6).
pub fn task_management_response(itt: u32, response: u8) -> Bhs {
    let mut b = Bhs::new(opcode::TASK_MANAGEMENT_RESPONSE);
    b.0[2] = response;
    b.set_word(16, itt);
    b
}

/// A Text Response (RFC 7143 section 11.11) with its F and C bits in `flags`.
pub fn text_response(request: &Bhs, flags: u8, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::TEXT_RESPONSE);
    b.0[1] = flags;
    b.set_lun(request.lun());
    b.set_word(16, request.itt());
    b.set_word(20, ttt);
    b
}

/// A Logout Response (RFC 7143 section 11.15).
pub fn logout_response(itt: u32, response: u8, time2wait_s: u16, time2retain_s: u16) -> Bhs {
    let mut b = Bhs::new(opcode::LOGOUT_RESPONSE);
    b.0[2] = response;
    b.set_word(16, itt);
    b.0[40..42].copy_from_slice(&time2wait_s.to_be_bytes());
    b.0[42..44].copy_from_slice(&time2retain_s.to_be_bytes());
    b
}

/// A NOP-In (RFC 7143 section 11.19): an answer when `itt` is valid, a ping when `ttt` is.
pub fn nop_in(lun: u64, itt: u32, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::NOP_IN);
    b.set_lun(lun);
    b.set_word(16, itt);
    b.set_word(20, ttt);
    b
}

/// A Reject (RFC 7143 section 11.17); the rejected header is its data.
pub fn reject(reason: u8) -> Bhs {
    let mut b = Bhs::new(opcode::REJECT);
    b.0[2] = reason;
    b.set_word(16, NONE);
    b
}

/// An Asynchronous Message (RFC 7143 section 11.9).
pub fn async_message(lun: u64, event: u8, parameters: [u16; 3]) -> Bhs {
    let mut b = Bhs::new(opcode::ASYNC);
    b.set_lun(lun);
    b.set_word(16, NONE);
    b.0[36] = event;
    for (i, p) in parameters.iter().enumerate() {
        b.0[38 + 2 * i..40 + 2 * i].copy_from_slice(&p.to_be_bytes());
    }
    b
}
