//! Parses words of the command line into a job, and formats them. Uses fio's words where fio has one.

use crate::job::{AccessPattern, ArrivalProcess, Fill, IoDirection, Weighted};
use crate::{Error, ErrorKind};
use lunar_proto::nearest::nearest;
use lunar_proto::size;
use lunar_runtime::CoreSelection;

/// The values of `--rw`: word, whether it is sequential, direction. A mix gets its share from another option.
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

fn invalid<T>(what: String, hint: &'static str) -> Result<T, Error> {
    Err(Error::new(ErrorKind::Invalid, what, hint))
}

/// Parses `read`, `randwrite` ... into [`AccessPattern::Sequential`] or [`AccessPattern::Random`], and a
/// direction.
///
/// # Errors
/// If the word is unknown.
pub fn rw(word: &str, read_percent: u8) -> Result<(AccessPattern, IoDirection), Error> {
    let Some((_, is_sequential, direction)) = RW.iter().find(|row| row.0 == word) else {
        let known: Vec<&str> = RW.iter().map(|row| row.0).collect();
        let hint =
            nearest_rw(word).map_or_else(|| known.join(", "), |meant| format!("did you mean {meant}?"));
        let what = format!("unknown workload \"{}\"", word.escape_debug());
        return Err(Error::new(ErrorKind::Invalid, what, hint));
    };
    let order = if *is_sequential { AccessPattern::Sequential } else { AccessPattern::Random };
    let direction =
        if matches!(direction, IoDirection::Mix(_)) { IoDirection::Mix(read_percent) } else { *direction };
    Ok((order, direction))
}

/// Whether [`rw`] accepts a word.
pub fn is_rw(word: &str) -> bool {
    RW.iter().any(|row| row.0 == word)
}

/// The most similar word that [`rw`] accepts, if one is similar.
pub fn nearest_rw(word: &str) -> Option<&'static str> {
    nearest(word, RW.iter().map(|row| row.0))
}

/// The word of a pattern and a direction.
pub fn rw_word(order: AccessPattern, direction: IoDirection) -> &'static str {
    let is_sequential = matches!(order, AccessPattern::Sequential | AccessPattern::Strided(_));
    let same = |a: IoDirection, b: IoDirection| {
        a == b || matches!((a, b), (IoDirection::Mix(_), IoDirection::Mix(_)))
    };
    let row = RW.iter().find(|row| row.1 == is_sequential && same(row.2, direction));
    row.map_or("read", |row| row.0)
}

/// Parses the length of a command.
fn length(text: &str) -> Result<u32, Error> {
    let bytes = size::parse(text)?;
    match u32::try_from(bytes) {
        Ok(bytes) if bytes > 0 && bytes <= 1 << 30 => Ok(bytes),
        _ => invalid(format!("invalid command length: {text} bytes"), "use 1 byte to 1G"),
    }
}

/// Cores in the format of `--cores`; None for all.
pub fn cores_text(cores: &CoreSelection) -> Option<String> {
    match cores {
        CoreSelection::All => None,
        CoreSelection::Count(count) => Some(count.to_string()),
        // A number without a comma is a count.
        CoreSelection::List(list) => Some(list.iter().map(|core| format!("{core},")).collect()),
    }
}

/// Parses lengths of commands: `4k`, `4k:64k`, or with weights `4k/60:64k/40` (fio's bssplit).
///
/// # Errors
/// If a length is invalid. Commas are rejected: in fio they separate the lengths of reads, writes and trims.
pub fn sizes(text: &str) -> Result<Vec<Weighted>, Error> {
    if text.contains(',') {
        return invalid(
            format!("\"{}\": separate lengths for each direction are not supported", text.escape_debug()),
            "separate the lengths of a mix by colons: 4k:64k, or with weights 4k/60:64k/40",
        );
    }
    let one = |part: &str| {
        let (size, weight) = part.split_once('/').unwrap_or((part, "1"));
        match weight.parse::<u32>() {
            Ok(weight @ 1..=1_000_000) => Ok((length(size)?, weight)),
            _ => invalid(
                format!("invalid weight \"{}\" of a command length", weight.escape_debug()),
                "use a number from 1 to 1000000, as in 4k/60",
            ),
        }
    };
    text.split(':').map(one).collect()
}

/// Formats a size: `4k`, `512`.
pub fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] = [(1 << 40, "t"), (1 << 30, "g"), (1 << 20, "m"), (1 << 10, "k")];
    match UNITS.iter().find(|unit| bytes >= unit.0 && bytes.is_multiple_of(unit.0)) {
        Some((unit, name)) => format!("{}{name}", bytes / unit),
        None => bytes.to_string(),
    }
}

