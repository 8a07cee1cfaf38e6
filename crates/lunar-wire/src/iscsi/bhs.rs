//! The Basic Header Segment and its fields (RFC 7143 sections 11.2 to 11.19).
//!
//! Fields of different PDUs share their bytes. Each accessor names the PDUs that have its field; on any other PDU it
//! returns whatever those bytes hold. No accessor panics.

use super::status::LoginStatus;
use crate::be;

/// Bytes of a Basic Header Segment.
pub const BHS_LEN: usize = 48;

/// The reserved value of Initiator Task Tag and Target Transfer Tag, which means that the tag is absent.
pub const NONE: u32 = 0xffff_ffff;

/// Bits of the flags byte (byte 1) of a header.
pub mod flag {
    /// F: the last PDU of its sequence (RFC 7143 section 11.2.1.3).
    pub const FINAL: u8 = 0x80;
    /// T of Login PDUs: the sender is ready to leave the stage (section 11.12.1).
    pub const TRANSIT: u8 = 0x80;
    /// C of Login and Text PDUs: the key text continues in the next PDU (sections 11.10.2 and 11.12.2).
    pub const CONTINUE: u8 = 0x40;
    /// R of a SCSI Command: the command reads (section 11.3.1).
    pub const READ: u8 = 0x40;
    /// W of a SCSI Command: the command writes (section 11.3.1).
    pub const WRITE: u8 = 0x20;
    /// O of a SCSI Response or Data-In: residual overflow (section 11.4.1).
    pub const OVERFLOW: u8 = 0x04;
    /// U of a SCSI Response or Data-In: residual underflow (section 11.4.1).
    pub const UNDERFLOW: u8 = 0x02;
    /// S of a Data-In: it carries the status of its command (section 11.7.3).
    pub const STATUS: u8 = 0x01;
}

/// A Basic Header Segment: 48 bytes, read and written by field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Bhs(pub(crate) [u8; BHS_LEN]);

impl Bhs {
    /// A header of zeros except the opcode byte and the F bit.
    #[inline]
    pub fn new(opcode: u8) -> Self {
        let mut b = [0; BHS_LEN];
        b[0] = opcode;
        b[1] = flag::FINAL;
        Bhs(b)
    }

    /// Wraps the 48 bytes of a received header.
    #[inline]
    pub fn from_bytes(bytes: [u8; BHS_LEN]) -> Self {
        Bhs(bytes)
    }

    /// The 48 bytes to send.
    #[inline]
    pub fn as_bytes(&self) -> &[u8; BHS_LEN] {
        &self.0
    }

