//! READ DEFECT DATA (SBC-4): the lists are always empty.

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::cdb::{read_defect_data_10, read_defect_data_12};
use lunar_wire::scsi::defects::DefectListHeader;
use lunar_wire::scsi::{BitField, op};

const fn row(opcode: u8, handler: fn(&mut CommandContext<'_>) -> PlanResult, usage: &'static [u8]) -> Row {
    Row::new(opcode, handler, ReservationClass::Reading, ChangeScope::Nothing, usage)
        .medium()
        .only(PeripheralDeviceType::Disk)
}

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    row(op::READ_DEFECT_DATA_10, read_defect_data_10, &[0x37, 0, 0x1f, 0, 0, 0, 0, 0xff, 0xff, 0]),
    row(
        op::READ_DEFECT_DATA_12,
        read_defect_data_12,
        &[0xb7, 0x1f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
];

/// The header: PLISTV, GLISTV and DEFECT LIST FORMAT as requested, length 0.
fn empty_list(cdb: &[u8], [plist, glist, format]: [BitField; 3]) -> DefectListHeader {
    DefectListHeader {
        plistv: plist.is_set(cdb),
        glistv: glist.is_set(cdb),
        defect_list_format: format.get_u8(cdb),
        defect_list_length: 0,
    }
}

fn read_defect_data_10(cx: &mut CommandContext<'_>) -> PlanResult {
    use read_defect_data_10::{ALLOCATION_LENGTH, DEFECT_LIST_FORMAT, REQ_GLIST, REQ_PLIST};
    let header = empty_list(cx.cdb, [REQ_PLIST, REQ_GLIST, DEFECT_LIST_FORMAT]).encode_10();
    Ok(Plan::data_cut(header.to_vec(), ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

fn read_defect_data_12(cx: &mut CommandContext<'_>) -> PlanResult {
    use read_defect_data_12::{ALLOCATION_LENGTH, DEFECT_LIST_FORMAT, REQ_GLIST, REQ_PLIST};
    let header = empty_list(cx.cdb, [REQ_PLIST, REQ_GLIST, DEFECT_LIST_FORMAT]).encode_12();
    Ok(Plan::data_cut(header.to_vec(), ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn lists_are_empty_in_every_format() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(data(&mut n, &[op::READ_DEFECT_DATA_10, 0, 0x1d, 0, 0, 0, 0, 0, 32, 0]), [0, 0x1d, 0, 0]);
        let read_defect_data_12 = [op::READ_DEFECT_DATA_12, 0x1d, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0];
        assert_eq!(data(&mut n, &read_defect_data_12), [0, 0x1d, 0, 0, 0, 0, 0, 0]);
        assert_eq!(data(&mut n, &[op::READ_DEFECT_DATA_10, 0, 0, 0, 0, 0, 0, 0, 2, 0]).len(), 2);
    }
}
