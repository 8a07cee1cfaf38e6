//! Standard INQUIRY data (SPC-5 section 6.7.2), and READ CAPACITY(16) (SBC-4 section 5.21).

use super::fields::{self, Field, ascii, bits, flag, name_of, named, number, numbered};

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
