//! Standard INQUIRY data (SPC-5 section 6.7.2), and READ CAPACITY(16) (SBC-4 section 5.21).

use super::fields::{self, Field, ascii, bits, flag, name_of, named, number, numbered};
use crate::be;

/// Peripheral device types.
pub const DEVICE_TYPES: &[(u64, &str)] = &[
    (0x00, "disk"),
    (0x01, "tape"),
    (0x02, "printer"),
    (0x03, "processor"),
    (0x04, "write-once disk"),
    (0x05, "CD or DVD"),
    (0x07, "optical disk"),
    (0x08, "medium changer"),
    (0x0c, "storage array controller"),
    (0x0d, "enclosure"),
    (0x0e, "simplified disk"),
    (0x11, "object storage"),
    (0x14, "host managed zoned disk"),
    (0x1e, "well known logical unit"),
    (0x1f, "no or unknown device"),
];

const QUALIFIERS: &[(u64, &str)] = &[(0, "connected"), (1, "not connected"), (3, "no logical unit here")];
const VERSIONS: &[(u64, &str)] = &[
    (0, "no version claimed"),
    (3, "SPC"),
    (4, "SPC-2"),
    (5, "SPC-3"),
    (6, "SPC-4"),
    (7, "SPC-5"),
    (0x0d, "SPC-6"),
];
/// TPGS.
const ACCESS: &[(u64, &str)] = &[(0, "none"), (1, "implicit"), (2, "explicit"), (3, "implicit and explicit")];

/// Fields of standard data.
pub static STANDARD: &[Field] = &[
    named("device_type", 0, (0, 5), DEVICE_TYPES),
    named("peripheral_qualifier", 0, (5, 3), QUALIFIERS),
    ascii("vendor", 8, 8),
    ascii("product", 16, 16),
    ascii("revision", 32, 4),
    numbered("version", 2, 1, VERSIONS),
    flag("removable", 1, 7),
    flag("normal_aca", 3, 5),
    flag("hierarchical_luns", 3, 4),
    bits("response_data_format", 3, 0, 4),
    flag("embedded_storage_array", 5, 7),
    named("alua", 5, (4, 2), ACCESS),
    flag("third_party_copy", 5, 3),
    flag("protection", 5, 0),
    flag("enclosure_services", 6, 6),
    flag("multi_port", 6, 4),
    flag("command_queuing", 7, 1),
];

/// Fields of READ CAPACITY(16).
pub static CAPACITY: &[Field] = &[
    number("last_lba", 0, 8),
    number("block_size_bytes", 8, 4),
    flag("protection", 12, 0),
    bits("protection_type", 12, 1, 3),
    bits("blocks_per_physical_block_exponent", 13, 0, 4),
    flag("thin", 14, 7),
    flag("unmapped_reads_zero", 14, 6),
];

/// PERIPHERAL QUALIFIER of standard data or of a VPD page; `None` without data.
pub fn qualifier(b: &[u8]) -> Option<u8> {
    b.first().map(|byte| byte >> 5)
}

/// Whether standard data or a VPD page are those of a logical unit (PERIPHERAL QUALIFIER 000b).
pub fn is_connected(b: &[u8]) -> bool {
    qualifier(b) == Some(0)
}

/// Standard data. Missing bytes count as zeros.
#[derive(Clone, Copy, Debug)]
pub struct StandardData<'a>(pub &'a [u8]);

impl StandardData<'_> {
    fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    fn text(&self, at: usize, len: usize) -> String {
        fields::text(self.0.get(at..self.0.len().min(at + len)).unwrap_or(&[]))
    }

    /// PERIPHERAL DEVICE TYPE.
    pub fn device_type(&self) -> u8 {
        self.byte(0) & 0x1f
    }

    /// RMB.
    pub fn removable(&self) -> bool {
        self.byte(1) & 0x80 != 0
    }

    /// TPGS: 1 implicit, 2 explicit, 3 both.
    pub fn alua(&self) -> u8 {
        self.byte(5) >> 4 & 3
    }

    /// T10 VENDOR IDENTIFICATION.
    pub fn vendor(&self) -> String {
        self.text(8, 8)
    }

    /// PRODUCT IDENTIFICATION.
    pub fn product(&self) -> String {
        self.text(16, 16)
    }

    /// PRODUCT REVISION LEVEL.
    pub fn revision(&self) -> String {
        self.text(32, 4)
    }
}

