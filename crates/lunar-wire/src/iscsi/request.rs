//! Headers of the PDUs that an initiator sends. [`stamp`] fills in CmdSN and ExpStatSN when a PDU is sent.

use super::{Bhs, NONE, flag, opcode};
use crate::be;
use crate::scsi::{TaskAttribute, TaskManagementFunction};

/// The I bit of the opcode byte.
const IMMEDIATE: u8 = 0x40;
/// AHSType of the Extended CDB.
const EXTENDED_CDB: u8 = 1;

/// Writes CmdSN and ExpStatSN, which every initiator PDU except Data-Out carries.
#[inline]
pub fn stamp(b: &mut Bhs, cmd_sn: u32, exp_stat_sn: u32) {
    b.set_cmd_sn(cmd_sn);
    b.set_exp_stat_sn(exp_stat_sn);
}

/// Codes of the ATTR field of a SCSI Command (RFC 7143 section 11.3.1).
mod attr {
    /// The bits of the field in the flags byte.
    pub const MASK: u8 = 0x07;
    pub const SIMPLE: u8 = 1;
    pub const ORDERED: u8 = 2;
    pub const HEAD_OF_QUEUE: u8 = 3;
}

/// Codes of the Function field of a Task Management Function Request (RFC 7143 section 11.5.1).
pub mod function {
    /// The bits of the field in the flags byte.
    pub(super) const MASK: u8 = 0x7f;
    /// ABORT TASK.
    pub const ABORT_TASK: u8 = 1;
    /// ABORT TASK SET.
    pub const ABORT_TASK_SET: u8 = 2;
    /// CLEAR ACA.
    pub const CLEAR_ACA: u8 = 3;
    /// CLEAR TASK SET.
    pub const CLEAR_TASK_SET: u8 = 4;
    /// LOGICAL UNIT RESET.
    pub const LUN_RESET: u8 = 5;
    /// TARGET WARM RESET.
    pub const TARGET_WARM_RESET: u8 = 6;
    /// TARGET COLD RESET.
    pub const TARGET_COLD_RESET: u8 = 7;
    /// TASK REASSIGN.
    pub const TASK_REASSIGN: u8 = 8;
}

/// The ATTR field of a SCSI Command (RFC 7143 section 11.3.1).
const fn attribute_code(attribute: TaskAttribute) -> u8 {
    match attribute {
        TaskAttribute::Simple => attr::SIMPLE,
        TaskAttribute::Ordered => attr::ORDERED,
        TaskAttribute::HeadOfQueue => attr::HEAD_OF_QUEUE,
    }
}

/// The task attribute of a SCSI Command. Untagged, ACA and reserved codes count as SIMPLE.
#[inline]
pub fn task_attribute(command: &Bhs) -> TaskAttribute {
    match command.flags() & attr::MASK {
        attr::ORDERED => TaskAttribute::Ordered,
        attr::HEAD_OF_QUEUE => TaskAttribute::HeadOfQueue,
        _ => TaskAttribute::Simple,
    }
}

/// A SCSI Command (RFC 7143 section 11.3) that transfers no data. See [`set_read`] and [`set_write`].
#[inline]
pub fn scsi_command(lun: u64, itt: u32, attribute: TaskAttribute, cdb: &[u8; 16]) -> Bhs {
    let mut b = Bhs::new(opcode::SCSI_COMMAND);
    b.set_flags(flag::FINAL | attribute_code(attribute));
    b.set_lun(lun);
    b.set_itt(itt);
    b.0[32..48].copy_from_slice(cdb);
    b
}

/// The Extended CDB additional header segment (RFC 7143 section 11.2.2.3). `rest` holds the bytes of the CDB after
/// its first 16, at most 244. The segment is padded to a multiple of four bytes.
pub fn extended_cdb(rest: &[u8]) -> Vec<u8> {
    // AHSLength counts the bytes after AHSType: a reserved byte and `rest`.
    let [high, low] = (1 + rest.len() as u16).to_be_bytes();
    let mut ahs = [&[high, low, EXTENDED_CDB, 0], rest].concat();
    ahs.resize(ahs.len().next_multiple_of(4), 0);
    ahs
}

/// The longest CDB in bytes (SPC-5 section 4.2.3).
const MAX_CDB_LEN: usize = 260;

