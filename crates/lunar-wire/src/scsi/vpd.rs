//! Vital product data pages (SPC-5 section 7.7, SBC-4 section 6.6).

mod designator;
mod pages;

use super::fields::{self, Field, ascii, get, name_of, number, split};
use super::{BitField, limits};

pub use designator::{Designator, ScsiPortDescriptor, descriptors, designators, ports, relative, scsi_name};
pub use pages::{BlockCharacteristics, ExtendedInquiry};

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

static ATA: &[Field] =
    &[ascii("sat_vendor", 8, 8), ascii("sat_product", 16, 16), ascii("sat_revision", 32, 4)];

static REFERRALS: &[Field] =
    &[number("user_data_segment_blocks", 8, 4), number("user_data_segment_multiplier", 12, 4)];

/// The fields of a VPD page of fixed layout; `None` for lists and for unknown pages.
pub fn table(page: u8) -> Option<&'static [Field]> {
    Some(match page {
        0x86 => pages::EXTENDED,
        0x89 => ATA,
        0xb0 => limits::LIMITS,
        0xb1 => pages::CHARACTERISTICS,
        0xb2 => limits::PROVISIONING,
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
/// Management network addresses.
pub const MANAGEMENT_ADDRESSES: u8 = 0x85;
/// Extended INQUIRY data.
pub const EXTENDED_INQUIRY: u8 = 0x86;
/// Mode page policy.
pub const MODE_PAGE_POLICY: u8 = 0x87;
/// SCSI ports.
pub const SCSI_PORTS: u8 = 0x88;
/// Third-party copy.
pub const THIRD_PARTY_COPY: u8 = 0x8f;
/// Block limits.
pub const BLOCK_LIMITS: u8 = 0xb0;
/// Block device characteristics.
pub const BLOCK_CHARACTERISTICS: u8 = 0xb1;
/// Logical block provisioning.
pub const PROVISIONING: u8 = 0xb2;

/// Bytes of the page header.
const HEADER: usize = 4;
const PAGE_CODE: BitField = BitField::bytes(1, 1);
const PAGE_LENGTH: BitField = BitField::bytes(2, 2);

/// PAGE CODE.
pub fn code(page: &[u8]) -> Option<u8> {
    (page.len() > 1).then(|| PAGE_CODE.get_u8(page))
}

/// Bytes of the whole page by its PAGE LENGTH; `None` without a page header.
pub fn whole_len(page: &[u8]) -> Option<usize> {
    (page.len() >= HEADER).then(|| HEADER + usize::from(PAGE_LENGTH.get_u16(page)))
}

/// All bytes after the page header, whatever PAGE LENGTH is.
pub fn after_header(page: &[u8]) -> &[u8] {
    page.get(HEADER..).unwrap_or(&[])
}

/// The bytes after the page header, up to PAGE LENGTH.
pub fn body(page: &[u8]) -> &[u8] {
    let rest = after_header(page);
    &rest[..rest.len().min(whole_len(page).map_or(0, |len| len - HEADER))]
}

/// A page of these bytes after the header. PERIPHERAL QUALIFIER and PERIPHERAL DEVICE TYPE are zero.
pub fn encode(code: u8, body: &[u8]) -> Vec<u8> {
    let mut page = vec![0; HEADER];
    page.extend_from_slice(body);
    set_header(&mut page, code);
    page
}

/// Writes PAGE CODE and PAGE LENGTH into the header of a whole page.
pub(super) fn set_header(page: &mut [u8], code: u8) {
    PAGE_CODE.set(page, code.into());
    PAGE_LENGTH.set_following_len(page);
}

/// The unit serial number (page 80h).
pub fn serial(page: &[u8]) -> String {
    fields::text(body(page))
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

/// A mode page policy descriptor (page 87h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModePagePolicy {
    /// POLICY PAGE CODE; 3Fh for all pages.
    pub page: u8,
    /// POLICY SUBPAGE CODE; FFh for all subpages.
    pub subpage: u8,
    /// MLUS: logical units share the page.
    pub multiple_units: bool,
    /// MODE PAGE POLICY: 0 shared, 1 per target port, 3 per I_T nexus.
    pub policy: u8,
}

impl ModePagePolicy {
    const PAGE: BitField = BitField::bits(0, 5, 6);
    const SUBPAGE: BitField = BitField::bytes(1, 1);
    const MLUS: BitField = BitField::flag(2, 7);
    const POLICY: BitField = BitField::bits(2, 1, 2);

    fn decode(d: &[u8]) -> ModePagePolicy {
        ModePagePolicy {
            page: Self::PAGE.get_u8(d),
            subpage: Self::SUBPAGE.get_u8(d),
            multiple_units: Self::MLUS.is_set(d),
            policy: Self::POLICY.get_u8(d),
        }
    }

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; 4] {
        let mut d = [0; 4];
        Self::PAGE.set(&mut d, self.page.into());
        Self::SUBPAGE.set(&mut d, self.subpage.into());
        Self::MLUS.set(&mut d, self.multiple_units.into());
        Self::POLICY.set(&mut d, self.policy.into());
        d
    }
}

/// Mode page policy descriptors (page 87h): page code, subpage code, MLUS, policy.
pub fn policies(page: &[u8]) -> impl Iterator<Item = (u8, u8, bool, &'static str)> {
    const SHARED: [&str; 4] = ["shared", "per target port", "obsolete", "per I_T nexus"];
    let all = body(page).chunks_exact(4).map(ModePagePolicy::decode);
    all.map(|d| (d.page, d.subpage, d.multiple_units, SHARED[usize::from(d.policy)]))
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
    fn vpd_lists_decode() {
        assert_eq!(serial(&page(0x80, b"S\x1b1 ")), "S?1");
        let policy = page(0x87, &[0x3f, 0xff, 0x80, 0]);
        assert_eq!(policies(&policy).collect::<Vec<_>>(), [(0x3f, 0xff, true, "shared")]);
        let one = ModePagePolicy { page: 0x3f, subpage: 0xff, multiple_units: true, policy: 0 };
        assert_eq!(encode(MODE_PAGE_POLICY, &one.encode()), policy);
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
