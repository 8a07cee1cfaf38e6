//! Key text of Login and Text PDUs: `key=value` pairs, each terminated by NUL (RFC 7143 section 6.1). The last NUL may
//! be missing, because some implementations omit it.

use std::fmt::Write;

/// The longest key name, in bytes.
pub const KEY_LEN: usize = 63;

/// The first malformed pair of a key text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MalformedText {
    /// Offset of the pair, in bytes from the start of the text.
    pub at: usize,
    /// The rule that it violates.
    pub why: &'static str,
}

/// Iterates over the pairs of a text, in order. It skips empty pairs, and ends after the first malformed one.
#[derive(Clone, Debug)]
pub struct KeyValuePairs<'a> {
    text: &'a [u8],
    at: usize,
}

/// Iterates over the pairs of a complete text: the joined data segments of all PDUs that the C bit links.
pub fn pairs(text: &[u8]) -> KeyValuePairs<'_> {
    KeyValuePairs { text, at: 0 }
}

impl<'a> Iterator for KeyValuePairs<'a> {
    type Item = Result<(&'a str, &'a str), MalformedText>;

    fn next(&mut self) -> Option<Self::Item> {
        // Some implementations send extra NULs between and after pairs.
        let at = self.at + self.text[self.at..].iter().position(|&b| b != 0)?;
        let rest = &self.text[at..];
        let pair = split(rest);
        self.at = match pair {
            Ok(_) => at + rest.iter().position(|&b| b == 0).unwrap_or(rest.len()),
            Err(_) => self.text.len(),
        };
        Some(pair.map_err(|why| MalformedText { at, why }))
    }
}

/// Keys whose values are only displayed. A value that is not UTF-8 is cut at its first invalid byte.
const FOR_PEOPLE: [&[u8]; 2] = [b"InitiatorAlias=", b"TargetAlias="];

/// The first pair of a text that begins with a non-NUL byte.
fn split(text: &[u8]) -> Result<(&str, &str), &'static str> {
    let end = text.iter().position(|&b| b == 0).unwrap_or(text.len());
    let is_for_people = FOR_PEOPLE.iter().any(|key| text.starts_with(key));
    let pair = match std::str::from_utf8(&text[..end]) {
        Err(e) if is_for_people => std::str::from_utf8(&text[..e.valid_up_to()]),
        whole => whole,
    };
    let pair = pair.map_err(|_| "the text is not UTF-8")?;
    let (key, value) = pair.split_once('=').ok_or("a KEY=VALUE pair has no =")?;
    if key.is_empty() || key.len() > KEY_LEN {
        return Err("the name of a text key is empty or longer than 63 characters");
    }
    if !key.bytes().all(|b| b.is_ascii_alphanumeric() || b".-+@_#".contains(&b)) {
        return Err("a key name has an invalid character");
    }
    Ok((key, value))
}

/// Appends `key=value` and its NUL.
pub fn push(text: &mut Vec<u8>, key: &str, value: &str) {
    text.reserve(key.len() + value.len() + 2);
    text.extend_from_slice(key.as_bytes());
    text.push(b'=');
    text.extend_from_slice(value.as_bytes());
    text.push(0);
}

/// Appends a pair whose value is binary, in lower-case hexadecimal.
pub fn push_hex(text: &mut Vec<u8>, key: &str, value: &[u8]) {
    let mut hex = String::with_capacity(2 + 2 * value.len());
    hex.push_str("0x");
    value.iter().for_each(|b| write!(hex, "{b:02x}").expect("a String takes all"));
    push(text, key, &hex);
}

/// Parses a number below 2^64: decimal without leading zeros, or hexadecimal after 0x or 0X. `None` for anything else.
pub fn number(value: &str) -> Option<u64> {
    if let Some(hex) = strip(value, b'x') {
        return (!hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit()))
            .then(|| u64::from_str_radix(hex, 16).ok())?;
    }
    let plain = value.bytes().all(|b| b.is_ascii_digit()) && (value == "0" || !value.starts_with('0'));
    plain.then(|| value.parse().ok())?
}

