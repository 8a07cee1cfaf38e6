//! Vital product data pages (SPC-5 section 7.7, SBC-4 section 6.6).

use super::fields::{self, Field, ascii, bits, flag, get, name_of, named, number, numbered, split};

/// Names of VPD pages.
const NAMES: &[(u64, &str)] = &[
    (0x00, "supported VPD pages"),
    (0x80, "unit serial number"),
    (0x83, "device identification"),
    (0x84, "software interface identification"),
    (0x85, "management network addresses"),
    (0x86, "extended INQUIRY data"),
    (0x87, "mode page policy"),
    (0x88, "SCSI ports"),
    (0x89, "ATA information"),
    (0x8a, "power condition"),
    (0x8b, "device constituents"),
    (0x8d, "power consumption"),
    (0x8f, "third-party copy"),
    (0x90, "protocol specific logical unit information"),
    (0x91, "protocol specific port information"),
    (0xb0, "block limits"),
    (0xb1, "block device characteristics"),
    (0xb2, "logical block provisioning"),
    (0xb3, "referrals"),
    (0xb4, "supported block lengths and protection types"),
    (0xb5, "block device characteristics extension"),
    (0xb6, "zoned block device characteristics"),
    (0xb7, "block limits extension"),
];

/// The name of a VPD page; `None` if it is unknown.
pub fn name(page: u8) -> Option<&'static str> {
    name_of(NAMES, page.into())
}

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
const PROVISIONING_TYPES: &[(u64, &str)] = &[(0, "not reported"), (1, "resource provisioned"), (2, "thin")];

static EXTENDED: &[Field] = &[
    named("activate_microcode", 4, (6, 2), MICROCODE),
    bits("supported_protection_types", 4, 3, 3),
    flag("guard_check", 4, 2),
    flag("application_tag_check", 4, 1),
    flag("reference_tag_check", 4, 0),
    flag("unit_attention_sense_key_specific", 5, 5),
    flag("grouping", 5, 4),
    flag("priority", 5, 3),
    flag("head_of_queue", 5, 2),
    flag("ordered", 5, 1),
    flag("simple", 5, 0),
    flag("write_uncorrectable", 6, 3),
    flag("correction_disable", 6, 2),
    flag("non_volatile_cache", 6, 1),
    flag("volatile_cache", 6, 0),
    flag("protection_interval", 7, 4),
    flag("luns_clear_on_i_t_nexus_loss", 7, 0),
    flag("referrals", 8, 4),
    flag("capability_based_security", 8, 0),
    number("extended_self_test_minutes", 10, 2),
    number("max_sense_bytes", 13, 1),
];

static ATA: &[Field] =
    &[ascii("sat_vendor", 8, 8), ascii("sat_product", 16, 16), ascii("sat_revision", 32, 4)];

static LIMITS: &[Field] = &[
    flag("write_same_non_zero", 4, 0),
    number("max_compare_and_write_blocks", 5, 1),
    number("optimal_transfer_granularity_blocks", 6, 2),
    number("max_transfer_blocks", 8, 4),
    number("optimal_transfer_blocks", 12, 4),
    number("max_prefetch_blocks", 16, 4),
    number("max_unmap_blocks", 20, 4),
    number("max_unmap_descriptors", 24, 4),
    number("optimal_unmap_granularity_blocks", 28, 4),
    flag("unmap_granularity_alignment_valid", 32, 7),
    number("max_write_same_blocks", 36, 8),
    number("max_atomic_transfer_blocks", 44, 4),
    number("atomic_alignment_blocks", 48, 4),
    number("atomic_granularity_blocks", 52, 4),
    number("max_atomic_transfer_with_boundary_blocks", 56, 4),
    number("max_atomic_boundary_blocks", 60, 4),
];

static CHARACTERISTICS: &[Field] = &[
    numbered("rotation_rate_rpm", 4, 2, ROTATION),
    number("product_type", 6, 1),
    named("nominal_form_factor", 7, (0, 4), FORM_FACTORS),
    bits("write_after_block_erase", 7, 6, 2),
    bits("write_after_cryptographic_erase", 7, 4, 2),
    named("zoned", 8, (4, 2), ZONED),
    flag("fua_behaviour", 8, 1),
    flag("verify_byte_check_uncached", 8, 0),
];

static THIN: &[Field] = &[
    named("provisioning_type", 6, (0, 3), PROVISIONING_TYPES),
    flag("unmap", 5, 7),
    flag("write_same_16_unmap", 5, 6),
    flag("write_same_10_unmap", 5, 5),
    bits("unmapped_reads_zero", 5, 2, 3),
    flag("anchor", 5, 1),
    flag("resource_descriptor", 5, 0),
    number("threshold_exponent", 4, 1),
    bits("minimum_percentage", 6, 3, 5),
    number("threshold_percentage", 7, 1),
];

