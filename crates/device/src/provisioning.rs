//! Logical block provisioning: WRITE SAME, UNMAP, GET LBA STATUS (SBC-4 section 4.7).

use crate::range::Range;
use crate::table::{Allowed, Cx, Row};
use crate::{Answer, Kind, Op, Plan};
use wire::be;
use wire::scsi::{Sense, op};

/// Service action of GET LBA STATUS.
const GET_LBA_STATUS: u16 = 0x12;
/// The most that one WRITE SAME writes, in bytes (MAXIMUM WRITE SAME LENGTH of VPD B0h).
pub(crate) const MAX_WRITE_SAME: u64 = 4 << 30;
/// The most descriptors of one UNMAP (MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT of VPD B0h).
pub(crate) const MAX_UNMAP_DESCRIPTORS: usize = 256;

/// Bits of byte 1.
const ANCHOR: u8 = 0x10;
const UNMAP: u8 = 0x08;
const NDOB: u8 = 0x01;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    same(op::WRITE_SAME_10, &[0x41, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]),
    same(
        op::WRITE_SAME_16,
        &[0x93, 0x19, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0],
    ),
    Row::new(op::UNMAP, unmap, Allowed::Never, &[0x42, 0x01, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0])
        .writes()
        .only(Kind::Disk)
        .thin(),
    Row::new(
        op::SERVICE_ACTION_IN_16,
        get_lba_status,
        Allowed::Reading,
        &[0x9e, 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .action(GET_LBA_STATUS)
    .medium()
    .only(Kind::Disk),
];

const fn same(opcode: u8, usage: &'static [u8]) -> Row {
    Row::new(opcode, write_same, Allowed::Never, usage).writes().only(Kind::Disk)
}

/// WSNZ is announced: a length of 0 is refused. ANCHOR keeps the blocks mapped, which is more than anchored.
fn write_same(cx: &mut Cx<'_>) -> Answer {
    let settings = cx.lu.settings();
    let flags = cx.cdb[1];
    let (anchor, unmap) = (flags & ANCHOR != 0, flags & UNMAP != 0);
    if unmap && !settings.thin {
        return Err(Sense::cdb_field(1, 3).into());
    }
    if anchor && !unmap {
        return Err(Sense::cdb_field(1, 4).into());
    }
    let block_size = settings.block_size as u64;
    let range = Range::of(cx.cdb);
    let len = range.blocks as u64 * block_size;
    if len == 0 || len > MAX_WRITE_SAME {
        return Err(Sense::cdb_field(Range::length_field(cx.cdb), 7).into());
    }
    range.check(cx.state)?;
    Ok(Plan::op(Op::WriteSame {
        offset: range.lba * block_size,
        len,
        zero: cx.cdb[0] == op::WRITE_SAME_16 && flags & NDOB != 0,
        unmap: unmap && !anchor,
        block_size: settings.block_size,
        stable: !cx.state.modes.write_cache(),
    }))
}

fn unmap(cx: &mut Cx<'_>) -> Answer {
    let len = be::get16(&cx.cdb[7..]) as u32;
    let Some(list) = cx.parameters else {
        return Ok(if len == 0 { Plan::Done } else { Plan::Parameters { len } });
    };
    let ranges = descriptors(list)?;
    for range in &ranges {
        range.check(cx.state)?;
    }
    // With ANCHOR the blocks stay mapped, which is more than anchored.
    if cx.cdb[1] & 1 != 0 {
        return Ok(Plan::Done);
    }
    let block_size = cx.lu.settings().block_size as u64;
    let ranges = ranges.iter().filter(|r| r.blocks != 0);
    let extents: Vec<_> = ranges.map(|r| (r.lba * block_size, r.blocks as u64 * block_size)).collect();
    Ok(if extents.is_empty() { Plan::Done } else { Plan::op(Op::Unmap(extents)) })
}

/// The block descriptors of an UNMAP parameter list (SBC-4 section 5.35.2). What is less than a descriptor at the end
/// is left out.
fn descriptors(list: &[u8]) -> Result<Vec<Range>, Sense> {
    let Some((header, rest)) = list.split_at_checked(8) else {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    };
    let Some(descriptors) = rest.get(..be::get16(&header[2..]) as usize) else {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    };
    if descriptors.len() / 16 > MAX_UNMAP_DESCRIPTORS {
        return Err(Sense::parameter_field(2, 7));
    }
    let range = |d: &[u8]| Range { lba: be::get64(d), blocks: be::get32(&d[8..]) };
    Ok(descriptors.chunks_exact(16).map(range).collect())
}

fn get_lba_status(cx: &mut Cx<'_>) -> Answer {
    let lba = be::get64(&cx.cdb[2..]);
    if lba >= cx.state.blocks {
        return Err(Sense::LBA_OUT_OF_RANGE.at(lba).into());
    }
    let block_size = cx.lu.settings().block_size;
    match be::get32(&cx.cdb[10..]) {
        0 => Ok(Plan::Done),
        allocation_len => {
            let offset = lba * block_size as u64;
            Ok(Plan::op(Op::LbaStatus { offset, allocation_len, block_size }))
        }
    }
}

/// Data-In of GET LBA STATUS (SBC-4 section 5.6.2). `extents` are (length in bytes, mapped), one after the other from
/// byte `offset` of the medium on; a block that is mapped in part is mapped. Gives at most `allocation_len` bytes.
pub fn lba_status(offset: u64, extents: &[(u64, bool)], block_size: u32, allocation_len: u32) -> Vec<u8> {
    let mut data = vec![0; 8];
    let (mut end, mut at) = (offset, offset / block_size as u64);
    for &(len, mapped) in extents {
        end = end.saturating_add(len);
        let next = if mapped { end.div_ceil(block_size as u64) } else { end / block_size as u64 };
        let Some(blocks) = next.checked_sub(at).filter(|b| *b != 0) else { continue };
        data.extend_from_slice(&at.to_be_bytes());
        data.extend_from_slice(&u32::try_from(blocks).unwrap_or(u32::MAX).to_be_bytes());
        data.extend_from_slice(&[if mapped { 0 } else { 1 }, 0, 0, 0]);
        // What a descriptor cannot count ends the list: the initiator asks again from there.
        if blocks > u32::MAX as u64 {
            break;
        }
        at = next;
    }
    let len = data.len() as u32 - 4;
    be::put32(&mut data, len);
    data.truncate(allocation_len as usize);
    data
}