    /// The opcode without the I bit (RFC 7143 section 11.2.1.2).
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0] & 0x3f
    }

    /// Writes the whole opcode byte, I bit included.
    #[inline]
    pub fn set_opcode(&mut self, opcode: u8) {
        self.0[0] = opcode;
    }

    /// The I bit: an immediate request, outside the CmdSN order (RFC 7143 section 11.2.1.1).
    #[inline]
    pub fn immediate(&self) -> bool {
        self.0[0] & 0x40 != 0
    }

    /// The F bit, which is T in Login PDUs.
    #[inline]
    pub fn is_final(&self) -> bool {
        self.0[1] & flag::FINAL != 0
    }

    /// The C bit of Login and Text PDUs.
    #[inline]
    pub fn continues(&self) -> bool {
        self.0[1] & flag::CONTINUE != 0
    }

    /// The flags byte (byte 1). The meaning of its bits depends on the opcode: see [`flag`].
    #[inline]
    pub fn flags(&self) -> u8 {
        self.0[1]
    }

    /// Writes the flags byte.
    #[inline]
    pub fn set_flags(&mut self, flags: u8) {
        self.0[1] = flags;
    }

    /// TotalAHSLength in bytes.
    #[inline]
    pub fn ahs_len(&self) -> usize {
        self.0[4] as usize * 4
    }

    /// Writes TotalAHSLength. `len` is in bytes: a multiple of 4, at most 1020.
    #[inline]
    pub fn set_ahs_len(&mut self, len: usize) {
        self.0[4] = (len / 4) as u8;
    }

    /// DataSegmentLength in bytes, without padding.
    #[inline]
    pub fn data_len(&self) -> usize {
        be::get24(&self.0[5..]) as usize
    }

    /// Writes DataSegmentLength: bytes without padding, below 2^24.
    #[inline]
    pub fn set_data_len(&mut self, len: usize) {
        be::put24(&mut self.0[5..], len as u32);
    }

    /// The LUN field: eight bytes as SAM-5 section 4.7 encodes them (see [`scsi::lun`](crate::scsi::lun)).
    #[inline]
    pub fn lun(&self) -> u64 {
        be::get64(&self.0[8..])
    }

    /// Writes the LUN field.
    #[inline]
    pub fn set_lun(&mut self, lun: u64) {
        be::put64(&mut self.0[8..], lun);
    }

    /// The 16 bytes of the CDB in a SCSI Command.
    #[inline]
    pub fn cdb(&self) -> &[u8; 16] {
        self.0[32..].try_into().expect("16 of 48 bytes")
    }

    /// Response of a SCSI, Task Management Function or Logout Response (RFC 7143 sections 11.4.3, 11.6.1, 11.15.1).
    #[inline]
    pub fn response(&self) -> u8 {
        self.0[2]
    }

    /// Reason of a Reject (RFC 7143 section 11.17.1).
    #[inline]
    pub fn reject_reason(&self) -> u8 {
        self.0[2]
    }

    /// SCSI status of a SCSI Response, or of a Data-In with the S bit.
    #[inline]
    pub fn scsi_status(&self) -> u8 {
        self.0[3]
    }

    /// Writes the SCSI status of a SCSI Response or a Data-In.
    #[inline]
    pub fn set_scsi_status(&mut self, status: u8) {
        self.0[3] = status;
    }

    /// Version-max of a Login PDU (RFC 7143 sections 11.12.4 and 11.13.1).
    #[inline]
    pub fn version_max(&self) -> u8 {
        self.0[2]
    }

    /// Version-min of a Login Request, Version-active of a Login Response.
    #[inline]
    pub fn version_min(&self) -> u8 {
        self.0[3]
    }

    /// CSG and NSG of a Login PDU (RFC 7143 section 11.12.3).
    #[inline]
    pub fn stages(&self) -> (u8, u8) {
        (self.0[1] >> 2 & 3, self.0[1] & 3)
    }

    /// ISID of a Login PDU (RFC 7143 section 11.12.5).
    #[inline]
    pub fn isid(&self) -> [u8; 6] {
        std::array::from_fn(|i| self.0[8 + i])
    }

    /// Writes the ISID of a Login PDU.
    #[inline]
    pub fn set_isid(&mut self, isid: [u8; 6]) {
        self.0[8..14].copy_from_slice(&isid);
    }

    /// Status-Class and Status-Detail of a Login Response (RFC 7143 section 11.13.5).
    #[inline]
    pub fn login_status(&self) -> LoginStatus {
        LoginStatus(self.0[36], self.0[37])
    }

    /// Writes Status-Class and Status-Detail of a Login Response.
    #[inline]
    pub fn set_login_status(&mut self, status: LoginStatus) {
        (self.0[36], self.0[37]) = (status.0, status.1);
    }

    /// AsyncEvent of an Asynchronous Message (RFC 7143 section 11.9.1).
    #[inline]
    pub fn async_event(&self) -> u8 {
        self.0[36]
    }

    /// Parameter1 to Parameter3 of an Asynchronous Message.
    #[inline]
    pub fn async_parameters(&self) -> [u16; 3] {
        [38, 40, 42].map(|at| be::get16(&self.0[at..]))
    }
}

/// One row per big-endian field: getter, setter, type, functions that read and write it, byte offset, documentation.
macro_rules! fields {
    ($($get:ident $set:ident: $type:ty, $read:ident, $write:ident, $at:literal, $doc:literal;)*) => {
        impl Bhs {
            $(
                #[doc = $doc]
                #[inline]
                pub fn $get(&self) -> $type {
                    be::$read(&self.0[$at..])
                }

                #[doc = concat!("Writes [`Bhs::", stringify!($get), "`].")]
                #[inline]
                pub fn $set(&mut self, value: $type) {
                    be::$write(&mut self.0[$at..], value);
                }
            )*
        }
    };
}