/// The data of READ CAPACITY(10) or (16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// RETURNED LOGICAL BLOCK ADDRESS.
    pub last_lba: u64,
    /// LOGICAL BLOCK LENGTH IN BYTES.
    pub block_size: u32,
    /// LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT.
    pub physical_exponent: u8,
    /// LBPME.
    pub thin: bool,
    /// LBPRZ.
    pub unmapped_reads_zero: bool,
}

impl Capacity {
    /// The last LBA of READ CAPACITY(10), if only READ CAPACITY(16) can report it.
    pub const BEYOND_10: u64 = u32::MAX as u64;

    /// Decodes the data of READ CAPACITY(10); `None` if they are incomplete.
    pub fn decode_10(b: &[u8]) -> Option<Capacity> {
        let b = b.first_chunk::<8>()?;
        Some(Capacity {
            last_lba: be::get32(b).into(),
            block_size: be::get32(&b[4..]),
            ..Capacity::default()
        })
    }

    /// Decodes the data of READ CAPACITY(16); `None` if they end before the block size. Further missing bytes count as
    /// zeros.
    pub fn decode_16(b: &[u8]) -> Option<Capacity> {
        let head = b.first_chunk::<12>()?;
        let byte = |at: usize| b.get(at).copied().unwrap_or(0);
        Some(Capacity {
            last_lba: be::get64(head),
            block_size: be::get32(&head[8..]),
            physical_exponent: byte(13) & 0x0f,
            thin: byte(14) & 0x80 != 0,
            unmapped_reads_zero: byte(14) & 0x40 != 0,
        })
    }

    /// The number of logical blocks.
    pub fn blocks(&self) -> u64 {
        self.last_lba.saturating_add(1)
    }
}

/// Version descriptor values by standard; the low five bits name a draft.
const STANDARDS: &[(u64, &str)] = &[
    (0x0020, "SAM"),
    (0x0040, "SAM-2"),
    (0x0060, "SAM-3"),
    (0x0080, "SAM-4"),
    (0x00a0, "SAM-5"),
    (0x00c0, "SAM-6"),
    (0x0120, "SPC"),
    (0x0180, "SBC"),
    (0x0260, "SPC-2"),
    (0x0300, "SPC-3"),
    (0x0320, "SBC-2"),
    (0x0460, "SPC-4"),
    (0x04c0, "SBC-3"),
    (0x04e0, "MMC-6"),
    (0x05c0, "SPC-5"),
    (0x0600, "SBC-4"),
    (0x0940, "SRP"),
    (0x0960, "iSCSI"),
];

/// Version descriptors of standard INQUIRY data, each with the name of its standard if known. A draft counts as its
/// standard.
pub fn standards(b: &[u8]) -> impl Iterator<Item = (u16, Option<&'static str>)> {
    let list = b.get(58..b.len().min(74)).unwrap_or(&[]);
    let codes = list.chunks_exact(2).map(|pair| fields::get(pair, 0, 2)).filter(|code| *code != 0);
    codes.map(|code| (code as u16, name_of(STANDARDS, code & !0x1f)))
}

#[cfg(test)]
mod tests {
    use super::fields::FieldValue;
    use super::*;

