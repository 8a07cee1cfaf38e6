//! Formats the time of day and durations like other tools.

use std::time::SystemTime;

/// Now, in UTC: `2026/11/20-22:11:51`.
pub fn stamp() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.trim_end_matches('Z').replace('-', "/").replace('T', "-")
}

/// Formats a duration in seconds as in the publication of 2009, with at least three digits for short ones:
/// `4m45s`, `5m`, `23m3s`, `2.54s`.
pub fn span(seconds: f64) -> String {
    if seconds < 59.95 {
        // One decimal from 10 s, two from 1 s, and so on, down to microseconds.
        let digits = (1..6).find(|digits| seconds >= 10f64.powi(2 - digits)).unwrap_or(6);
        return format!("{seconds:.*}s", digits as usize);
    }
    let tenths = if seconds < 99.95 { (seconds * 10.0).round() / 10.0 } else { seconds.round() };
    let (whole, part_s) = (tenths as u64, ((tenths * 10.0).round() as u64) % 10);
    let (h, m, s) = (whole / 3600, whole / 60 % 60, whole % 60);
    let part = |n: u64, unit: &str| if n > 0 { format!("{n}{unit}") } else { String::new() };
    let last = if part_s > 0 { format!("{s}.{part_s}s") } else { part(s, "s") };
    format!("{}{}{last}", part(h, "h"), part(m, "m"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_has_the_published_format() {
        let form: String = stamp().chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        assert_eq!(form, "9999/99/99-99:99:99");
    }

    #[test]
    fn durations_have_the_published_format() {
        let texts = [285.0, 300.0, 1383.2, 3600.0, 99.96, 119.7].map(span);
        assert_eq!(texts, ["4m45s", "5m", "23m3s", "1h", "1m40s", "2m"]);
    }

    #[test]
    fn short_duration_has_three_digits() {
        let texts = [2.543, 0.1234, 0.012_34, 0.000_123_4, 0.0, 12.34, 59.97, 63.44].map(span);
        let expected = ["2.54s", "0.123s", "0.0123s", "0.000123s", "0.000000s", "12.3s", "1m", "1m3.4s"];
        assert_eq!(texts, expected);
    }
}