/// Parses Yes or No in any case, because the meaning is unambiguous.
pub fn boolean(value: &str) -> Option<bool> {
    let is = |word| value.eq_ignore_ascii_case(word);
    if is("Yes") { Some(true) } else { is("No").then_some(false) }
}

/// The text of a boolean: Yes or No.
pub fn yes_no(value: bool) -> &'static str {
    if value { "Yes" } else { "No" }
}

/// Decodes a binary value (hexadecimal after 0x, base64 after 0b) into the front of `into`. `None` if it is malformed
/// or longer than `into`; the length is checked before anything is decoded.
pub fn binary<'b>(value: &str, into: &'b mut [u8]) -> Option<&'b [u8]> {
    if let Some(hex) = strip(value, b'x') {
        return decode_hex(hex.as_bytes(), into);
    }
    decode_base64(strip(value, b'b')?.as_bytes(), into)
}

/// The text after a prefix of `0` and `letter`, in either case.
fn strip(value: &str, letter: u8) -> Option<&str> {
    let b = value.as_bytes();
    (b.len() >= 2 && b[0] == b'0' && b[1].to_ascii_lowercase() == letter).then(|| &value[2..])
}

/// Decodes n digits to (n + 1) / 2 bytes. If n is odd, the first digit is a byte of its own.
fn decode_hex<'b>(hex: &[u8], into: &'b mut [u8]) -> Option<&'b [u8]> {
    let into = into.get_mut(..hex.len().div_ceil(2))?;
    let (odd, pairs) = hex.split_at(hex.len() % 2);
    let digit = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    let (first, rest) = into.split_at_mut(odd.len());
    for (to, b) in first.iter_mut().zip(odd) {
        *to = digit(*b)?;
    }
    for (to, b) in rest.iter_mut().zip(pairs.chunks_exact(2)) {
        *to = digit(b[0])? << 4 | digit(b[1])?;
    }
    Some(into)
}

/// Base64 (RFC 4648 section 4), with or without its padding.
fn decode_base64<'b>(text: &[u8], into: &'b mut [u8]) -> Option<&'b [u8]> {
    let pad = text.iter().rev().take_while(|&&b| b == b'=').count();
    let digits = &text[..text.len() - pad];
    if pad > 2 || (pad > 0 && !text.len().is_multiple_of(4)) || digits.len() % 4 == 1 {
        return None;
    }
    let into = into.get_mut(..digits.len() * 3 / 4)?;
    for (to, group) in into.chunks_mut(3).zip(digits.chunks(4)) {
        let mut bits = 0;
        for i in 0..4 {
            bits = bits << 6 | group.get(i).map_or(Some(0), |&b| sextet(b))?;
        }
        to.copy_from_slice(&bits.to_be_bytes()[1..1 + to.len()]);
    }
    Some(into)
}

