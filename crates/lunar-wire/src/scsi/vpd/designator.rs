//! Designators (SPC-5 section 7.7.6), and the pages that contain them.

use super::body;
use crate::scsi::BitField;
use crate::scsi::fields::{self, name_of, split};

/// Bytes of a designation descriptor before the designator.
const HEADER: usize = 4;
/// The longest value that keeps a descriptor a multiple of four bytes.
const MAX_VALUE: usize = 252;
const PROTOCOL_IDENTIFIER: BitField = BitField::bits(0, 7, 4);
const CODE_SET: BitField = BitField::bits(0, 3, 4);
const PIV: BitField = BitField::flag(1, 7);
const ASSOCIATION: BitField = BitField::bits(1, 5, 2);
const DESIGNATOR_TYPE: BitField = BitField::bits(1, 3, 4);
const DESIGNATOR_LENGTH: BitField = BitField::bytes(3, 1);
/// In the value of a relative target port, a target port group or a logical unit group.
const NUMBER: BitField = BitField::bytes(2, 2);

/// Bytes of a SCSI port designation descriptor before the initiator port transport ID.
const PORT_HEAD: usize = 8;
const PORT_IDENTIFIER: BitField = BitField::bytes(2, 2);
const TRANSPORT_ID_LENGTH: BitField = BitField::bytes(6, 2);
/// Bytes between the initiator port transport ID and the target port descriptors.
const PORT_DESIGNATORS_HEAD: usize = 4;
/// TARGET PORT DESCRIPTORS LENGTH, in the bytes after the initiator port transport ID.
const DESIGNATORS_LENGTH: BitField = BitField::bytes(2, 2);

/// A designation descriptor (SPC-5 section 7.7.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Designator<'a> {
    /// PROTOCOL IDENTIFIER, if PIV is set.
    pub protocol: Option<u8>,
    /// CODE SET: 1 binary, 2 ASCII, 3 UTF-8.
    pub code_set: u8,
    /// ASSOCIATION: 0 the logical unit, 1 the target port, 2 the target device.
    pub association: u8,
    /// DESIGNATOR TYPE.
    pub kind: u8,
    /// The designator.
    pub value: &'a [u8],
    /// The whole descriptor as it was received; empty if it is to be encoded.
    pub whole: &'a [u8],
}

impl<'a> Designator<'a> {
    /// [`Designator::association`] with the logical unit.
    pub const LOGICAL_UNIT: u8 = 0;
    /// [`Designator::association`] with the target port.
    pub const TARGET_PORT: u8 = 1;
    /// [`Designator::association`] with the target device.
    pub const TARGET_DEVICE: u8 = 2;

    /// [`Designator::code_set`] of binary values.
    pub const BINARY: u8 = 1;
    /// [`Designator::code_set`] of ASCII.
    pub const ASCII: u8 = 2;
    /// [`Designator::code_set`] of UTF-8.
    pub const UTF8: u8 = 3;

    /// [`Designator::kind`] of a T10 vendor ID.
    pub const T10: u8 = 1;
    /// [`Designator::kind`] of EUI-64.
    pub const EUI: u8 = 2;
    /// [`Designator::kind`] of NAA.
    pub const NAA: u8 = 3;
    /// [`Designator::kind`] of a relative target port identifier.
    pub const RELATIVE_PORT: u8 = 4;
    /// [`Designator::kind`] of a target port group.
    pub const TARGET_PORT_GROUP: u8 = 5;
    /// [`Designator::kind`] of a SCSI name string.
    pub const SCSI_NAME: u8 = 8;
    /// [`Designator::kind`] of a UUID.
    pub const UUID: u8 = 10;

    /// A designator of the logical unit, to be encoded.
    pub const fn new(code_set: u8, kind: u8, value: &'a [u8]) -> Designator<'a> {
        Designator { protocol: None, code_set, association: Self::LOGICAL_UNIT, kind, value, whole: &[] }
    }

    /// A designator of a port or of a device, which names its protocol, to be encoded.
    pub const fn with_protocol(self, association: u8, protocol: u8) -> Designator<'a> {
        Designator { protocol: Some(protocol), association, ..self }
    }