static REFERRALS: &[Field] =
    &[number("user_data_segment_blocks", 8, 4), number("user_data_segment_multiplier", 12, 4)];

/// The fields of a VPD page of fixed layout; `None` for lists and for unknown pages.
pub fn table(page: u8) -> Option<&'static [Field]> {
    Some(match page {
        0x86 => EXTENDED,
        0x89 => ATA,
        0xb0 => LIMITS,
        0xb1 => CHARACTERISTICS,
        0xb2 => THIN,
        0xb3 => REFERRALS,
        _ => return None,
    })
}

/// Supported VPD pages.
pub const SUPPORTED_PAGES: u8 = 0x00;
/// Unit serial number.
pub const SERIAL_NUMBER: u8 = 0x80;
/// Device identification.
pub const IDENTIFICATION: u8 = 0x83;
/// Block limits.
pub const BLOCK_LIMITS: u8 = 0xb0;
/// Logical block provisioning.
pub const PROVISIONING: u8 = 0xb2;

/// PAGE CODE.
pub fn code(page: &[u8]) -> Option<u8> {
    page.get(1).copied()
}

/// Bytes of the whole page by its PAGE LENGTH; `None` without a page header.
pub fn whole_len(page: &[u8]) -> Option<usize> {
    (page.len() >= 4).then(|| 4 + get(page, 2, 2) as usize)
}

/// All bytes after the page header, whatever PAGE LENGTH is.
pub fn after_header(page: &[u8]) -> &[u8] {
    page.get(4..).unwrap_or(&[])
}

/// The bytes after the page header, up to PAGE LENGTH.
pub fn body(page: &[u8]) -> &[u8] {
    let rest = after_header(page);
    &rest[..rest.len().min(get(page, 2, 2) as usize)]
}

/// The unit serial number (page 80h).
pub fn serial(page: &[u8]) -> String {
    fields::text(body(page))
}

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
    /// The whole descriptor.
    pub whole: &'a [u8],
}

impl Designator<'_> {
    /// [`Designator::kind`] of a T10 vendor ID.
    pub const T10: u8 = 1;
    /// [`Designator::kind`] of EUI-64.
    pub const EUI: u8 = 2;
    /// [`Designator::kind`] of NAA.
    pub const NAA: u8 = 3;
    /// [`Designator::kind`] of a target port group.
    pub const PORT_GROUP: u8 = 5;
    /// [`Designator::kind`] of a SCSI name string.
    pub const SCSI_NAME: u8 = 8;

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
        is_number.then(|| get(self.value, 2, 2) as u16)
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
    let all = split(bytes, |b| Some(4 + usize::from(*b.get(3)?)));
    all.map(|whole| Designator {
        protocol: (whole[1] & 0x80 != 0).then_some(whole[0] >> 4),
        code_set: whole[0] & 0x0f,
        association: whole[1] >> 4 & 3,
        kind: whole[1] & 0x0f,
        value: &whole[4..],
        whole,
    })
}

/// All designators of the device identification page (83h).
pub fn designators(page: &[u8]) -> impl Iterator<Item = Designator<'_>> {
    descriptors(body(page))
}

/// Management network addresses (page 85h): service and address of each.
pub fn addresses(page: &[u8]) -> impl Iterator<Item = (&'static str, String)> {
    const SERVICES: &[(u64, &str)] = &[
        (0, "unspecified"),
        (1, "storage configuration"),
        (2, "diagnostics"),
        (3, "status"),
        (4, "logging"),
        (5, "code download"),
        (6, "copy"),
        (7, "administrative configuration"),
    ];
    let all = split(body(page), |b| (b.len() >= 4).then(|| 4 + get(b, 2, 2) as usize));
    all.map(|one| {
        let service = name_of(SERVICES, u64::from(one[0] & 0x1f)).unwrap_or("reserved");
        (service, fields::utf8(&one[4..]))
    })
}

/// Mode page policy descriptors (page 87h): page code, subpage code, MLUS, policy.
pub fn policies(page: &[u8]) -> impl Iterator<Item = (u8, u8, bool, &'static str)> {
    const SHARED: [&str; 4] = ["shared", "per target port", "obsolete", "per I_T nexus"];
    body(page).chunks_exact(4).map(|d| (d[0] & 0x3f, d[1], d[2] & 0x80 != 0, SHARED[usize::from(d[2] & 3)]))
}

/// A SCSI port designation descriptor (page 88h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScsiPortDescriptor<'a> {
    /// RELATIVE PORT IDENTIFIER.
    pub number: u16,
    designators: &'a [u8],
}

impl<'a> ScsiPortDescriptor<'a> {
    /// Target port designators.
    pub fn designators(&self) -> impl Iterator<Item = Designator<'a>> + use<'a> {
        descriptors(self.designators)
    }
}

