//! CDBs. The functions encode those that an initiator sends: each is 16 bytes, and a shorter CDB is padded with zeros. A
//! module has the fields of the command of its name, for a device server.

mod blocks;
mod buffer;
mod capacity;
mod copies;
mod defects;
mod diagnostic;
mod identify;
mod log;
mod medium;
mod mode;
mod multimedia;
mod port_groups;
mod ready;
mod reservations;
pub mod sanitize;
mod supported;

use super::unmap::UnmapDescriptor;
use super::{BitField, op};
use blocks::put_lba_range;
pub use blocks::{compare_and_write, unmap, verify, write_atomic_16, write_same};
pub use blocks::{get_lba_status, lba_range, length_field, read_write};
pub use buffer::{read_buffer_10, write_buffer};
pub use capacity::{read_capacity_10, read_capacity_16};
pub use copies::{extended_copy, receive_copy_results};
pub use defects::{read_defect_data_10, read_defect_data_12};
pub use diagnostic::{receive_diagnostic_results, send_diagnostic};
pub use identify::{inquiry, report_luns};
pub use log::{log_select, log_sense};
pub use medium::{prevent_allow_medium_removal, start_stop_unit};
pub use mode::{mode_select_6, mode_select_10, mode_sense_6, mode_sense_10};
pub use multimedia::{
    get_configuration, get_event_status, mechanism_status, read_disc_information, read_toc,
    read_track_information,
};
pub use port_groups::{report_target_port_groups, set_target_port_groups};
pub use ready::request_sense;
pub use reservations::{persistent_reserve_in, persistent_reserve_out};
pub use supported::{report_supported_operation_codes, report_task_management};

/// A CDB of at most 16 bytes, padded with zeros.
pub type Cdb = [u8; 16];

/// SERVICE ACTION of the operation codes that have service actions.
pub const SERVICE_ACTION: BitField = BitField::bits(1, 4, 5);

/// The operation code of a CDB; 0 if it is empty.
#[inline]
pub fn opcode(cdb: &[u8]) -> u8 {
    cdb.first().copied().unwrap_or(0)
}

/// Operation code of variable length CDBs (SPC-5 section 4.2.3).
pub const VARIABLE_LENGTH: u8 = 0x7f;
/// ADDITIONAL CDB LENGTH of a variable length CDB: the number of bytes that follow this field.
const ADDITIONAL_CDB_LENGTH: BitField = BitField::bytes(7, 1);

/// The CDB length of an operation code's group (SPC-5 section 4.2.5.1), or the length that a variable length CDB
/// states; `None` if any length is valid.
pub fn len(cdb: &[u8]) -> Option<usize> {
    let (opcode, length_end) = (opcode(cdb), usize::from(ADDITIONAL_CDB_LENGTH.byte()) + 1);
    match opcode >> 5 {
        0 => Some(6),
        1 | 2 => Some(10),
        4 => Some(16),
        5 => Some(12),
        _ if opcode == VARIABLE_LENGTH && cdb.len() >= length_end => {
            Some(length_end + ADDITIONAL_CDB_LENGTH.get(cdb) as usize)
        }
        _ => None,
    }
}

fn cdb(opcode: u8) -> Cdb {
    let mut c = [0; 16];
    c[0] = opcode;
    c
}

/// A CDB with an operation code, and a field of up to 64 bits.
fn with(opcode: u8, field: BitField, value: u64) -> Cdb {
    let mut c = cdb(opcode);
    field.set(&mut c, value);
    c
}

/// A CDB with a service action, and another field.
fn action(opcode: u8, action: u8, field: BitField, value: u64) -> Cdb {
    let mut c = with(opcode, field, value);
    SERVICE_ACTION.set(&mut c, action.into());
    c
}

/// A command of any group that addresses logical blocks. An LBA or a number of blocks wider than its field is cut.
#[inline]
pub fn of_blocks(opcode: u8, lba: u64, blocks: u32) -> Cdb {
    let mut c = cdb(opcode);
    put_lba_range(&mut c, lba, blocks);
    c
}

/// TEST UNIT READY (SPC-5 section 6.48).
pub fn test_unit_ready() -> Cdb {
    cdb(op::TEST_UNIT_READY)
}