    #[test]
    fn standard_inquiry_data_decode() {
        let mut b = [0; 96];
        b[..8].copy_from_slice(&[5, 0x80, 6, 0x12, 91, 0x38, 0x10, 2]);
        b[8..36].copy_from_slice(b"LUNAR   VIRTUAL DISK    0001");
        b[58..66].copy_from_slice(&[0, 0xa0, 4, 0x63, 9, 0x60, 9, 0x40]);
        let all: Vec<_> = fields::read(STANDARD, &b).collect();
        assert_eq!(all[0], ("device_type", FieldValue::Named(5, "CD or DVD")));
        assert_eq!(all[3], ("product", FieldValue::Text("VIRTUAL DISK".into())));
        assert!(all.contains(&("alua", FieldValue::Named(3, "implicit and explicit"))));
        assert!(all.contains(&("version", FieldValue::Named(6, "SPC-4"))));
        let names: Vec<_> = standards(&b).map(|(_, name)| name.unwrap()).collect();
        assert_eq!(names, ["SAM-5", "SPC-4", "iSCSI", "SRP"]);
        (0..96).for_each(|n| assert!(standards(&b[..n]).count() <= 4));
    }

    #[test]
    fn standard_data_cut_anywhere_are_read_as_zeros() {
        let mut b = [0; 36];
        b[..8].copy_from_slice(&[0x25, 0x80, 6, 2, 31, 0x30, 0, 2]);
        b[8..].copy_from_slice(b"LUNAR   VIRTUAL DISK    0001");
        let whole = StandardData(&b);
        assert_eq!((whole.device_type(), whole.removable(), whole.alua()), (5, true, 3));
        let texts = [whole.vendor(), whole.product(), whole.revision()];
        assert_eq!(texts, ["LUNAR", "VIRTUAL DISK", "0001"]);
        assert_eq!((qualifier(&b), is_connected(&b), is_connected(&[0x1f])), (Some(1), false, true));
        assert_eq!((qualifier(&[]), is_connected(&[])), (None, false));
        for n in 0..b.len() {
            let cut = StandardData(&b[..n]);
            assert_eq!(
                (cut.device_type(), cut.alua()),
                (if n > 0 { 5 } else { 0 }, if n > 5 { 3 } else { 0 })
            );
            assert_eq!((cut.removable(), cut.vendor().len()), (n > 1, n.saturating_sub(8).min(5)));
            assert!(cut.product().len() <= 12 && cut.revision().len() < 4);
        }
    }

    #[test]
    fn capacity_ends_with_its_block_size() {
        let mut b = [0; 32];
        (b[7], b[10], b[13], b[14]) = (99, 2, 0xf3, 0xc0);
        let plain = Capacity { last_lba: 99, block_size: 512, ..Capacity::default() };
        let whole = Capacity { physical_exponent: 3, thin: true, unmapped_reads_zero: true, ..plain };
        assert_eq!((Capacity::decode_16(&b), whole.blocks()), (Some(whole), 100));
        assert_eq!(Capacity::decode_10(&b[4..]), Some(plain));
        (0..12).for_each(|n| assert_eq!(Capacity::decode_16(&b[..n]), None, "{n} bytes"));
        assert_eq!(Capacity::decode_16(&b[..13]), Some(plain));
        (0..8).for_each(|n| assert_eq!(Capacity::decode_10(&b[..n]), None, "{n} bytes"));
        assert_eq!(Capacity::decode_16(&[0xff; 12]).map(|c| c.blocks()), Some(u64::MAX));
        assert_eq!(Capacity::decode_10(&[0xff; 8]).map(|c| c.last_lba), Some(Capacity::BEYOND_10));
    }

    #[test]
    fn read_capacity_data_decode() {
        let mut b = [0; 32];
        b[7] = 99;
        b[10] = 2;
        (b[13], b[14]) = (3, 0xc0);
        let all: Vec<_> = fields::read(CAPACITY, &b).collect();
        assert_eq!(
            all[..2],
            [("last_lba", FieldValue::Number(99)), ("block_size_bytes", FieldValue::Number(512))]
        );
        assert_eq!(
            all[5..],
            [("thin", FieldValue::Flag(true)), ("unmapped_reads_zero", FieldValue::Flag(true))]
        );
    }
}
