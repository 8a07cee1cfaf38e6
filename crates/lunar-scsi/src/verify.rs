//! VERIFY, WRITE AND VERIFY, COMPARE AND WRITE, ORWRITE (SBC-4).

use crate::lba_range::LbaRange;
use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Compare, Op, PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::cdb::verify::BYTCHK;
use lunar_wire::scsi::{Sense, cdb, op};

/// CDB usage of byte 1 of VERIFY: DPO, BYTCHK.
const VERIFY: u8 = 0x16;
/// CDB usage of byte 1 of WRITE AND VERIFY: DPO, the low bit of BYTCHK.
const WRITE_VERIFY: u8 = 0x12;
/// CDB usage of byte 1 of the other commands: DPO, FUA.
const FLAGS: u8 = 0x18;

const fn cdb_10(opcode: u8, flags: u8) -> [u8; 10] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]
}

const fn cdb_12(opcode: u8, flags: u8) -> [u8; 12] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0]
}

const fn cdb_16(opcode: u8, flags: u8) -> [u8; 16] {
    [opcode, flags, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0]
}

const fn verifying(opcode: u8, usage: &'static [u8]) -> Row {
    Row::new(opcode, verify, ReservationClass::Reading, ChangeScope::Nothing, usage)
        .medium()
        .only(PeripheralDeviceType::Disk)
}

const fn writing(
    opcode: u8,
    handler: fn(&mut CommandContext<'_>) -> PlanResult,
    usage: &'static [u8],
) -> Row {
    Row::new(opcode, handler, ReservationClass::Never, ChangeScope::Shared, usage)
        .writes()
        .only(PeripheralDeviceType::Disk)
}

/// CDB usage data. NUMBER OF LOGICAL BLOCKS is byte 13 only.
const COMPARE_AND_WRITE: [u8; 16] =
    [0x89, FLAGS, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0x1f, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    verifying(op::VERIFY_10, &cdb_10(op::VERIFY_10, VERIFY)),
    verifying(op::VERIFY_12, &cdb_12(op::VERIFY_12, VERIFY)),
    verifying(op::VERIFY_16, &cdb_16(op::VERIFY_16, VERIFY)),
    writing(op::WRITE_VERIFY_10, write_verify, &cdb_10(op::WRITE_VERIFY_10, WRITE_VERIFY)),
    writing(op::WRITE_VERIFY_12, write_verify, &cdb_12(op::WRITE_VERIFY_12, WRITE_VERIFY)),
    writing(op::WRITE_VERIFY_16, write_verify, &cdb_16(op::WRITE_VERIFY_16, WRITE_VERIFY)),
    writing(op::COMPARE_AND_WRITE, compare_and_write, &COMPARE_AND_WRITE).exclusive().exact(),
    writing(op::ORWRITE_16, or_write, &cdb_16(op::ORWRITE_16, FLAGS)).exclusive().exact(),
];

fn verify(cx: &mut CommandContext<'_>) -> PlanResult {
    let compare = match BYTCHK.get(cx.cdb) {
        0 => Compare::Nothing,
        1 => Compare::Whole,
        2 => return Err(Sense::in_cdb(BYTCHK).into()),
        _ => Compare::OneBlock(cx.lu.settings().block_size),
    };
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::op(Op::Verify { offset, len: len as u64, compare })),
    }
}

fn write_verify(cx: &mut CommandContext<'_>) -> PlanResult {
    // BYTCHK is 0 or 1: its high bit is reserved here.
    let compare = BYTCHK.is_set(cx.cdb);
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::op(Op::WriteVerify { offset, len, compare })),
    }
}

fn compare_and_write(cx: &mut CommandContext<'_>) -> PlanResult {
    let stable = cx.stable();
    if LbaRange::of(cx.cdb).blocks > cx.lu.settings().max_compare_and_write().into() {
        return Err(Sense::in_cdb(cdb::compare_and_write::NUMBER_OF_LOGICAL_BLOCKS).into());
    }
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::op(Op::CompareAndWrite { offset, len, stable })),
    }
}

