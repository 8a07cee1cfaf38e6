//! The eight bytes of a LUN (SAM-5 section 4.7).

/// REPORT LUNS well-known logical unit.
pub const REPORT_LUNS: u64 = 0xc101 << 48;

/// A LUN number of a single level, 0 to 16383, or None for every other addressing.
/// Peripheral (00b, bus 0) and flat space (01b) addressing are understood.
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

/// The number of a LUN that a request is for: as [`decode`] has it, or one from 256 on that stands there as it is, which is
/// how libiscsi sends it, and Linux where it was told a number.
pub fn of_request(lun: u64) -> Option<u16> {
    let first = (lun >> 48) as u16;
    let as_it_is = || (lun << 16 == 0 && first < 0x4000).then_some(first);
    decode(lun).or_else(as_it_is)
}

/// The wire form: peripheral addressing below 256, flat space from there on.
pub fn encode(lun: u16) -> u64 {
    let first = if lun < 256 { lun } else { 0x4000 | (lun & 0x3fff) };
    (first as u64) << 48
}

/// A LUN for people: its number, or where it has none its sixteen hexadecimal digits.
pub fn shown(lun: u64) -> String {
    decode(lun).map_or_else(|| format!("{lun:016x}"), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lun_is_shown_by_its_number_if_it_has_one() {
        for (lun, text) in
            [(0, "0"), (encode(3), "3"), (encode(256), "256"), (REPORT_LUNS, "c101000000000000")]
        {
            assert_eq!(shown(lun), text);
        }
    }

    #[test]
    fn every_lun_survives_a_round_trip() {
        (0..0x4000).for_each(|l| assert_eq!(decode(encode(l)), Some(l)));
    }

    #[test]
    fn a_request_may_have_the_number_as_it_is() {
        for number in 0..0x4000 {
            assert_eq!(of_request(encode(number)), Some(number));
            assert_eq!(of_request(u64::from(number) << 48), Some(number));
        }
        for l in [REPORT_LUNS, 1, 0x8000 << 48, (0x0001 << 48) | 1 << 32, (0x0100 << 48) | 1] {
            assert_eq!(of_request(l), None, "{l:016x}");
        }
    }

    #[test]
    fn other_addressing_is_no_lun() {
        for l in [REPORT_LUNS, 1, 0x0100 << 48, 0x8000 << 48, (0x0001 << 48) | 1 << 32] {
            assert_eq!(decode(l), None, "{l:016x}");
        }
    }
}