/// A CDB and its rest in the additional header segments (RFC 7143 section 11.2.2), at most 260 bytes. `None`: a segment
/// is incomplete, or has no length.
pub fn whole_cdb(first: &[u8; 16], mut ahs: &[u8]) -> Option<Vec<u8>> {
    let mut whole = first.to_vec();
    while ahs.len() >= 4 {
        // AHSLength counts the bytes after AHSType.
        let len = usize::from(be::get16(ahs));
        let end = 3 + len;
        if len == 0 || end > ahs.len() {
            return None;
        }
        if ahs[2] & 0x3f == EXTENDED_CDB {
            whole.extend_from_slice(&ahs[4.min(end)..end]);
        }
        ahs = ahs.get(end.next_multiple_of(4)..).unwrap_or_default();
    }
    whole.truncate(MAX_CDB_LEN);
    Some(whole)
}

/// Sets R and an Expected Data Transfer Length of `len` bytes in a SCSI Command.
#[inline]
pub fn set_read(b: &mut Bhs, len: u32) {
    b.0[1] |= flag::READ;
    b.set_edtl(len);
}

/// Sets W and an Expected Data Transfer Length of `len` bytes in a SCSI Command. With `more`, it clears F: unsolicited
/// Data-Out PDUs follow.
#[inline]
pub fn set_write(b: &mut Bhs, len: u32, more: bool) {
    b.0[1] |= flag::WRITE;
    if more {
        b.0[1] &= !flag::FINAL;
    }
    b.set_edtl(len);
}

/// The tags of a Data-Out: the task and the burst to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutTags {
    /// The LUN that the R2T named, or that of the command.
    pub lun: u64,
    /// Initiator Task Tag.
    pub itt: u32,
    /// Target Transfer Tag of the R2T; [`NONE`] for unsolicited data.
    pub ttt: u32,
}

/// A Data-Out (RFC 7143 section 11.7). `offset` is in bytes from the start of the command's data; `last` sets F.
pub fn data_out(burst: DataOutTags, data_sn: u32, offset: u32, last: bool, exp_stat_sn: u32) -> Bhs {
    let mut b = Bhs::new(opcode::DATA_OUT);
    b.set_flags(if last { flag::FINAL } else { 0 });
    b.set_lun(burst.lun);
    b.set_itt(burst.itt);
    b.set_ttt(burst.ttt);
    b.set_exp_stat_sn(exp_stat_sn);
    b.set_data_sn(data_sn);
    b.set_buffer_offset(offset);
    b
}

/// An immediate NOP-Out (RFC 7143 section 11.18): a ping if `itt` is valid, the answer to a NOP-In if `ttt` is.
pub fn nop_out(lun: u64, itt: u32, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::NOP_OUT | IMMEDIATE);
    b.set_lun(lun);
    b.set_itt(itt);
    b.set_ttt(ttt);
    b
}

/// The Function field of a Task Management Function Request (RFC 7143 section 11.5.1).
pub const fn function_code(function: TaskManagementFunction) -> u8 {
    match function {
        TaskManagementFunction::AbortTask => function::ABORT_TASK,
        TaskManagementFunction::AbortTaskSet => function::ABORT_TASK_SET,
        TaskManagementFunction::ClearTaskSet => function::CLEAR_TASK_SET,
        TaskManagementFunction::LunReset => function::LUN_RESET,
        TaskManagementFunction::TargetWarmReset => function::TARGET_WARM_RESET,
        TaskManagementFunction::TargetColdReset => function::TARGET_COLD_RESET,
    }
}

/// The Function field of a received request, one of the codes in [`function`] or a reserved one.
pub fn function_of(request: &Bhs) -> u8 {
    request.flags() & function::MASK
}

/// An immediate Task Management Function Request (RFC 7143 section 11.5). `referenced` is the Initiator Task Tag and
/// the CmdSN of the task to abort.
pub fn task_management(
    lun: u64,
    itt: u32,
    function: TaskManagementFunction,
    referenced: Option<(u32, u32)>,
) -> Bhs {
    let mut b = Bhs::new(opcode::TASK_MANAGEMENT | IMMEDIATE);
    b.set_flags(flag::FINAL | function_code(function));
    b.set_lun(lun);
    b.set_itt(itt);
    let (tag, ref_cmd_sn) = referenced.unwrap_or((NONE, 0));
    b.set_referenced_task_tag(tag);
    b.set_ref_cmd_sn(ref_cmd_sn);
    b
}

