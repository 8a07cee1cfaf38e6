//! The NVM command set as commands of a SCSI block device.

use lunar_wire::nvme::{Fuse, Sqe, nvm_opcode};
use lunar_wire::nvme::{NvmeStatus, SglDescriptor};
use lunar_wire::scsi::cdb::{self, Cdb};
use lunar_wire::scsi::{op, unmap};

/// The most ranges of a Dataset Management command.
pub const MAX_RANGES: usize = 256;
/// Bytes of a range of Dataset Management.
const RANGE: usize = 16;
/// Dataset Management: the ranges are deallocated (AD, command dword 11).
const DEALLOCATE: u32 = 1 << 2;
/// Write Zeroes: the blocks may be deallocated (DEAC, command dword 12).
const MAY_DEALLOCATE: u32 = 1 << 25;
/// VERIFY compares with data (BYTCHK 01b).
const BYTCHK: u8 = 0x02;
/// The largest number of blocks of COMPARE AND WRITE.
const MAX_COMPARED: u32 = u8::MAX as u32;

/// A command of a SCSI block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCommand {
    /// The CDB.
    pub cdb: Cdb,
    /// Bytes of data to the host.
    pub to_host: u32,
    /// Bytes of data from the host.
    pub from_host: u32,
}

/// How a command of the NVM command set is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmAction {
    /// As a SCSI command with the same data.
    Blocks(BlockCommand),
    /// As WRITE SAME of one block of zeros, which the host does not send.
    Zeroes(BlockCommand),
    /// As UNMAP of this many ranges, which [`unmap_list`] reads from the data of the host.
    Unmap {
        /// The number of ranges.
        ranges: usize,
        /// Bytes of data from the host; it may send more than the ranges need.
        from_host: u32,
    },
    /// As EXTENDED COPY of this many ranges, which [`copy_segments`](super::copy_segments) reads from the data of the host.
    Copy {
        /// The number of source ranges.
        ranges: usize,
        /// Bytes of data from the host.
        from_host: u32,
    },
    /// The command has data, but nothing to do: hints that are not followed.
    Ignored {
        /// Bytes of data from the host.
        from_host: u32,
    },
}

