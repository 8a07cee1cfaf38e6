//! EXTENDED COPY(LID1) between block devices, and the operating parameters of the copy manager (SPC-4 sections 6.4 and
//! 6.24.4).

mod list_fields;
mod page;
mod results;

pub use list_fields::{cscd_descriptor, list_header, segment_descriptor};
pub use page::ThirdPartyCopyDescriptor;
pub use results::{CopyManagerStatus, CopyStatus, FailedSegmentDetails, OperatingParameters};

/// Bytes of a CSCD descriptor.
pub const CSCD_LEN: usize = cscd_descriptor::LEN;
/// Bytes of a block to block segment descriptor.
pub const SEGMENT_LEN: usize = segment_descriptor::LEN;
/// Descriptor type code of an identification CSCD descriptor.
pub const IDENTIFICATION: u8 = 0xe4;
/// Descriptor type code of a block to block segment descriptor.
pub const BLOCK_TO_BLOCK: u8 = 0x02;
/// Descriptor type code of a block to block segment descriptor with a length in bytes.
pub const BLOCK_TO_BLOCK_BYTES: u8 = 0x0a;
/// CSCD descriptor ID of the logical unit that receives the command.
pub const THIS: u16 = 0xffff;
/// LIST ID USAGE: no list identifier is used, and the target keeps no result.
const NO_LIST_ID: u8 = 3;

/// An identification CSCD descriptor of a logical unit (SPC-4 section 6.4.5.4). `name` is its designation descriptor, of
/// at most 20 bytes.
pub fn cscd(device_type: u8, name: &[u8], block_size: u32) -> [u8; CSCD_LEN] {
    use cscd_descriptor::{BLOCK_LENGTH, CODE_SET, PERIPHERAL_DEVICE_TYPE, PIV, PROTOCOL, TYPE_CODE};
    let mut b = [0; CSCD_LEN];
    TYPE_CODE.set(&mut b, IDENTIFICATION.into());
    PERIPHERAL_DEVICE_TYPE.set(&mut b, device_type.into());
    b[CODE_SET.byte().into()..][..name.len()].copy_from_slice(name);
    PROTOCOL.set(&mut b, 0);
    PIV.set(&mut b, 0);
    BLOCK_LENGTH.set(&mut b, block_size.into());
    b
}

/// A segment from the first CSCD to the second one (SPC-4 section 6.4.6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSegment {
    /// The number of blocks of the source.
    pub blocks: u16,
    /// The first block of the source.
    pub source_lba: u64,
    /// The first block of the destination.
    pub destination_lba: u64,
}

impl BlockSegment {
    /// `ids` are the CSCD descriptor IDs of source and destination.
    fn encode(&self, ids: [u16; 2]) -> [u8; SEGMENT_LEN] {
        use segment_descriptor::{
            BLOCKS, DESCRIPTOR_LENGTH, DESTINATION, DESTINATION_LBA, HEADER_LEN, SOURCE, SOURCE_LBA,
            TYPE_CODE,
        };
        let mut b = [0; SEGMENT_LEN];
        TYPE_CODE.set(&mut b, BLOCK_TO_BLOCK.into());
        DESCRIPTOR_LENGTH.set(&mut b, (SEGMENT_LEN - HEADER_LEN) as u64);
        SOURCE.set(&mut b, ids[0].into());
        DESTINATION.set(&mut b, ids[1].into());
        BLOCKS.set(&mut b, self.blocks.into());
        SOURCE_LBA.set(&mut b, self.source_lba);
        DESTINATION_LBA.set(&mut b, self.destination_lba);
        b
    }
}

/// The parameter list (SPC-4 section 6.4.2). `list_id` is `None` for a copy without a list identifier.
pub fn list(
    list_id: Option<u8>,
    cscds: &[[u8; CSCD_LEN]; 2],
    segments: impl Iterator<Item = BlockSegment>,
) -> Vec<u8> {
    list_of(list_id, cscds, segments.map(|segment| segment.encode([0, 1])))
}

/// The parameter list of a copy within the logical unit that receives the command, without a list identifier.
pub fn list_within(segments: impl Iterator<Item = BlockSegment>) -> Vec<u8> {
    list_of(None, &[], segments.map(|segment| segment.encode([THIS; 2])))
}

fn list_of(
    list_id: Option<u8>,
    cscds: &[[u8; CSCD_LEN]],
    segments: impl Iterator<Item = [u8; SEGMENT_LEN]>,
) -> Vec<u8> {
    use list_header::{CSCD_LIST_LENGTH, LEN, LIST_ID_USAGE, LIST_IDENTIFIER, SEGMENT_LIST_LENGTH};
    let mut b = vec![0; LEN];
    LIST_IDENTIFIER.set(&mut b, list_id.unwrap_or(0).into());
    LIST_ID_USAGE.set(&mut b, if list_id.is_some() { 0 } else { NO_LIST_ID.into() });
    let cscds = cscds.as_flattened();
    CSCD_LIST_LENGTH.set(&mut b, cscds.len() as u64);
    b.extend_from_slice(cscds);
    segments.for_each(|segment| b.extend_from_slice(&segment));
    let len = b.len() - LEN - cscds.len();
    SEGMENT_LIST_LENGTH.set(&mut b, len as u64);
    b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_has_its_descriptors_in_order() {
        let name = [0x51, 0x83, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7];
        let source = cscd(5, &name, 2048);
        assert_eq!(source[..8], [0xe4, 5, 0, 0, 1, 3, 0, 8]);
        assert_eq!((source[8], source[29..].to_vec()), (0x60, vec![0, 8, 0]));
        let segment = BlockSegment { blocks: 3, source_lba: 4, destination_lba: 5 };
        let b = list(Some(7), &[source, [9; CSCD_LEN]], [segment, segment].into_iter());
        assert_eq!(b[..12], [7, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 56]);
        assert_eq!(b.len(), 16 + 64 + 56);
        let first = &b[80..80 + SEGMENT_LEN];
        assert_eq!(first[..12], [2, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 3]);
        assert_eq!((first[19], first[27]), (4, 5));
        assert_eq!(list(None, &[source; 2], [].into_iter())[..2], [0, 0x18]);
        let b = list_within([segment].into_iter());
        assert_eq!((&b[..12], b.len()), (&[0, 0x18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 28][..], 16 + 28));
        assert_eq!(b[16..28], [2, 0, 0, 24, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 3]);
    }
}