/// The descriptors of the SCSI ports page (88h).
pub fn ports(page: &[u8]) -> impl Iterator<Item = ScsiPortDescriptor<'_>> {
    let head = |b: &[u8]| 8 + get(b, 6, 2) as usize;
    let all = split(body(page), move |b| {
        let end = head(b);
        (b.len() >= end + 4).then(|| end + 4 + get(b, end + 2, 2) as usize)
    });
    all.map(move |one| ScsiPortDescriptor {
        number: get(one, 2, 2) as u16,
        designators: &one[head(one) + 4..],
    })
}

/// Third-party copy descriptors (page 8Fh): type and name of each.
pub fn copy_descriptors(page: &[u8]) -> impl Iterator<Item = (u16, &'static str)> {
    const KINDS: &[(u64, &str)] = &[
        (0x0000, "block device ROD token limits"),
        (0x0001, "supported commands"),
        (0x0004, "parameter data"),
        (0x0008, "supported descriptors"),
        (0x000c, "supported CSCD descriptor ids"),
        (0x000d, "copy group identifier"),
        (0x0106, "ROD token features"),
        (0x0108, "supported RODs"),
        (0x8001, "general copy operations"),
        (0x9101, "stream copy operations"),
        (0xc001, "held data"),
    ];
    let all = split(body(page), |b| (b.len() >= 4).then(|| 4 + get(b, 2, 2) as usize));
    all.map(|one| (get(one, 0, 2) as u16, name_of(KINDS, get(one, 0, 2)).unwrap_or("unknown")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(code: u8, body: &[u8]) -> Vec<u8> {
        [&[0, code, (body.len() >> 8) as u8, body.len() as u8][..], body].concat()
    }

    #[test]
    fn designators_are_decoded_in_order() {
        let body = [
            &[1, 3, 0, 8, 0x60, 1, 2, 3, 4, 5, 6, 7][..],
            &[0x51, 0x94, 0, 4, 0, 0, 1, 2],
            &[0x53, 0xa8, 0, 8],
            b"iqn.a\x1b\0\0",
        ]
        .concat();
        let page = page(0x83, &body);
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
        (0..page.len()).for_each(|n| assert!(designators(&page[..n]).count() < 3));
    }

    #[test]
    fn page_header_is_read_as_far_as_it_goes() {
        let page = page(0xb0, &[1, 2]);
        assert_eq!((code(&page), whole_len(&page), after_header(&page)), (Some(0xb0), Some(6), &[1, 2][..]));
        assert_eq!(
            (whole_len(&page[..3]), after_header(&page[..3]), code(&page[..1])),
            (None, &[][..], None)
        );
        assert_eq!((whole_len(&[0, 0, 0xff, 0xff]), body(&page[..5])), (Some(65539), &[1][..]));
    }

    #[test]
    fn only_ports_and_groups_have_a_number() {
        let number = |kind, value| {
            let whole = &[][..];
            Designator { protocol: None, code_set: 1, association: 1, kind, value, whole }.number()
        };
        assert_eq!(number(Designator::PORT_GROUP, &[0, 0, 1, 2]), Some(258));
        assert_eq!(number(Designator::PORT_GROUP, &[0, 0, 1]), None);
        assert_eq!(number(Designator::NAA, &[0, 0, 1, 2]), None);
    }

    #[test]
    fn scsi_ports_have_designators() {
        let name = [&[0x53, 0x98, 0, 4][..], b"iqn\0"].concat();
        let port = |n| [&[0, 0, 0, n, 0, 0, 0, 0, 0, 0, 0, 8][..], &name].concat();
        let page = page(0x88, &[port(1), port(2)].concat());
        let all: Vec<_> = ports(&page).map(|p| (p.number, p.designators().next().unwrap().text())).collect();
        assert_eq!(all, [(1, "iqn".into()), (2, "iqn".to_string())]);
    }

    #[test]
    fn vpd_lists_decode() {
        assert_eq!(serial(&page(0x80, b"S\x1b1 ")), "S?1");
        let policy = page(0x87, &[0x3f, 0xff, 0x80, 0]);
        assert_eq!(policies(&policy).collect::<Vec<_>>(), [(0x3f, 0xff, true, "shared")]);
        let address = page(0x85, &[&[1, 0, 0, 8][..], b"http://a"].concat());
        let all: Vec<_> = addresses(&address).collect();
        assert_eq!(all, [("storage configuration", "http://a".to_string())]);
        let copy = page(0x8f, &[0, 1, 0, 4, 1, 2, 3, 4, 0x77, 0, 0, 0]);
        let all: Vec<_> = copy_descriptors(&copy).collect();
        assert_eq!(all, [(1, "supported commands"), (0x7700, "unknown")]);
    }

    #[test]
    fn every_decoded_page_has_a_name() {
        (0..=255).filter(|code| table(*code).is_some()).for_each(|code| assert!(name(code).is_some()));
    }
}
