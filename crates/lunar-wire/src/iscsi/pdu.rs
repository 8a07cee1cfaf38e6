//! Headers of the PDUs that a target sends. [`stamp`] fills in StatSN, ExpCmdSN and MaxCmdSN when a PDU is sent.

use super::{Bhs, NONE, flag, opcode, status::LoginStatus};

/// Writes the fields that every target PDU carries: StatSN, ExpCmdSN and MaxCmdSN.
#[inline]
pub fn stamp(b: &mut Bhs, stat_sn: u32, exp_cmd_sn: u32, max_cmd_sn: u32) {
    b.set_stat_sn(stat_sn);
    b.set_exp_cmd_sn(exp_cmd_sn);
    b.set_max_cmd_sn(max_cmd_sn);
}

/// A Login Response (RFC 7143 section 11.13) to `request`. `flags` holds T, C, CSG and NSG.
pub fn login_response(request: &Bhs, flags: u8, tsih: u16, status: LoginStatus) -> Bhs {
    let mut b = Bhs::new(opcode::LOGIN_RESPONSE);
    b.set_flags(flags);
    b.set_isid(request.isid());
    b.set_tsih(tsih);
    b.set_itt(request.itt());
    b.set_login_status(status);
    b
}

/// A SCSI Response (RFC 7143 section 11.4). `flags` holds the residual bits, `response` the iSCSI response code.
#[inline]
pub fn scsi_response(itt: u32, flags: u8, response: u8, status: u8) -> Bhs {
    let mut b = Bhs::new(opcode::SCSI_RESPONSE);
    b.set_flags(flag::FINAL | flags);
    b.0[2] = response;
    b.set_scsi_status(status);
    b.set_itt(itt);
    b
}

/// A Ready To Transfer (RFC 7143 section 11.8) that requests `len` bytes from Buffer Offset `offset`.
pub fn r2t(lun: u64, itt: u32, ttt: u32, r2t_sn: u32, offset: u32, len: u32) -> Bhs {
    let mut b = Bhs::new(opcode::R2T);
    b.set_lun(lun);
    b.set_itt(itt);
    b.set_ttt(ttt);
    b.set_r2t_sn(r2t_sn);
    b.set_buffer_offset(offset);
    b.set_desired_len(len);
    b
}

/// A Task Management Function Response (RFC 7143 section 11.6).
pub fn task_management_response(itt: u32, response: u8) -> Bhs {
    let mut b = Bhs::new(opcode::TASK_MANAGEMENT_RESPONSE);
    b.0[2] = response;
    b.set_itt(itt);
    b
}

/// A Text Response (RFC 7143 section 11.11) to `request`. `flags` holds F and C.
pub fn text_response(request: &Bhs, flags: u8, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::TEXT_RESPONSE);
    b.set_flags(flags);
    b.set_lun(request.lun());
    b.set_itt(request.itt());
    b.set_ttt(ttt);
    b
}

/// A Logout Response (RFC 7143 section 11.15). Both times are in seconds.
pub fn logout_response(itt: u32, response: u8, time2wait_s: u16, time2retain_s: u16) -> Bhs {
    let mut b = Bhs::new(opcode::LOGOUT_RESPONSE);
    b.0[2] = response;
    b.set_itt(itt);
    b.0[40..42].copy_from_slice(&time2wait_s.to_be_bytes());
    b.0[42..44].copy_from_slice(&time2retain_s.to_be_bytes());
    b
}

/// A NOP-In (RFC 7143 section 11.19): the answer to a NOP-Out if `itt` is valid, a ping if `ttt` is.
pub fn nop_in(lun: u64, itt: u32, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::NOP_IN);
    b.set_lun(lun);
    b.set_itt(itt);
    b.set_ttt(ttt);
    b
}

/// A Reject (RFC 7143 section 11.17). The caller appends the rejected header as data segment.
pub fn reject(reason: u8) -> Bhs {
    let mut b = Bhs::new(opcode::REJECT);
    b.0[2] = reason;
    b.set_itt(NONE);
    b
}

/// An Asynchronous Message (RFC 7143 section 11.9) with Parameter1 to Parameter3.
pub fn async_message(lun: u64, event: u8, parameters: [u16; 3]) -> Bhs {
    let mut b = Bhs::new(opcode::ASYNC);
    b.set_lun(lun);
    b.set_itt(NONE);
    b.0[36] = event;
    for (i, p) in parameters.iter().enumerate() {
        b.0[38 + 2 * i..40 + 2 * i].copy_from_slice(&p.to_be_bytes());
    }
    b
}
