//! The eight bytes of a LUN (SAM-5 section 4.7), and the list of REPORT LUNS (SPC-5 section 6.34).

use super::BitField;
use crate::be;

/// REPORT LUNS well-known logical unit.
pub const REPORT_LUNS: u64 = 0xc101 << 48;

/// The number of a single-level LUN, 0 to 16383: peripheral device addressing (00b, bus 0) or flat space addressing
/// (01b). `None` for any other addressing method.
#[inline]
pub fn decode(lun: u64) -> Option<u16> {
    let first = (lun >> 48) as u16;
    if lun << 16 != 0 {
        return None;
    }
    match first >> 14 {
        0 if first < 256 => Some(first),
        1 => Some(first & 0x3fff),
        _ => None,
    }
}

/// The LUN number of a request. In addition to the forms of [`decode`], it accepts a number above 255 without an
/// addressing method: libiscsi sends that form, and so does Linux when an administrator names the number.
#[inline]
pub fn of_request(lun: u64) -> Option<u16> {
    let first = (lun >> 48) as u16;
    let as_it_is = || (lun << 16 == 0 && first < 0x4000).then_some(first);
    decode(lun).or_else(as_it_is)
}

/// Whether two LUN fields of requests address the same logical unit, in whichever forms.
pub fn is_same(one: u64, other: u64) -> bool {
    one == other || of_request(one).is_some_and(|number| of_request(other) == Some(number))
}

/// The eight bytes of a LUN number: peripheral device addressing below 256, flat space addressing from 256 on.
pub fn encode(lun: u16) -> u64 {
    let first = if lun < 256 { lun } else { 0x4000 | (lun & 0x3fff) };
    (first as u64) << 48
}

/// LUN LIST LENGTH in bytes.
const LIST_LENGTH: BitField = BitField::bytes(0, 4);
/// Bytes of the header of the list.
pub const LIST_HEADER_LEN: usize = 8;

/// The data of REPORT LUNS.
pub fn encode_list(luns: impl Iterator<Item = u64>) -> Vec<u8> {
    let mut b = vec![0; LIST_HEADER_LEN];
    luns.for_each(|lun| b.extend_from_slice(&lun.to_be_bytes()));
    let len = (b.len() - LIST_HEADER_LEN) as u64;
    LIST_LENGTH.set(&mut b, len);
    b
}

/// The LUNs in the data of REPORT LUNS.
pub fn list(answer: &[u8]) -> impl Iterator<Item = u64> {
    let luns = answer.get(LIST_HEADER_LEN..).unwrap_or(&[]);
    luns[..luns.len().min(LIST_LENGTH.get(answer) as usize)].chunks_exact(8).map(be::get64)
}

/// A LUN for messages: its number, or sixteen hexadecimal digits if [`decode`] returns `None`.
pub fn shown(lun: u64) -> String {
    decode(lun).map_or_else(|| format!("{lun:016x}"), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lun_list_ends_with_its_length() {
        let b = [&[0, 0, 0, 16, 0, 0, 0, 0][..], &[0, 3, 0, 0, 0, 0, 0, 0], &[0x41, 0, 0, 0, 0, 0, 0, 0]]
            .concat();
        assert_eq!(list(&b).collect::<Vec<_>>(), [encode(3), encode(256)]);
        (0..b.len()).for_each(|n| assert!(list(&b[..n]).count() < 2, "{n} bytes"));
        assert_eq!(list(&[&[0, 0, 0, 15], &b[4..]].concat()).count(), 1);
    }

    #[test]
    fn lun_without_a_number_shows_in_hex() {
        for (lun, text) in
            [(0, "0"), (encode(3), "3"), (encode(256), "256"), (REPORT_LUNS, "c101000000000000")]
        {
            assert_eq!(shown(lun), text);
        }
    }

    #[test]
    fn lun_list_begins_with_its_length() {
        assert_eq!(encode_list(std::iter::empty()), [0; 8]);
        let list = encode_list([encode(1), REPORT_LUNS].into_iter());
        let luns = [[0, 0, 0, 16, 0, 0, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0], [0xc1, 1, 0, 0, 0, 0, 0, 0]];
        assert_eq!(list, luns.concat());
    }

    #[test]
    fn forms_of_one_lun_number_are_the_same() {
        for (one, other, wanted) in [
            (0x0001, 0x4001, true),
            (0x0100, 0x4100, true),
            (0x0001, 0x4002, false),
            (0xc101, 0xc101, true),
            (0xc101, 0xc102, false),
        ] {
            assert_eq!(is_same(one << 48, other << 48), wanted, "{one:04x} {other:04x}");
        }
        assert!(!is_same(1 << 48, 1 << 48 | 1), "a second level is another logical unit");
    }

    #[test]
    fn every_lun_number_round_trips() {
        (0..0x4000).for_each(|l| assert_eq!(decode(encode(l)), Some(l)));
    }

    #[test]
    fn request_accepts_a_bare_lun_number() {
        for number in 0..0x4000 {
            assert_eq!(of_request(encode(number)), Some(number));
            assert_eq!(of_request(u64::from(number) << 48), Some(number));
        }
        for l in [REPORT_LUNS, 1, 0x8000 << 48, (0x0001 << 48) | 1 << 32, (0x0100 << 48) | 1] {
            assert_eq!(of_request(l), None, "{l:016x}");
        }
    }

    #[test]
    fn other_addressing_methods_decode_to_none() {
        for l in [REPORT_LUNS, 1, 0x0100 << 48, 0x8000 << 48, (0x0001 << 48) | 1 << 32] {
            assert_eq!(decode(l), None, "{l:016x}");
        }
    }
}
