//! Sizes in bytes, in the notation of command lines, URLs and configuration files.

use crate::duration::NotationError;

/// The largest size in whole PiB that a signed 64-bit file offset can reach.
pub const MAX_BYTES: u64 = 8191 << 50;

/// The notation of a size, for hints.
const FORMS: &str =
    "write a number with K, M, G, T (powers of 1024) or KB, MB, GB, TB (powers of 1000): 64KiB, 10G";

/// Units: single letters and the `iB` forms are powers of 1024; the `B` forms are powers of 1000.
const UNITS: [(&str, u64); 17] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("kb", 1_000),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("mb", 1_000_000),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("gb", 1_000_000_000),
    ("t", 1 << 40),
    ("tib", 1 << 40),
    ("tb", 1_000_000_000_000),
    ("p", 1 << 50),
    ("pib", 1 << 50),
    ("pb", 1_000_000_000_000_000),
];

/// Parses a size such as `512`, `64KiB`, `10G` or `2TB`, and returns it in bytes.
///
/// # Errors
/// The text is not a size, or the size is above [`MAX_BYTES`].
pub fn parse(text: &str) -> Result<u64, NotationError> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let unit = unit.trim_start().to_ascii_lowercase();
    let factor = UNITS.iter().find(|(name, _)| *name == unit).filter(|_| !digits.is_empty());
    let Some((_, factor)) = factor else { return Err(unfit(text, "not a size", FORMS)) };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(*factor)).filter(|n| *n <= MAX_BYTES);
    bytes.ok_or_else(|| unfit(text, "too large a size", "use at most 8191P"))
}

fn unfit(text: &str, fault: &str, hint: &str) -> NotationError {
    NotationError { what: format!("\"{}\" is {fault}", text.escape_debug()), hint: hint.into() }
}

/// A size in its largest whole unit: `1536 bytes`, `64 KiB`.
pub fn show(bytes: u64) -> String {
    const NAMES: [&str; 6] = ["", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut n = bytes;
    while n >= 1024 && n.is_multiple_of(1024) && unit + 1 < NAMES.len() {
        n /= 1024;
        unit += 1;
    }
    if unit == 0 { format!("{n} bytes") } else { format!("{n} {}", NAMES[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_with_a_unit_parses_to_bytes() {
        let good =
            [("0", 0), ("512", 512), ("64KiB", 65536), ("64k", 65536), ("10G", 10 << 30), ("2 TiB", 2 << 40)];
        good.iter().for_each(|(text, bytes)| assert_eq!(parse(text), Ok(*bytes), "{text}"));
        assert_eq!(parse("2TB"), Ok(2_000_000_000_000));
        assert_eq!(parse("8191P"), Ok(MAX_BYTES));
    }

    #[test]
    fn size_that_is_malformed_or_too_large_is_rejected() {
        for text in ["", "G", "1.5G", "-1", "1X", "1GiBB", "8192P", "99999999999999999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn size_shows_in_its_largest_whole_unit() {
        assert_eq!([show(0), show(1536), show(1 << 40)], ["0 bytes", "1536 bytes", "1 TiB"]);
    }
}
