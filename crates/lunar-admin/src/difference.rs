//! A difference between two configurations, as a server reports it.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// A difference between two configurations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Difference {
    /// Its place, outermost first: a target, then a LUN of it.
    pub place: Vec<String>,
    /// The change.
    #[serde(flatten)]
    pub change: Change,
    /// Whether it takes effect only at the next start of the server.
    pub needs_restart: bool,
}

/// The kind of a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// The object is new.
    Added {
        /// The kind of object, if the name does not show it.
        what: String,
    },
    /// The object is removed.
    Removed,
    /// A setting changes.
    Changed {
        /// The setting.
        key: String,
        /// The old value; empty if it was not set. Never a secret.
        from: String,
        /// The new value; empty if it is not set.
        to: String,
    },
}

/// A difference on one line.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place.join(": "))?;
        let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
        match &self.change {
            Change::Added { what } if what.is_empty() => f.write_str("added")?,
            Change::Added { what } => write!(f, "added: {what}")?,
            Change::Removed => f.write_str("removed")?,
            Change::Changed { key, from, to } => {
                write!(f, "{key} from {} to {}", or_none(from), or_none(to))?
            }
        }
        if self.needs_restart { f.write_str(" (needs a restart)") } else { Ok(()) }
    }
}