/// An immediate Text Request (RFC 7143 section 11.10). `flags` holds F and C.
pub fn text(itt: u32, flags: u8, lun: u64, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::TEXT | IMMEDIATE);
    b.set_flags(flags);
    b.set_lun(lun);
    b.set_itt(itt);
    b.set_ttt(ttt);
    b
}

/// An immediate Logout Request (RFC 7143 section 11.14) that closes the session.
pub fn logout(itt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::LOGOUT | IMMEDIATE);
    b.set_itt(itt);
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_header_holds_every_argument() {
        let cdb = std::array::from_fn(|i| i as u8);
        let mut b = scsi_command(5 << 48, 0x0102_0304, TaskAttribute::Simple, &cdb);
        set_read(&mut b, 4096);
        stamp(&mut b, 7, 8);
        assert_eq!((b.0[0], b.0[1], b.lun(), b.itt()), (0x01, 0xc1, 5 << 48, 0x0102_0304));
        assert_eq!((b.edtl(), b.cmd_sn(), b.exp_stat_sn(), b.cdb()), (4096, 7, 8, &cdb));
        let mut b = scsi_command(0, 1, TaskAttribute::Ordered, &cdb);
        set_write(&mut b, 512, true);
        assert_eq!((b.0[1], b.edtl()), (0x22, 512));
    }

    #[test]
    fn extended_cdb_is_padded_to_words() {
        assert_eq!(extended_cdb(&[9; 16]), [&[0, 17, 1, 0], &[9; 16][..]].concat());
        assert_eq!(extended_cdb(&[9; 5]), [0, 6, 1, 0, 9, 9, 9, 9, 9, 0, 0, 0]);
        let longest = extended_cdb(&[9; 244]);
        assert_eq!((longest.len(), &longest[..4]), (248, &[0, 245, 1, 0][..]));
    }

    #[test]
    fn cdb_is_joined_from_its_segments() {
        let first = [1; 16];
        let other = [0, 5, 2, 0, 7, 7, 7, 7];
        let segment = extended_cdb(&[9; 5]);
        let joined = whole_cdb(&first, &[&other[..], &segment].concat());
        assert_eq!(joined, Some([&first[..], &[9; 5]].concat()));
        for n in 0..4 {
            assert_eq!(whole_cdb(&first, &segment[..n]), Some(first.to_vec()), "{n} bytes");
        }
        (4..9).for_each(|n| assert_eq!(whole_cdb(&first, &segment[..n]), None, "{n} bytes"));
        assert_eq!(whole_cdb(&first, &[0, 0, 1, 0]), None, "a segment without a length");
        assert_eq!(whole_cdb(&first, &extended_cdb(&[9; 300])).map(|cdb| cdb.len()), Some(260));
    }

    #[test]
    fn attribute_and_function_decode_as_encoded() {
        for attribute in [TaskAttribute::Simple, TaskAttribute::Ordered, TaskAttribute::HeadOfQueue] {
            let mut command = scsi_command(0, 1, attribute, &[0; 16]);
            set_write(&mut command, 512, true);
            assert_eq!(task_attribute(&command), attribute);
        }
        let mut untagged = Bhs::new(opcode::SCSI_COMMAND);
        untagged.set_flags(flag::FINAL);
        assert_eq!(task_attribute(&untagged), TaskAttribute::Simple);
        let reset = task_management(0, 9, TaskManagementFunction::LunReset, None);
        assert_eq!(function_of(&reset), function::LUN_RESET);
    }

    #[test]
    fn request_headers_lie_as_in_the_standard() {
        let d = data_out(DataOutTags { lun: 1 << 48, itt: 2, ttt: 3 }, 4, 5, false, 6);
        assert_eq!((d.0[0], d.0[1], d.itt(), d.ttt(), d.exp_stat_sn()), (5, 0, 2, 3, 6));
        assert_eq!((d.data_sn(), d.buffer_offset()), (4, 5));
        let t = task_management(1 << 48, 9, TaskManagementFunction::AbortTask, Some((2, 77)));
        assert_eq!((t.0[0], t.0[1], t.referenced_task_tag(), t.ref_cmd_sn()), (0x42, 0x81, 2, 77));
        assert_eq!(nop_out(0, 1, NONE).0[0], 0x40);
        assert_eq!((text(1, 0x80, 0, NONE).0[0], logout(1).0[..2].to_vec()), (0x44, vec![0x46, 0x80]));
    }
}
