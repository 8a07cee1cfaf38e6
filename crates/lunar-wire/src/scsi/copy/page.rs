//! Descriptors of the third-party copy VPD page (8Fh; SPC-5 section 7.7.18).

use crate::scsi::BitField;

/// THIRD-PARTY COPY DESCRIPTOR TYPE, and the number of bytes after these two fields.
const TYPE: BitField = BitField::bytes(0, 2);
const LENGTH: BitField = BitField::bytes(2, 2);
const HEADER_LEN: usize = 4;

/// A third-party copy descriptor of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThirdPartyCopyDescriptor<'a> {
    /// Supported commands: command support descriptors, each of an operation code, the number of its service actions,
    /// and their codes.
    Commands(&'a [u8]),
    /// Parameter data: limits of a parameter list.
    ParameterData {
        /// MAXIMUM CSCD DESCRIPTOR COUNT.
        max_cscds: u16,
        /// MAXIMUM SEGMENT DESCRIPTOR COUNT.
        max_segments: u16,
        /// MAXIMUM DESCRIPTOR LIST LENGTH in bytes.
        max_list_len: u32,
    },
    /// Supported descriptors: descriptor type codes.
    Descriptors(&'a [u8]),
    /// Supported CSCD descriptor IDs, beside those of descriptors in the list.
    CscdIds(&'a [u16]),
    /// General copy operations.
    GeneralCopyOperations {
        /// TOTAL CONCURRENT COPIES.
        total_copies: u32,
        /// MAXIMUM IDENTIFIED CONCURRENT COPIES.
        max_copies: u32,
        /// MAXIMUM SEGMENT LENGTH in bytes.
        max_segment_len: u32,
        /// DATA SEGMENT GRANULARITY: an exponent of 2.
        granularity: u8,
    },
}

/// Fields and length of the body of `ParameterData`.
mod parameter_data {
    use crate::scsi::BitField;

    pub(super) const MAX_CSCDS: BitField = BitField::bytes(4, 2);
    pub(super) const MAX_SEGMENTS: BitField = BitField::bytes(6, 2);
    pub(super) const MAX_LIST_LEN: BitField = BitField::bytes(8, 4);
    pub(super) const LEN: usize = 28;
}

/// Fields and length of the body of `GeneralCopyOperations`.
mod general {
    use crate::scsi::BitField;

    pub(super) const TOTAL_COPIES: BitField = BitField::bytes(0, 4);
    pub(super) const MAX_COPIES: BitField = BitField::bytes(4, 4);
    pub(super) const MAX_SEGMENT_LEN: BitField = BitField::bytes(8, 4);
    pub(super) const GRANULARITY: BitField = BitField::bytes(12, 1);
    pub(super) const LEN: usize = 32;
}

impl ThirdPartyCopyDescriptor<'_> {
    /// THIRD-PARTY COPY DESCRIPTOR TYPE.
    pub const fn code(&self) -> u16 {
        match self {
            ThirdPartyCopyDescriptor::Commands(_) => 0x0001,
            ThirdPartyCopyDescriptor::ParameterData { .. } => 0x0004,
            ThirdPartyCopyDescriptor::Descriptors(_) => 0x0008,
            ThirdPartyCopyDescriptor::CscdIds(_) => 0x000c,
            ThirdPartyCopyDescriptor::GeneralCopyOperations { .. } => 0x8001,
        }
    }

    /// Encodes the descriptor, padded with zeros to a multiple of four bytes.
    pub fn encode(&self) -> Vec<u8> {
        let body = self.body();
        let len = body.len().next_multiple_of(4);
        let mut b = vec![0; HEADER_LEN];
        TYPE.set(&mut b, self.code().into());
        LENGTH.set(&mut b, len as u64);
        b.extend_from_slice(&body);
        b.resize(HEADER_LEN + len, 0);
        b
    }

    fn body(&self) -> Vec<u8> {
        match *self {
            ThirdPartyCopyDescriptor::Commands(list) | ThirdPartyCopyDescriptor::Descriptors(list) => {
                [&[list.len() as u8], list].concat()
            }
            ThirdPartyCopyDescriptor::CscdIds(ids) => {
                let list = ids.iter().flat_map(|id| id.to_be_bytes());
                (2 * ids.len() as u16).to_be_bytes().into_iter().chain(list).collect()
            }
            ThirdPartyCopyDescriptor::ParameterData { max_cscds, max_segments, max_list_len } => {
                let mut b = vec![0; parameter_data::LEN];
                parameter_data::MAX_CSCDS.set(&mut b, max_cscds.into());
                parameter_data::MAX_SEGMENTS.set(&mut b, max_segments.into());
                parameter_data::MAX_LIST_LEN.set(&mut b, max_list_len.into());
                b
            }
            ThirdPartyCopyDescriptor::GeneralCopyOperations {
                total_copies,
                max_copies,
                max_segment_len,
                granularity,
            } => {
                let mut b = vec![0; general::LEN];
                general::TOTAL_COPIES.set(&mut b, total_copies.into());
                general::MAX_COPIES.set(&mut b, max_copies.into());
                general::MAX_SEGMENT_LEN.set(&mut b, max_segment_len.into());
                general::GRANULARITY.set(&mut b, granularity.into());
                b
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_match_golden_bytes() {
        let ids = ThirdPartyCopyDescriptor::CscdIds(&[0xffff, 0x0102]).encode();
        assert_eq!(ids, [0, 0x0c, 0, 8, 0, 4, 0xff, 0xff, 1, 2, 0, 0]);
        let types = ThirdPartyCopyDescriptor::Descriptors(&[0x02, 0xe4]).encode();
        assert_eq!(types, [0, 8, 0, 4, 2, 0x02, 0xe4, 0]);
        let (max_cscds, max_segments, max_list_len) = (0x0102, 0x0304, 0x0506_0708);
        let limits =
            ThirdPartyCopyDescriptor::ParameterData { max_cscds, max_segments, max_list_len }.encode();
        assert_eq!(limits[..16], [0, 4, 0, 28, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(limits[16..], [0; 16]);
        let general = ThirdPartyCopyDescriptor::GeneralCopyOperations {
            total_copies: 1,
            max_copies: 2,
            max_segment_len: 3,
            granularity: 9,
        };
        let head = [0x80, 1, 0, 32, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 9];
        assert_eq!(general.encode(), [&head[..], &[0; 19]].concat());
    }
}
