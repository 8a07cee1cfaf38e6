//! VPD pages of fixed layout: extended INQUIRY data (86h) and block device characteristics (B1h).

use super::set_header;
use crate::scsi::BitField;
use crate::scsi::fields::{Field, bits, flag, named, number};

/// Bytes of each of these pages.
const LEN: usize = 64;

const MICROCODE: &[(u64, &str)] =
    &[(0, "not reported"), (1, "before the final command is completed"), (2, "at the next reset")];
const ROTATION: &[(u64, &str)] = &[(0, "not reported"), (1, "no rotation")];
const FORM_FACTORS: &[(u64, &str)] = &[
    (0, "not reported"),
    (1, "5.25 inch"),
    (2, "3.5 inch"),
    (3, "2.5 inch"),
    (4, "1.8 inch"),
    (5, "less than 1.8 inch"),
];
const ZONED: &[(u64, &str)] = &[(0, "not reported"), (1, "host aware"), (2, "device managed")];

/// Fields of page 86h.
pub(super) static EXTENDED: &[Field] = &[
    named("activate_microcode", 4, (6, 2), MICROCODE),
    bits("supported_protection_types", 4, 3, 3),
    flag("guard_check", 4, 2),
    flag("application_tag_check", 4, 1),
    flag("reference_tag_check", 4, 0),
    flag("unit_attention_sense_key_specific", 5, 5),
    flag("grouping", 5, 4),
    flag("priority", 5, 3),
    Field::flag("head_of_queue", ExtendedInquiry::HEADSUP),
    Field::flag("ordered", ExtendedInquiry::ORDSUP),
    Field::flag("simple", ExtendedInquiry::SIMPSUP),
    flag("write_uncorrectable", 6, 3),
    flag("correction_disable", 6, 2),
    flag("non_volatile_cache", 6, 1),
    Field::flag("volatile_cache", ExtendedInquiry::V_SUP),
    flag("protection_interval", 7, 4),
    flag("luns_clear_on_i_t_nexus_loss", 7, 0),
    flag("referrals", 8, 4),
    flag("capability_based_security", 8, 0),
    number("extended_self_test_minutes", 10, 2),
    number("max_sense_bytes", 13, 1),
];

/// Fields of page B1h.
pub(super) static CHARACTERISTICS: &[Field] = &[
    Field::named("rotation_rate_rpm", BlockCharacteristics::MEDIUM_ROTATION_RATE, ROTATION),
    number("product_type", 6, 1),
    named("nominal_form_factor", 7, (0, 4), FORM_FACTORS),
    Field::number("write_after_block_erase", BlockCharacteristics::WABEREQ),
    bits("write_after_cryptographic_erase", 7, 4, 2),
    named("zoned", 8, (4, 2), ZONED),
    flag("fua_behaviour", 8, 1),
    flag("verify_byte_check_uncached", 8, 0),
];

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
