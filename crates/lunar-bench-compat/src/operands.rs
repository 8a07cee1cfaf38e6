//! Operands of the form `key=value` and their numbers.

use crate::refused;
use lunar_bench::Error;
use lunar_bench::document::redact_secrets;

/// Suffixes of numbers in dd and sg3_utils.
const SUFFIXES: [(&str, u64); 22] = [
    ("", 1),
    ("c", 1),
    ("w", 2),
    ("b", 512),
    ("k", 1 << 10),
    ("K", 1 << 10),
    ("kB", 1_000),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("m", 1 << 20),
    ("M", 1 << 20),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("g", 1 << 30),
    ("G", 1 << 30),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
    ("t", 1 << 40),
    ("T", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("TiB", 1 << 40),
    ("P", 1 << 50),
];

/// Parses `512`, `64k`, `1MB`, `2x512` or `0x200`.
pub fn number(text: &str) -> Option<u64> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok();
    }
    text.split('x').try_fold(1u64, |product, factor| product.checked_mul(factor_of(factor)?))
}

fn factor_of(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(split);
    let (_, factor) = SUFFIXES.iter().find(|(name, _)| *name == suffix)?;
    digits.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Operands in their original order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operands(Vec<(String, String)>);

impl Operands {
    /// Splits operands and checks their keys.
    ///
    /// # Errors
    /// If a key is unknown.
    pub fn parse(tool: &str, texts: &[String], known: &[&str]) -> Result<Operands, Error> {
        let pair = |text: &String| match text.split_once('=') {
            Some((key, value)) if known.contains(&key) => Ok((key.to_owned(), value.to_owned())),
            _ => Err(refused(
                format!("{tool}: unknown operand \"{}\"", text.escape_debug()),
                format!("use {}=...", known.join("=..., ")),
            )),
        };
        texts.iter().map(pair).collect::<Result<_, _>>().map(Operands)
    }

    /// All values of a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |pair| pair.0 == key).map(|pair| pair.1.as_str())
    }

    /// The value of a key; the last one counts.
    pub fn text(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|pair| pair.0 == key).map(|pair| pair.1.as_str())
    }

    /// The value of a key as a number.
    ///
    /// # Errors
    /// If it is not a number.
    pub fn number(&self, key: &str) -> Result<Option<u64>, Error> {
        self.text(key).map(|text| read(key, text)).transpose()
    }

    /// The number of a key within bounds, or the default.
    ///
    /// # Errors
    /// If it is not a number, or out of bounds.
    pub fn bounded(&self, key: &str, bounds: std::ops::RangeInclusive<u64>, or: u64) -> Result<u64, Error> {
        let n = self.number(key)?.unwrap_or(or);
        if bounds.contains(&n) {
            return Ok(n);
        }
        Err(refused(
            format!("{key}={n}: out of range"),
            format!("use {} to {}", bounds.start(), bounds.end()),
        ))
    }

    /// The value of a key that is 0 or 1.
    ///
    /// # Errors
    /// If it is another value.
    pub fn is_set(&self, key: &str) -> Result<bool, Error> {
        Ok(self.bounded(key, 0..=1, 0)? == 1)
    }

    /// The flags of a key, separated by commas.
    ///
    /// # Errors
    /// If a flag is not in `known`.
    pub fn flags<'a>(&'a self, key: &'a str, known: &[&str]) -> Result<Vec<&'a str>, Error> {
        let flags: Vec<&str> = self.all(key).flat_map(|list| list.split(',')).collect();
        match flags.iter().find(|flag| !known.contains(flag)) {
            None => Ok(flags),
            Some(flag) => Err(refused(
                format!("{key}={}: flag not supported", flag.escape_debug()),
                format!("use {}", known.join(", ")),
            )),
        }
    }

    /// The operands as (name, value) for the document, without secrets.
    pub fn words(&self) -> Vec<(&str, String)> {
        self.0.iter().map(|(key, value)| (key.as_str(), redact_secrets(value))).collect()
    }
}

/// Parses the number of a key.
pub fn read(key: &str, text: &str) -> Result<u64, Error> {
    let hint = "use a number such as 512, 64k (1024), 1MB (10^6), 2x512 or 0x200";
    number(text).ok_or_else(|| refused(format!("{key}={}: not a number", text.escape_debug()), hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_accept_the_suffixes_of_dd() {
        for (text, n) in [("512", 512), ("2b", 1024), ("64k", 65536), ("1kB", 1000), ("2048k", 2 << 20)] {
            assert_eq!(number(text), Some(n), "{text}");
        }
        assert_eq!(
            (number("2x3x512"), number("0x200"), number("1MB")),
            (Some(3072), Some(512), Some(1_000_000))
        );
        for text in ["", "k", "1q", "-1", "1,2", "99999999999G", "x", "0x"] {
            assert_eq!(number(text), None, "{text}");
        }
    }

    #[test]
    fn operands_are_checked_by_key_bounds_and_flags() {
        let parse = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|t| (*t).to_owned()).collect();
            Operands::parse("dd", &texts, &["if", "bs", "thr", "iflag"])
        };
        let operands =
            parse(&["if=a=b", "bs=1", "bs=64k", "thr=9", "iflag=direct,fua", "if=c"]).expect("good");
        assert_eq!(operands.all("if").collect::<Vec<_>>(), ["a=b", "c"]);
        assert_eq!((operands.number("bs"), operands.number("skip")), (Ok(Some(65536)), Ok(None)));
        assert!(operands.bounded("thr", 1..=8, 4).unwrap_err().hint.contains("1 to 8"));
        assert_eq!(operands.bounded("count", 1..=8, 4), Ok(4));
        assert_eq!(operands.flags("iflag", &["direct", "fua"]), Ok(vec!["direct", "fua"]));
        assert!(operands.flags("iflag", &["direct"]).unwrap_err().what.contains("iflag=fua"));
        assert!(parse(&["ibs=1"]).unwrap_err().what.contains("unknown operand \"ibs=1\""));
        assert!(parse(&["if"]).is_err());
    }
}