    fn decode(whole: &'a [u8]) -> Designator<'a> {
        Designator {
            protocol: PIV.is_set(whole).then(|| PROTOCOL_IDENTIFIER.get_u8(whole)),
            code_set: CODE_SET.get_u8(whole),
            association: ASSOCIATION.get_u8(whole),
            kind: DESIGNATOR_TYPE.get_u8(whole),
            value: &whole[HEADER..],
            whole,
        }
    }

    /// Encodes the descriptor. A value above 252 bytes is cut, so that the length field stays right.
    pub fn encode(&self) -> Vec<u8> {
        let value = &self.value[..self.value.len().min(MAX_VALUE)];
        let mut b = vec![0; HEADER];
        PROTOCOL_IDENTIFIER.set(&mut b, self.protocol.unwrap_or(0).into());
        CODE_SET.set(&mut b, self.code_set.into());
        PIV.set(&mut b, self.protocol.is_some().into());
        ASSOCIATION.set(&mut b, self.association.into());
        DESIGNATOR_TYPE.set(&mut b, self.kind.into());
        DESIGNATOR_LENGTH.set(&mut b, value.len() as u64);
        b.extend_from_slice(value);
        b
    }

    /// The name of its association.
    pub fn of(&self) -> &'static str {
        ["logical unit", "target port", "target device", "reserved"][usize::from(self.association & 3)]
    }

    /// The name of its designator type.
    pub fn kind_name(&self) -> Option<&'static str> {
        const KINDS: &[(u64, &str)] = &[
            (0, "vendor specific"),
            (1, "T10 vendor"),
            (2, "EUI-64"),
            (3, "NAA"),
            (4, "relative target port"),
            (5, "target port group"),
            (6, "logical unit group"),
            (7, "MD5 logical unit identifier"),
            (8, "SCSI name"),
            (9, "protocol specific port"),
            (10, "UUID"),
        ];
        name_of(KINDS, self.kind.into())
    }

    /// The number of a relative target port, a target port group or a logical unit group.
    pub fn number(&self) -> Option<u16> {
        let is_number = (4..=6).contains(&self.kind) && self.value.len() >= 4;
        is_number.then(|| NUMBER.get_u16(self.value))
    }

    /// The designator as text: a number, text, or hexadecimal digits.
    pub fn text(&self) -> String {
        match (self.number(), self.code_set) {
            (Some(number), _) => number.to_string(),
            (None, 2) => fields::text(self.value),
            (None, 3) => fields::utf8(self.value),
            _ => self.value.iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

/// The designation descriptors in `bytes`, a list without a page header.
pub fn descriptors(bytes: &[u8]) -> impl Iterator<Item = Designator<'_>> {
    let len = |b: &[u8]| (b.len() >= HEADER).then(|| HEADER + usize::from(DESIGNATOR_LENGTH.get_u8(b)));
    split(bytes, len).map(Designator::decode)
}

/// The value of the designator of a relative target port or of a target port group.
pub fn relative(number: u16) -> [u8; 4] {
    let mut value = [0; 4];
    NUMBER.set(&mut value, number.into());
    value
}

/// The value of a SCSI name string designator: the name and one to four NULs, in a multiple of four bytes.
pub fn scsi_name(name: &str) -> Vec<u8> {
    let mut value = name.as_bytes().to_vec();
    value.resize(value.len() / 4 * 4 + 4, 0);
    value
}

/// All designators of the device identification page (83h).
pub fn designators(page: &[u8]) -> impl Iterator<Item = Designator<'_>> {
    descriptors(body(page))
}

/// A SCSI port designation descriptor (page 88h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiPortDescriptor<'a> {
    /// RELATIVE PORT IDENTIFIER.
    pub number: u16,
    /// Target port descriptors.
    designators: &'a [u8],
}

