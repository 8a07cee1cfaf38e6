//! The time of day, and durations, as tools write them.

use std::time::SystemTime;

/// Now, in UTC: `2026/11/20-22:11:51`.
pub fn stamp() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.trim_end_matches('Z').replace('-', "/").replace('T', "-")
}

/// `4m45s`, `5m`, `23m3s`, `2.5s`: a duration in seconds as the seed of 2009 writes it, with a tenth below a
/// minute.
pub fn span(seconds: f64) -> String {
    if seconds < 59.95 {
        return format!("{seconds:.1}s");
    }
    let whole = seconds.round() as u64;
    let (h, m, s) = (whole / 3600, whole / 60 % 60, whole % 60);
    let part = |n: u64, unit: &str| if n > 0 { format!("{n}{unit}") } else { String::new() };
    format!("{}{}{}", part(h, "h"), part(m, "m"), part(s, "s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_looks_as_in_the_seed() {
        let form: String = stamp().chars().map(|c| if c.is_ascii_digit() { '9' } else { c }).collect();
        assert_eq!(form, "9999/99/99-99:99:99");
    }

    #[test]
    fn durations_read_as_those_of_the_seed() {
        let texts = [285.0, 300.0, 1383.2, 2.54, 3600.0].map(span);
        assert_eq!(texts, ["4m45s", "5m", "23m3s", "2.5s", "1h"]);
    }
}
