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

/// The wire form: peripheral addressing below 256, flat space from there on.
pub fn encode(lun: u16) -> u64 {
    let first = if lun < 256 { lun } else { 0x4000 | (lun & 0x3fff) };
    (first as u64) << 48
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lun_survives_a_round_trip() {
        (0..0x4000).for_each(|l| assert_eq!(decode(encode(l)), Some(l)));
    }

    #[test]
    fn other_addressing_is_no_lun() {
        for l in [REPORT_LUNS, 1, 0x0100 << 48, 0x8000 << 48, (0x0001 << 48) | 1 << 32] {
            assert_eq!(decode(l), None, "{l:016x}");
        }
    }
}
