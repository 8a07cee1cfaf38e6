//! Serialization of a duration in seconds: a whole number if possible.

use serde::{Deserialize, Deserializer, Serializer, de};
use std::time::Duration;

pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    match time.subsec_nanos() {
        0 => serializer.serialize_u64(time.as_secs()),
        _ => serializer.serialize_f64(time.as_secs_f64()),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(de::Error::custom)
}
