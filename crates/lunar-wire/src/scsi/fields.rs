//! Tables that describe the fields of a structure, one row per field. Reading never fails: a field beyond the end of
//! the bytes is skipped.

use super::BitField;

/// The format of a field.
#[derive(Clone, Copy, Debug)]
enum FieldFormat {
    /// One bit of a byte.
    Flag(BitField),
    /// A number within one byte, or of one to eight whole bytes.
    Number(BitField),
    /// A number whose values have names.
    Named(BitField, &'static [(u64, &'static str)]),
    /// ASCII: first byte and length.
    Text(usize, usize),
}

/// One field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, with the unit last. The name is stable: JSON output uses it as a key.
    pub name: &'static str,
    form: FieldFormat,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A bit.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A number and the name of this value.
    Named(u64, &'static str),
    /// Text, safe for a terminal.
    Text(String),
}

/// A one-bit field of byte `at`.
pub const fn flag(name: &'static str, at: usize, bit: u8) -> Field {
    Field::flag(name, BitField::flag(at as u16, bit))
}

/// A field of `count` bits in byte `at`, from bit `lowest` up.
pub const fn bits(name: &'static str, at: usize, lowest: u8, count: u8) -> Field {
    Field::number(name, BitField::bits(at as u16, lowest + count - 1, count))
}

/// A field of `count` bits in byte `at`, from bit `lowest` up, whose values have names.
pub const fn named(
    name: &'static str,
    at: usize,
    (lowest, count): (u8, u8),
    names: &'static [(u64, &'static str)],
) -> Field {
    Field::named(name, BitField::bits(at as u16, lowest + count - 1, count), names)
}

/// A big-endian number of `len` bytes, at most eight.
pub const fn number(name: &'static str, at: usize, len: usize) -> Field {
    Field::number(name, BitField::bytes(at as u16, len as u8))
}

/// A big-endian number of which some values have names.
pub const fn numbered(
    name: &'static str,
    at: usize,
    len: usize,
    names: &'static [(u64, &'static str)],
) -> Field {
    Field::named(name, BitField::bytes(at as u16, len as u8), names)
}

/// ASCII, padded with spaces.
pub const fn ascii(name: &'static str, at: usize, len: usize) -> Field {
    Field { name, form: FieldFormat::Text(at, len) }
}

impl Field {
    /// A flag.
    pub const fn flag(name: &'static str, place: BitField) -> Field {
        Field { name, form: FieldFormat::Flag(place) }
    }

    /// A number.
    pub const fn number(name: &'static str, place: BitField) -> Field {
        Field { name, form: FieldFormat::Number(place) }
    }

    /// A number of which some values have names.
    pub const fn named(name: &'static str, place: BitField, names: &'static [(u64, &'static str)]) -> Field {
        Field { name, form: FieldFormat::Named(place, names) }
    }

    /// The value of the field in `b`; `None` if `b` ends before the field does.
    pub fn read(&self, b: &[u8]) -> Option<FieldValue> {
        Some(match self.form {
            FieldFormat::Flag(place) => FieldValue::Flag(whole(place, b)? != 0),
            FieldFormat::Number(place) => FieldValue::Number(whole(place, b)?),
            FieldFormat::Named(place, names) => {
                let n = whole(place, b)?;
                name_of(names, n).map_or(FieldValue::Number(n), |name| FieldValue::Named(n, name))
            }
            FieldFormat::Text(at, len) => FieldValue::Text(text(b.get(at..at + len)?)),
        })
    }
}

/// The value of a field; `None` if `b` ends before the field does.
pub(super) fn whole(place: BitField, b: &[u8]) -> Option<u64> {
    (b.len() >= usize::from(place.end())).then(|| place.get(b))
}

/// Names and values of all fields of a table that lie within `b`.
pub fn read<'a>(
    table: &'static [Field],
    b: &'a [u8],
) -> impl Iterator<Item = (&'static str, FieldValue)> + use<'a> {
    table.iter().filter_map(move |field| Some((field.name, field.read(b)?)))
}

/// The name of a value in a table of names.
pub fn name_of(names: &[(u64, &'static str)], n: u64) -> Option<&'static str> {
    names.iter().find(|(value, _)| *value == n).map(|(_, name)| *name)
}

/// ASCII text of a device, safe for a terminal: every byte that is not printable becomes a question mark. Surrounding
/// spaces and NULs are removed.
pub fn text(b: &[u8]) -> String {
    let shown = |c: &u8| if (0x20..0x7f).contains(c) { char::from(*c) } else { '?' };
    b.iter().filter(|c| **c != 0).map(shown).collect::<String>().trim().to_owned()
}

/// UTF-8 text of a device, safe for a terminal: control and bidirectional characters become question marks.
pub fn utf8(b: &[u8]) -> String {
    let shown = |c: char| if is_plain(c) { c } else { '?' };
    String::from_utf8_lossy(b).chars().filter(|c| *c != '\0').map(shown).collect()
}

/// Fills a field with ASCII text, left-aligned and padded with spaces.
pub fn put_text(field: &mut [u8], text: &str) {
    field.fill(b' ');
    field.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
}

fn is_plain(c: char) -> bool {
    let steers = c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !steers
}

/// A big-endian number; 0 if the bytes end before it.
pub(crate) fn get(b: &[u8], at: usize, len: usize) -> u64 {
    let part = at.checked_add(len).and_then(|end| b.get(at..end)).unwrap_or(&[]);
    part.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Splits bytes into descriptors; `len` reads the length of a descriptor from its start. A truncated one ends the
/// iteration.
pub(crate) fn split(mut rest: &[u8], len: impl Fn(&[u8]) -> Option<usize>) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let len = len(rest).filter(|len| *len > 0)?;
        let (one, more) = rest.split_at_checked(len)?;
        rest = more;
        Some(one)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    static TABLE: [Field; 5] = [
        flag("a_flag", 0, 7),
        bits("some_bits", 0, 1, 3),
        named("a_named_one", 0, (0, 1), &[(1, "one")]),
        number("a_number", 1, 8),
        ascii("a_text", 9, 4),
    ];

    #[test]
    fn fields_beyond_the_end_are_skipped() {
        let b = [0x8b, 0, 0, 0, 0, 0, 0, 1, 2, b'a', 0x1b, b' ', 0];
        let all: Vec<_> = read(&TABLE, &b).collect();
        assert_eq!(
            all,
            [
                ("a_flag", FieldValue::Flag(true)),
                ("some_bits", FieldValue::Number(5)),
                ("a_named_one", FieldValue::Named(1, "one")),
                ("a_number", FieldValue::Number(0x102)),
                ("a_text", FieldValue::Text("a?".into())),
            ]
        );
        let came = [0, 3, 3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4, 5];
        (0..=13).for_each(|n| assert_eq!(read(&TABLE, &b[..n]).count(), came[n], "{n} bytes"));
        assert_eq!(TABLE[2].read(&[0]), Some(FieldValue::Number(0)), "a value without a name");
    }

    #[test]
    fn device_text_is_safe_for_a_terminal() {
        assert_eq!(utf8("iqn.a\u{e9}\x1b[1m\u{202e}\0".as_bytes()), "iqn.a\u{e9}?[1m?");
        assert_eq!(utf8(&[0xff, b'a']), "\u{fffd}a");
        assert_eq!(text(b"\x9b31m\r\n"), "?31m??");
    }
}
