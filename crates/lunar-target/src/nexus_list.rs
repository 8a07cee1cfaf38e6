//! The I_T_L nexuses of a session, where every core can end them.

use lunar_scsi::{Lu, Nexus, NexusId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The nexuses that a session has now. Its own core lists them; another core ends them when that one does not answer.
#[derive(Default)]
pub struct NexusList(Mutex<BTreeMap<NexusId, Arc<Lu>>>);

/// A nexus is in the list while this lives.
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists a nexus.
    pub fn list(self: &Arc<Self>, nexus: &Nexus) -> NexusListing {
        self.lock().insert(nexus.id(), nexus.lu().clone());
        NexusListing { list: self.clone(), nexus: nexus.id() }
    }

    /// I_T nexus loss (SAM-5 section 6.3.4): what the logical units keep for these nexuses ends, such as RESERVE and PREVENT
    /// ALLOW MEDIUM REMOVAL. Nothing of the session may be under way.
    pub fn lose(&self) {
        for (nexus, lu) in std::mem::take(&mut *self.lock()) {
            lu.nexus_lost(nexus);
        }
    }
}
