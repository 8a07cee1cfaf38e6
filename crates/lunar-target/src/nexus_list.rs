//! The I_T_L nexuses of a session, which any core can end.

use crate::lu_counters::{LuCounters, LuTotals};
use lunar_scsi::{Lu, Nexus, NexusId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The current I_T_L nexuses of a session. The core of the session maintains the list. If that core is stalled,
/// another core ends the nexuses.
#[derive(Default)]
pub struct NexusList {
    nexuses: Mutex<BTreeMap<NexusId, Arc<Lu>>>,
    counters: Arc<LuCounters>,
}

/// Keeps a nexus in the list until dropped.
pub struct NexusListing {
    list: Arc<NexusList>,
    nexus: NexusId,
}

impl Drop for NexusListing {
    fn drop(&mut self) {
        self.list.lock().remove(&self.nexus);
    }
}

impl NexusList {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NexusId, Arc<Lu>>> {
        self.nexuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts of the commands of the nexuses, and of those that ended.
    pub fn totals(&self) -> LuTotals {
        self.counters.totals()
    }

    /// The counters of the nexuses, and of those that ended.
    pub(crate) fn counters(&self) -> &Arc<LuCounters> {
        &self.counters
    }

    /// Adds a nexus.
    pub fn list(self: &Arc<Self>, nexus: &Nexus) -> NexusListing {
        self.lock().insert(nexus.id(), nexus.lu().clone());
        NexusListing { list: self.clone(), nexus: nexus.id() }
    }

    /// I_T nexus loss (SAM-5 section 6.3.4): the logical units release what they hold for these nexuses, such as
    /// RESERVE and PREVENT ALLOW MEDIUM REMOVAL. The session must not execute any more commands.
    pub fn lose(&self) {
        for (nexus, lu) in std::mem::take(&mut *self.lock()) {
            lu.nexus_lost(nexus);
        }
    }
}
