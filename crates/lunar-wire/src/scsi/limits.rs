//! The VPD pages block limits (B0h) and logical block provisioning (B2h; SBC-4 sections 6.6.4 and 6.6.6).

use super::fields::get;

/// Limits of commands; 0 if the page does not report one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// MAXIMUM COMPARE AND WRITE LENGTH in blocks.
    pub compare_and_write: u8,
    /// MAXIMUM TRANSFER LENGTH in blocks.
    pub transfer: u32,
    /// OPTIMAL TRANSFER LENGTH in blocks.
    pub optimal_transfer: u32,
    /// MAXIMUM UNMAP LBA COUNT.
    pub unmap: u32,
    /// MAXIMUM WRITE SAME LENGTH in blocks.
    pub write_same: u64,
}

impl BlockLimits {
    /// Decodes page B0h. A field beyond the end of the bytes counts as 0.
    pub fn decode(page: &[u8]) -> BlockLimits {
        BlockLimits {
            compare_and_write: get(page, 5, 1) as u8,
            transfer: get(page, 8, 4) as u32,
            optimal_transfer: get(page, 12, 4) as u32,
            unmap: get(page, 20, 4) as u32,
            write_same: get(page, 36, 8),
        }
    }
}

/// The commands that deallocate blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// LBPU: UNMAP.
    pub unmap: bool,
    /// LBPWS: WRITE SAME(16) with UNMAP.
    pub write_same_16: bool,
    /// The low bit of LBPRZ: deallocated blocks read as zeros.
    pub reads_zero: bool,
}

impl Provisioning {
    /// Decodes page B2h. Missing bytes count as zeros.
    pub fn decode(page: &[u8]) -> Provisioning {
        let flags = get(page, 5, 1);
        Provisioning {
            unmap: flags & 0x80 != 0,
            write_same_16: flags & 0x40 != 0,
            reads_zero: flags & 0x04 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_limits_cut_anywhere_lack_what_is_missing() {
        let b: Vec<u8> = (0..64).collect();
        let whole = BlockLimits {
            compare_and_write: 5,
            transfer: 0x0809_0a0b,
            optimal_transfer: 0x0c0d_0e0f,
            unmap: 0x1415_1617,
            write_same: 0x2425_2627_2829_2a2b,
        };
        assert_eq!(BlockLimits::decode(&b), whole);
        assert_eq!(BlockLimits::decode(&b[..43]), BlockLimits { write_same: 0, ..whole });
        let none = BlockLimits::default();
        assert_eq!(BlockLimits::decode(&b[..11]), BlockLimits { compare_and_write: 5, ..none });
        (0..6).for_each(|n| assert_eq!(BlockLimits::decode(&b[..n]), none, "{n} bytes"));
    }

    #[test]
    fn provisioning_flags_are_those_of_byte_5() {
        let page = [0, 0xb2, 0, 4, 0, 0xc4, 0, 0];
        let whole = Provisioning { unmap: true, write_same_16: true, reads_zero: true };
        assert_eq!(Provisioning::decode(&page), whole);
        (0..6)
            .for_each(|n| assert_eq!(Provisioning::decode(&page[..n]), Provisioning::default(), "{n} bytes"));
    }
}
