//! EXTENDED COPY(LID1) between block devices, and the operating parameters of the copy manager (SPC-4 sections 6.4 and
//! 6.24.4).

use crate::be;

/// Bytes of the parameter list header.
const HEADER: usize = 16;
/// Bytes of a CSCD descriptor.
pub const CSCD_LEN: usize = 32;
/// Bytes of a block to block segment descriptor.
pub const SEGMENT_LEN: usize = 28;
/// Descriptor type code of an identification CSCD descriptor.
pub const IDENTIFICATION: u8 = 0xe4;
/// Descriptor type code of a block to block segment descriptor.
pub const BLOCK_TO_BLOCK: u8 = 0x02;
/// LIST ID USAGE: no list identifier is used, and the target keeps no result.
const NO_LIST_ID: u8 = 0x18;

/// An identification CSCD descriptor of a logical unit (SPC-4 section 6.4.5.4). `name` is its designation descriptor, of
/// at most 20 bytes.
pub fn cscd(device_type: u8, name: &[u8], block_size: u32) -> [u8; CSCD_LEN] {
    let mut b = [0; CSCD_LEN];
    (b[0], b[1]) = (IDENTIFICATION, device_type);
    b[4..4 + name.len()].copy_from_slice(name);
    // Clears the protocol identifier and the PIV bit.
    (b[4], b[5]) = (b[4] & 0x0f, b[5] & 0x3f);
    be::put24(&mut b[29..], block_size);
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
    fn encode(&self) -> [u8; SEGMENT_LEN] {
        let mut b = [0; SEGMENT_LEN];
        b[0] = BLOCK_TO_BLOCK;
        be::put16(&mut b[2..], (SEGMENT_LEN - 4) as u16);
        be::put16(&mut b[6..], 1);
        be::put16(&mut b[10..], self.blocks);
        be::put64(&mut b[12..], self.source_lba);
        be::put64(&mut b[20..], self.destination_lba);
        b
    }
}

/// The parameter list (SPC-4 section 6.4.2). `list_id` is `None` for a copy without a list identifier.
pub fn list(
    list_id: Option<u8>,
    cscds: &[[u8; CSCD_LEN]; 2],
    segments: impl Iterator<Item = BlockSegment>,
) -> Vec<u8> {
    let mut b = vec![0; HEADER];
    (b[0], b[1]) = list_id.map_or((0, NO_LIST_ID), |id| (id, 0));
    be::put16(&mut b[2..], (2 * CSCD_LEN) as u16);
    b.extend_from_slice(cscds.as_flattened());
    segments.for_each(|segment| b.extend_from_slice(&segment.encode()));
    let len = (b.len() - HEADER - 2 * CSCD_LEN) as u32;
    be::put32(&mut b[8..], len);
    b
}

/// The operating parameters of a copy manager (SPC-4 section 6.24.4). A field of zero sets no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperatingParameters<'a> {
    /// SNLID: copies need no list identifier.
    pub needs_no_list_id: bool,
    /// MAXIMUM CSCD DESCRIPTOR COUNT.
    pub max_cscds: u16,
    /// MAXIMUM SEGMENT DESCRIPTOR COUNT.
    pub max_segments: u16,
    /// MAXIMUM DESCRIPTOR LIST LENGTH in bytes.
    pub max_list_len: u32,
    /// MAXIMUM SEGMENT LENGTH in bytes.
    pub max_segment_len: u32,
    /// TOTAL CONCURRENT COPIES.
    pub total_copies: u16,
    /// MAXIMUM CONCURRENT COPIES with list identifiers.
    pub max_copies: u8,
    /// DATA SEGMENT GRANULARITY: an exponent of 2.
    pub granularity: u8,
    /// The supported descriptor type codes.
    pub types: &'a [u8],
}

impl<'a> OperatingParameters<'a> {
    /// Bytes up to the list of descriptor types.
    pub const HEAD_LEN: usize = 44;

    /// Decodes the parameters; `None` if they end before the list of descriptor types. The list may be cut.
    pub fn decode(b: &'a [u8]) -> Option<OperatingParameters<'a>> {
        let (head, types) = b.split_at_checked(Self::HEAD_LEN)?;
        Some(OperatingParameters {
            needs_no_list_id: head[4] & 1 != 0,
            max_cscds: be::get16(&head[8..]),
            max_segments: be::get16(&head[10..]),
            max_list_len: be::get32(&head[12..]),
            max_segment_len: be::get32(&head[16..]),
            total_copies: be::get16(&head[34..]),
            max_copies: head[36],
            granularity: head[37],
            types: &types[..types.len().min(head[43].into())],
        })
    }
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
    }

    #[test]
    fn operating_parameters_cut_before_their_types_are_rejected() {
        let mut b: Vec<u8> = (0..44).collect();
        b.extend([BLOCK_TO_BLOCK, IDENTIFICATION]);
        let whole = OperatingParameters::decode(&b).expect("all parameters");
        assert_eq!((whole.needs_no_list_id, whole.max_cscds, whole.max_segments), (false, 0x0809, 0x0a0b));
        assert_eq!((whole.max_list_len, whole.max_segment_len), (0x0c0d_0e0f, 0x1011_1213));
        assert_eq!((whole.total_copies, whole.max_copies, whole.granularity), (0x2223, 36, 37));
        assert_eq!(whole.types, [BLOCK_TO_BLOCK, IDENTIFICATION]);
        (0..44).for_each(|n| assert_eq!(OperatingParameters::decode(&b[..n]), None, "{n} bytes"));
        b[43] = 1;
        assert_eq!(OperatingParameters::decode(&b).map(|all| all.types), Some(&[BLOCK_TO_BLOCK][..]));
    }
}
