//! SYNCHRONIZE CACHE and PRE-FETCH (SBC-4). A length of 0 means up to the end of the medium.

use crate::lba_range::LbaRange;
use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Op, PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::op;

const fn row(
    opcode: u8,
    handler: fn(&mut CommandContext<'_>) -> PlanResult,
    allowed: ReservationClass,
    usage: &'static [u8],
) -> Row {
    Row::new(opcode, handler, allowed, ChangeScope::Nothing, usage).medium().only(PeripheralDeviceType::Disk)
}

/// IMMED, and SYNC_NV of SBC-2, which requires less than a flush and is therefore ignored.
const SYNC_10: &[u8] = &[0x35, 0x06, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
const SYNC_16: &[u8] =
    &[0x91, 0x06, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];
const FETCH_10: &[u8] = &[0x34, 0x02, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0];
const FETCH_16: &[u8] =
    &[0x90, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    row(op::SYNCHRONIZE_CACHE_10, synchronize, ReservationClass::Never, SYNC_10),
    row(op::SYNCHRONIZE_CACHE_16, synchronize, ReservationClass::Never, SYNC_16),
    row(op::PRE_FETCH_10, prefetch, ReservationClass::Reading, FETCH_10),
    row(op::PRE_FETCH_16, prefetch, ReservationClass::Reading, FETCH_16),
];

/// Flushes the whole cache. With IMMED too, the flush completes before the status.
fn synchronize(cx: &mut CommandContext<'_>) -> PlanResult {
    LbaRange::of(cx.cdb).check(cx.state)?;
    Ok(Plan::op(Op::Flush))
}

fn prefetch(cx: &mut CommandContext<'_>) -> PlanResult {
    let range = LbaRange::of(cx.cdb);
    range.check(cx.state)?;
    let block_size = cx.lu.settings().block_size as u64;
    let blocks = if range.blocks == 0 { cx.state.blocks - range.lba } else { range.blocks as u64 };
    Ok(Plan::op(Op::Prefetch { offset: range.lba * block_size, len: blocks * block_size }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use lunar_wire::scsi::Sense;

    #[test]
    fn cdbs_and_what_they_come_to() {
        let mut n = nexus(&lu(disk()), "a");
        let fetch = |offset, len| Ok(Plan::op(Op::Prefetch { offset, len }));
        let cases: &[(&[u8], PlanResult)] = &[
            (SYNC_ALL, Ok(Plan::op(Op::Flush))),
            (&[op::SYNCHRONIZE_CACHE_10, 6, 0, 0, 0, 1, 0, 0, 1, 0], Ok(Plan::op(Op::Flush))),
            (&[op::SYNCHRONIZE_CACHE_10, 8, 0, 0, 0, 1, 0, 0, 1, 0], fails(Sense::cdb_field(1, 3))),
            (&[op::SYNCHRONIZE_CACHE_10, 0, 0, 0, 9, 0], fails(Sense::LBA_OUT_OF_RANGE.at(0x900))),
            (&[op::SYNCHRONIZE_CACHE_16, 0, 0, 0, 0, 0, 0, 0, 0, 1], Ok(Plan::op(Op::Flush))),
            (&[op::PRE_FETCH_10, 2, 0, 0, 0, 1, 3, 0, 2, 0], fetch(512, 1024)),
            (&[op::PRE_FETCH_10, 0, 0, 0, 0, 1, 0, 0, 0, 0], fetch(512, (BLOCKS - 1) * 512)),
            (&[op::PRE_FETCH_16, 0, 0, 0, 0, 0, 0, 0, 8, 1], fails(Sense::LBA_OUT_OF_RANGE.at(0x801))),
        ];
        for (cdb, answer) in cases {
            assert_eq!(run(&mut n, cdb), *answer, "{cdb:02x?}");
        }
    }

    const SYNC_ALL: &[u8] = &[op::SYNCHRONIZE_CACHE_10];
}
