//! Bytes as hexadecimal digits: parsing, formatting, and dumps.

use std::fmt::Write;

/// Bytes in a line of a dump.
const LINE: usize = 16;

/// Parses pairs of digits. Blanks, commas and colons may separate them, and `0x` may precede them.
///
/// # Errors
/// The fault in the text.
pub fn parse(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    for word in text.split([' ', ',', ':', '\t', '\n', '\r']).filter(|word| !word.is_empty()) {
        let digits = word.strip_prefix("0x").unwrap_or(word);
        if let Some(bad) = digits.chars().find(|c| !c.is_ascii_hexdigit()) {
            return Err(format!("'{}' is not a hexadecimal digit", bad.escape_debug()));
        }
        if digits.is_empty() || !digits.len().is_multiple_of(2) {
            return Err(format!("\"{word}\" has an odd number of digits"));
        }
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).map_err(|e| e.to_string());
        let more = (0..digits.len()).step_by(2).map(byte).collect::<Result<Vec<u8>, _>>();
        bytes.extend(more?);
    }
    Ok(bytes)
}

/// Bytes as digits without separators.
pub fn digits(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
    text
}

/// A dump: each line has an offset, up to 16 bytes, and their printable characters.
pub fn dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (n, line) in bytes.chunks(LINE).enumerate() {
        let pairs: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        let shown = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '.' };
        let characters: String = line.iter().map(shown).collect();
        _ = writeln!(text, "{:08x}  {:47}  {characters}", n * LINE, pairs.join(" "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_read_however_they_are_grouped() {
        for text in ["12000000ff00", "12 00 00 00 ff 00", "0x12,0x00,0x00,0x00,0xFF,0x00", "12:0000:00ff00"] {
            assert_eq!(parse(text).unwrap(), [0x12, 0, 0, 0, 0xff, 0], "{text}");
        }
        assert_eq!(parse("").unwrap(), Vec::<u8>::new());
        assert_eq!(parse("12 0").unwrap_err(), "\"0\" has an odd number of digits");
        assert_eq!(parse("1g").unwrap_err(), "'g' is not a hexadecimal digit");
        assert_eq!(parse("\u{e9}1").unwrap_err(), "'\u{e9}' is not a hexadecimal digit");
        assert_eq!(parse("0x").unwrap_err(), "\"0x\" has an odd number of digits");
    }

    #[test]
    fn dump_shows_no_control_characters() {
        let mut bytes = b"LUNAR \x1b[31m~\x7f\xff".to_vec();
        bytes.resize(17, b'x');
        assert_eq!(
            dump(&bytes),
            "00000000  4c 55 4e 41 52 20 1b 5b 33 31 6d 7e 7f ff 78 78  LUNAR .[31m~..xx\n\
             00000010  78                                               x\n"
        );
        assert_eq!(digits(&bytes[..3]), "4c554e");
    }
}
