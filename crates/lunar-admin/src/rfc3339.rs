//! Points in time as JSON: RFC 3339 in UTC. The modules are for `#[serde(with)]`.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::time::UNIX_EPOCH;

/// Seconds since 1970 of a text.
fn parse<'de, D: Deserializer<'de>>(text: &str) -> Result<f64, D::Error> {
    let time = humantime::parse_rfc3339(text).map_err(D::Error::custom)?;
    Ok(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64())
}

/// Whole seconds since 1970 as `2026-11-22T10:30:00Z`.
pub mod seconds {
    use super::*;
    use serde::Serializer;

    /// Writes the text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(s: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&crate::rows::utc(*s))
    }

    /// The forms of a time. Attachments of older versions have the number.
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Time {
        Text(String),
        Seconds(u64),
    }

    /// Reads the text.
    ///
    /// # Errors
    /// When it is no time.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Time::deserialize(from)? {
            Time::Text(text) => parse::<D>(&text).map(|s| s as u64),
            Time::Seconds(s) => Ok(s),
        }
    }
}

/// Seconds since 1970 as `2026-11-22T10:30:00.250Z`.
pub mod milliseconds {
    use super::*;
    use serde::Serializer;
    use std::time::Duration;

    /// Writes the text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(s: &f64, to: S) -> Result<S::Ok, S::Error> {
        let time = UNIX_EPOCH + Duration::try_from_secs_f64(*s).unwrap_or_default();
        to.collect_str(&humantime::format_rfc3339_millis(time))
    }

    /// Reads the text.
    ///
    /// # Errors
    /// When it is no time.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
        parse::<D>(&String::deserialize(from)?)
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Times {
        #[serde(with = "super::seconds")]
        whole: u64,
        #[serde(with = "super::milliseconds")]
        exact: f64,
    }

    #[test]
    fn times_are_text_in_utc() {
        let text = r#"{"whole":"2026-11-22T10:30:00Z","exact":"2026-11-22T10:30:00.250Z"}"#;
        let times = Times { whole: 1_795_343_400, exact: 1_795_343_400.25 };
        assert_eq!(serde_json::to_string(&times).unwrap(), text);
        assert_eq!(serde_json::from_str::<Times>(text).unwrap(), times);
        let older = text.replace("\"2026-11-22T10:30:00Z\"", "1795343400");
        assert_eq!(serde_json::from_str::<Times>(&older).unwrap(), times);
        assert!(serde_json::from_str::<Times>(&text.replace("10:30", "30:10")).is_err());
    }
}
