//! Tables of fields: what a structure of bytes tells, one row per field. Reading is total: a field that did
//! not come is not told.

/// How a field is to be understood.
#[derive(Clone, Copy, Debug)]
enum FieldFormat {
    /// One bit of a byte.
    Flag,
    /// A number that lies inside one byte, or fills up to eight.
    Number,
    /// The same, whose values have names.
    Named(&'static [(u64, &'static str)]),
    /// ASCII.
    Text,
}

/// One field of a structure.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name, with the unit last: it stays the same for programs.
    pub name: &'static str,
    at: usize,
    /// Bytes.
    len: usize,
    /// The lowest bit and the number of bits; no bits at all mean whole bytes.
    bits: (u8, u8),
    form: FieldFormat,
}

/// What a field says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// A bit.
    Flag(bool),
    /// A number.
    Number(u64),
    /// A number with a name.
    Named(u64, &'static str),
    /// Text that can be shown as it is.
    Text(String),
}

/// A bit of a byte.
pub const fn flag(name: &'static str, at: usize, bit: u8) -> Field {
    Field { name, at, len: 1, bits: (bit, 1), form: FieldFormat::Flag }
}

/// Some bits of a byte, the lowest of them first.
pub const fn bits(name: &'static str, at: usize, lowest: u8, count: u8) -> Field {
    Field { name, at, len: 1, bits: (lowest, count), form: FieldFormat::Number }
}

/// Some bits of a byte whose values have names.
pub const fn named(
    name: &'static str,
    at: usize,
    (lowest, count): (u8, u8),
    names: &'static [(u64, &'static str)],
) -> Field {
    Field { name, at, len: 1, bits: (lowest, count), form: FieldFormat::Named(names) }
}

/// A big-endian number of up to eight bytes.
pub const fn number(name: &'static str, at: usize, len: usize) -> Field {
    Field { name, at, len, bits: (0, 0), form: FieldFormat::Number }
}

/// The same, some of whose values have names.
pub const fn numbered(
    name: &'static str,
    at: usize,
    len: usize,
    names: &'static [(u64, &'static str)],
) -> Field {
    Field { name, at, len, bits: (0, 0), form: FieldFormat::Named(names) }
}

/// ASCII, with spaces behind it.
pub const fn ascii(name: &'static str, at: usize, len: usize) -> Field {
    Field { name, at, len, bits: (0, 0), form: FieldFormat::Text }
}

impl Field {
    /// What the field says in these bytes; None if it did not come as a whole.
    pub fn read(&self, b: &[u8]) -> Option<FieldValue> {
        let part = b.get(self.at..self.at + self.len)?;
        let whole = part.iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte));
        let (lowest, count) = self.bits;
        let n = if count == 0 { whole } else { whole >> lowest & ((1 << count) - 1) };
        Some(match self.form {
            FieldFormat::Flag => FieldValue::Flag(n != 0),
            FieldFormat::Number => FieldValue::Number(n),
            FieldFormat::Named(names) => {
                name_of(names, n).map_or(FieldValue::Number(n), |name| FieldValue::Named(n, name))
            }
            FieldFormat::Text => FieldValue::Text(text(part)),
        })
    }
}

/// All fields of a table that came.
pub fn read<'a>(
    table: &'static [Field],
    b: &'a [u8],
) -> impl Iterator<Item = (&'static str, FieldValue)> + use<'a> {
    table.iter().filter_map(move |field| Some((field.name, field.read(b)?)))
}

/// The name of a value.
pub fn name_of(names: &[(u64, &'static str)], n: u64) -> Option<&'static str> {
    names.iter().find(|(value, _)| *value == n).map(|(_, name)| *name)
}

/// Text of a device, such that nothing in it steers a terminal: what is no ASCII is a question mark. Spaces
/// around it and NULs are left out.
pub fn text(b: &[u8]) -> String {
    let shown = |c: &u8| if (0x20..0x7f).contains(c) { char::from(*c) } else { '?' };
    b.iter().filter(|c| **c != 0).map(shown).collect::<String>().trim().to_owned()
}

/// UTF-8 of a device, without what steers a terminal or changes the direction of text.
pub fn utf8(b: &[u8]) -> String {
    let shown = |c: char| if is_plain(c) { c } else { '?' };
    String::from_utf8_lossy(b).chars().filter(|c| *c != '\0').map(shown).collect()
}

fn is_plain(c: char) -> bool {
    let steers = c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    !steers
}

/// A big-endian number at a place; zero if it did not come.
pub(crate) fn get(b: &[u8], at: usize, len: usize) -> u64 {
    let part = at.checked_add(len).and_then(|end| b.get(at..end)).unwrap_or(&[]);
    part.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// Splits bytes into descriptors, each as long as its own head says. What is cut short ends it.
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
    fn fields_are_read_where_they_are_and_only_if_they_came() {
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
    fn nothing_steers_a_terminal() {
        assert_eq!(utf8("iqn.a\u{e9}\x1b[1m\u{202e}\0".as_bytes()), "iqn.a\u{e9}?[1m?");
        assert_eq!(utf8(&[0xff, b'a']), "\u{fffd}a");
        assert_eq!(text(b"\x9b31m\r\n"), "?31m??");
    }
}
