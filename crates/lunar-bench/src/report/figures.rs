//! Formats figures and text for the page.

/// Nanoseconds of each unit of time.
const TIMES: [(f64, &str); 4] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")];
/// Larger figures are shown as infinity.
const HUGE: f64 = 1e15;

/// Escapes text for elements and for quoted attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' | '\t' => out.push(' '),
            // HTML allows no control characters. Characters that change the direction of writing could deceive a
            // reader.
            c if c.is_control() || is_direction(c) => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn is_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Breaks a text into rows of at most this many characters, between words. A word that is longer is broken behind
/// a separator, and anywhere only if it has none.
pub fn wrapped(text: &str, many: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        for (n, part) in parts(word, many.max(1)).into_iter().enumerate() {
            let space = if n == 0 { " " } else { "" };
            match rows.last_mut() {
                Some(row) if row.chars().count() + space.len() + part.chars().count() <= many => {
                    *row += space;
                    *row += &part;
                }
                _ => rows.push(part),
            }
        }
    }
    rows
}

/// The parts of a word that fit into a row.
fn parts(word: &str, many: usize) -> Vec<String> {
    const SEPARATORS: [char; 9] = ['/', '-', ':', '=', ',', '_', '.', '@', ';'];
    if word.chars().count() <= many {
        return vec![word.to_owned()];
    }
    let pieces = word.split_inclusive(SEPARATORS).map(|piece| piece.chars().collect::<Vec<char>>());
    pieces.flat_map(|piece| piece.chunks(many).map(String::from_iter).collect::<Vec<_>>()).collect()
}

/// A figure with about three digits: `0.0123`, `1.23`, `56.8`, `1,235`.
pub fn short(figure: f64) -> String {
    match figure.abs() {
        0.0 => "0".into(),
        x if !(1e-4..HUGE).contains(&x) => format!("{figure:.2e}"),
        x if x < 0.1 => format!("{figure:.4}"),
        x if x < 10.0 => format!("{figure:.2}"),
        x if x < 1000.0 => format!("{figure:.1}"),
        _ => whole(figure),
    }
}

/// A figure without decimals, with separators: `1,234,567`.
pub fn whole(figure: f64) -> String {
    if figure.abs() >= HUGE {
        return format!("{figure:.2e}");
    }
    let digits = format!("{:.0}", figure.abs());
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if figure < 0.0 && digits != "0" { format!("−{out}") } else { out }
}

/// A duration in a suitable unit: `1.5 µs`.
pub fn time(ns: f64) -> String {
    let (size, name) = TIMES.iter().find(|unit| ns >= unit.0).unwrap_or(&TIMES[3]);
    let figure = ns / size;
    match figure {
        f if *name == "ns" || f >= 100.0 => format!("{}\u{a0}{name}", whole(f)),
        f if f >= 10.0 => format!("{f:.1}\u{a0}{name}"),
        f => format!("{f:.2}\u{a0}{name}"),
    }
}

/// A round duration, for axes: `10 µs`.
pub fn round_time(ns: f64) -> String {
    let (size, name) = TIMES.iter().find(|unit| ns >= unit.0 * 0.999).unwrap_or(&TIMES[3]);
    format!("{}\u{a0}{name}", trimmed(ns / size))
}

/// A round figure, for axes: `0.25`, `1,500`.
pub fn trimmed(figure: f64) -> String {
    if figure.abs() >= 1000.0 {
        return whole(figure);
    }
    let text = format!("{figure:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A block size: `4 KiB`.
pub fn size(bytes: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1073741824.0, "GiB"), (1048576.0, "MiB"), (1024.0, "KiB")];
    match UNITS.iter().find(|unit| bytes >= unit.0) {
        Some((unit, name)) => format!("{}\u{a0}{name}", trimmed((bytes / unit * 100.0).round() / 100.0)),
        None => format!("{}\u{a0}B", trimmed(bytes)),
    }
}

/// A percentile: `p50`, `p99.9`.
pub fn percentile(percent: f64) -> String {
    format!("p{}", trimmed(percent))
}

/// Parses a size that is a whole heading: `4096`, `4k`, `4 KiB`, `64KB`. Units are powers of 1024, as usual for
/// block sizes.
pub fn read_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" | "bytes" => 1,
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escape_leaves_no_markup() {
        assert_eq!(escape("<b onclick='x'>&\"\u{0}\n"), "&lt;b onclick=&#39;x&#39;&gt;&amp;&quot;\u{fffd} ");
        assert_eq!(escape("a\u{202e}b"), "a\u{fffd}b");
    }

    #[test]
    fn numbers_and_times_have_few_digits() {
        let shorts = [0.0, 0.0123, 1.234, 56.78, 1234.6, -1234.6, 1e300, 1e-9].map(short);
        assert_eq!(shorts, ["0", "0.0123", "1.23", "56.8", "1,235", "−1,235", "1.00e300", "1.00e-9"]);
        let times = [950.0, 1.5e3, 12.34e3, 250e6, 3e9].map(time);
        assert_eq!(times, ["950\u{a0}ns", "1.50\u{a0}µs", "12.3\u{a0}µs", "250\u{a0}ms", "3.00\u{a0}s"]);
        assert_eq!([0.25, 10.0, 1500.0].map(trimmed), ["0.25", "10", "1,500"]);
        assert_eq!([4096.0, 1536.0, 512.0].map(size), ["4\u{a0}KiB", "1.5\u{a0}KiB", "512\u{a0}B"]);
    }

    #[test]
    fn size_spellings_are_parsed() {
        let read = ["4096", "4k", "4 KiB", "64KB", "1M", "2 MiB"].map(|text| read_size(text).unwrap_or(0));
        assert_eq!(read, [4096, 4096, 4096, 65536, 1 << 20, 2 << 20]);
        for none in ["", "k", "4x", "0", "read", "-4k", "99999999999999999999", "18446744073709551615k"] {
            assert_eq!(read_size(none), None, "{none}");
        }
    }

    #[test]
    fn text_is_broken_between_words() {
        assert_eq!(wrapped("short", 5), ["short"]);
        assert_eq!(wrapped("a name of words", 8), ["a name", "of words"]);
        assert_eq!(
            wrapped("read of iscsi://moon:3260/iqn.a:disk/0", 16),
            ["read of iscsi://", "moon:3260/iqn.a:", "disk/0"]
        );
        assert_eq!(wrapped("abcdefgh", 3), ["abc", "def", "gh"]);
        assert_eq!(wrapped("", 3), [""; 0]);
    }
}
