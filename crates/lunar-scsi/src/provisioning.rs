//! Logical block provisioning: WRITE SAME, UNMAP, GET LBA STATUS (SBC-4 section 4.7).

use crate::lba_range::LbaRange;
use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Op, PeripheralDeviceType, Plan, PlanResult};
use lunar_wire::scsi::cdb::get_lba_status::{ALLOCATION_LENGTH, STARTING_LBA};
use lunar_wire::scsi::cdb::write_same::{ANCHOR, NDOB, UNMAP};
use lunar_wire::scsi::report::{self, LbaStatusDescriptor};
use lunar_wire::scsi::unmap::{self, UnmapDescriptor};
use lunar_wire::scsi::{Sense, cdb, op};

/// Service action of GET LBA STATUS.
const GET_LBA_STATUS: u16 = 0x12;
/// Maximum length of WRITE SAME in bytes (MAXIMUM WRITE SAME LENGTH of VPD B0h).
pub(crate) const MAX_WRITE_SAME: u64 = 4 << 30;
/// Maximum number of descriptors of UNMAP (MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT of VPD B0h).
pub(crate) const MAX_UNMAP_DESCRIPTORS: usize = 256;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    write_same_row(op::WRITE_SAME_10, &[0x41, 0x18, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0]),
    write_same_row(
        op::WRITE_SAME_16,
        &[0x93, 0x19, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x1f, 0],
    ),
    Row::new(
        op::UNMAP,
        unmap,
        ReservationClass::Never,
        ChangeScope::Shared,
        &[0x42, 0x01, 0, 0, 0, 0, 0x1f, 0xff, 0xff, 0],
    )
    .writes()
    .only(PeripheralDeviceType::Disk)
    .thin(),
    Row::new(
        op::SERVICE_ACTION_IN_16,
        get_lba_status,
        ReservationClass::Reading,
        ChangeScope::Nothing,
        &[0x9e, 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .action(GET_LBA_STATUS)
    .medium()
    .only(PeripheralDeviceType::Disk),
];

const fn write_same_row(opcode: u8, usage: &'static [u8]) -> Row {
    Row::new(opcode, write_same, ReservationClass::Never, ChangeScope::Shared, usage)
        .writes()
        .only(PeripheralDeviceType::Disk)
        .exact()
}

/// WSNZ is set, so a length of 0 is rejected. With ANCHOR the blocks stay mapped, which is a stronger guarantee.
fn write_same(cx: &mut CommandContext<'_>) -> PlanResult {
    let (settings, opcode) = (cx.lu.settings(), cdb::opcode(cx.cdb));
    let (anchor, unmap) = (ANCHOR.is_set(cx.cdb), UNMAP.is_set(cx.cdb));
    if unmap && !settings.thin {
        return Err(Sense::in_cdb(UNMAP).into());
    }
    if anchor && !unmap {
        return Err(Sense::in_cdb(ANCHOR).into());
    }
    let block_size = settings.block_size as u64;
    let range = LbaRange::of(cx.cdb);
    let len = range.blocks as u64 * block_size;
    if len == 0 || len > MAX_WRITE_SAME {
        return Err(Sense::in_cdb(cdb::length_field(opcode)).into());
    }
    range.check(cx.state)?;
    Ok(Plan::op(Op::WriteSame {
        offset: range.lba * block_size,
        len,
        zero: opcode == op::WRITE_SAME_16 && NDOB.is_set(cx.cdb),
        unmap: unmap && !anchor,
        block_size: settings.block_size,
        stable: !cx.state.modes.write_cache(),
    }))
}

fn unmap(cx: &mut CommandContext<'_>) -> PlanResult {
    let len = cdb::unmap::PARAMETER_LIST_LENGTH.get_u32(cx.cdb);
    let Some(list) = cx.parameters else {
        return Ok(if len == 0 { Plan::Done } else { Plan::Parameters { len } });
    };
    let ranges = descriptors(list)?;
    for range in &ranges {
        range.check(cx.state)?;
    }
    // With ANCHOR the blocks stay mapped, which is a stronger guarantee.
    if cdb::unmap::ANCHOR.is_set(cx.cdb) {
        return Ok(Plan::Done);
    }
    let block_size = cx.lu.settings().block_size as u64;
    let ranges = ranges.iter().filter(|r| r.blocks != 0);
    let extents = joined(ranges.map(|r| (r.lba * block_size, r.blocks as u64 * block_size)));
    Ok(if extents.is_empty() {
        Plan::Done
    } else {
        Plan::op(Op::Unmap { extents, stable: !cx.state.modes.write_cache() })
    })
}

/// Joins extents (offset, length) that follow each other: a host can describe each block by itself, and a router sends
/// one command for each extent.
fn joined(extents: impl Iterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for (offset, len) in extents {
        match all.last_mut() {
            Some(last) if last.0 + last.1 == offset => last.1 += len,
            _ => all.push((offset, len)),
        }
    }
    all
}

/// The ranges of an UNMAP parameter list.
fn descriptors(list: &[u8]) -> Result<Vec<LbaRange>, Sense> {
    let descriptors = unmap::descriptors(list).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
    if descriptors.len() > MAX_UNMAP_DESCRIPTORS {
        return Err(Sense::in_parameters(unmap::DESCRIPTOR_DATA_LENGTH));
    }
    Ok(descriptors.map(|UnmapDescriptor { lba, blocks }| LbaRange { lba, blocks }).collect())
}

fn get_lba_status(cx: &mut CommandContext<'_>) -> PlanResult {
    let lba = STARTING_LBA.get(cx.cdb);
    if lba >= cx.state.blocks {
        return Err(Sense::LBA_OUT_OF_RANGE.at(lba).into());
    }
    let block_size = cx.lu.settings().block_size;
    match ALLOCATION_LENGTH.get_u32(cx.cdb) {
        0 => Ok(Plan::Done),
        allocation_len => {
            let offset = lba * block_size as u64;
            Ok(Plan::op(Op::LbaStatus { offset, allocation_len, block_size }))
        }
    }
}

/// Data-In of GET LBA STATUS (SBC-4 section 5.6.2). `extents` are consecutive pairs (bytes, mapped) from byte
/// `offset` of the medium on. A block that is partly mapped counts as mapped.
pub fn lba_status(offset: u64, extents: &[(u64, bool)], block_size: u32, allocation_len: u32) -> Vec<u8> {
    let block_size = block_size as u64;
    let mut list = Vec::new();
    let (mut end, mut at) = (offset, offset / block_size);
    for &(len, mapped) in extents {
        end = end.saturating_add(len);
        let next = if mapped { end.div_ceil(block_size) } else { end / block_size };
        let Some(blocks) = next.checked_sub(at).filter(|b| *b != 0) else { continue };
        let count = u32::try_from(blocks).unwrap_or(u32::MAX);
        list.push(LbaStatusDescriptor { lba: at, blocks: count, status: u8::from(!mapped) });
        // An extent that is too long for a descriptor ends the list; the initiator continues from there.
        if blocks > u32::MAX as u64 {
            break;
        }
        at = next;
    }
    let mut data = report::encode_extents(&list);
    data.truncate(allocation_len as usize);
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LuSettings;
    use crate::testing::*;

    /// Bits of byte 1 of WRITE SAME.
    const ANCHOR: u8 = 0x10;
    const UNMAP: u8 = 0x08;
    const NDOB: u8 = 0x01;

    fn list(ranges: &[(u64, u32)]) -> Vec<u8> {
        let len = 16 * ranges.len() as u16;
        let mut list = [(len + 6).to_be_bytes(), len.to_be_bytes(), [0; 2], [0; 2]].concat();
        for (lba, blocks) in ranges {
            list.extend_from_slice(&lba.to_be_bytes());
            list.extend_from_slice(&blocks.to_be_bytes());
            list.extend_from_slice(&[0; 4]);
        }
        list
    }

    fn unmap(n: &mut crate::Nexus, flags: u8, list: &[u8]) -> PlanResult {
        let len = (list.len() as u16).to_be_bytes();
        run_with(n, &[op::UNMAP, flags, 0, 0, 0, 0, 0, len[0], len[1], 0], list)
    }

    #[test]
    fn write_same_and_what_it_comes_to() {
        let mut n = nexus(&lu(disk()), "a");
        let same = |zero, unmap| {
            let (offset, len) = (512, 1024);
            Ok(Plan::op(Op::WriteSame { offset, len, zero, unmap, block_size: 512, stable: false }))
        };
        let sixteen = |flags| [op::WRITE_SAME_16, flags, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0];
        let cases: &[(&[u8], PlanResult)] = &[
            (&[op::WRITE_SAME_10, 0, 0, 0, 0, 1, 0, 0, 2, 0], same(false, false)),
            (&[op::WRITE_SAME_10, UNMAP, 0, 0, 0, 1, 0, 0, 2, 0], same(false, true)),
            (&[op::WRITE_SAME_10, NDOB, 0, 0, 0, 1, 0, 0, 2, 0], fails(Sense::cdb_field(1, 0))),
            (&[op::WRITE_SAME_10, 0, 0, 0, 0, 1, 0, 0, 0, 0], fails(Sense::cdb_field(7, 7))),
            (&sixteen(0), same(false, false)),
            (&sixteen(UNMAP | NDOB), same(true, true)),
            (&sixteen(NDOB), same(true, false)),
            (&sixteen(UNMAP | ANCHOR), same(false, false)),
            (&sixteen(ANCHOR), fails(Sense::cdb_field(1, 4))),
            (&sixteen(0x20), fails(Sense::cdb_field(1, 5))),
            (&[op::WRITE_SAME_16], fails(Sense::cdb_field(10, 7))),
            (&[op::WRITE_SAME_16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], fails(Sense::cdb_field(10, 7))),
            (
                &[op::WRITE_SAME_16, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1],
                fails(Sense::LBA_OUT_OF_RANGE.at(BLOCKS)),
            ),
        ];
        for (cdb, answer) in cases {
            assert_eq!(run(&mut n, cdb), *answer, "{cdb:02x?}");
        }
        let plan = run(&mut n, &sixteen(UNMAP | NDOB)).unwrap();
        assert_eq!(plan.data_out_len(), 0, "NDOB has no data-out");
    }

    fn unmapped(extents: Vec<(u64, u64)>) -> Plan {
        Plan::op(Op::Unmap { extents, stable: false })
    }

    #[test]
    fn without_a_write_cache_unmap_is_stable() {
        let mut n = nexus(&lu(LuSettings { write_cache: false, ..disk() }), "a");
        let answer = unmap(&mut n, 0, &list(&[(1, 2)]));
        assert_eq!(answer, Ok(Plan::op(Op::Unmap { extents: vec![(512, 1024)], stable: true })));
    }

    #[test]
    fn unmap_lists_and_what_they_come_to() {
        let mut n = nexus(&lu(disk()), "a");
        let mut half = list(&[(1, 2), (4, 1)]);
        half[3] = 24;
        let mut long = list(&[(1, 2)]);
        long[3] = 17;
        let cases = [
            (list(&[]), Ok(Plan::Done)),
            (list(&[(BLOCKS, 0)]), Ok(Plan::Done)),
            (list(&[(1, 2), (4, 0), (0, 1)]), Ok(unmapped(vec![(512, 1024), (0, 512)]))),
            (list(&[(1, 2), (3, 1), (4, 0), (4, 2), (7, 1)]), Ok(unmapped(vec![(512, 2560), (3584, 512)]))),
            (half, Ok(unmapped(vec![(512, 1024)]))),
            (long, fails(Sense::PARAMETER_LIST_LENGTH)),
            (vec![0; 7], fails(Sense::PARAMETER_LIST_LENGTH)),
            (list(&[(0, 1), (BLOCKS - 1, 2)]), fails(Sense::LBA_OUT_OF_RANGE.at(BLOCKS))),
            (list(&[(u64::MAX, 2)]), fails(Sense::LBA_OUT_OF_RANGE.at(u64::MAX))),
            (list(&[(0, 1); 257]), fails(Sense::parameter_field(2, 7))),
        ];
        for (list, answer) in cases {
            assert_eq!(unmap(&mut n, 0, &list), answer, "{list:02x?}");
        }
        assert_eq!(run(&mut n, &[op::UNMAP]), Ok(Plan::Done), "no list at all");
        assert_eq!(unmap(&mut n, 1, &list(&[(0, 1)])), Ok(Plan::Done), "anchored blocks stay");
        assert_eq!(unmap(&mut n, 1, &list(&[(BLOCKS, 1)])), fails(Sense::LBA_OUT_OF_RANGE.at(BLOCKS)));
    }

    #[test]
    fn unit_that_is_not_thin_unmaps_nothing() {
        let mut n = nexus(&lu(crate::LuSettings { thin: false, ..disk() }), "a");
        assert_eq!(run(&mut n, &[op::UNMAP]), fails(Sense::INVALID_OPCODE));
        let cdb = [op::WRITE_SAME_10, UNMAP, 0, 0, 0, 1, 0, 0, 2, 0];
        assert_eq!(run(&mut n, &cdb), fails(Sense::cdb_field(1, 3)));
    }

    #[test]
    fn get_lba_status_begins_inside_the_medium() {
        let mut n = nexus(&lu(disk()), "a");
        let cdb = |high, alloc| [0x9e, 0x12, 0, 0, 0, 0, 0, 0, high, 0, 0, 0, 0, alloc, 0, 0];
        let status = Op::LbaStatus { offset: 0x700 * 512, allocation_len: 24, block_size: 512 };
        assert_eq!(run(&mut n, &cdb(7, 24)), Ok(Plan::op(status)));
        assert_eq!(run(&mut n, &cdb(7, 0)), Ok(Plan::Done));
        assert_eq!(run(&mut n, &cdb(8, 24)), fails(Sense::LBA_OUT_OF_RANGE.at(0x800)));
    }

    #[test]
    fn lba_status_joins_on_without_gaps() {
        let descriptor = |lba: u8, blocks: u8, state: u8| {
            [0, 0, 0, 0, 0, 0, 0, lba, 0, 0, 0, blocks, state, 0, 0, 0].to_vec()
        };
        let extents = [(1024, true), (1536, false), (512, true)];
        let list = [descriptor(1, 2, 0), descriptor(3, 3, 1), descriptor(6, 1, 0)].concat();
        assert_eq!(lba_status(512, &extents, 512, 255), [vec![0, 0, 0, 52, 0, 0, 0, 0], list].concat());
        assert_eq!(lba_status(512, &extents, 512, 24).len(), 24);
        assert_eq!(lba_status(512, &extents, 512, 3).len(), 3);
        assert_eq!(lba_status(0, &[], 512, 24), [0, 0, 0, 4, 0, 0, 0, 0]);
    }

    #[test]
    fn block_that_is_mapped_in_part_is_mapped() {
        let data = lba_status(0, &[(100, false), (100, true), (800, false), (48, true)], 512, 255);
        assert_eq!(data[8..24], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
        assert_eq!(data[24..], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0]);
    }

    #[test]
    fn descriptor_that_cannot_count_ends_the_list() {
        let data = lba_status(0, &[(1 << 50, false), (512, true)], 512, 255);
        assert_eq!(data[8..], [0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 1, 0, 0, 0]);
    }
}
