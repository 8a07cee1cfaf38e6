//! Headers of the PDUs that an initiator sends. CmdSN and ExpStatSN are stamped when they leave.

use super::{Bhs, NONE, opcode};

/// The I bit: outside the order of CmdSN.
const IMMEDIATE: u8 = 0x40;
/// AHSType of the Extended CDB.
const EXTENDED_CDB: u8 = 1;

/// Fields that every initiator PDU but Data-Out carries: CmdSN and ExpStatSN at offsets 24 and 28.
#[inline]
pub fn stamp(b: &mut Bhs, cmd_sn: u32, exp_stat_sn: u32) {
    b.set_word(24, cmd_sn);
    b.set_word(28, exp_stat_sn);
}

/// Task attribute of a SCSI Command (RFC 7143 section 11.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskAttribute {
    /// In any order.
    #[default]
    Simple = 1,
    /// After all before it, before all after it.
    Ordered = 2,
    /// Before all others.
    HeadOfQueue = 3,
}

/// A SCSI Command (RFC 7143 section 11.3) without data: F is set, R and W are not.
#[inline]
pub fn scsi_command(lun: u64, itt: u32, attribute: TaskAttribute, cdb: &[u8; 16]) -> Bhs {
    let mut b = Bhs::new(opcode::SCSI_COMMAND);
    b.0[1] = 0x80 | attribute as u8;
    b.set_lun(lun);
    b.set_word(16, itt);
    b.0[32..48].copy_from_slice(cdb);
    b
}

/// The additional header segment that carries what a CDB has behind its first 16 bytes, at most 244 bytes: an
/// Extended CDB (RFC 7143 section 11.2.2.3), padded to whole words.
pub fn extended_cdb(rest: &[u8]) -> Vec<u8> {
    // AHSLength counts what follows AHSType: a reserved byte, and the bytes of the CDB.
    let [high, low] = (1 + rest.len() as u16).to_be_bytes();
    let mut ahs = [&[high, low, EXTENDED_CDB, 0], rest].concat();
    ahs.resize(ahs.len().next_multiple_of(4), 0);
    ahs
}

/// Makes a SCSI Command one that reads `len` bytes.
#[inline]
pub fn set_read(b: &mut Bhs, len: u32) {
    b.0[1] |= 0x40;
    b.set_word(20, len);
}

/// Makes a SCSI Command one that writes `len` bytes; `more` unsolicited data follows it in Data-Out PDUs.
#[inline]
pub fn set_write(b: &mut Bhs, len: u32, more: bool) {
    b.0[1] |= 0x20;
    if more {
        b.0[1] &= 0x7f;
    }
    b.set_word(20, len);
}

/// What a Data-Out belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOutTags {
    /// The LUN that the R2T named, or that of the command.
    pub lun: u64,
    /// Initiator Task Tag.
    pub itt: u32,
    /// Target Transfer Tag of the R2T; [`NONE`] for unsolicited data.
    pub ttt: u32,
}

/// A Data-Out (RFC 7143 section 11.7).
pub fn data_out(burst: DataOutTags, data_sn: u32, offset: u32, last: bool, exp_stat_sn: u32) -> Bhs {
    let mut b = Bhs::new(opcode::DATA_OUT);
    b.0[1] = if last { 0x80 } else { 0 };
    b.set_lun(burst.lun);
    b.set_word(16, burst.itt);
    b.set_word(20, burst.ttt);
    b.set_word(28, exp_stat_sn);
    b.set_word(36, data_sn);
    b.set_word(40, offset);
    b
}

/// A NOP-Out (RFC 7143 section 11.18), immediate: a ping when `itt` is valid, an answer when `ttt` is.
pub fn nop_out(lun: u64, itt: u32, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::NOP_OUT | IMMEDIATE);
    b.set_lun(lun);
    b.set_word(16, itt);
    b.set_word(20, ttt);
    b
}

