//! COMPARE AND WRITE by several hosts.

use crate::raw::Raw;
use crate::scsi::Reply;

/// Bytes of a block.
pub const BLOCK: usize = 512;
/// Sense of a command that has found a difference.
pub const MISCOMPARE: u32 = 0x0e_1d00;

/// COMPARE AND WRITE of `old.len()` bytes, in blocks of this size.
pub fn compare_and_write(raw: &mut Raw, lba: u32, block: usize, old: &[u8], new: &[u8]) -> Reply {
    let mut cdb = [0; 16];
    (cdb[0], cdb[13]) = (0x89, (old.len() / block) as u8);
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    raw.write(0, &cdb, &[old, new].concat())
}

/// The offset of the first difference. Fails unless the command has found one.
pub fn difference(reply: &Reply) -> u32 {
    assert_eq!((reply.status, reply.sense()), (2, MISCOMPARE));
    u32::from_be_bytes(reply.sense[3..7].try_into().expect("4 bytes"))
}

/// Fails unless the command has found its first difference at this index.
pub fn differs_at(reply: &Reply, index: u32) {
    assert_eq!(difference(reply), index, "the offset of the difference");
}

/// The number at the beginning of a block.
pub fn number_in(block: &[u8]) -> u64 {
    u64::from_be_bytes(block[..8].try_into().expect("8 bytes"))
}

/// A block with its number replaced.
pub fn with_number(block: &[u8], number: u64) -> Vec<u8> {
    [&number.to_be_bytes()[..], &block[8..]].concat()
}

/// Increments the number of a block until this host has done it `times` times. Returns the number of lost races. Between
/// two attempts, `between` is called.
pub fn increment(raw: &mut Raw, lba: u32, times: u64, mut between: impl FnMut(&mut Raw)) -> u32 {
    let (mut done, mut lost) = (0, 0);
    while done < times {
        let old = raw.read_blocks(0, lba, 1);
        let new = with_number(&old, number_in(&old) + 1);
        let reply = compare_and_write(raw, lba, BLOCK, &old, &new);
        if (reply.status, reply.sense()) == (0, 0) {
            done += 1;
        } else {
            assert!(difference(&reply) < 8, "only the number changes");
            lost += 1;
        }
        between(raw);
    }
    lost
}
