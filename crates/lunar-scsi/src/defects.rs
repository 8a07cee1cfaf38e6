//! READ DEFECT DATA (SBC-4): the lists are always empty.

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::be;
use lunar_wire::scsi::op;

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
fn read_defect_data_10(cx: &mut CommandContext<'_>) -> PlanResult {
    let header = vec![0, cx.cdb[2] & 0x1f, 0, 0];
    Ok(Plan::data_cut(header, be::get16(&cx.cdb[7..]) as u32))
}

fn read_defect_data_12(cx: &mut CommandContext<'_>) -> PlanResult {
    let header = vec![0, cx.cdb[1] & 0x1f, 0, 0, 0, 0, 0, 0];
    Ok(Plan::data_cut(header, be::get32(&cx.cdb[6..])))
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
