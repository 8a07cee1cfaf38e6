//! Durations in the notation of command lines, URLs and configuration files.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

const DAY_S: u64 = 86_400;
/// The longest duration that a notation accepts.
const LONGEST: Duration = Duration::from_secs(366 * DAY_S);
/// The shortest duration that [`positive`] accepts.
const SHORTEST: Duration = Duration::from_millis(1);
/// The notation of a duration, for hints.
const FORMS: &str = "write seconds, or a number with a unit: 5, 500ms, 90s, 2m, 1h";

/// The reason why a text is not a duration or a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotationError {
    /// The fault, which quotes the text.
    pub what: String,
    /// The hint: the notation to use.
    pub hint: String,
}

impl fmt::Display for NotationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  hint: {}", self.what, self.hint)
    }
}

impl std::error::Error for NotationError {}

/// Parses a duration within `range`: seconds such as `5` and `0.5`, or numbers with units such as `500ms`, `90s`, `2m`,
/// `1h 30m`.
///
/// # Errors
/// The text is not a duration, or the duration is out of range.
pub fn within(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, NotationError> {
    let seconds = text.parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    let Some(time) = seconds.or_else(|| humantime::parse_duration(text).ok()) else {
        return Err(NotationError {
            what: format!("\"{}\" is not a time", text.escape_debug()),
            hint: FORMS.into(),
        });
    };
    if range.contains(&time) {
        return Ok(time);
    }
    let what = format!("the time \"{}\" is out of range", text.escape_debug());
    Err(NotationError { what, hint: format!("use {} to {}", show(*range.start()), show(*range.end())) })
}

/// Parses a duration of at least 1 ms and at most 366 days.
///
/// # Errors
/// The same as for [`within`].
pub fn positive(text: &str) -> Result<Duration, NotationError> {
    within(text, SHORTEST..=LONGEST)
}

/// Parses a duration from 0 to 366 days.
///
/// # Errors
/// The same as for [`within`].
pub fn any(text: &str) -> Result<Duration, NotationError> {
    within(text, Duration::ZERO..=LONGEST)
}

/// Formats a duration so that [`within`] parses it.
pub fn show(time: Duration) -> String {
    match (time.as_secs(), time.subsec_nanos()) {
        (s, 0) if s > 0 && s.is_multiple_of(DAY_S) => format!("{}d", s / DAY_S),
        _ => humantime::format_duration(time).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_seconds_or_have_units() {
        for (text, ms) in [
            ("5", 5000),
            ("0.5", 500),
            ("5s", 5000),
            ("500ms", 500),
            ("2m", 120_000),
            ("1h 30m", 5_400_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(positive(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(any("0"), Ok(Duration::ZERO));
    }

    #[test]
    fn invalid_duration_is_rejected_with_the_notation() {
        for text in ["", "5x", "-1", "soon", "NaN", "inf", "ms"] {
            let unfit = any(text).expect_err(text);
            assert_eq!(unfit.to_string(), format!("\"{text}\" is not a time\n  hint: {FORMS}"));
        }
    }

    #[test]
    fn duration_out_of_range_is_rejected_with_the_range() {
        for (text, range) in [("0", positive as fn(&str) -> _), ("9000000000", any)]
            .map(|(text, read)| (text, read(text).expect_err(text).to_string()))
        {
            assert!(range.starts_with(&format!("the time \"{text}\" is out of range")), "{range}");
            assert!(range.ends_with("to 366d"), "{range}");
        }
    }

    #[test]
    fn formatted_duration_parses_back() {
        for ms in [1, 500, 1500, 90_000, 86_400_000, 30 * 86_400_000] {
            let time = Duration::from_millis(ms);
            assert_eq!(any(&show(time)), Ok(time));
        }
    }
}