/// INQUIRY (SPC-5 section 6.6) of standard data, or of a VPD page. `len` is the allocation length in bytes.
pub fn inquiry(page: Option<u8>, len: u16) -> Cdb {
    let mut c = cdb(op::INQUIRY);
    inquiry::EVPD.set(&mut c, page.is_some().into());
    inquiry::PAGE_CODE.set(&mut c, page.unwrap_or(0).into());
    inquiry::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// REPORT LUNS (SPC-5 section 6.34) of the logical units without the well-known ones.
pub fn report_luns(len: u32) -> Cdb {
    let mut c = cdb(op::REPORT_LUNS);
    report_luns::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// READ CAPACITY(10) (SBC-4 section 5.20).
pub fn read_capacity_10() -> Cdb {
    cdb(op::READ_CAPACITY_10)
}

/// READ CAPACITY(16) (SBC-4 section 5.21).
pub fn read_capacity_16(len: u32) -> Cdb {
    let mut c = cdb(op::SERVICE_ACTION_IN_16);
    c[1] = 0x10;
    read_capacity_16::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// GET LBA STATUS (SBC-4 section 5.6).
pub fn get_lba_status(lba: u64, len: u32) -> Cdb {
    let mut c = action(op::SERVICE_ACTION_IN_16, 0x12, get_lba_status::STARTING_LBA, lba);
    get_lba_status::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// MODE SENSE(10) (SPC-5 section 6.15), current values, LLBAA.
pub fn mode_sense_10(page: u8, subpage: u8, len: u16) -> Cdb {
    let mut c = cdb(op::MODE_SENSE_10);
    mode_sense_10::LLBAA.fill(&mut c);
    mode_sense_10::PAGE_CODE.set(&mut c, page.into());
    mode_sense_10::SUBPAGE_CODE.set(&mut c, subpage.into());
    mode_sense_10::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// MODE SENSE(6) (SPC-5 section 6.14), current values.
pub fn mode_sense_6(page: u8, len: u8) -> Cdb {
    let mut c = cdb(op::MODE_SENSE_6);
    mode_sense_6::PAGE_CODE.set(&mut c, page.into());
    mode_sense_6::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// READ(16) (SBC-4 section 5.19).
#[inline]
pub fn read_16(lba: u64, blocks: u32) -> Cdb {
    of_blocks(op::READ_16, lba, blocks)
}

/// READ(10) (SBC-4 section 5.17).
#[inline]
pub fn read_10(lba: u32, blocks: u16) -> Cdb {
    of_blocks(op::READ_10, lba.into(), blocks.into())
}

/// WRITE(16) (SBC-4 section 5.42).
#[inline]
pub fn write_16(lba: u64, blocks: u32, fua: bool) -> Cdb {
    let mut c = of_blocks(op::WRITE_16, lba, blocks);
    read_write::FUA.set(&mut c, fua.into());
    c
}

/// WRITE(10) (SBC-4 section 5.40).
#[inline]
pub fn write_10(lba: u32, blocks: u16, fua: bool) -> Cdb {
    let mut c = of_blocks(op::WRITE_10, lba.into(), blocks.into());
    read_write::FUA.set(&mut c, fua.into());
    c
}

/// SYNCHRONIZE CACHE(10) of the whole medium (SBC-4 section 5.33).
pub fn synchronize_cache() -> Cdb {
    cdb(op::SYNCHRONIZE_CACHE_10)
}

/// UNMAP (SBC-4 section 5.35). `len` is the parameter list length in bytes.
pub fn unmap(len: u16) -> Cdb {
    with(op::UNMAP, unmap::PARAMETER_LIST_LENGTH, len.into())
}

/// The parameter list of an UNMAP of a single range.
pub fn unmap_list(lba: u64, blocks: u32) -> [u8; 24] {
    super::unmap::encode_one(UnmapDescriptor { lba, blocks })
}

/// WRITE SAME(16) (SBC-4 section 5.53), which writes one block of data to each of `blocks` blocks.
pub fn write_same_16(lba: u64, blocks: u32, unmap: bool) -> Cdb {
    let mut c = of_blocks(op::WRITE_SAME_16, lba, blocks);
    write_same::UNMAP.set(&mut c, unmap.into());
    c
}

/// COMPARE AND WRITE (SBC-4 section 5.4).
pub fn compare_and_write(lba: u64, blocks: u8, fua: bool) -> Cdb {
    let mut c = of_blocks(op::COMPARE_AND_WRITE, lba, blocks.into());
    read_write::FUA.set(&mut c, fua.into());
    c
}

/// REPORT TARGET PORT GROUPS (SPC-5 section 6.36).
pub fn report_target_port_groups(len: u32) -> Cdb {
    action(op::MAINTENANCE_IN, 0x0a, report_target_port_groups::ALLOCATION_LENGTH, len.into())
}

/// REPORT SUPPORTED OPERATION CODES (SPC-5 section 6.35): all of them.
pub fn report_supported_operation_codes(len: u32) -> Cdb {
    let mut c = cdb(op::MAINTENANCE_IN);
    c[1] = 0x0c;
    report_supported_operation_codes::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-5 section 6.36).
pub fn report_task_management(len: u32) -> Cdb {
    let mut c = cdb(op::MAINTENANCE_IN);
    c[1] = 0x0d;
    report_task_management::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// LOG SENSE (SPC-5 section 6.8): cumulative values of a page.
pub fn log_sense(page: u8, len: u16) -> Cdb {
    let mut c = cdb(op::LOG_SENSE);
    log_sense::PC.set(&mut c, 1);
    log_sense::PAGE_CODE.set(&mut c, page.into());
    log_sense::ALLOCATION_LENGTH.set(&mut c, len.into());
    c
}

/// PERSISTENT RESERVE IN (SPC-5 section 6.16).
pub fn persistent_reserve_in(action: u8, len: u16) -> Cdb {
    self::action(op::PERSISTENT_RESERVE_IN, action, persistent_reserve_in::ALLOCATION_LENGTH, len.into())
}

/// PERSISTENT RESERVE OUT (SPC-5 section 6.17) with scope logical unit. `kind` is the TYPE field, `len` the
/// parameter list length in bytes.
pub fn persistent_reserve_out(action: u8, kind: u8, len: u32) -> Cdb {
    use persistent_reserve_out::{PARAMETER_LIST_LENGTH, TYPE};
    let mut c = self::action(op::PERSISTENT_RESERVE_OUT, action, PARAMETER_LIST_LENGTH, len.into());
    TYPE.set(&mut c, kind.into());
    c
}

/// EXTENDED COPY(LID1) (SPC-4 section 6.4). `len` is the parameter list length in bytes.
pub fn extended_copy(len: u32) -> Cdb {
    with(op::EXTENDED_COPY, extended_copy::PARAMETER_LIST_LENGTH, len.into())
}

/// RECEIVE COPY RESULTS of the operating parameters (SPC-4 section 6.24).
pub fn copy_operating_parameters(len: u32) -> Cdb {
    action(op::RECEIVE_COPY_RESULTS, 0x03, receive_copy_results::ALLOCATION_LENGTH, len.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cdb_length_follows_from_the_first_bytes() {
        let length = |opcode: u8| len(&[opcode]);
        assert_eq!([0x00, 0x28, 0x43, 0x88, 0xa0].map(length), [6, 10, 10, 16, 12].map(Some));
        assert_eq!([0x7e, 0x7f, 0xc0].map(length), [None; 3]);
        assert_eq!(len(&[0x7f, 0, 0, 0, 0, 0, 0, 0x18]), Some(32));
    }

    #[test]
    fn cdb_fields_lie_as_in_the_standard() {
        assert_eq!(read_10(0x0102_0304, 5)[..10], [0x28, 0, 1, 2, 3, 4, 0, 0, 5, 0]);
        assert_eq!(write_16(1, 2, true)[..14], [0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        assert_eq!(inquiry(Some(0x83), 255)[..6], [0x12, 1, 0x83, 0, 255, 0]);
        assert_eq!(report_luns(16)[..10], [0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 16]);
        assert_eq!(mode_sense_10(8, 0, 64)[..9], [0x5a, 0x10, 8, 0, 0, 0, 0, 0, 64]);
        assert_eq!(unmap_list(3, 4)[..20], [0, 22, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4]);
        assert_eq!(log_sense(0x2f, 64)[..9], [0x4d, 0, 0x6f, 0, 0, 0, 0, 0, 64]);
        assert_eq!(persistent_reserve_in(3, 8)[..9], [0x5e, 3, 0, 0, 0, 0, 0, 0, 8]);
        assert_eq!(persistent_reserve_out(4, 5, 24)[..9], [0x5f, 4, 5, 0, 0, 0, 0, 0, 24]);
        assert_eq!(report_supported_operation_codes(9)[..10], [0xa3, 12, 0, 0, 0, 0, 0, 0, 0, 9]);
        assert_eq!(report_task_management(4)[..10], [0xa3, 13, 0, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(compare_and_write(9, 1, false)[13], 1);
        assert_eq!(extended_copy(108)[..14], [0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 108]);
        assert_eq!(copy_operating_parameters(255)[..14], [0x84, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255]);
        assert_eq!(read_capacity_16(32)[..14], [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32]);
    }
}
