//! The keys of a LUN by which hosts identify it (VPD pages 80h and 83h). A LUN that replaces one of another target has
//! to report the same values, or hosts see a new disk.

use lunar_config::{Diagnostics, InvalidValue, Section, invalid, padded_text};
use lunar_wire::scsi::vpd::{self, Designator, descriptors};

use super::UniqueValues;

/// The longest unit serial number in bytes.
const MAX_SERIAL: usize = 252;
/// The longest text after the vendor in a T10 vendor ID designator of 252 bytes.
const MAX_T10_ID: usize = 244;
/// The longest SCSI name string in bytes, without its NUL.
const MAX_SCSI_NAME: usize = 251;
/// Limit of listed descriptors. With the longest values, they still fit into VPD page 83h.
const MAX_DESCRIPTORS: usize = 64;

/// The configured designators of a LUN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityKeys {
    /// NAA designator of 8 or 16 bytes.
    pub naa: Option<Vec<u8>>,
    /// EUI-64 based designator of 8, 12 or 16 bytes.
    pub eui64: Option<Vec<u8>>,
    /// The text after the vendor in the T10 vendor ID designator; None: the serial number.
    pub t10_id: Option<String>,
    /// SCSI name string.
    pub scsi_name: Option<String>,
    /// All designation descriptors of the logical unit, which replace the others.
    pub designators: Option<Vec<u8>>,
}

impl IdentityKeys {
    /// Whether no key is set, so that default designators are made.
    pub fn is_empty(&self) -> bool {
        *self == IdentityKeys::default()
    }

    /// The first NAA designator.
    pub fn first_naa(&self) -> Option<Vec<u8>> {
        let listed = self.designators.as_deref().unwrap_or_default();
        let listed = || descriptors(listed).find(|d| is_naa(d.value) && d.kind == Designator::NAA);
        self.naa.clone().or_else(|| listed().map(|d| d.value.to_vec()))
    }

    /// The designation descriptors of the logical unit (SPC-5 section 7.7.6). `naa` is the default of a LUN without
    /// EUI-64 and SCSI name, and `serial` that of the text in the T10 vendor ID.
    pub fn descriptors(&self, vendor: &str, serial: &str, naa: &[u8]) -> Vec<u8> {
        if let Some(all) = &self.designators {
            return all.clone();
        }
        let default = (self.eui64.is_none() && self.scsi_name.is_none()).then_some(naa);
        let naa = self.naa.as_deref().or(default);
        let scsi_name = self.scsi_name.as_deref().map(vpd::scsi_name);
        let t10 = format!("{vendor:8}{}", self.t10_id.as_deref().unwrap_or(serial));
        let one = |code_set, kind, value: Option<&[u8]>| {
            value.map_or_else(Vec::new, |value| Designator::new(code_set, kind, value).encode())
        };
        [
            one(Designator::BINARY, Designator::NAA, naa),
            one(Designator::BINARY, Designator::EUI, self.eui64.as_deref()),
            one(Designator::UTF8, Designator::SCSI_NAME, scsi_name.as_deref()),
            one(Designator::ASCII, Designator::T10, Some(t10.as_bytes())),
        ]
        .concat()
    }
}

/// Reads the keys. Two LUNs of a file must not have the same NAA, EUI-64 or SCSI name.
pub(super) fn identity_keys(
    p: &mut Diagnostics<'_>,
    s: &mut Section<'_>,
    unique: &mut UniqueValues,
) -> IdentityKeys {
    let keys = IdentityKeys {
        naa: s.parsed(p, "naa", naa),
        eui64: s.parsed(p, "eui64", eui64),
        t10_id: s.parsed(p, "t10_id", |text| padded_text(text, "T10 identifier", MAX_T10_ID)),
        scsi_name: s.parsed(p, "scsi_name", scsi_name),
        designators: s.parsed_list(p, "designators", descriptor).map(|list| list.concat()),
    };
    for (key, value) in [("naa", keys.first_naa()), ("eui64", keys.eui64.clone())] {
        let at = s.find(key).or_else(|| s.find("designators").filter(|_| key == "naa"));
        if let (Some(value), Some(at)) = (value, at) {
            unique.designators.first(p, hex(&value), &at.span());
        }
    }
    if let (Some(name), Some(at)) = (&keys.scsi_name, s.find("scsi_name")) {
        unique.designators.first(p, name.clone(), &at.span());
    }
    check_list(p, s);
    keys
}

