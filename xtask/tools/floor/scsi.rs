//! The commands that initiators send before the first read.

const BLOCKS: u64 = 1 << 31;
const BLOCK_SIZE: u32 = 512;

/// The data of a CDB; None for a READ, whose data is zeros.
pub fn data_in(cdb: &[u8]) -> Option<Vec<u8>> {
    match (cdb[0], cdb[1] & 0x1f) {
        (0x12, 0) => Some([&[0, 0, 6, 2, 31, 0, 0, 2], &b"LIMIT   FLOOR           0001"[..]].concat()),
        (0x12, _) => Some(vec![0, cdb[2], 0, 0]),
        (0x25, _) => Some([(BLOCKS as u32 - 1).to_be_bytes(), BLOCK_SIZE.to_be_bytes()].concat()),
        (0x9e, 0x10) => Some(read_capacity_16()),
        (0xa0, _) => Some([&[0, 0, 0, 8], &[0; 12][..]].concat()),
        (0x1a, _) => Some(vec![3, 0, 0, 0]),
        (0x5a, _) => Some(vec![0, 6, 0, 0, 0, 0, 0, 0]),
        _ => None,
    }
}

fn read_capacity_16() -> Vec<u8> {
    let mut data = [&(BLOCKS - 1).to_be_bytes()[..], &BLOCK_SIZE.to_be_bytes()].concat();
    data.resize(32, 0);
    data
}
