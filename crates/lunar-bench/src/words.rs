//! From words to a job: fio's words where fio has one.

use crate::job::{AccessPattern, ArrivalProcess, Fill, IoDirection, Weighted};
use crate::{Error, ErrorKind};
use lunar_proto::nearest::nearest;
use lunar_proto::size;
use lunar_runtime::CoreSelection;

/// What may stand after `--rw`: word, order is sequential, way. A mix has the share that is asked for besides.
const RW: [(&str, bool, IoDirection); 9] = [
    ("read", true, IoDirection::Read),
    ("write", true, IoDirection::Write),
    ("rw", true, IoDirection::Mix(50)),
    ("readwrite", true, IoDirection::Mix(50)),
    ("bidir", true, IoDirection::Both),
    ("randread", false, IoDirection::Read),
    ("randwrite", false, IoDirection::Write),
    ("randrw", false, IoDirection::Mix(50)),
    ("randbidir", false, IoDirection::Both),
];

fn invalid<T>(what: String, hint: &str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, what, hint))
}

/// `read`, `randwrite` ...: an order, [`AccessPattern::Sequential`] or [`AccessPattern::Random`], and a way.
///
/// # Errors
/// When there is no such word.
pub fn rw(word: &str, read_percent: u8) -> Result<(AccessPattern, IoDirection), Error> {
    let Some((_, is_sequential, direction)) = RW.iter().find(|row| row.0 == word) else {
        let known: Vec<&str> = RW.iter().map(|row| row.0).collect();
        let hint =
            nearest_rw(word).map_or_else(|| known.join(", "), |meant| format!("did you mean {meant}?"));
        return invalid(format!("there is no work \"{}\"", word.escape_debug()), &hint);
    };
    let order = if *is_sequential { AccessPattern::Sequential } else { AccessPattern::Random };
    let direction =
        if matches!(direction, IoDirection::Mix(_)) { IoDirection::Mix(read_percent) } else { *direction };
    Ok((order, direction))
}

/// Whether a word is one of those of [`rw`].
pub fn is_rw(word: &str) -> bool {
    RW.iter().any(|row| row.0 == word)
}

/// The word of [`rw`] that was meant, if one is near.
pub fn nearest_rw(word: &str) -> Option<&'static str> {
    nearest(word, RW.iter().map(|row| row.0))
}

/// The word for an order and a way.
pub fn rw_word(order: AccessPattern, direction: IoDirection) -> &'static str {
    let is_sequential = matches!(order, AccessPattern::Sequential | AccessPattern::Strided(_));
    let same = |a: IoDirection, b: IoDirection| {
        a == b || matches!((a, b), (IoDirection::Mix(_), IoDirection::Mix(_)))
    };
    let row = RW.iter().find(|row| row.1 == is_sequential && same(row.2, direction));
    row.map_or("read", |row| row.0)
}

/// A size in bytes that a command can have.
fn length(text: &str) -> Result<u32, Error> {
    let bytes = size::parse(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes > 0 && bytes <= 1 << 30 => Ok(bytes),
        _ => invalid(format!("commands cannot have {text} bytes"), "from 1 byte to 1G"),
    }
}

/// Cores as `--cores` reads them; None for all.
pub fn cores_text(cores: &CoreSelection) -> Option<String> {
    match cores {
        CoreSelection::All => None,
        CoreSelection::Count(count) => Some(count.to_string()),
        // One number would be how many.
        CoreSelection::List(list) => Some(list.iter().map(|core| format!("{core},")).collect()),
    }
}

/// `4k`, `4k:64k`, or with weights `4k/60:64k/40` (fio's bssplit): lengths of commands.
///
/// # Errors
/// When one cannot be read. Commas are refused: in fio they stand between the lengths of reads, writes and trims.
pub fn sizes(text: &str) -> Result<Vec<Weighted>, Error> {
    if text.contains(',') {
        return invalid(
            format!("\"{}\": lengths for each direction are not there", text.escape_debug()),
            "for a mix of lengths write colons: 4k:64k, or with weights 4k/60:64k/40",
        );
    }
    let one = |part: &str| {
        let (size, weight) = part.split_once('/').unwrap_or((part, "1"));
        match weight.parse::<u32>() {
            Ok(weight @ 1..=1_000_000) => Ok((length(size)?, weight)),
            _ => invalid(
                format!("\"{}\" is no weight", weight.escape_debug()),
                "a number from 1 on, as in 4k/60",
            ),
        }
    };
    text.split(':').map(one).collect()
}

