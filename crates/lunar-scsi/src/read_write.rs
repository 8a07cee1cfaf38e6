//! READ and WRITE on the slow path, and WRITE ATOMIC (SBC-4).

use crate::lba_range::LbaRange;
use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Op, PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::cdb::{self, read_write::FUA, write_atomic_16};
use lunar_wire::scsi::{Sense, op};

// GROUP NUMBER is accepted and ignored, because no grouping function is announced (GROUP_SUP of VPD 86h).

const fn reading(opcode: u8, usage: &'static [u8]) -> Row {
    Row::new(opcode, read, ReservationClass::Reading, ChangeScope::Nothing, usage).medium()
}

const fn writing(opcode: u8, usage: &'static [u8]) -> Row {
    Row::new(opcode, write, ReservationClass::Never, ChangeScope::Shared, usage)
        .writes()
        .only(PeripheralDeviceType::Disk)
}

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    reading(op::READ_6, &[0x08, 0x1f, 0xff, 0xff, 0xff, 0]),
    reading(op::READ_10, &[0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]),
    reading(op::READ_12, &[0xa8, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0]),
    reading(
        op::READ_16,
        &[0x88, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0],
    ),
    writing(op::WRITE_6, &[0x0a, 0x1f, 0xff, 0xff, 0xff, 0]),
    writing(op::WRITE_10, &[0x2a, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]),
    writing(op::WRITE_12, &[0xaa, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0]),
    writing(
        op::WRITE_16,
        &[0x8a, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0],
    ),
    Row::new(op::WRITE_ATOMIC_16, write_atomic, ReservationClass::Never, ChangeScope::Shared, &WRITE_ATOMIC)
        .writes()
        .only(PeripheralDeviceType::Disk)
        .exclusive()
        .atomic(),
];

/// CDB usage data. TRANSFER LENGTH has 16 bits. ATOMIC BOUNDARY (bytes 10 and 11) is not supported.
const WRITE_ATOMIC: [u8; 16] =
    [0x9c, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0x1f, 0];

impl CommandContext<'_> {
    /// First byte and length in bytes of the range that the CDB addresses. Fails if it exceeds the capacity or the
    /// transfer limit.
    pub(crate) fn transfer(&self) -> Result<(u64, u32), Sense> {
        let range = LbaRange::of(self.cdb);
        range.check(self.state)?;
        range.transfer(self.cdb, &self.lu.settings())
    }

    /// Whether the write must be on stable storage before its status: FUA, or the write cache is off.
    pub(crate) fn stable(&self) -> bool {
        FUA.is_set(self.cdb) || !self.state.modes.write_cache()
    }
}

fn read(cx: &mut CommandContext<'_>) -> PlanResult {
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::Read { offset, len }),
    }
}

fn write(cx: &mut CommandContext<'_>) -> PlanResult {
    let fua = cdb::opcode(cx.cdb) != op::WRITE_6 && FUA.is_set(cx.cdb);
    let stable = fua || !cx.state.modes.write_cache();
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::Write { offset, len, stable }),
    }
}