/// Translates a command for a logical unit with blocks of `block_size` bytes. Halves of a fused pair and reservation commands
/// are not translated here.
///
/// # Errors
/// The status of the command: the opcode is unknown, or the length of the data differs from that of the command.
pub fn translate(sqe: &Sqe, block_size: u32) -> Result<NvmAction, NvmeStatus> {
    if sqe.fuse() != Fuse::None {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    match sqe.opcode() {
        nvm_opcode::FLUSH => none(sqe, cdb::of_blocks(op::SYNCHRONIZE_CACHE_16, 0, 0)),
        nvm_opcode::READ | nvm_opcode::WRITE => transfer(sqe, block_size).map(NvmAction::Blocks),
        nvm_opcode::COMPARE => from_host(verify(sqe, BYTCHK), data_len(sqe, block_size)?),
        nvm_opcode::VERIFY => none(sqe, verify(sqe, 0)),
        nvm_opcode::WRITE_ZEROES => zeroes(sqe),
        nvm_opcode::DATASET_MANAGEMENT => ranges(sqe),
        nvm_opcode::COPY => super::copy::translate(sqe),
        _ => Err(NvmeStatus::INVALID_OPCODE),
    }
}

/// Translates Read, or Write, as [`translate`]. The caller knows that the command is one of them.
///
/// # Errors
/// Those of [`translate`].
#[inline]
pub fn transfer(sqe: &Sqe, block_size: u32) -> Result<BlockCommand, NvmeStatus> {
    if sqe.fuse() != Fuse::None {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    let len = data_len(sqe, block_size)?;
    Ok(match sqe.opcode() {
        nvm_opcode::READ => {
            BlockCommand { cdb: cdb::read_16(sqe.lba(), sqe.blocks()), to_host: len, from_host: 0 }
        }
        _ => {
            let cdb = cdb::write_16(sqe.lba(), sqe.blocks(), sqe.is_fua());
            BlockCommand { cdb, to_host: 0, from_host: len }
        }
    })
}

fn from_host(cdb: Cdb, len: u32) -> Result<NvmAction, NvmeStatus> {
    Ok(NvmAction::Blocks(BlockCommand { cdb, to_host: 0, from_host: len }))
}

/// A command without data.
fn none(sqe: &Sqe, cdb: Cdb) -> Result<NvmAction, NvmeStatus> {
    without_data(sqe)?;
    Ok(NvmAction::Blocks(BlockCommand { cdb, to_host: 0, from_host: 0 }))
}

fn without_data(sqe: &Sqe) -> Result<(), NvmeStatus> {
    if sqe.data().len == 0 { Ok(()) } else { Err(NvmeStatus::SGL_INVALID_LENGTH) }
}

/// VERIFY(16), which compares or reads.
fn verify(sqe: &Sqe, bytchk: u8) -> Cdb {
    let mut cdb = cdb::of_blocks(op::VERIFY_16, sqe.lba(), sqe.blocks());
    cdb[1] |= bytchk;
    cdb
}

/// The bytes of the blocks of a command, which its data must have.
#[inline]
fn data_len(sqe: &Sqe, block_size: u32) -> Result<u32, NvmeStatus> {
    let SglDescriptor { len, .. } = sqe.data();
    let expected = u64::from(sqe.blocks()) * u64::from(block_size);
    if u64::from(len) == expected { Ok(len) } else { Err(NvmeStatus::SGL_INVALID_LENGTH) }
}

/// WRITE SAME has no FUA.
fn zeroes(sqe: &Sqe) -> Result<NvmAction, NvmeStatus> {
    without_data(sqe)?;
    if sqe.is_fua() {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    let may_unmap = sqe.dword(12) & MAY_DEALLOCATE != 0;
    let cdb = cdb::write_same_16(sqe.lba(), sqe.blocks(), may_unmap);
    Ok(NvmAction::Zeroes(BlockCommand { cdb, to_host: 0, from_host: 0 }))
}

/// Dataset Management. Linux always sends 4096 bytes, even for one range.
fn ranges(sqe: &Sqe) -> Result<NvmAction, NvmeStatus> {
    let (ranges, len) = ((sqe.dword(10) & 0xff) as usize + 1, sqe.data().len);
    let sizes = ranges * RANGE..=MAX_RANGES * RANGE;
    if !usize::try_from(len).is_ok_and(|len| sizes.contains(&len)) {
        return Err(NvmeStatus::SGL_INVALID_LENGTH);
    }
    Ok(match sqe.dword(11) & DEALLOCATE {
        0 => NvmAction::Ignored { from_host: len },
        _ => NvmAction::Unmap { ranges, from_host: len },
    })
}

/// The parameter list of UNMAP with the ranges of a Dataset Management command. Empty ranges are left out.
pub fn unmap_list(data: &[u8], ranges: usize) -> Vec<u8> {
    let (entries, _) = data.as_chunks::<RANGE>();
    let decode = |[_, _, _, _, n0, n1, n2, n3, lba @ ..]: &[u8; RANGE]| unmap::UnmapDescriptor {
        lba: u64::from_le_bytes(*lba),
        blocks: u32::from_le_bytes([*n0, *n1, *n2, *n3]),
    };
    let wanted = entries.iter().take(ranges.min(MAX_RANGES)).map(decode).filter(|range| range.blocks > 0);
    let mut list = vec![0; unmap::HEADER_LEN];
    list.extend(wanted.flat_map(|range| range.encode()));
    let len = (list.len() - unmap::HEADER_LEN) as u64;
    unmap::DATA_LENGTH.set(&mut list, len + unmap::HEADER_LEN as u64 - 2);
    unmap::DESCRIPTOR_DATA_LENGTH.set(&mut list, len);
    list
}

/// A fused Compare and Write as COMPARE AND WRITE, whose data are those of both.
///
/// # Errors
/// The status of both: they are no such pair, or their ranges differ.
pub fn fused(first: &Sqe, second: &Sqe, block_size: u32) -> Result<BlockCommand, NvmeStatus> {
    let is_pair = (first.fuse(), first.opcode()) == (Fuse::First, nvm_opcode::COMPARE)
        && (second.fuse(), second.opcode()) == (Fuse::Second, nvm_opcode::WRITE);
    let range = |sqe: &Sqe| (sqe.namespace(), sqe.lba(), sqe.blocks());
    if !is_pair || range(first) != range(second) || first.blocks() > MAX_COMPARED {
        return Err(NvmeStatus::INVALID_FIELD);
    }
    let len = data_len(first, block_size)?;
    data_len(second, block_size)?;
    let both = len.checked_mul(2).ok_or(NvmeStatus::INVALID_FIELD)?;
    let cdb = cdb::compare_and_write(first.lba(), first.blocks() as u8, second.is_fua());
    Ok(BlockCommand { cdb, to_host: 0, from_host: both })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(opcode: u8, lba: u64, blocks: u32, data: u32) -> Sqe {
        let sqe = Sqe::new(opcode, 1, 1).with_data(SglDescriptor::transport(data));
        sqe.with_dword(10, lba as u32).with_dword(11, (lba >> 32) as u32).with_dword(12, blocks - 1)
    }

    fn cdb_of(sqe: &Sqe) -> Cdb {
        match translate(sqe, 512) {
            Ok(NvmAction::Blocks(command) | NvmAction::Zeroes(command)) => command.cdb,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn transfers_keep_range_data_and_fua() {
        let read = command(nvm_opcode::READ, 0x1_0000_0002, 8, 4096);
        let expected = [0x88, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0];
        assert_eq!(
            translate(&read, 512),
            Ok(NvmAction::Blocks(BlockCommand { cdb: expected, to_host: 4096, from_host: 0 }))
        );
        let write = command(nvm_opcode::WRITE, 2, 1, 512).with_dword(12, 1 << 30);
        assert_eq!(cdb_of(&write), [0x8a, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0]);
        assert_eq!(cdb_of(&command(nvm_opcode::COMPARE, 2, 1, 512))[..2], [0x8f, 2]);
        assert_eq!(cdb_of(&command(nvm_opcode::VERIFY, 2, 1, 0))[..2], [0x8f, 0]);
        let all = command(nvm_opcode::READ, 0, 65536, 65536 * 512);
        assert_eq!(cdb_of(&all)[10..14], [0, 1, 0, 0]);
    }

    #[test]
    fn flush_and_zeroes_have_no_data() {
        assert_eq!(cdb_of(&Sqe::new(nvm_opcode::FLUSH, 1, 1)), {
            let mut cdb = [0; 16];
            cdb[0] = 0x91;
            cdb
        });
        let zeroes = command(nvm_opcode::WRITE_ZEROES, 2, 8, 0);
        assert_eq!(cdb_of(&zeroes), [0x93, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 8, 0, 0]);
        assert_eq!(cdb_of(&zeroes.with_dword(12, 7 | 1 << 25))[1], 8, "UNMAP");
        for opcode in [nvm_opcode::FLUSH, nvm_opcode::WRITE_ZEROES, nvm_opcode::VERIFY] {
            let with_data = command(opcode, 2, 8, 512);
            assert_eq!(translate(&with_data, 512), Err(NvmeStatus::SGL_INVALID_LENGTH), "{opcode}");
        }
    }

    #[test]
    fn data_of_another_length_are_refused() {
        for (len, block_size) in [(4095, 512), (4097, 512), (0, 512), (4096, 4096)] {
            for opcode in [nvm_opcode::READ, nvm_opcode::WRITE, nvm_opcode::COMPARE] {
                let result = translate(&command(opcode, 0, 8, len), block_size);
                assert_eq!(result, Err(NvmeStatus::SGL_INVALID_LENGTH), "{opcode} {len}");
            }
        }
        assert_eq!(translate(&Sqe::new(0x7c, 1, 1), 512), Err(NvmeStatus::INVALID_OPCODE));
        let mut half = command(nvm_opcode::WRITE, 0, 8, 4096);
        half.0[1] |= 2;
        assert_eq!(translate(&half, 512), Err(NvmeStatus::INVALID_FIELD));
    }

    #[test]
    fn ranges_become_an_unmap_list() {
        let manage = |ranges: u32, flags, len| {
            let sqe = Sqe::new(nvm_opcode::DATASET_MANAGEMENT, 1, 1);
            sqe.with_data(SglDescriptor::transport(len)).with_dword(10, ranges - 1).with_dword(11, flags)
        };
        let unmap = |ranges, from_host| Ok(NvmAction::Unmap { ranges, from_host });
        assert_eq!(translate(&manage(1, 4, 4096), 512), unmap(1, 4096), "Linux sends 4096 bytes");
        assert_eq!(translate(&manage(2, 4, 32), 512), unmap(2, 32));
        assert_eq!(translate(&manage(1, 3, 16), 512), Ok(NvmAction::Ignored { from_host: 16 }));
        for (ranges, len) in [(2, 31), (1, 0), (256, 4097)] {
            assert_eq!(translate(&manage(ranges, 4, len), 512), Err(NvmeStatus::SGL_INVALID_LENGTH));
        }
        let entry =
            |blocks: u32, lba: u64| [&[9, 9, 9, 9], &blocks.to_le_bytes()[..], &lba.to_le_bytes()].concat();
        let data = [entry(8, 0x1_0000_0000), entry(0, 5), entry(1, 7), entry(3, 3)].concat();
        let list = unmap_list(&data, 3);
        assert_eq!(list[..8], [0, 38, 0, 32, 0, 0, 0, 0]);
        let found: Vec<_> =
            unmap::descriptors(&list).expect("a list").map(|one| (one.lba, one.blocks)).collect();
        assert_eq!(found, [(0x1_0000_0000, 8), (7, 1)]);
        assert_eq!(unmap_list(&data[..15], 1)[..4], [0, 6, 0, 0], "no whole range");
    }

    #[test]
    fn fused_pair_is_one_command() {
        let half = |opcode, fuse: u8, blocks| {
            let mut sqe = command(opcode, 5, blocks, blocks * 512);
            sqe.0[1] |= fuse;
            sqe
        };
        let (first, second) = (half(nvm_opcode::COMPARE, 1, 2), half(nvm_opcode::WRITE, 2, 2));
        let expected = [0x89, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 2, 0, 0];
        assert_eq!(
            fused(&first, &second, 512),
            Ok(BlockCommand { cdb: expected, to_host: 0, from_host: 2048 })
        );
        for (first, second) in [
            (second, first),
            (first, half(nvm_opcode::WRITE, 2, 1)),
            (first, second.with_dword(10, 6)),
            (half(nvm_opcode::READ, 1, 2), second),
            (half(nvm_opcode::COMPARE, 1, 256), half(nvm_opcode::WRITE, 2, 256)),
        ] {
            assert_eq!(fused(&first, &second, 512), Err(NvmeStatus::INVALID_FIELD));
        }
    }
}
