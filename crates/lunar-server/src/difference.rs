//! What changes from one configuration to another, told to people.

mod facts;

use crate::config::Config;
use facts::{Fact, Facts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Something that is not in both configurations, or not the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What it is a part of, from the outside in: a target, and a LUN of it.
    pub place: Vec<String>,
    /// What becomes of it.
    #[serde(flatten)]
    pub change: Change,
    /// It comes into effect only when the server is started again.
    pub needs_restart: bool,
}

/// What becomes of a part, or of one of its settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
pub enum Change {
    /// The part is new.
    Added {
        /// What it is, where there is more to tell than its name.
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

/// All that changes when `b` takes the place of `a`, in the order of a configuration. Secrets are compared, and not
/// told.
pub fn diff(a: &Config, b: &Config) -> Vec<Difference> {
    let (a, b) = (Facts::of(a), Facts::of(b));
    let places: BTreeSet<_> = a.0.keys().chain(b.0.keys()).collect();
    let mut differences = Vec::new();
    for place in places {
        let one = |change, needs_restart| Difference { place: place.names(), change, needs_restart };
        match (a.0.get(place), b.0.get(place)) {
            (Some(_), None) => differences.push(one(Change::Removed, place.needs_restart())),
            (None, Some(new)) => {
                let what = new.first().map_or(String::new(), |first| first.shown.clone());
                differences.push(one(Change::Added { what }, place.needs_restart()));
            }
            (Some(old), Some(new)) => {
                let changes = changes(old, new).into_iter();
                differences.extend(
                    changes.map(|(key, change)| one(change, place.needs_restart() || key == "memory")),
                );
            }
            (None, None) => {}
        }
    }
    differences
}

/// What a process does by `new` when it does `before`: what needs a restart stays.
pub fn in_force(before: &Config, new: &Config) -> Config {
    let mut config = new.clone();
    config.server = before.server.clone();
    config.portal_groups = before.portal_groups.clone();
    config.limits.memory = before.limits.memory;
    config
}

/// The settings of a part that are not the same.
fn changes(old: &[Fact], new: &[Fact]) -> Vec<(&'static str, Change)> {
    let find = |list: &[Fact], key| list.iter().find(|fact| fact.key == key).cloned().unwrap_or_default();
    let mut keys: Vec<&'static str> = old.iter().chain(new).map(|fact| fact.key).collect();
    let mut seen = BTreeSet::new();
    keys.retain(|key| seen.insert(*key));
    let pairs = keys.into_iter().map(|key| (key, find(old, key), find(new, key)));
    let differ = pairs.filter(|(_, old, new)| (&old.shown, &old.hidden) != (&new.shown, &new.hidden));
    let change = |(key, old, new): (&'static str, Fact, Fact)| {
        let secret = if old.shown == new.shown { " (with another secret)" } else { "" };
        (key, Change::Changed { key: key.into(), from: old.shown, to: new.shown + secret })
    };
    differ.map(change).collect()
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

#[cfg(test)]
mod tests;
