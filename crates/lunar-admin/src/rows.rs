//! Tables, durations and times for people.

/// A header and rows with aligned columns. A column of numbers has a `>` before its name, and is aligned right.
pub fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let is_right = head.map(|name| name.starts_with('>'));
    let head = head.map(|name| name.trim_start_matches('>').to_owned());
    let rows: Vec<[String; N]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(&widths).zip(is_right).map(|((cell, width), is_right)| match is_right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_string() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Lines of a name and a value, with the values aligned.
pub fn lines(pairs: &[[String; 2]]) -> String {
    let width = pairs.iter().map(|[name, _]| name.chars().count()).max().unwrap_or(0);
    pairs.iter().map(|[name, value]| format!("{name:width$}  {value}\n")).collect()
}

/// Escapes control characters: names come from peers, and a terminal would interpret them. Quotes stay as they are.
pub fn shown(text: &str) -> String {
    text.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

/// A duration in its two largest units.
pub fn duration(s: u64) -> String {
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m {}s", s / 60, s % 60),
        3600..86400 => format!("{}h {}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {}h", s / 86400, s % 86400 / 3600),
    }
}

/// Seconds since 1970 as `2026-11-22T10:30:00Z`.
pub fn utc(s: u64) -> String {
    let moment = std::time::UNIX_EPOCH + std::time::Duration::from_secs(s);
    humantime::format_rfc3339_seconds(moment).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_right_under_their_names() {
        let rows = [["a", "5", "x"], ["bcd", "1024", ""]].map(|row| row.map(String::from));
        let text = table(["NAME", ">LUNS", "REST"], rows.into_iter());
        assert_eq!(text, "NAME  LUNS  REST\na        5  x\nbcd   1024\n");
    }

    #[test]
    fn shown_text_keeps_quotes_and_has_no_control_characters() {
        assert_eq!(shown("a = \"b\" 'c'\u{1b}\n"), "a = \"b\" 'c'\\u{1b}\\n");
    }

    #[test]
    fn durations_and_moments() {
        assert_eq!([5, 3599, 3600, 90000].map(duration), ["5s", "59m 59s", "1h 0m", "1d 1h"]);
        assert_eq!(utc(1_795_343_400), "2026-11-22T10:30:00Z");
    }
}
