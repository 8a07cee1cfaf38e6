//! Numbers in disktest's syntax.

use crate::refused;
use lunar_bench::Error;
use lunar_bench::job::Weighted;
use lunar_bench::words;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// Suffixes of numbers: lower-case letters are powers of 1024, upper-case ones of 1000.
const MULTIPLIERS: [(&str, u64); 7] = [
    ("", 1),
    ("k", 1 << 10),
    ("K", 1_000),
    ("m", 1 << 20),
    ("M", 1_000_000),
    ("g", 1 << 30),
    ("G", 1_000_000_000),
];

/// Parses `512`, `4k` (4096), `4K` (4000).
///
/// # Errors
/// If it is not a number.
pub fn number(key: &str, text: &str) -> Result<u64, Error> {
    let (digits, unit) = split(text);
    let multiplier = MULTIPLIERS.iter().find(|row| row.0 == unit).map(|row| row.1);
    let n = multiplier.zip(digits.parse::<u64>().ok()).and_then(|(m, n)| n.checked_mul(m));
    let hint = "use 512, or with k, m, g (powers of 1024) or K, M, G (powers of 1000)";
    n.ok_or_else(|| refused(format!("{key} {}: not a number", text.escape_debug()), hint))
}

fn split(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Parses lengths with weights: `256k`, `1:16`.
///
/// # Errors
/// If a length is invalid.
pub fn sizes(text: &str) -> Result<Vec<Weighted>, Error> {
    let (low, high) = text.split_once(':').unwrap_or((text, text));
    let (low, high) = (size(low)?, size(high)?);
    if low > high {
        return Err(refused(
            format!("-B {text}: the first size of the range is the larger one"),
            "put the smaller size first",
        ));
    }
    Ok(words::length_range(low, high, SECTOR))
}

fn size(text: &str) -> Result<u64, Error> {
    // Most powers of 1000 are not whole sectors: an upper-case letter is probably a mistake.
    if text.ends_with(['K', 'M', 'G']) {
        let hint = format!("use -B {}", text.to_ascii_lowercase());
        return Err(refused(
            format!("-B {text}: the suffix of a transfer size must be lower case: k, m or g"),
            hint,
        ));
    }
    let n = number("-B", text)?;
    let is_bare = text.bytes().all(|byte| byte.is_ascii_digit());
    let bytes = if is_bare && n <= 256 { n * SECTOR } else { n / SECTOR * SECTOR };
    match bytes {
        1..=0x4000_0000 => Ok(bytes),
        _ => Err(refused(format!("-B {text}: transfer size out of range"), "use 512 bytes (1 sector) to 1g")),
    }
}

/// Parses 1, 2, 4 or 8 bytes in hexadecimal and repeats them to eight: `a5`, `0xdeadbeef`.
///
/// # Errors
/// If it is none of these.
pub fn fixed(text: &str) -> Result<[u8; 8], Error> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    let digits = if digits.len() == 1 { format!("0{digits}") } else { digits.to_owned() };
    words::hex_pattern(&digits).ok_or_else(|| {
        let hint = "use 1, 2, 4 or 8 bytes in hexadecimal: a5, deadbeef";
        refused(format!("-f {}: not a data pattern", text.escape_debug()), hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_powers_of_1024_or_1000() {
        let read = |text: &str| number("-L", text).ok();
        let texts = ["7", "2k", "2K", "3m", "3M", "1g", "1G"];
        let numbers = [7, 2048, 2000, 3 << 20, 3_000_000, 1 << 30, 1_000_000_000];
        assert_eq!(texts.map(read), numbers.map(Some));
        for wrong in ["", "k", "1kB", "1x2", "-1", "99999999999G"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn transfer_sizes_are_parsed() {
        let bytes = |text: &str| sizes(text).map(|sizes| sizes[0].0).ok();
        assert_eq!(
            ["8", "256", "1000", "1k", "1m"].map(bytes),
            [4096, 131_072, 512, 1024, 1 << 20].map(Some)
        );
        assert_eq!(sizes("1:3").expect("a range"), [(512, 1), (1024, 1), (1536, 1)]);
        assert!(sizes("256K").expect_err("no whole sectors").hint.contains("-B 256k"));
    }
}