fields! {
    tsih set_tsih: u16, get16, put16, 14, "TSIH of a Login PDU: 0 for a new session (RFC 7143 section 11.12.6).";
    itt set_itt: u32, get32, put32, 16, "Initiator Task Tag; [`NONE`] where a PDU belongs to no task.";
    cid set_cid: u16, get16, put16, 20, "CID of a Login or Logout Request (RFC 7143 section 11.12.7).";
    edtl set_edtl: u32, get32, put32, 20, "Expected Data Transfer Length of a SCSI Command, in bytes.";
    ttt set_ttt: u32, get32, put32, 20,
        "Target Transfer Tag of an R2T, Data-Out, Data-In, Text or NOP PDU; [`NONE`] where there is none.";
    referenced_task_tag set_referenced_task_tag: u32, get32, put32, 20,
        "Referenced Task Tag of a Task Management Function Request (RFC 7143 section 11.5.5).";
    cmd_sn set_cmd_sn: u32, get32, put32, 24, "CmdSN of a request.";
    stat_sn set_stat_sn: u32, get32, put32, 24, "StatSN of a response.";
    exp_stat_sn set_exp_stat_sn: u32, get32, put32, 28, "ExpStatSN of a request.";
    exp_cmd_sn set_exp_cmd_sn: u32, get32, put32, 28, "ExpCmdSN of a response.";
    max_cmd_sn set_max_cmd_sn: u32, get32, put32, 32, "MaxCmdSN of a response.";
    ref_cmd_sn set_ref_cmd_sn: u32, get32, put32, 32,
        "RefCmdSN of a Task Management Function Request (RFC 7143 section 11.5.6).";
    data_sn set_data_sn: u32, get32, put32, 36, "DataSN of a Data-In or Data-Out.";
    r2t_sn set_r2t_sn: u32, get32, put32, 36, "R2TSN of an R2T.";
    exp_data_sn set_exp_data_sn: u32, get32, put32, 36,
        "ExpDataSN of a SCSI Response: the Data-In and R2T PDUs that the target sent for the command.";
    buffer_offset set_buffer_offset: u32, get32, put32, 40, "Buffer Offset of a Data-In, Data-Out or R2T, in bytes.";
    desired_len set_desired_len: u32, get32, put32, 44, "Desired Data Transfer Length of an R2T, in bytes.";
    residual_count set_residual_count: u32, get32, put32, 44,
        "Residual Count of a SCSI Response or Data-In, in bytes (RFC 7143 section 11.4.5).";
}

impl std::fmt::Debug for Bhs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ", super::opcode::name(self.opcode()))?;
        self.0.chunks(4).try_for_each(|w| write!(f, "{:08x} ", be::get32(w)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn getters_read_where_the_standard_puts_the_fields() {
        let mut bytes: [u8; BHS_LEN] = std::array::from_fn(|i| i as u8);
        bytes[0] = 0x41;
        let b = Bhs::from_bytes(bytes);
        assert_eq!((b.opcode(), b.immediate(), b.flags(), b.stages()), (1, true, 1, (0, 1)));
        assert_eq!((b.response(), b.reject_reason(), b.scsi_status()), (2, 2, 3));
        assert_eq!((b.ahs_len(), b.data_len(), b.lun()), (16, 0x050607, 0x08090a0b0c0d0e0f));
        assert_eq!((b.isid(), b.tsih(), b.cid()), ([8, 9, 10, 11, 12, 13], 0x0e0f, 0x1415));
        assert_eq!((b.itt(), b.cdb()[0]), (0x10111213, 32));
        assert_eq!([b.edtl(), b.ttt(), b.referenced_task_tag()], [0x14151617; 3]);
        assert_eq!([b.cmd_sn(), b.stat_sn()], [0x18191a1b; 2]);
        assert_eq!([b.exp_stat_sn(), b.exp_cmd_sn()], [0x1c1d1e1f; 2]);
        assert_eq!([b.max_cmd_sn(), b.ref_cmd_sn()], [0x20212223; 2]);
        assert_eq!([b.data_sn(), b.r2t_sn(), b.exp_data_sn()], [0x24252627; 3]);
        assert_eq!((b.login_status(), b.async_event()), (LoginStatus(36, 37), 36));
        assert_eq!(b.async_parameters(), [0x2627, 0x2829, 0x2a2b]);
        assert_eq!(b.buffer_offset(), 0x28292a2b);
        assert_eq!([b.desired_len(), b.residual_count()], [0x2c2d2e2f; 2]);
    }

    #[test]
    fn setters_write_what_getters_read() {
        let mut b = Bhs::new(0x3f);
        b.set_opcode(0x43);
        b.set_flags(flag::CONTINUE);
        b.set_ahs_len(8);
        b.set_isid([1, 2, 3, 4, 5, 6]);
        b.set_tsih(7);
        b.set_itt(8);
        b.set_cid(9);
        b.set_login_status(LoginStatus(2, 11));
        assert_eq!((b.opcode(), b.immediate(), b.continues(), b.is_final()), (3, true, true, false));
        assert_eq!((b.ahs_len(), b.isid(), b.tsih()), (8, [1, 2, 3, 4, 5, 6], 7));
        assert_eq!((b.itt(), b.cid(), b.login_status()), (8, 9, LoginStatus(2, 11)));
        b.set_scsi_status(0x18);
        b.set_residual_count(10);
        assert_eq!((b.scsi_status(), b.residual_count()), (0x18, 10));
    }
}
