//! READ and WRITE, as far as the fast way leaves them, and WRITE ATOMIC (SBC-4).

use crate::range::Range;
use crate::table::{Allowed, Cx, Row};
use crate::{Answer, Kind, Plan};
use wire::scsi::op;

/// FUA in byte 1.
pub(crate) const FUA: u8 = 0x08;

const fn reading(opcode: u8, usage: &'static [u8]) -> Row {
    Row::new(opcode, read, Allowed::Reading, usage).medium()
}

const fn writing(opcode: u8, usage: &'static [u8]) -> Row {
    Row::new(opcode, write, Allowed::Never, usage).writes().only(Kind::Disk)
}

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    reading(op::READ_6, &[0x08, 0x1f, 0xff, 0xff, 0xff, 0]),
    reading(op::READ_10, &[0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0]),
    reading(op::READ_12, &[0xa8, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    reading(
        op::READ_16,
        &[0x88, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
    writing(op::WRITE_6, &[0x0a, 0x1f, 0xff, 0xff, 0xff, 0]),
    writing(op::WRITE_10, &[0x2a, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0]),
    writing(op::WRITE_12, &[0xaa, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0]),
    writing(
        op::WRITE_16,
        &[0x8a, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    ),
];

impl Cx<'_> {
    /// First byte and bytes of what the CDB addresses: inside the capacity, within the transfer limit.
    pub(crate) fn transfer(&self) -> Result<(u64, u32), wire::scsi::Sense> {
        let range = Range::of(self.cdb);
        range.check(self.state)?;
        range.transfer(self.cdb, self.lu.settings())
    }

    /// The write must be stable before its status: FUA in byte 1, or the write cache is off.
    pub(crate) fn stable(&self) -> bool {
        self.cdb[1] & FUA != 0 || !self.state.modes.write_cache()
    }
}

fn read(cx: &mut Cx<'_>) -> Answer {
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::Read { offset, len }),
    }
}

fn write(cx: &mut Cx<'_>) -> Answer {
    let fua = cx.cdb[0] != op::WRITE_6 && cx.cdb[1] & FUA != 0;
    let stable = fua || !cx.state.modes.write_cache();
    match cx.transfer()? {
        (_, 0) => Ok(Plan::Done),
        (offset, len) => Ok(Plan::Write { offset, len, stable }),
    }
}
