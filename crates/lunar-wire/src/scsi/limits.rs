//! The VPD pages block limits (B0h) and logical block provisioning (B2h; SBC-4 sections 6.6.4 and 6.6.6).

use super::BitField;
use super::fields::{Field, bits, flag, number, whole};
use super::vpd::{self, set_header};

const WSNZ: BitField = BitField::flag(4, 0);
const MAX_COMPARE_AND_WRITE: BitField = BitField::bytes(5, 1);
const OPTIMAL_GRANULARITY: BitField = BitField::bytes(6, 2);
const MAX_TRANSFER: BitField = BitField::bytes(8, 4);
const OPTIMAL_TRANSFER: BitField = BitField::bytes(12, 4);
const MAX_UNMAP: BitField = BitField::bytes(20, 4);
const MAX_UNMAP_DESCRIPTORS: BitField = BitField::bytes(24, 4);
const OPTIMAL_UNMAP_GRANULARITY: BitField = BitField::bytes(28, 4);
const UGAVALID: BitField = BitField::flag(32, 7);
const UNMAP_ALIGNMENT: BitField = BitField::bits(32, 6, 31);
const MAX_WRITE_SAME: BitField = BitField::bytes(36, 8);
const MAX_ATOMIC: BitField = BitField::bytes(44, 4);

/// Fields of page B0h.
pub(super) static LIMITS: &[Field] = &[
    Field::flag("write_same_non_zero", WSNZ),
    Field::number("max_compare_and_write_blocks", MAX_COMPARE_AND_WRITE),
    Field::number("optimal_transfer_granularity_blocks", OPTIMAL_GRANULARITY),
    Field::number("max_transfer_blocks", MAX_TRANSFER),
    Field::number("optimal_transfer_blocks", OPTIMAL_TRANSFER),
    number("max_prefetch_blocks", 16, 4),
    Field::number("max_unmap_blocks", MAX_UNMAP),
    Field::number("max_unmap_descriptors", MAX_UNMAP_DESCRIPTORS),
    Field::number("optimal_unmap_granularity_blocks", OPTIMAL_UNMAP_GRANULARITY),
    Field::flag("unmap_granularity_alignment_valid", UGAVALID),
    Field::number("max_write_same_blocks", MAX_WRITE_SAME),
    Field::number("max_atomic_transfer_blocks", MAX_ATOMIC),
    number("atomic_alignment_blocks", 48, 4),
    number("atomic_granularity_blocks", 52, 4),
    number("max_atomic_transfer_with_boundary_blocks", 56, 4),
    number("max_atomic_boundary_blocks", 60, 4),
];

/// Limits of commands; 0 if the page does not report one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// WSNZ: WRITE SAME of 0 blocks is rejected.
    pub write_same_non_zero: bool,
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks.
    pub compare_and_write: u8,
    /// OPTIMAL TRANSFER LENGTH GRANULARITY in blocks.
    pub optimal_granularity: u16,
    /// MAXIMUM TRANSFER LENGTH in blocks.
    pub transfer: u32,
    /// OPTIMAL TRANSFER LENGTH in blocks.
    pub optimal_transfer: u32,
    /// MAXIMUM UNMAP LBA COUNT.
    pub unmap: u32,
    /// MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT.
    pub unmap_descriptors: u32,
    /// OPTIMAL UNMAP GRANULARITY in blocks.
    pub unmap_granularity: u32,
    /// UNMAP GRANULARITY ALIGNMENT, an LBA below 2^31, if UGAVALID is set.
    pub unmap_alignment: Option<u32>,
    /// MAXIMUM WRITE SAME LENGTH in blocks.
    pub write_same: u64,
    /// MAXIMUM ATOMIC TRANSFER LENGTH in blocks.
    pub atomic_transfer: u32,
}

impl BlockLimits {
    /// Decodes page B0h. A field beyond the end of the bytes counts as 0.
    pub fn decode(page: &[u8]) -> BlockLimits {
        // A number that is cut short would be a wrong limit.
        let get = |field| whole(field, page).unwrap_or(0);
        BlockLimits {
            write_same_non_zero: WSNZ.is_set(page),
            compare_and_write: get(MAX_COMPARE_AND_WRITE) as u8,
            optimal_granularity: get(OPTIMAL_GRANULARITY) as u16,
            transfer: get(MAX_TRANSFER) as u32,
            optimal_transfer: get(OPTIMAL_TRANSFER) as u32,
            unmap: get(MAX_UNMAP) as u32,
            unmap_descriptors: get(MAX_UNMAP_DESCRIPTORS) as u32,
            unmap_granularity: get(OPTIMAL_UNMAP_GRANULARITY) as u32,
            unmap_alignment: UGAVALID.is_set(page).then(|| get(UNMAP_ALIGNMENT) as u32),
            write_same: get(MAX_WRITE_SAME),
            atomic_transfer: get(MAX_ATOMIC) as u32,
        }
    }

    /// Encodes page B0h. PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE are zero.
    pub fn encode(&self) -> [u8; 64] {
        let mut page = [0; 64];
        set_header(&mut page, vpd::BLOCK_LIMITS);
        for (field, value) in [
            (WSNZ, self.write_same_non_zero.into()),
            (MAX_COMPARE_AND_WRITE, self.compare_and_write.into()),
            (OPTIMAL_GRANULARITY, self.optimal_granularity.into()),
            (MAX_TRANSFER, self.transfer.into()),
            (OPTIMAL_TRANSFER, self.optimal_transfer.into()),
            (MAX_UNMAP, self.unmap.into()),
            (MAX_UNMAP_DESCRIPTORS, self.unmap_descriptors.into()),
            (OPTIMAL_UNMAP_GRANULARITY, self.unmap_granularity.into()),
            (UGAVALID, self.unmap_alignment.is_some().into()),
            (UNMAP_ALIGNMENT, self.unmap_alignment.unwrap_or(0).into()),
            (MAX_WRITE_SAME, self.write_same),
            (MAX_ATOMIC, self.atomic_transfer.into()),
        ] {
            field.set(&mut page, value);
        }
        page
    }
}

