//! The history of a configuration: the trees that a server applied, and references to them.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// An applied tree that the server keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryEntry {
    /// Its number, from 1. Later trees have larger numbers, also after a restart.
    pub number: u64,
    /// When it was applied (RFC 3339).
    pub time: String,
    /// The cause.
    pub cause: ApplyCause,
    /// The user and process that requested it, as in the log; null at a start, for SIGHUP, and for a trial whose time
    /// is over.
    pub asker: Option<String>,
    /// The first file of the configuration.
    pub file: String,
}

/// The cause of the application of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ApplyCause {
    /// The start of the server.
    Start,
    /// The server read its own files again.
    Reload,
    /// A configuration was applied by its name, or on trial.
    Apply,
    /// The API changed an object.
    Change,
    /// A return to an earlier tree.
    Rollback,
}

impl ApplyCause {
    /// The word of the API.
    pub fn name(self) -> &'static str {
        match self {
            ApplyCause::Start => "start",
            ApplyCause::Reload => "reload",
            ApplyCause::Apply => "apply",
            ApplyCause::Change => "change",
            ApplyCause::Rollback => "rollback",
        }
    }
}

/// A tree with its entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HistoryTree {
    /// The entry.
    #[serde(flatten)]
    pub entry: HistoryEntry,
    /// The tree as one TOML text, in the form of `/v1/config`. It has no secrets, only the names of their files.
    pub toml: String,
}

/// A reference to an entry: its number, or a time at which its tree was in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryPoint {
    /// The number.
    Number(u64),
    /// The time.
    Time(SystemTime),
}

/// A text that refers to no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHistoryPoint;

impl fmt::Display for InvalidHistoryPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a number of lunar history, or a time such as 2026-11-28T10:00:00Z")
    }
}

impl std::error::Error for InvalidHistoryPoint {}

impl FromStr for HistoryPoint {
    type Err = InvalidHistoryPoint;

    fn from_str(text: &str) -> Result<HistoryPoint, InvalidHistoryPoint> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(HistoryPoint::Number).map_err(|_| InvalidHistoryPoint);
        }
        humantime::parse_rfc3339(text).map(HistoryPoint::Time).map_err(|_| InvalidHistoryPoint)
    }
}

impl fmt::Display for HistoryPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HistoryPoint::Number(number) => write!(f, "entry {number}"),
            HistoryPoint::Time(time) => write!(f, "{}", humantime::format_rfc3339_seconds(*time)),
        }
    }
}

impl HistoryPoint {
    /// The entry of `entries`, the newest first. At a time, it is the last one applied until then.
    pub fn find(self, entries: &[HistoryEntry]) -> Option<&HistoryEntry> {
        match self {
            HistoryPoint::Number(number) => entries.iter().find(|entry| entry.number == number),
            // Entries have whole seconds.
            HistoryPoint::Time(time) => entries
                .iter()
                .find(|entry| humantime::parse_rfc3339(&entry.time).is_ok_and(|applied| applied <= time)),
        }
    }

    /// The second of this moment, as the time of an entry.
    pub fn now() -> String {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        crate::rows::utc(since.as_secs())
    }
}

/// A return to an earlier tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RollbackRequest {
    /// The number of the entry.
    pub to: u64,
    /// The version of the configuration for which the rollback is meant; None: any.
    pub version: Option<String>,
    /// Checks the rollback and reports its effects, without changing anything.
    pub dry_run: bool,
    /// Removes objects that hosts use.
    pub force: bool,
    /// Seconds until the unconfirmed rollback is undone; None: it is permanent.
    pub confirm_within_s: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u64, time: &str) -> HistoryEntry {
        let (cause, file) = (ApplyCause::Start, String::new());
        HistoryEntry { number, time: time.into(), cause, asker: None, file }
    }

    #[test]
    fn point_is_a_number_or_a_time() {
        assert_eq!("12".parse(), Ok(HistoryPoint::Number(12)));
        let time = UNIX_EPOCH + Duration::from_secs(1_795_343_400);
        assert_eq!("2026-11-22T10:30:00Z".parse(), Ok(HistoryPoint::Time(time)));
        for text in ["", "-1", "1h", "99999999999999999999", "2026-11-22", "2026-13-22T10:30:00Z"] {
            assert_eq!(text.parse::<HistoryPoint>(), Err(InvalidHistoryPoint), "{text}");
        }
    }

    #[test]
    fn time_finds_the_tree_in_force_then() {
        let entries = [entry(7, "2026-11-22T10:30:05Z"), entry(6, "2026-11-22T10:30:00Z")];
        let found = |text: &str| {
            let point: HistoryPoint = text.parse().unwrap();
            point.find(&entries).map(|entry| entry.number)
        };
        assert_eq!(found("2026-11-22T10:30:04Z"), Some(6));
        assert_eq!(found("2026-11-22T10:30:05.5Z"), Some(7));
        assert_eq!(found("2026-11-22T10:29:59Z"), None);
        assert_eq!([found("6"), found("8")], [Some(6), None]);
    }

    #[test]
    fn entry_without_an_asker_has_null() {
        let text = serde_json::to_string(&entry(1, "t")).unwrap();
        assert_eq!(text, r#"{"number":1,"time":"t","cause":"start","asker":null,"file":""}"#);
        assert_eq!(serde_json::from_str::<HistoryEntry>(&text).unwrap(), entry(1, "t"));
        assert_eq!(serde_json::to_string(&ApplyCause::Rollback).unwrap(), "\"rollback\"");
        assert_eq!(ApplyCause::Rollback.name(), "rollback");
    }
}