impl<'a> ScsiPortDescriptor<'a> {
    /// A port with these encoded target port designators.
    pub const fn new(number: u16, designators: &'a [u8]) -> ScsiPortDescriptor<'a> {
        ScsiPortDescriptor { number, designators }
    }

    /// Encodes the descriptor without initiator port transport IDs.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; PORT_HEAD + PORT_DESIGNATORS_HEAD];
        PORT_IDENTIFIER.set(&mut b, self.number.into());
        DESIGNATORS_LENGTH.after(PORT_HEAD as u16).set(&mut b, self.designators.len() as u64);
        b.extend_from_slice(self.designators);
        b
    }

    /// Target port designators.
    pub fn designators(&self) -> impl Iterator<Item = Designator<'a>> + use<'a> {
        descriptors(self.designators)
    }
}

/// The descriptors of the SCSI ports page (88h).
pub fn ports(page: &[u8]) -> impl Iterator<Item = ScsiPortDescriptor<'_>> {
    let head = |b: &[u8]| PORT_HEAD + usize::from(TRANSPORT_ID_LENGTH.get_u16(b));
    let all = split(body(page), move |b| {
        let designators = b.get(head(b)..)?;
        let len = usize::from(DESIGNATORS_LENGTH.get_u16(designators));
        (designators.len() >= PORT_DESIGNATORS_HEAD).then(|| head(b) + PORT_DESIGNATORS_HEAD + len)
    });
    all.map(move |one| ScsiPortDescriptor {
        number: PORT_IDENTIFIER.get_u16(one),
        designators: &one[head(one) + PORT_DESIGNATORS_HEAD..],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::vpd::encode;

    #[test]
    fn designators_are_decoded_in_order() {
        let body = [
            &[1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7][..],
            &[0x51, 0x94, 0, 4, 0, 0, 1, 2],
            &[0x53, 0xa8, 0, 8],
            b"iqn.a\x1b\0\0",
        ]
        .concat();
        let page = encode(0x83, &body);
        let all: Vec<_> = designators(&page).collect();
        let rows: Vec<_> = all.iter().map(|d| (d.of(), d.kind_name().unwrap(), d.text())).collect();
        assert_eq!(
            rows,
            [
                ("logical unit", "NAA", "6001020304050607".into()),
                ("target port", "relative target port", "258".into()),
                ("target device", "SCSI name", "iqn.a?".to_string()),
            ]
        );
        assert_eq!((all[0].protocol, all[1].protocol), (None, Some(5)));
        assert!(all.iter().all(|d| d.encode() == d.whole));
        (0..page.len()).for_each(|n| assert!(designators(&page[..n]).count() < 3));
    }

    #[test]
    fn encoded_designator_ends_with_its_length() {
        let long = Designator::new(Designator::UTF8, Designator::SCSI_NAME, &[b'a'; 300]);
        assert_eq!((long.encode().len(), long.encode()[3]), (256, 252));
        let port = relative(258);
        let port = Designator::new(Designator::BINARY, Designator::RELATIVE_PORT, &port);
        let port = port.with_protocol(Designator::TARGET_PORT, 5);
        assert_eq!(port.encode(), [0x51, 0x94, 0, 4, 0, 0, 1, 2]);
    }

    #[test]
    fn only_ports_and_groups_have_a_number() {
        let number = |kind, value| {
            let whole = &[][..];
            Designator { protocol: None, code_set: 1, association: 1, kind, value, whole }.number()
        };
        assert_eq!(number(Designator::TARGET_PORT_GROUP, &[0, 0, 1, 2]), Some(258));
        assert_eq!(number(Designator::TARGET_PORT_GROUP, &[0, 0, 1]), None);
        assert_eq!(number(Designator::NAA, &[0, 0, 1, 2]), None);
    }

    #[test]
    fn scsi_ports_have_designators() {
        let name = [&[0x53, 0x98, 0, 4][..], b"iqn\0"].concat();
        let port = |n| [&[0, 0, 0, n, 0, 0, 0, 0, 0, 0, 0, 8][..], &name].concat();
        assert_eq!(ScsiPortDescriptor::new(1, &name).encode(), port(1));
        let page = encode(0x88, &[port(1), port(2)].concat());
        let all: Vec<_> = ports(&page).map(|p| (p.number, p.designators().next().unwrap().text())).collect();
        assert_eq!(all, [(1, "iqn".into()), (2, "iqn".to_string())]);
    }
}
