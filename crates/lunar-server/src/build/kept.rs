//! Memory disks that a change on trial has removed. A rollback restores them with their data. Until then, hosts
//! cannot reach them.

use super::{OpenUnit, UnitName, Units, same_backend};
use crate::config::LunConfig;
use lunar_block::DataLifetime;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct TrialMemory {
    is_on_trial: bool,
    open: BTreeMap<UnitName, OpenUnit>,
}

impl TrialMemory {
    pub(super) fn is_on_trial(&self) -> bool {
        self.is_on_trial
    }

    /// The memory that a LUN had before the trial.
    pub(super) fn find(&self, name: &UnitName, lun: &LunConfig) -> Option<&OpenUnit> {
        self.open.get(name).filter(|open| same_backend(&open.lun, lun))
    }

    /// Keeps the memory of removed units that no other unit uses. For each name, the first one counts: it precedes
    /// the trial.
    pub(super) fn keep(&mut self, left: BTreeMap<UnitName, OpenUnit>, open: &BTreeMap<UnitName, OpenUnit>) {
        let is_used =
            |one: &OpenUnit| open.values().any(|o| Arc::ptr_eq(&o.medium.blocks, &one.medium.blocks));
        let is_memory = |one: &OpenUnit| one.lun.source.data_lifetime() == DataLifetime::Process;
        let kept = left.into_iter().filter(|(_, one)| self.is_on_trial && is_memory(one) && !is_used(one));
        for (name, one) in kept {
            self.open.entry(name).or_insert(one);
        }
    }
}

impl Units {
    /// Starts a trial: from now on, removed memory is kept for a rollback.
    pub fn begin_trial(&mut self) {
        self.kept.is_on_trial = true;
    }

    /// Ends the trial, and frees the kept memory and the state that moved units had at their former places.
    pub fn end_trial(&mut self) {
        self.kept = TrialMemory::default();
        self.remove_former();
    }
}