const LBPU: BitField = BitField::flag(5, 7);
const LBPWS: BitField = BitField::flag(5, 6);
const LBPWS10: BitField = BitField::flag(5, 5);
/// The low bit of LBPRZ.
const LBPRZ: BitField = BitField::flag(5, 2);
const ANC_SUP: BitField = BitField::flag(5, 1);
const PROVISIONING_TYPE: BitField = BitField::bits(6, 2, 3);

const PROVISIONING_TYPES: &[(u64, &str)] = &[(0, "not reported"), (1, "resource provisioned"), (2, "thin")];

/// Fields of page B2h.
pub(super) static PROVISIONING: &[Field] = &[
    Field::named("provisioning_type", PROVISIONING_TYPE, PROVISIONING_TYPES),
    Field::flag("unmap", LBPU),
    Field::flag("write_same_16_unmap", LBPWS),
    Field::flag("write_same_10_unmap", LBPWS10),
    bits("unmapped_reads_zero", 5, 2, 3),
    Field::flag("anchor", ANC_SUP),
    flag("resource_descriptor", 5, 0),
    number("threshold_exponent", 4, 1),
    bits("minimum_percentage", 6, 3, 5),
    number("threshold_percentage", 7, 1),
];

/// The commands that deallocate blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// LBPU: UNMAP.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) with UNMAP.
    pub write_same_16: bool,
    /// LBPWS10: WRITE SAME(10) with UNMAP.
    pub write_same_10: bool,
    /// The low bit of LBPRZ: deallocated blocks read as zeros.
    pub reads_zero: bool,
    /// ANC_SUP: blocks can be anchored.
    pub anchor: bool,
    /// PROVISIONING TYPE: 0 not reported, 1 resource provisioned, 2 thin.
    pub kind: u8,
}

impl Provisioning {
    /// [`Provisioning::kind`] of thin provisioning.
    pub const THIN: u8 = 2;

    /// Decodes page B2h. Missing bytes count as zeros.
    pub fn decode(page: &[u8]) -> Provisioning {
        Provisioning {
            unmap: LBPU.is_set(page),
            write_same_16: LBPWS.is_set(page),
            write_same_10: LBPWS10.is_set(page),
            reads_zero: LBPRZ.is_set(page),
            anchor: ANC_SUP.is_set(page),
            kind: PROVISIONING_TYPE.get_u8(page),
        }
    }

    /// Encodes page B2h. PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE are zero.
    pub fn encode(&self) -> [u8; 8] {
        let mut page = [0; 8];
        set_header(&mut page, vpd::PROVISIONING);
        LBPU.set(&mut page, self.unmap.into());
        LBPWS.set(&mut page, self.write_same_16.into());
        LBPWS10.set(&mut page, self.write_same_10.into());
        LBPRZ.set(&mut page, self.reads_zero.into());
        ANC_SUP.set(&mut page, self.anchor.into());
        PROVISIONING_TYPE.set(&mut page, self.kind.into());
        page
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_limits_cut_anywhere_lack_what_is_missing() {
        let b: Vec<u8> = (0..64).collect();
        let whole = BlockLimits {
            write_same_non_zero: false,
            compare_and_write: 5,
            optimal_granularity: 0x0607,
            transfer: 0x0809_0a0b,
            optimal_transfer: 0x0c0d_0e0f,
            unmap: 0x1415_1617,
            unmap_descriptors: 0x1819_1a1b,
            unmap_granularity: 0x1c1d_1e1f,
            unmap_alignment: None,
            write_same: 0x2425_2627_2829_2a2b,
            atomic_transfer: 0x2c2d_2e2f,
        };
        assert_eq!(BlockLimits::decode(&b), whole);
        assert_eq!(BlockLimits::decode(&b[..43]), BlockLimits { write_same: 0, atomic_transfer: 0, ..whole });
        let none = BlockLimits::default();
        let start = BlockLimits { compare_and_write: 5, optimal_granularity: 0x0607, ..none };
        assert_eq!(BlockLimits::decode(&b[..11]), start);
        let aligned = BlockLimits { write_same_non_zero: true, unmap_alignment: Some(7), ..whole };
        assert_eq!(BlockLimits::decode(&aligned.encode()), aligned);
        assert_eq!((aligned.encode()[4], &aligned.encode()[32..36]), (1, &[0x80, 0, 0, 7][..]));
        (0..6).for_each(|n| assert_eq!(BlockLimits::decode(&b[..n]), none, "{n} bytes"));
    }

    #[test]
    fn provisioning_flags_are_those_of_byte_5() {
        let page = [0, 0xb2, 0, 4, 0, 0xc4, 0, 0];
        let whole =
            Provisioning { unmap: true, write_same_16: true, reads_zero: true, ..Provisioning::default() };
        assert_eq!((Provisioning::decode(&page), whole.encode()), (whole, page));
        let all = Provisioning { write_same_10: true, anchor: true, kind: Provisioning::THIN, ..whole };
        assert_eq!(all.encode(), [0, 0xb2, 0, 4, 0, 0xe6, 2, 0]);
        assert_eq!(Provisioning::decode(&all.encode()), all);
        (0..6)
            .for_each(|n| assert_eq!(Provisioning::decode(&page[..n]), Provisioning::default(), "{n} bytes"));
    }
}
