//! VPD pages that a device server encodes: extended INQUIRY data (86h) and block device characteristics (B1h).

use super::set_header;
use crate::scsi::BitField;

/// Bytes of each of these pages.
const LEN: usize = 64;

/// Extended INQUIRY data (86h; SPC-5 section 7.7.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedInquiry {
    /// HEADSUP: the task attribute HEAD OF QUEUE is supported.
    pub head_of_queue: bool,
    /// ORDSUP: the task attribute ORDERED is supported.
    pub ordered: bool,
    /// SIMPSUP: the task attribute SIMPLE is supported.
    pub simple: bool,
    /// V_SUP: a volatile cache is supported.
    pub volatile_cache: bool,
}

impl ExtendedInquiry {
    const HEADSUP: BitField = BitField::flag(5, 2);
    const ORDSUP: BitField = BitField::flag(5, 1);
    const SIMPSUP: BitField = BitField::flag(5, 0);
    const V_SUP: BitField = BitField::flag(6, 0);

    /// Encodes the page. PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE are zero.
    pub fn encode(&self) -> [u8; LEN] {
        let mut page = [0; LEN];
        set_header(&mut page, super::EXTENDED_INQUIRY);
        Self::HEADSUP.set(&mut page, self.head_of_queue.into());
        Self::ORDSUP.set(&mut page, self.ordered.into());
        Self::SIMPSUP.set(&mut page, self.simple.into());
        Self::V_SUP.set(&mut page, self.volatile_cache.into());
        page
    }
}

/// Block device characteristics (B1h; SBC-4 section 6.6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockCharacteristics {
    /// MEDIUM ROTATION RATE: in revolutions per minute, or [`BlockCharacteristics::NON_ROTATING`].
    pub rotation_rate: u16,
    /// WABEREQ: the result of a read after a block erase; 1 if it succeeds.
    pub write_after_block_erase: u8,
}

impl BlockCharacteristics {
    /// [`BlockCharacteristics::rotation_rate`] of a non-rotating medium.
    pub const NON_ROTATING: u16 = 1;

    const MEDIUM_ROTATION_RATE: BitField = BitField::bytes(4, 2);
    const WABEREQ: BitField = BitField::bits(7, 7, 2);

    /// Encodes the page. PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE are zero.
    pub fn encode(&self) -> [u8; LEN] {
        let mut page = [0; LEN];
        set_header(&mut page, super::BLOCK_CHARACTERISTICS);
        Self::MEDIUM_ROTATION_RATE.set(&mut page, self.rotation_rate.into());
        Self::WABEREQ.set(&mut page, self.write_after_block_erase.into());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::fields::{FieldValue, read};
    use crate::scsi::vpd::table;

    #[test]
    fn encoded_pages_decode_by_their_tables() {
        let extended = ExtendedInquiry { head_of_queue: true, volatile_cache: true, ..Default::default() };
        let page = extended.encode();
        let set: Vec<_> = read(table(page[1]).unwrap(), &page)
            .filter_map(|(name, value)| (value == FieldValue::Flag(true)).then_some(name))
            .collect();
        assert_eq!(set, ["head_of_queue", "volatile_cache"]);
        let page = BlockCharacteristics { rotation_rate: 7200, write_after_block_erase: 2 }.encode();
        let all: Vec<_> = read(table(page[1]).unwrap(), &page).collect();
        assert_eq!(all[0], ("rotation_rate_rpm", FieldValue::Number(7200)));
        assert_eq!(all[3], ("write_after_block_erase", FieldValue::Number(2)));
    }
}
