//! Data of RECEIVE COPY RESULTS (SPC-4 section 6.24).

use crate::scsi::BitField;

/// AVAILABLE DATA: the number of bytes that follow this field.
const AVAILABLE_DATA: BitField = BitField::bytes(0, 4);

/// COPY MANAGER STATUS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CopyManagerStatus {
    /// The copy is in progress.
    InProgress = 0x00,
    /// The copy ended without errors.
    Good = 0x01,
    /// The copy ended with errors.
    Failed = 0x02,
}

/// The status of a copy (SPC-4 section 6.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyStatus {
    /// COPY MANAGER STATUS.
    pub status: CopyManagerStatus,
    /// SEGMENTS PROCESSED.
    pub segments: u16,
    /// TRANSFER COUNT UNITS: an exponent of 1024.
    pub units: u8,
    /// TRANSFER COUNT in these units.
    pub count: u32,
}

impl CopyStatus {
    const STATUS: BitField = BitField::bits(4, 6, 7);
    const SEGMENTS: BitField = BitField::bytes(5, 2);
    const UNITS: BitField = BitField::bytes(7, 1);
    const COUNT: BitField = BitField::bytes(8, 4);
    const LEN: usize = 12;

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; Self::LEN];
        AVAILABLE_DATA.set_following_len(&mut b);
        Self::STATUS.set(&mut b, self.status as u64);
        Self::SEGMENTS.set(&mut b, self.segments.into());
        Self::UNITS.set(&mut b, self.units.into());
        Self::COUNT.set(&mut b, self.count.into());
        b
    }
}

/// The details of a failed segment (SPC-4 section 6.24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedSegmentDetails<'a> {
    /// EXTENDED COPY COMMAND STATUS.
    pub status: u8,
    /// The sense data.
    pub sense: &'a [u8],
}

impl FailedSegmentDetails<'_> {
    const STATUS: BitField = BitField::bytes(56, 1);
    const SENSE_LENGTH: BitField = BitField::bytes(58, 2);
    const HEAD_LEN: usize = 60;

    /// The data if no segment failed.
    pub fn none() -> Vec<u8> {
        vec![0; 4]
    }

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; Self::HEAD_LEN];
        b.extend_from_slice(self.sense);
        AVAILABLE_DATA.set_following_len(&mut b);
        Self::STATUS.set(&mut b, self.status.into());
        Self::SENSE_LENGTH.set(&mut b, self.sense.len() as u64);
        b
    }
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

    const SNLID: BitField = BitField::flag(4, 0);
    const MAX_CSCDS: BitField = BitField::bytes(8, 2);
    const MAX_SEGMENTS: BitField = BitField::bytes(10, 2);
    const MAX_LIST_LEN: BitField = BitField::bytes(12, 4);
    const MAX_SEGMENT_LEN: BitField = BitField::bytes(16, 4);
    const TOTAL_COPIES: BitField = BitField::bytes(34, 2);
    const MAX_COPIES: BitField = BitField::bytes(36, 1);
    const GRANULARITY: BitField = BitField::bytes(37, 1);
    const TYPES_LEN: BitField = BitField::bytes(43, 1);

    /// Decodes the parameters; `None` if they end before the list of descriptor types. The list may be cut.
    pub fn decode(b: &'a [u8]) -> Option<OperatingParameters<'a>> {
        let (head, types) = b.split_at_checked(Self::HEAD_LEN)?;
        Some(OperatingParameters {
            needs_no_list_id: Self::SNLID.is_set(head),
            max_cscds: Self::MAX_CSCDS.get_u16(head),
            max_segments: Self::MAX_SEGMENTS.get_u16(head),
            max_list_len: Self::MAX_LIST_LEN.get_u32(head),
            max_segment_len: Self::MAX_SEGMENT_LEN.get_u32(head),
            total_copies: Self::TOTAL_COPIES.get_u16(head),
            max_copies: Self::MAX_COPIES.get_u8(head),
            granularity: Self::GRANULARITY.get_u8(head),
            types: &types[..types.len().min(Self::TYPES_LEN.get(head) as usize)],
        })
    }

    /// Encodes the parameters.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; Self::HEAD_LEN];
        b.extend_from_slice(self.types);
        AVAILABLE_DATA.set_following_len(&mut b);
        Self::SNLID.set(&mut b, self.needs_no_list_id.into());
        Self::MAX_CSCDS.set(&mut b, self.max_cscds.into());
        Self::MAX_SEGMENTS.set(&mut b, self.max_segments.into());
        Self::MAX_LIST_LEN.set(&mut b, self.max_list_len.into());
        Self::MAX_SEGMENT_LEN.set(&mut b, self.max_segment_len.into());
        Self::TOTAL_COPIES.set(&mut b, self.total_copies.into());
        Self::MAX_COPIES.set(&mut b, self.max_copies.into());
        Self::GRANULARITY.set(&mut b, self.granularity.into());
        Self::TYPES_LEN.set(&mut b, self.types.len() as u64);
        b
    }
}

#[cfg(test)]
mod tests {
    use super::super::{BLOCK_TO_BLOCK, IDENTIFICATION};
    use super::*;

    #[test]
    fn copy_status_matches_golden_bytes() {
        let status =
            CopyStatus { status: CopyManagerStatus::Failed, segments: 0x0102, units: 3, count: 0x0405_0607 };
        assert_eq!(status.encode(), [0, 0, 0, 8, 2, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn failed_segment_details_end_with_the_sense_data() {
        let b = FailedSegmentDetails { status: 2, sense: &[0x70, 1, 2] }.encode();
        assert_eq!((&b[..4], &b[56..]), (&[0, 0, 0, 59][..], &[2, 0, 0, 3, 0x70, 1, 2][..]));
        assert_eq!(b[4..56], [0; 52]);
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
        assert_eq!(OperatingParameters::decode(&whole.encode()), Some(whole));
        b[43] = 1;
        assert_eq!(OperatingParameters::decode(&b).map(|all| all.types), Some(&[BLOCK_TO_BLOCK][..]));
    }
}