/// Plans an operation of its own instead of a WRITE, which may run at once and beside other commands. The data are on
/// stable storage with or without FUA.
fn write_atomic(cx: &mut CommandContext<'_>) -> PlanResult {
    let settings = cx.lu.settings();
    if LbaRange::of(cx.cdb).blocks > settings.max_atomic / settings.block_size {
        return Err(Sense::in_cdb(write_atomic_16::TRANSFER_LENGTH).into());
    }
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::op(Op::WriteAtomic { offset, len })),
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::*;
    use crate::{Concurrency, Op, Plan, PlanResult};
    use lunar_wire::scsi::{Sense, op};

    const LAST: u8 = (BLOCKS - 1) as u8;

    fn read(offset: u64, len: u32) -> PlanResult {
        Ok(Plan::Read { offset, len })
    }

    fn write(offset: u64, len: u32, stable: bool) -> PlanResult {
        Ok(Plan::Write { offset, len, stable })
    }

    fn atomic(offset: u64, len: u32) -> PlanResult {
        Ok(Plan::op(Op::WriteAtomic { offset, len }))
    }

    #[test]
    fn cdbs_and_what_they_come_to() {
        let mut n = nexus(&lu(disk()), "a");
        let out_of_range = |lba| fails(Sense::LBA_OUT_OF_RANGE.at(lba));
        let cases: &[(&[u8], PlanResult)] = &[
            (&[op::READ_6, 0, 7, LAST, 1, 0], read((BLOCKS - 1) * 512, 512)),
            (&[op::READ_6, 0, 0, 1, 0, 0], read(512, 256 * 512)),
            (&[op::READ_6, 0, 8, 0, 1, 0], out_of_range(BLOCKS)),
            (&[op::READ_6, 0x20, 0, 0, 1, 0], fails(Sense::cdb_field(1, 5))),
            (&[op::WRITE_6, 0x08, 0, 0, 1, 0], out_of_range(0x80000)),
            (&[op::WRITE_6, 0, 0, 0, 1, 0], write(0, 512, false)),
            (&[op::READ_10, 0x18, 0, 0, 0, 2, 0x1f, 0, 3, 0], read(1024, 1536)),
            (&[op::READ_10, 0x20, 0, 0, 0, 2, 0, 0, 3, 0], fails(Sense::cdb_field(1, 5))),
            (&[op::READ_10, 0x04, 0, 0, 0, 2, 0, 0, 3, 0], fails(Sense::cdb_field(1, 2))),
            (&[op::READ_10, 0, 0, 0, 0, 2, 0, 0, 3, 4], fails(Sense::cdb_field(9, 2))),
            (&[op::READ_10, 0, 0, 0, 8, 0, 0, 0, 0, 0], Ok(Plan::Done)),
            (&[op::READ_10, 0, 0, 0, 8, 1, 0, 0, 0, 0], out_of_range(BLOCKS + 1)),
            (&[op::READ_10, 0, 0, 0, 7, LAST, 0, 0, 2, 0], out_of_range(BLOCKS)),
            (&[op::READ_10, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 1, 0], out_of_range(u32::MAX as u64)),
            (&[op::WRITE_10, 0, 0, 0, 0, 2, 0, 0, 1, 0], write(1024, 512, false)),
            (&[op::WRITE_10, 0x08, 0, 0, 0, 2, 0, 0, 1, 0], write(1024, 512, true)),
            (&[op::READ_12, 0, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0], read(2048, 512)),
            (&[op::WRITE_12, 8, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0], write(2048, 512, true)),
            (&[op::READ_16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0], read(512, 1024)),
            (&[op::READ_16, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 2], out_of_range(u64::MAX)),
            (&[op::WRITE_16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x1f, 0], write(512, 1024, false)),
            (&[op::WRITE_16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x20], fails(Sense::cdb_field(14, 5))),
            (&[op::WRITE_ATOMIC_16, 8, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2], atomic(512, 1024)),
            (&[op::WRITE_ATOMIC_16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1], fails(Sense::cdb_field(11, 0))),
            (&[op::WRITE_ATOMIC_16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 1], fails(Sense::cdb_field(12, 7))),
        ];
        for (cdb, answer) in cases {
            assert_eq!(run(&mut n, cdb), *answer, "{cdb:02x?}");
        }
    }

    #[test]
    fn sense_points_at_a_transfer_length_beyond_the_limit() {
        let mut n = nexus(&lu(crate::LuSettings { capacity: 1 << 42, ..disk() }), "a");
        let mut cdb = [op::READ_16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(run(&mut n, &cdb), read(0, 32 << 20));
        cdb[13] = 1;
        assert_eq!(run(&mut n, &cdb), fails(Sense::cdb_field(10, 7)));
        cdb[10] = 0xff;
        assert_eq!(run(&mut n, &cdb), fails(Sense::cdb_field(10, 7)));
    }

    #[test]
    fn cdrom_is_read_in_its_own_blocks_and_never_written() {
        let mut n = nexus(&lu(cdrom()), "a");
        assert_eq!(run(&mut n, &[op::READ_10, 0, 0, 0, 0, 1, 0, 0, 1, 0]), read(2048, 2048));
        assert_eq!(run(&mut n, &[op::WRITE_10, 0, 0, 0, 0, 1, 0, 0, 1, 0]), fails(Sense::INVALID_OPCODE));
    }

    #[test]
    fn medium_without_atomic_writes_does_not_know_them() {
        let cdb = [op::WRITE_ATOMIC_16, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2];
        for (max_atomic, answer) in [
            (0, fails(Sense::INVALID_OPCODE)),
            (512, fails(Sense::cdb_field(12, 7))),
            (1024, atomic(512, 1024)),
        ] {
            let mut n = nexus(&lu(crate::LuSettings { max_atomic, ..disk() }), "a");
            assert_eq!(run(&mut n, &cdb), answer, "{max_atomic}");
            let page = data(&mut n, &[op::INQUIRY, 1, 0xb0, 0, 255, 0]);
            assert_eq!(page[44..48], (max_atomic / 512).to_be_bytes(), "MAXIMUM ATOMIC TRANSFER LENGTH");
        }
    }

    #[test]
    fn atomic_writes_run_alone() {
        let n = nexus(&lu(disk()), "a");
        assert_eq!(n.concurrency(&[op::WRITE_ATOMIC_16, 0]), Concurrency::Exclusive);
        assert_eq!(n.concurrency(&[op::COMPARE_AND_WRITE, 0]), Concurrency::Exclusive);
        assert_eq!(n.concurrency(&[op::WRITE_16, 0]), Concurrency::Shared);
    }
}
