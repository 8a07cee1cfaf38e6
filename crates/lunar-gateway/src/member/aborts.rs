//! The nexuses whose tasks other members have aborted a moment ago. A command that waits for its turn to publish a change
//! must not make it after that.

use lunar_scsi::{InstalledEffects, NexusId};
use std::collections::VecDeque;

/// Number of aborts that are remembered.
const MAX: usize = 64;

#[derive(Default)]
pub struct RecentAborts {
    /// The versions of the changes, with the nexuses; None stands for all.
    all: VecDeque<(u64, Option<Vec<NexusId>>)>,
    /// The latest version that is not remembered any more.
    forgotten: u64,
}

impl RecentAborts {
    /// Adds the effects of a change.
    pub fn add(&mut self, version: u64, effects: &InstalledEffects) {
        let nexuses = if effects.aborts_all { None } else { Some(effects.victims.clone()) };
        if nexuses.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        self.all.push_back((version, nexuses));
        if self.all.len() > MAX {
            self.forgotten = self.all.pop_front().map_or(0, |(version, _)| version);
        }
    }

    /// Whether a change after `began` has aborted the tasks of this nexus.
    pub fn include(&self, nexus: NexusId, began: u64) -> bool {
        let has = |nexuses: &Option<Vec<NexusId>>| nexuses.as_ref().is_none_or(|all| all.contains(&nexus));
        began < self.forgotten || self.all.iter().any(|(version, nexuses)| *version > began && has(nexuses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_aborted_by_later_changes_only() {
        let nexus = |n| NexusId(n);
        let mut aborts = RecentAborts::default();
        aborts.add(1, &InstalledEffects::default());
        aborts.add(3, &InstalledEffects { victims: vec![nexus(1)], aborts_all: false });
        assert!(aborts.include(nexus(1), 2) && !aborts.include(nexus(1), 3));
        assert!(!aborts.include(nexus(2), 0));
        aborts.add(5, &InstalledEffects { victims: Vec::new(), aborts_all: true });
        assert!(aborts.include(nexus(2), 4) && !aborts.include(nexus(2), 5));
        for version in 6..=70 {
            aborts.add(version, &InstalledEffects { victims: vec![nexus(3)], aborts_all: false });
        }
        // Nothing is known of the changes before the remembered ones.
        assert!(aborts.include(nexus(2), 4) && !aborts.include(nexus(2), 8));
    }
}