fn sextet(b: u8) -> Option<u32> {
    let v = match b {
        b'A'..=b'Z' => b - b'A',
        b'a'..=b'z' => b - b'a' + 26,
        b'0'..=b'9' => b - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(v.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Result<Vec<(&str, &str)>, MalformedText> {
        pairs(text).collect()
    }

    #[test]
    fn pairs_keep_their_order_and_equal_signs_in_values() {
        assert_eq!(
            all(b"A=1\0X-com.example.k=a=b\0B=\0"),
            Ok(vec![("A", "1"), ("X-com.example.k", "a=b"), ("B", "")])
        );
        assert_eq!(all(b""), Ok(vec![]));
    }

    #[test]
    fn empty_pairs_are_skipped() {
        assert_eq!(all(b"\0\0A=1\0\0\0B=2\0\0"), Ok(vec![("A", "1"), ("B", "2")]));
        assert_eq!(all(b"\0\0\0"), Ok(vec![]));
    }

    #[test]
    fn last_pair_without_nul_is_a_pair() {
        assert_eq!(all(b"A=1\0B=2"), Ok(vec![("A", "1"), ("B", "2")]));
        assert_eq!(all(b"TargetAlias=disk \xe4"), Ok(vec![("TargetAlias", "disk ")]));
    }

    #[test]
    fn alias_beyond_utf8_is_cut_and_hides_no_pair() {
        let text = b"TargetAlias=disk \xe4\0InitiatorAlias=\xff\0A=1\0";
        assert_eq!(all(text), Ok(vec![("TargetAlias", "disk "), ("InitiatorAlias", ""), ("A", "1")]));
    }

    #[test]
    fn malformed_pair_is_reported_with_its_offset() {
        let long = [b"K".repeat(64).as_slice(), b"=1\0"].concat();
        for (text, at) in [
            (b"A=1\0B".as_slice(), 4),
            (b"A=1\0\0=1\0", 5),
            (b"=1\0", 0),
            (b"A\0", 0),
            (b"A=\xff\0", 0),
            (b"A b=1\0", 0),
            (&long, 0),
        ] {
            assert_eq!(all(text).unwrap_err().at, at, "{text:?}");
        }
        assert_eq!(all(&long[1..]).map(|p| p[0].0.len()), Ok(63));
    }

    #[test]
    fn numbers_are_parsed_or_rejected() {
        for (text, want) in [
            ("0", Some(0)),
            ("262144", Some(262144)),
            ("0x40000", Some(262144)),
            ("0X4fF", Some(0x4ff)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("0x10000000000000000", None),
            ("00", None),
            ("01", None),
            ("+1", None),
            ("-1", None),
            ("0x", None),
            ("0x+1", None),
            ("", None),
            ("512~1024", None),
            (" 1", None),
        ] {
            assert_eq!(number(text), want, "{text:?}");
        }
    }

    #[test]
    fn binary_values_are_decoded_or_rejected() {
        for (text, want) in [
            ("0x", Some(b"".as_slice())),
            ("0xabc", Some(&[0x0a, 0xbc])),
            ("0X0aBC", Some(&[0x0a, 0xbc])),
            ("0b", Some(b"")),
            ("0bTWFu", Some(b"Man")),
            ("0BTWE=", Some(b"Ma")),
            ("0bTWE", Some(b"Ma")),
            ("0bTQ==", Some(b"M")),
            ("0bTWFuTWFu", None), // six bytes, four fit
            ("0x0011223344", None),
            ("0bT", None),
            ("0bT===", None),
            ("0bTQ=", None),
            ("0bT=Q=", None),
            ("0xg0", None),
            ("0x+1", None),
            ("12345", None),
            ("", None),
            ("0\u{e9}", None),
        ] {
            assert_eq!(binary(text, &mut [0; 4]), want, "{text:?}");
        }
    }

    #[test]
    fn pushed_pairs_parse_back() {
        let mut text = vec![];
        push(&mut text, "InitialR2T", yes_no(true));
        push_hex(&mut text, "CHAP_C", &[0x0a, 0xff]);
        assert_eq!(text, b"InitialR2T=Yes\0CHAP_C=0x0aff\0");
        let pairs = all(&text).unwrap();
        assert_eq!(boolean(pairs[0].1), Some(true));
        assert_eq!(binary(pairs[1].1, &mut [0; 2]), Some([0x0a, 0xff].as_slice()));
    }

    #[test]
    fn booleans_are_taken_in_any_case() {
        assert_eq!(["Yes", "yes", "YES"].map(boolean), [Some(true); 3]);
        assert_eq!(["No", "no", "nO"].map(boolean), [Some(false); 3]);
        assert_eq!(["", "Y", "Yes ", "Yes,No", "true", "1"].map(boolean), [None; 6]);
    }
}
