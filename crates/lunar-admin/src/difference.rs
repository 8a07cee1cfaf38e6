//! A difference between two configurations, as a server reports it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A difference between two configurations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// Where it is, from the outside in: a target, and a LUN of it.
    pub place: Vec<String>,
    /// What becomes of it.
    #[serde(flatten)]
    pub change: Change,
    /// It takes effect at the next start of the server.
    pub needs_restart: bool,
}

/// The kind of a difference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// The part is new.
    Added {
        /// What it is, if its name does not say that.
        what: String,
    },
    /// The part goes.
    Removed,
    /// One of its settings becomes another.
    Changed {
        /// The setting.
        key: String,
        /// As it was; empty if it was not set. It holds no secret.
        from: String,
        /// As it is to be; empty if it is not set.
        to: String,
    },
}

/// One line.
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
