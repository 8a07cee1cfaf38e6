//! Percent-encoding (RFC 3986 section 2.1).

use std::fmt::{self, Write};

/// Decodes `%XX`. `None` if a percent sign has no two hexadecimal digits after it, or if the result is not UTF-8 or
/// contains control characters.
pub fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (two, after) = rest.split_first_chunk::<2>()?;
        let digit = |b: u8| char::from(b).to_digit(16);
        bytes.push((digit(two[0])? << 4 | digit(two[1])?) as u8);
        rest = after;
    }
    String::from_utf8(bytes).ok().filter(|text| !text.contains(char::is_control))
}

/// Whether a character needs no encoding.
pub fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-._~:/,".contains(c)
}

/// Writes a text so that [`decode`] returns it.
pub fn encode(f: &mut fmt::Formatter<'_>, text: &str, is_plain: impl Fn(char) -> bool) -> fmt::Result {
    for c in text.chars() {
        if is_plain(c) {
            f.write_char(c)?;
        } else {
            c.encode_utf8(&mut [0; 4]).bytes().try_for_each(|b| write!(f, "%{b:02X}"))?;
        }
    }
    Ok(())
}
