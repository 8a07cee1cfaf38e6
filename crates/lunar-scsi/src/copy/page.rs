//! Third-party copy VPD page (8Fh; SPC-5 section 7.7.18): the commands and the limits of copies.

use super::list::{BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION, THIS};
use super::{MAX_COPIES, MAX_CSCDS, MAX_DESCRIPTORS_LEN, MAX_SEGMENT_LEN, MAX_SEGMENTS};
use crate::LuSettings;
use lunar_wire::be;
use lunar_wire::scsi::op;

/// Third-party copy descriptor types.
const COMMANDS: u16 = 0x0001;
const PARAMETERS: u16 = 0x0004;
const DESCRIPTORS: u16 = 0x0008;
const CSCD_IDS: u16 = 0x000c;
const GENERAL: u16 = 0x8001;

/// Each operation code with the number of its supported service actions, and their codes.
const SUPPORTED: [u8; 8] = [op::EXTENDED_COPY, 1, 0x00, op::RECEIVE_COPY_RESULTS, 3, 0x00, 0x03, 0x04];
const TYPES: [u8; 3] = [BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION];

/// The page without its header.
pub(crate) fn third_party_page(settings: &LuSettings) -> Vec<u8> {
    let mut parameters = [0; 28];
    be::put16(&mut parameters[4..], MAX_CSCDS as u16);
    be::put16(&mut parameters[6..], MAX_SEGMENTS as u16);
    be::put32(&mut parameters[8..], MAX_DESCRIPTORS_LEN as u32);
    let mut general = [0; 32];
    be::put32(&mut general, MAX_COPIES as u32);
    be::put32(&mut general[4..], MAX_COPIES as u32);
    be::put32(&mut general[8..], MAX_SEGMENT_LEN);
    general[12] = settings.block_size.trailing_zeros() as u8;
    let [high, low] = THIS.to_be_bytes();
    [
        descriptor(COMMANDS, &[&[SUPPORTED.len() as u8], &SUPPORTED[..]].concat()),
        descriptor(PARAMETERS, &parameters),
        descriptor(DESCRIPTORS, &[&[TYPES.len() as u8], &TYPES[..]].concat()),
        descriptor(CSCD_IDS, &[0, 2, high, low]),
        descriptor(GENERAL, &general),
    ]
    .concat()
}

/// A third-party copy descriptor: type, length, body, padded with zeros to a multiple of four bytes.
fn descriptor(code: u16, body: &[u8]) -> Vec<u8> {
    let len = body.len().next_multiple_of(4);
    let mut b = [code.to_be_bytes(), (len as u16).to_be_bytes()].concat();
    b.extend_from_slice(body);
    b.resize(4 + len, 0);
    b
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn descriptors_follow_each_other_to_the_end() {
        let page = data(&mut nexus(&lu(disk()), "a"), &[op::INQUIRY, 1, 0x8f, 4, 0, 0]);
        let (mut rest, mut seen) = (&page[4..], Vec::new());
        while !rest.is_empty() {
            seen.push(be::get16(rest));
            rest = &rest[4 + be::get16(&rest[2..]) as usize..];
        }
        assert_eq!(seen, [COMMANDS, PARAMETERS, DESCRIPTORS, CSCD_IDS, GENERAL]);
        assert_eq!(page[4..20], [0, 1, 0, 12, 8, 0x83, 1, 0, 0x84, 3, 0, 3, 4, 0, 0, 0]);
    }

    #[test]
    fn third_party_copy_page_matches_golden_bytes() {
        let limits = [0, 4, 0, 28, 0, 0, 0, 0, 0, 16, 0, 64, 0, 0, 0x0a, 0];
        let general = [0x80, 1, 0, 32, 0, 0, 0, 64, 0, 0, 0, 64, 0x10, 0, 0, 0, 9];
        let golden = [
            &[0, 1, 0, 12, 8, 0x83, 1, 0, 0x84, 3, 0, 3, 4, 0, 0, 0][..],
            &[&limits[..], &[0; 16]].concat(),
            &[0, 8, 0, 4, 3, 0x02, 0x0a, 0xe4, 0, 12, 0, 4, 0, 2, 0xff, 0xff],
            &[&general[..], &[0; 19]].concat(),
        ];
        assert_eq!(third_party_page(&disk()), golden.concat());
    }

    #[test]
    fn third_party_copy_page_matches_the_table() {
        let table: Vec<u8> = super::super::ROWS
            .chunk_by(|a, b| a.opcode == b.opcode)
            .flat_map(|rows| {
                let actions = rows.iter().map(|r| r.service_action.unwrap() as u8);
                [rows[0].opcode, rows.len() as u8].into_iter().chain(actions).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(SUPPORTED[..], table);
    }
}
