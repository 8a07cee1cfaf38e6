//! The medium: loaded, started, and kept from removal.

use crate::NexusId;
use std::collections::BTreeSet;
use wire::scsi::Sense;

/// Whether the medium can be reached and removed.
#[derive(Debug, Default)]
pub(crate) struct State {
    ejected: bool,
    stopped: bool,
    /// Nexuses that prevent removal.
    preventing: BTreeSet<NexusId>,
}

impl State {
    /// Why commands that need the medium fail.
    pub(crate) fn not_ready(&self) -> Option<Sense> {
        if self.ejected {
            Some(Sense::NOT_READY_NO_MEDIUM)
        } else if self.stopped {
            Some(Sense::NOT_READY_STOPPED)
        } else {
            None
        }
    }

    /// A nexus went, and its prevention with it (SPC-5 section 6.17).
    pub(crate) fn detach(&mut self, nexus: NexusId) {
        self.preventing.remove(&nexus);
    }

    /// A reset ends every prevention.
    pub(crate) fn reset(&mut self) {
        self.preventing.clear();
    }
}
