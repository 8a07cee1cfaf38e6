//! Memory that a change on trial has removed: a roll-back brings it back with its data. Hosts do not reach it meanwhile.

use super::{Name, OpenUnit, Units, same_way};
use crate::config::{LunConfig, Source};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct TrialMemory {
    is_on_trial: bool,
    open: BTreeMap<Name, OpenUnit>,
}

impl TrialMemory {
    /// The memory that a LUN had before the trial.
    pub(super) fn find(&self, name: &Name, lun: &LunConfig) -> Option<&OpenUnit> {
        self.open.get(name).filter(|open| same_way(&open.lun, lun))
    }

    /// Of the units that left, the memory that no other has. The first of a name is the one of before the trial.
    pub(super) fn keep(&mut self, left: BTreeMap<Name, OpenUnit>, open: &BTreeMap<Name, OpenUnit>) {
        let is_used =
            |one: &OpenUnit| open.values().any(|o| Arc::ptr_eq(&o.medium.blocks, &one.medium.blocks));
        let is_memory = |one: &OpenUnit| matches!(one.lun.source, Source::Memory { .. });
        let kept = left.into_iter().filter(|(_, one)| self.is_on_trial && is_memory(one) && !is_used(one));
        for (name, one) in kept {
            self.open.entry(name).or_insert(one);
        }
    }
}

impl Units {
    /// From now on, memory that a change removes is kept, so that a roll-back has its data.
    pub fn begin_trial(&mut self) {
        self.kept.is_on_trial = true;
    }

    /// Nothing is rolled back any more: memory that was kept is freed.
    pub fn end_trial(&mut self) {
        self.kept = TrialMemory::default();
    }
}
