//! Standard INQUIRY data (SPC-5 section 6.7.2), and the data of READ CAPACITY.

mod capacity;

use super::BitField;
use super::fields::{self, Field, ascii, flag, name_of};
pub use capacity::{CAPACITY, Capacity};
use std::ops::Range;

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
    Field::named("device_type", PERIPHERAL_DEVICE_TYPE, DEVICE_TYPES),
    Field::named("peripheral_qualifier", PERIPHERAL_QUALIFIER, QUALIFIERS),
    ascii("vendor", VENDOR.start, VENDOR.end - VENDOR.start),
    ascii("product", PRODUCT.start, PRODUCT.end - PRODUCT.start),
    ascii("revision", REVISION.start, REVISION.end - REVISION.start),
    Field::named("version", VERSION, VERSIONS),
    Field::flag("removable", RMB),
    flag("normal_aca", 3, 5),
    Field::flag("hierarchical_luns", HISUP),
    Field::number("response_data_format", RESPONSE_DATA_FORMAT),
    flag("embedded_storage_array", 5, 7),
    Field::named("alua", TPGS, ACCESS),
    Field::flag("third_party_copy", THIRD_PARTY_COPY),
    flag("protection", 5, 0),
    flag("enclosure_services", 6, 6),
    Field::flag("multi_port", MULTIP),
    Field::flag("command_queuing", CMDQUE),
];

/// Bytes of standard data, up to and including the reserved ones after the version descriptors.
const LEN: usize = 96;
const PERIPHERAL_QUALIFIER: BitField = BitField::bits(0, 7, 3);
const PERIPHERAL_DEVICE_TYPE: BitField = BitField::bits(0, 4, 5);
const RMB: BitField = BitField::flag(1, 7);
const VERSION: BitField = BitField::bytes(2, 1);
const HISUP: BitField = BitField::flag(3, 4);
const RESPONSE_DATA_FORMAT: BitField = BitField::bits(3, 3, 4);
const ADDITIONAL_LENGTH: BitField = BitField::bytes(4, 1);
const TPGS: BitField = BitField::bits(5, 5, 2);
const THIRD_PARTY_COPY: BitField = BitField::flag(5, 3);
const MULTIP: BitField = BitField::flag(6, 4);
const CMDQUE: BitField = BitField::flag(7, 1);
const VENDOR: Range<usize> = 8..16;
const PRODUCT: Range<usize> = 16..32;
const REVISION: Range<usize> = 32..36;
const VERSION_DESCRIPTORS: Range<usize> = 58..74;

/// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE, the first byte of standard data and of a VPD page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peripheral {
    /// PERIPHERAL QUALIFIER; 0 for a logical unit that is connected.
    pub qualifier: u8,
    /// PERIPHERAL DEVICE TYPE.
    pub device_type: u8,
}

impl Peripheral {
    /// No logical unit can exist at this LUN.
    pub const NONE: Peripheral = Peripheral { qualifier: 3, device_type: 0x1f };
    /// A well-known logical unit.
    pub const WELL_KNOWN: Peripheral = Peripheral { qualifier: 0, device_type: 0x1e };

    /// Writes the first byte.
    ///
    /// # Panics
    ///
    /// If `b` is empty.
    pub fn put(self, b: &mut [u8]) {
        PERIPHERAL_QUALIFIER.set(b, self.qualifier.into());
        PERIPHERAL_DEVICE_TYPE.set(b, self.device_type.into());
    }
}

/// PERIPHERAL QUALIFIER of standard data or of a VPD page; `None` without data.
pub fn qualifier(b: &[u8]) -> Option<u8> {
    (!b.is_empty()).then(|| PERIPHERAL_QUALIFIER.get_u8(b))
}

/// Whether standard data or a VPD page are those of a logical unit (PERIPHERAL QUALIFIER 000b).
pub fn is_connected(b: &[u8]) -> bool {
    qualifier(b) == Some(0)
}

/// Standard data. Missing bytes count as zeros.
#[derive(Clone, Copy, Debug)]
pub struct StandardData<'a>(pub &'a [u8]);