/// Formats lengths in the syntax of [`sizes`].
pub fn sizes_text(sizes: &[Weighted]) -> String {
    let one = |size: &Weighted| match size.1 {
        1 => size_text(size.0.into()),
        weight => format!("{}/{weight}", size_text(size.0.into())),
    };
    sizes.iter().map(one).collect::<Vec<_>>().join(":")
}

/// The lowest rate: one command in eleven days. Far below it, intervals overflow.
const SLOWEST: f64 = 1e-6;

/// The arrival process of `--rate`, even or Poisson.
///
/// # Errors
/// If the rate is out of range.
pub fn arrivals(rate: Option<f64>, is_poisson: bool) -> Result<ArrivalProcess, Error> {
    match rate {
        None => Ok(ArrivalProcess::Closed),
        Some(rate) if !(SLOWEST..=1e8).contains(&rate) => {
            invalid(format!("invalid rate: {rate:?} commands per second"), "use 0.000001 to 100000000")
        }
        Some(rate) if is_poisson => Ok(ArrivalProcess::Poisson(rate)),
        Some(rate) => Ok(ArrivalProcess::Even(rate)),
    }
}

/// Parses `zeros`, `random`, `counting`, `lba`, or up to eight bytes in hexadecimal: `0xdeadbeef`.
///
/// # Errors
/// If the word is none of these.
pub fn fill(text: &str) -> Result<Fill, Error> {
    Ok(match text {
        "zeros" => Fill::Zeros,
        "random" => Fill::Random,
        "counting" => Fill::Counting,
        "lba" => Fill::Lba,
        _ => Fill::Bytes(text.strip_prefix("0x").and_then(hex_pattern).map_or_else(
            || {
                let what = format!("unknown fill \"{}\"", text.escape_debug());
                invalid(what, "use zeros, random, counting, lba, or bytes such as 0xdeadbeef")
            },
            Ok,
        )?),
    })
}

/// Parses 1, 2, 4 or 8 bytes in hexadecimal and repeats them to eight.
pub fn hex_pattern(digits: &str) -> Option<[u8; 8]> {
    let value = u64::from_str_radix(digits, 16).ok()?;
    let len = digits.len() / 2;
    if !matches!(digits.len(), 2 | 4 | 8 | 16) {
        return None;
    }
    let eight = value.to_be_bytes();
    Some(std::array::from_fn(|i| eight[8 - len + i % len]))
}

/// Lengths from `low` to `high` in whole blocks, with equal weights. If there are too many, only some at equal
/// distances.
pub fn length_range(low: u64, high: u64, block: u64) -> Vec<Weighted> {
    const MAX: u64 = 1024;
    let step = ((high - low) / block).div_ceil(MAX).max(1) * block;
    (low..=high).step_by(step as usize).map(|len| (len as u32, 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workload_words_of_fio_round_trip() {
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
    fn lengths_with_weights_round_trip() {
        assert_eq!(sizes("4k").unwrap(), [(4096, 1)]);
        assert_eq!(sizes("4k/60:64k/40").unwrap(), [(4096, 60), (65536, 40)]);
        assert_eq!(sizes_text(&sizes("512:1m").unwrap()), "512:1m");
        assert_eq!(sizes_text(&[(4096, 60), (65536, 40)]), "4k/60:64k/40");
        for wrong in ["", "0", "4k/0", "4k/x", "2G", "4k,,8k"] {
            assert!(sizes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rate_out_of_range_is_rejected() {
        assert_eq!(arrivals(None, true).unwrap(), ArrivalProcess::Closed);
        assert_eq!(arrivals(Some(10.0), true).unwrap(), ArrivalProcess::Poisson(10.0));
        assert_eq!(arrivals(Some(10.0), false).unwrap(), ArrivalProcess::Even(10.0));
        assert_eq!(arrivals(Some(1e-6), false).unwrap(), ArrivalProcess::Even(1e-6));
        for wrong in [0.0, 1e-20, -1.0, f64::NAN, f64::INFINITY] {
            assert!(arrivals(Some(wrong), false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn length_range_is_whole_blocks_and_bounded() {
        assert_eq!(length_range(512, 1536, 512), [(512, 1), (1024, 1), (1536, 1)]);
        assert_eq!(length_range(4096, 4096, 512), [(4096, 1)]);
        let many = length_range(512, 4 << 20, 512);
        assert!(many.len() == 1024 && many.iter().all(|len| len.0 % 512 == 0));
    }

    #[test]
    fn cores_round_trip() {
        for text in ["2", "0,", "0,2,3,"] {
            assert_eq!(cores_text(&CoreSelection::parse(text).unwrap()).as_deref(), Some(text));
        }
        assert_eq!(cores_text(&CoreSelection::All), None);
    }

    #[test]
    fn fill_words_are_parsed() {
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