fn or_write(cx: &mut CommandContext<'_>) -> PlanResult {
    let stable = cx.stable();
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::op(Op::OrWrite { offset, len, stable })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn cdbs_and_what_they_come_to() {
        let mut n = nexus(&lu(disk()), "a");
        let verify = |compare| Ok(Plan::op(Op::Verify { offset: 512, len: 1024, compare }));
        let write = |compare| Ok(Plan::op(Op::WriteVerify { offset: 512, len: 1024, compare }));
        let swap = |stable| Ok(Plan::op(Op::CompareAndWrite { offset: 512, len: 1024, stable }));
        let or = |stable| Ok(Plan::op(Op::OrWrite { offset: 512, len: 1024, stable }));
        let beyond = fails(Sense::LBA_OUT_OF_RANGE.at(BLOCKS));
        let cases: &[(&[u8], PlanResult)] = &[
            (&[op::VERIFY_10, 0x10, 0, 0, 0, 1, 0, 0, 2, 0], verify(Compare::Nothing)),
            (&[op::VERIFY_10, 0x02, 0, 0, 0, 1, 0, 0, 2, 0], verify(Compare::Whole)),
            (&[op::VERIFY_12, 0x06, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0], verify(Compare::OneBlock(512))),
            (&[op::VERIFY_16, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], verify(Compare::Whole)),
            (&[op::VERIFY_10, 0x04, 0, 0, 0, 1, 0, 0, 2, 0], fails(Sense::cdb_field(1, 2))),
            (&[op::VERIFY_10, 0x22, 0, 0, 0, 1, 0, 0, 2, 0], fails(Sense::cdb_field(1, 5))),
            (&[op::VERIFY_10, 0, 0, 0, 8, 0, 0, 0, 1, 0], beyond),
            (&[op::VERIFY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0], Ok(Plan::Done)),
            (&[op::WRITE_VERIFY_10, 0x12, 0, 0, 0, 1, 0, 0, 2, 0], write(true)),
            (&[op::WRITE_VERIFY_12, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0], write(false)),
            (&[op::WRITE_VERIFY_16, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], write(true)),
            (&[op::WRITE_VERIFY_10, 0x04, 0, 0, 0, 1, 0, 0, 2, 0], fails(Sense::cdb_field(1, 2))),
            (&[op::COMPARE_AND_WRITE, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], swap(false)),
            (&[op::COMPARE_AND_WRITE, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], swap(true)),
            (&[op::COMPARE_AND_WRITE, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], Ok(Plan::Done)),
            (&[op::COMPARE_AND_WRITE, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0], fails(Sense::cdb_field(12, 0))),
            (&[op::ORWRITE_16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], or(false)),
            (&[op::ORWRITE_16, 0x18, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], or(true)),
        ];
        for (cdb, answer) in cases {
            assert_eq!(run(&mut n, cdb), *answer, "{cdb:02x?}");
        }
    }

    #[test]
    fn medium_that_compares_takes_one_block_and_no_orwrite() {
        let block_limit = |n: &mut crate::Nexus| data(n, &[op::INQUIRY, 1, 0xb0, 0, 255, 0])[5];
        let compare = |blocks| [op::COMPARE_AND_WRITE, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, blocks];
        let or = [op::ORWRITE_16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1];
        let one = || Ok(Plan::op(Op::CompareAndWrite { offset: 512, len: 512, stable: false }));
        let unknown = || fails(Sense::INVALID_OPCODE);
        for (medium_compares, shared, limit, expected) in [
            (true, false, 1, [one(), fails(Sense::cdb_field(13, 7)), unknown()]),
            (true, true, 1, [one(), fails(Sense::cdb_field(13, 7)), unknown()]),
            (false, true, 0, [unknown(), unknown(), unknown()]),
        ] {
            let mut n = nexus(&lu(crate::LuSettings { medium_compares, shared, ..disk() }), "a");
            assert_eq!(block_limit(&mut n), limit);
            assert_eq!([run(&mut n, &compare(1)), run(&mut n, &compare(2)), run(&mut n, &or)], expected);
        }
    }

    #[test]
    fn data_out_is_what_each_needs() {
        let mut n = nexus(&lu(disk()), "a");
        for (cdb, len) in [
            ([op::VERIFY_10, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0], 0),
            ([op::VERIFY_10, 2, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0], 1024),
            ([op::VERIFY_10, 6, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0], 512),
            ([op::COMPARE_AND_WRITE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], 2048),
            ([op::ORWRITE_16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], 1024),
        ] {
            assert_eq!(run(&mut n, &cdb).unwrap().data_out_len(), len, "{cdb:02x?}");
        }
    }
}