/// Reports a list of designators that is too long, and keys that a list replaces.
fn check_list(p: &mut Diagnostics<'_>, s: &mut Section<'_>) {
    let Some(list) = s.find("designators") else { return };
    let count = list.get_ref().as_array().map_or(0, |list| list.iter().count());
    if !(1..=MAX_DESCRIPTORS).contains(&count) {
        let what = format!("`designators` lists {count} designators");
        p.add(&list.span(), what, format!("list 1 to {MAX_DESCRIPTORS}, or remove `designators`"));
    }
    for key in ["naa", "eui64", "t10_id", "scsi_name"] {
        if let Some(value) = s.find(key) {
            let what = format!("`{key}` has no effect, because `designators` lists all designators");
            p.add(&value.span(), what, format!("remove `{key}` or `designators`"));
        }
    }
}

/// A unit serial number.
pub(in crate::config) fn serial(text: &str) -> Result<String, InvalidValue> {
    padded_text(text, "serial number", MAX_SERIAL)
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of hexadecimal digits. Digits may be separated by spaces.
pub(in crate::config) fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<u32> =
        digits.chars().filter(|c| *c != ' ').map(|c| c.to_digit(16)).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    (pairs.remainder().is_empty() && !digits.is_empty())
        .then(|| pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

/// The digits after a prefix that other programs write.
pub(in crate::config) fn without_prefix<'a>(text: &'a str, prefix: &str) -> &'a str {
    [prefix, "0x"].iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text)
}

/// Whether the length fits the kind of NAA (SPC-5 section 7.7.6.6).
fn is_naa(bytes: &[u8]) -> bool {
    matches!((bytes.first().map(|first| first >> 4), bytes.len()), (Some(2 | 3 | 5), 8) | (Some(6), 16))
}

fn naa(text: &str) -> Result<Vec<u8>, InvalidValue> {
    bytes_of(without_prefix(text, "naa.")).filter(|bytes| is_naa(bytes)).map_or_else(
        || {
            invalid(
                format!("\"{}\" cannot be an NAA designator", text.escape_debug()),
                "write 16 hexadecimal digits that begin with 2, 3 or 5, or 32 that begin with 6",
            )
        },
        Ok,
    )
}

fn eui64(text: &str) -> Result<Vec<u8>, InvalidValue> {
    let bytes = bytes_of(without_prefix(text, "eui."));
    bytes.filter(|bytes| matches!(bytes.len(), 8 | 12 | 16)).map_or_else(
        || {
            invalid(
                format!("\"{}\" cannot be an EUI-64 designator", text.escape_debug()),
                "write 16, 24 or 32 hexadecimal digits",
            )
        },
        Ok,
    )
}

fn scsi_name(text: &str) -> Result<String, InvalidValue> {
    let is_named = ["iqn.", "eui.", "naa."].iter().any(|kind| text.starts_with(kind));
    if is_named && text.len() <= MAX_SCSI_NAME && !text.chars().any(char::is_control) {
        return Ok(text.into());
    }
    invalid(
        format!("\"{}\" cannot be a SCSI name", text.escape_debug()),
        format!("write iqn., eui. or naa. and the rest of the name, at most {MAX_SCSI_NAME} bytes"),
    )
}

/// One whole descriptor of the logical unit.
fn descriptor(text: &str) -> Result<Vec<u8>, InvalidValue> {
    let is_one = |bytes: &Vec<u8>| {
        let mut found = descriptors(bytes);
        let (first, second) = (found.next(), found.next());
        let of_unit =
            |d: Designator<'_>| d.association == Designator::LOGICAL_UNIT && d.whole.len() == bytes.len();
        first.is_some_and(of_unit) && second.is_none()
    };
    bytes_of(text).filter(is_one).map_or_else(
        || {
            invalid(
                format!("\"{}\" cannot be a designator of a LUN", text.escape_debug()),
                "write all bytes of one descriptor in hexadecimal digits: code set, type, 00, length, value",
            )
        },
        Ok,
    )
}