/// Task management functions (RFC 7143 section 11.5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TaskManagementFunction {
    /// ABORT TASK.
    AbortTask = 1,
    /// ABORT TASK SET.
    AbortTaskSet = 2,
    /// CLEAR TASK SET.
    ClearTaskSet = 4,
    /// LOGICAL UNIT RESET.
    LunReset = 5,
    /// TARGET WARM RESET.
    TargetWarmReset = 6,
    /// TARGET COLD RESET.
    TargetColdReset = 7,
}

/// A Task Management Function Request (RFC 7143 section 11.5), immediate. `referenced` is the tag and the
/// CmdSN of the task to abort.
pub fn task_management(
    lun: u64,
    itt: u32,
    function: TaskManagementFunction,
    referenced: Option<(u32, u32)>,
) -> Bhs {
    let mut b = Bhs::new(opcode::TASK_MANAGEMENT | IMMEDIATE);
    b.0[1] = 0x80 | function as u8;
    b.set_lun(lun);
    b.set_word(16, itt);
    let (tag, ref_cmd_sn) = referenced.unwrap_or((NONE, 0));
    b.set_word(20, tag);
    b.set_word(32, ref_cmd_sn);
    b
}

/// A Text Request (RFC 7143 section 11.10), immediate, with its F and C bits in `flags`.
pub fn text(itt: u32, flags: u8, lun: u64, ttt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::TEXT | IMMEDIATE);
    b.0[1] = flags;
    b.set_lun(lun);
    b.set_word(16, itt);
    b.set_word(20, ttt);
    b
}

/// A Logout Request (RFC 7143 section 11.14) that closes the session, immediate.
pub fn logout(itt: u32) -> Bhs {
    let mut b = Bhs::new(opcode::LOGOUT | IMMEDIATE);
    b.set_word(16, itt);
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_carries_what_was_said() {
        let cdb = std::array::from_fn(|i| i as u8);
        let mut b = scsi_command(5 << 48, 0x0102_0304, TaskAttribute::Simple, &cdb);
        set_read(&mut b, 4096);
        stamp(&mut b, 7, 8);
        assert_eq!((b.0[0], b.0[1], b.lun(), b.itt()), (0x01, 0xc1, 5 << 48, 0x0102_0304));
        assert_eq!((b.word20(), b.cmd_sn(), b.exp_stat_sn(), b.cdb()), (4096, 7, 8, &cdb));
        let mut b = scsi_command(0, 1, TaskAttribute::Ordered, &cdb);
        set_write(&mut b, 512, true);
        assert_eq!((b.0[1], b.word20()), (0x22, 512));
    }

    #[test]
    fn an_extended_cdb_is_padded_to_words() {
        assert_eq!(extended_cdb(&[9; 16]), [&[0, 17, 1, 0], &[9; 16][..]].concat());
        assert_eq!(extended_cdb(&[9; 5]), [0, 6, 1, 0, 9, 9, 9, 9, 9, 0, 0, 0]);
        let longest = extended_cdb(&[9; 244]);
        assert_eq!((longest.len(), &longest[..4]), (248, &[0, 245, 1, 0][..]));
    }

    #[test]
    fn the_others_are_where_the_standard_puts_them() {
        let d = data_out(DataOutTags { lun: 1 << 48, itt: 2, ttt: 3 }, 4, 5, false, 6);
        assert_eq!((d.0[0], d.0[1], d.itt(), d.word20(), d.exp_stat_sn()), (5, 0, 2, 3, 6));
        assert_eq!((d.word(36), d.word(40)), (4, 5));
        let t = task_management(1 << 48, 9, TaskManagementFunction::AbortTask, Some((2, 77)));
        assert_eq!((t.0[0], t.0[1], t.word20(), t.word(32)), (0x42, 0x81, 2, 77));
        assert_eq!(nop_out(0, 1, NONE).0[0], 0x40);
        assert_eq!((text(1, 0x80, 0, NONE).0[0], logout(1).0[..2].to_vec()), (0x44, vec![0x46, 0x80]));
    }
}