impl StandardData<'_> {
    fn text(&self, at: Range<usize>) -> String {
        fields::text(self.0.get(at.start..self.0.len().min(at.end)).unwrap_or(&[]))
    }

    /// PERIPHERAL DEVICE TYPE.
    pub fn device_type(&self) -> u8 {
        PERIPHERAL_DEVICE_TYPE.get_u8(self.0)
    }

    /// RMB.
    pub fn removable(&self) -> bool {
        RMB.is_set(self.0)
    }

    /// TPGS: 1 implicit, 2 explicit, 3 both.
    pub fn alua(&self) -> u8 {
        TPGS.get_u8(self.0)
    }

    /// T10 VENDOR IDENTIFICATION.
    pub fn vendor(&self) -> String {
        self.text(VENDOR)
    }

    /// PRODUCT IDENTIFICATION.
    pub fn product(&self) -> String {
        self.text(PRODUCT)
    }

    /// PRODUCT REVISION LEVEL.
    pub fn revision(&self) -> String {
        self.text(REVISION)
    }
}

/// Standard data of a device server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StandardInquiry<'a> {
    /// PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE.
    pub peripheral: Peripheral,
    /// RMB: the medium can be removed.
    pub removable: bool,
    /// VERSION.
    pub version: u8,
    /// HISUP: the LUNs of REPORT LUNS have the format of SAM.
    pub hierarchical_luns: bool,
    /// TPGS: 1 implicit, 2 explicit, 3 both.
    pub alua: u8,
    /// 3PC: EXTENDED COPY is supported.
    pub third_party_copy: bool,
    /// MULTIP: more than one port.
    pub multi_port: bool,
    /// CMDQUE.
    pub command_queuing: bool,
    /// T10 VENDOR IDENTIFICATION.
    pub vendor: &'a str,
    /// PRODUCT IDENTIFICATION.
    pub product: &'a str,
    /// PRODUCT REVISION LEVEL.
    pub revision: &'a str,
    /// Version descriptors; 0 for none.
    pub version_descriptors: [u16; 8],
}

impl StandardInquiry<'_> {
    /// Encodes the data with RESPONSE DATA FORMAT 2.
    pub fn encode(&self) -> [u8; LEN] {
        let mut b = [0; LEN];
        self.peripheral.put(&mut b);
        RESPONSE_DATA_FORMAT.set(&mut b, 2);
        ADDITIONAL_LENGTH.set(&mut b, LEN as u64 - 5);
        VERSION.set(&mut b, self.version.into());
        TPGS.set(&mut b, self.alua.into());
        for (field, is_set) in [
            (RMB, self.removable),
            (HISUP, self.hierarchical_luns),
            (THIRD_PARTY_COPY, self.third_party_copy),
            (MULTIP, self.multi_port),
            (CMDQUE, self.command_queuing),
        ] {
            field.set(&mut b, is_set.into());
        }
        for (at, text) in [(VENDOR, self.vendor), (PRODUCT, self.product), (REVISION, self.revision)] {
            fields::put_text(&mut b[at], text);
        }
        let descriptors = b[VERSION_DESCRIPTORS].chunks_exact_mut(2).zip(self.version_descriptors);
        descriptors.for_each(|(field, standard)| field.copy_from_slice(&standard.to_be_bytes()));
        b
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
    let list = b.get(VERSION_DESCRIPTORS.start..b.len().min(VERSION_DESCRIPTORS.end)).unwrap_or(&[]);
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
    fn encoded_standard_data_decode_to_the_same_values() {
        let data = StandardInquiry {
            peripheral: Peripheral { qualifier: 1, device_type: 5 },
            removable: true,
            version: 6,
            hierarchical_luns: true,
            alua: 3,
            third_party_copy: true,
            multi_port: true,
            command_queuing: true,
            vendor: "LUNAR",
            product: "a product with a long name",
            revision: "1",
            version_descriptors: [0xa0, 0x460, 0, 0, 0, 0, 0, 0x960],
        };
        let b = data.encode();
        assert_eq!(b[..8], [0x25, 0x80, 6, 0x12, 91, 0x38, 0x10, 2]);
        let decoded = StandardData(&b);
        let texts = [decoded.vendor(), decoded.product(), decoded.revision()];
        assert_eq!(texts, ["LUNAR", "a product with a", "1"]);
        assert_eq!(standards(&b).map(|(code, _)| code).collect::<Vec<_>>(), [0xa0, 0x460, 0x960]);
        assert_eq!(StandardInquiry::default().encode()[5..8], [0; 3]);
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
}
