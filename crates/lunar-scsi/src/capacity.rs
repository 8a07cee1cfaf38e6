//! READ CAPACITY (SBC-4 sections 5.20 and 5.21).

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::cdb::{read_capacity_10, read_capacity_16};
use lunar_wire::scsi::inquiry::Capacity;
use lunar_wire::scsi::{BitField, Sense, op};

/// Service action of READ CAPACITY(16).
pub(crate) const READ_CAPACITY_16: u16 = 0x10;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    Row::new(
        op::READ_CAPACITY_10,
        read_10,
        ReservationClass::Always,
        ChangeScope::Nothing,
        &[0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0],
    )
    .despite_reserve()
    .in_standby()
    .medium(),
    Row::new(
        op::SERVICE_ACTION_IN_16,
        read_16,
        ReservationClass::Always,
        ChangeScope::Nothing,
        &[0x9e, 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0],
    )
    .action(READ_CAPACITY_16)
    .despite_reserve()
    .only(PeripheralDeviceType::Disk)
    .in_standby()
    .medium(),
];

fn read_10(cx: &mut CommandContext<'_>) -> PlanResult {
    use read_capacity_10::{LOGICAL_BLOCK_ADDRESS, PMI};
    check(cx, LOGICAL_BLOCK_ADDRESS, PMI)?;
    Ok(Plan::Data(capacity(cx).encode_10().to_vec()))
}

fn read_16(cx: &mut CommandContext<'_>) -> PlanResult {
    use read_capacity_16::{ALLOCATION_LENGTH, LOGICAL_BLOCK_ADDRESS, PMI};
    check(cx, LOGICAL_BLOCK_ADDRESS, PMI)?;
    Ok(Plan::data_cut(capacity(cx).encode_16().to_vec(), ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// If PMI (obsolete) is 0, the LBA must be 0.
fn check(cx: &CommandContext<'_>, lba: BitField, pmi: BitField) -> Result<(), Sense> {
    match pmi.is_set(cx.cdb) || !lba.is_set(cx.cdb) {
        true => Ok(()),
        false => Err(Sense::in_cdb(lba)),
    }
}

fn capacity(cx: &CommandContext<'_>) -> Capacity {
    let settings = cx.lu.settings();
    Capacity {
        last_lba: last_lba(cx),
        block_size: settings.block_size,
        physical_exponent: (settings.physical_block_size / settings.block_size).trailing_zeros() as u8,
        thin: settings.thin,
        unmapped_reads_zero: settings.thin,
    }
}

/// The last LBA. An empty medium has none; it is not ready, so this value is not sent.
fn last_lba(cx: &CommandContext<'_>) -> u64 {
    cx.state.blocks.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LuSettings;
    use crate::testing::*;

    const SIXTEEN: [u8; 14] = [0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255];

    #[test]
    fn read_capacity_matches_golden_bytes() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(data(&mut n, &[op::READ_CAPACITY_10]), [0, 0, 7, 255, 0, 0, 2, 0]);
        let long = data(&mut n, &SIXTEEN);
        assert_eq!(long[..16], [0, 0, 0, 0, 0, 0, 7, 255, 0, 0, 2, 0, 0, 3, 0xc0, 0]);
        assert_eq!(long[16..], [0; 16]);
    }

    #[test]
    fn big_medium_needs_the_long_form() {
        let mut n = nexus(&lu(LuSettings { capacity: 1 << 42, thin: false, ..disk() }), "a");
        assert_eq!(data(&mut n, &[op::READ_CAPACITY_10])[..4], [255; 4]);
        assert_eq!(data(&mut n, &SIXTEEN)[..16], [0, 0, 0, 1, 255, 255, 255, 255, 0, 0, 2, 0, 0, 3, 0, 0]);
    }

    #[test]
    fn medium_without_a_block_is_absent() {
        let lu = lu(disk());
        let mut n = nexus(&lu, "a");
        lu.resized(511);
        assert_eq!(run(&mut n, &[op::TEST_UNIT_READY]), fails(Sense::CAPACITY_CHANGED));
        for cdb in [&[op::TEST_UNIT_READY][..], &[op::READ_CAPACITY_10], &SIXTEEN, &[op::READ_10]] {
            assert_eq!(run(&mut n, cdb), fails(Sense::NOT_READY_NO_MEDIUM), "{cdb:02x?}");
        }
        assert!(run(&mut n, &[op::INQUIRY, 0, 0, 0, 36, 0]).is_ok());
        lu.resized(512);
        assert_eq!(run(&mut n, &[op::TEST_UNIT_READY]), fails(Sense::CAPACITY_CHANGED));
        assert_eq!(data(&mut n, &[op::READ_CAPACITY_10]), [0, 0, 0, 0, 0, 0, 2, 0]);
    }

    #[test]
    fn lba_without_pmi_is_pointed_at() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(run(&mut n, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 1]), fails(Sense::cdb_field(2, 7)));
        assert!(run(&mut n, &[op::READ_CAPACITY_10, 0, 0, 0, 0, 1, 0, 0, 1]).is_ok());
    }
}