/// A size as it is written here: `4k`, `512`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "t"), (1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")];
    match UNITS.iter().find(|unit| bytes >= unit.0 && bytes.is_multiple_of(unit.0)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Lengths as [`sizes`] reads them.
pub fn sizes_text(sizes: &[Weighted]) -> String {
    let one = |size: &Weighted| match size.1 {
        1 => size_text(size.0.into()),
        weight => format!("{}/{weight}", size_text(size.0.into())),
    };
    sizes.iter().map(one).collect::<Vec<_>>().join(":")
}

/// The lowest rate: one command in eleven days. Much below it, times are too long to be told.
const SLOWEST: f64 = 1e-6;

/// Commands a second, even or by Poisson.
///
/// # Errors
/// When the rate is none.
pub fn arrivals(rate: Option<f64>, is_poisson: bool) -> Result<ArrivalProcess, Error> {
    match rate {
        None => Ok(ArrivalProcess::Closed),
        Some(rate) if !(SLOWEST..=1e8).contains(&rate) => {
            invalid(format!("{rate:?} commands a second are no rate"), "from 0.000001 up to 100 million")
        }
        Some(rate) if is_poisson => Ok(ArrivalProcess::Poisson(rate)),
        Some(rate) => Ok(ArrivalProcess::Even(rate)),
    }
}

/// `zeros`, `random`, `counting`, `lba`, or up to eight bytes in hexadecimal digits: `0xdeadbeef`.
///
/// # Errors
/// When it is none of these.
pub fn fill(text: &str) -> Result<Fill, Error> {
    Ok(match text {
        "zeros" => Fill::Zeros,
        "random" => Fill::Random,
        "counting" => Fill::Counting,
        "lba" => Fill::Lba,
        _ => Fill::Bytes(text.strip_prefix("0x").and_then(hex_pattern).map_or_else(
            || {
                let what = format!("\"{}\" cannot be written", text.escape_debug());
                invalid(what, "zeros, random, counting, lba, or bytes such as 0xdeadbeef")
            },
            Ok,
        )?),
    })
}

/// 1, 2, 4 or 8 bytes in hexadecimal digits, repeated to eight.
pub fn hex_pattern(digits: &str) -> Option<[u8; 8]> {
    let value = u64::from_str_radix(digits, 16).ok()?;
    let len = digits.len() / 2;
    if !matches!(digits.len(), 2 | 4 | 8 | 16) {
        return None;
    }
    let eight = value.to_be_bytes();
    Some(std::array::from_fn(|i| eight[8 - len + i % len]))
}

/// Lengths from the smallest to the largest in whole blocks, each as often as any other; where there are very many,
/// some at equal distances.
pub fn length_range(low: u64, high: u64, block: u64) -> Vec<Weighted> {
    const MOST: u64 = 1024;
    let step = ((high - low) / block).div_ceil(MOST).max(1) * block;
    (low..=high).step_by(step as usize).map(|len| (len as u32, 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn works_are_known_by_fios_words_and_told_by_them() {
        assert_eq!(rw("randread", 70).unwrap(), (AccessPattern::Random, IoDirection::Read));
        assert_eq!(rw("rw", 70).unwrap(), (AccessPattern::Sequential, IoDirection::Mix(70)));
        assert!(rw("trim", 50).unwrap_err().hint.contains("randbidir"));
        for (word, ..) in RW {
            let (order, direction) = rw(word, 30).unwrap();
            assert_eq!(rw(rw_word(order, direction), 30).unwrap(), (order, direction), "{word}");
            assert!(is_rw(word));
        }
        assert_eq!(rw_word(AccessPattern::Zipf(1.1), IoDirection::Read), "randread");
    }

    #[test]
    fn lengths_have_weights() {
        assert_eq!(sizes("4k").unwrap(), [(4096, 1)]);
        assert_eq!(sizes("4k/60:64k/40").unwrap(), [(4096, 60), (65536, 40)]);
        assert_eq!(sizes_text(&sizes("512:1m").unwrap()), "512:1m");
        assert_eq!(sizes_text(&[(4096, 60), (65536, 40)]), "4k/60:64k/40");
        for wrong in ["", "0", "4k/0", "4k/x", "2G", "4k,,8k"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_positive() {
        assert_eq!(arrivals(None, true).unwrap(), ArrivalProcess::Closed);
        assert_eq!(arrivals(Some(10.0), true).unwrap(), ArrivalProcess::Poisson(10.0));
        assert_eq!(arrivals(Some(10.0), false).unwrap(), ArrivalProcess::Even(10.0));
        assert_eq!(arrivals(Some(1e-6), false).unwrap(), ArrivalProcess::Even(1e-6));
        for wrong in [0.0, 1e-20, -1.0, f64::NAN, f64::INFINITY] {
            assert!(arrivals(Some(wrong), false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ranges_of_lengths_are_whole_blocks_and_not_too_many() {
        assert_eq!(length_range(512, 1536, 512), [(512, 1), (1024, 1), (1536, 1)]);
        assert_eq!(length_range(4096, 4096, 512), [(4096, 1)]);
        let many = length_range(512, 4 << 20, 512);
        assert!(many.len() == 1024 && many.iter().all(|len| len.0 % 512 == 0));
    }

    #[test]
    fn cores_are_told_as_they_are_asked_for() {
        for text in ["2", "0,", "0,2,3,"] {
            assert_eq!(cores_text(&CoreSelection::parse(text).unwrap()).as_deref(), Some(text));
        }
        assert_eq!(cores_text(&CoreSelection::All), None);
    }

    #[test]
    fn fillings() {
        assert_eq!(fill("lba").unwrap(), Fill::Lba);
        assert_eq!(
            fill("0xdeadbeef").unwrap(),
            Fill::Bytes([0xde, 0xad, 0xbe, 0xef, 0xde, 0xad, 0xbe, 0xef])
        );
        assert_eq!(fill("0x00").unwrap(), Fill::Bytes([0; 8]));
        for wrong in ["", "0x", "0x1", "0x123456", "0xxx", "ones"] {
            assert!(fill(wrong).is_err(), "{wrong}");
        }
    }
}
