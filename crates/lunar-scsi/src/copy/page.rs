//! Third-party copy VPD page (8Fh; SPC-5 section 7.7.18): the commands and the limits of copies.

use super::{MAX_COPIES, MAX_CSCDS, MAX_DESCRIPTORS_LEN, MAX_SEGMENT_LEN, MAX_SEGMENTS};
use crate::LuSettings;
use lunar_wire::scsi::copy::{
    BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION, THIS, ThirdPartyCopyDescriptor,
};
use lunar_wire::scsi::op;

/// Each operation code with the number of its supported service actions, and their codes.
const SUPPORTED: [u8; 8] = [op::EXTENDED_COPY, 1, 0x00, op::RECEIVE_COPY_RESULTS, 3, 0x00, 0x03, 0x04];
const TYPES: [u8; 3] = [BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION];

/// The page without its header.
pub(crate) fn third_party_page(settings: &LuSettings) -> Vec<u8> {
    let limits = ThirdPartyCopyDescriptor::ParameterData {
        max_cscds: MAX_CSCDS as u16,
        max_segments: MAX_SEGMENTS as u16,
        max_list_len: MAX_DESCRIPTORS_LEN as u32,
    };
    let general = ThirdPartyCopyDescriptor::GeneralCopyOperations {
        total_copies: MAX_COPIES as u32,
        max_copies: MAX_COPIES as u32,
        max_segment_len: MAX_SEGMENT_LEN,
        granularity: settings.block_size.trailing_zeros() as u8,
    };
    let all = [
        ThirdPartyCopyDescriptor::Commands(&SUPPORTED),
        limits,
        ThirdPartyCopyDescriptor::Descriptors(&TYPES),
        ThirdPartyCopyDescriptor::CscdIds(&[THIS]),
        general,
    ];
    all.iter().flat_map(ThirdPartyCopyDescriptor::encode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use lunar_wire::be;

    #[test]
    fn descriptors_follow_each_other_to_the_end() {
        let page = data(&mut nexus(&lu(disk()), "a"), &[op::INQUIRY, 1, 0x8f, 4, 0, 0]);
        let (mut rest, mut seen) = (&page[4..], Vec::new());
        while !rest.is_empty() {
            seen.push(be::get16(rest));
            rest = &rest[4 + be::get16(&rest[2..]) as usize..];
        }
        assert_eq!(seen, [0x0001, 0x0004, 0x0008, 0x000c, 0x8001]);
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
