//! A unit at rest: how what it is made of changes under its initiators.

use crate::LogicalUnit;
use crate::task_set_lock::ExclusiveGuard;
use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_scsi::{CoreIndex, InvalidDefinition, LuSettings};
use std::io;
use std::sync::Arc;

impl LogicalUnit {
    /// Brings the unit to rest: from now on commands are answered BUSY, and when this ends none runs, and
    /// what was written is stable as far as `flushed` tells. When the future is dropped, it was nothing.
    ///
    /// # Errors
    /// `ResourceBusy` while a SANITIZE operation is under way: it may take days.
    pub async fn quiesce(self: &Arc<Self>) -> io::Result<Quiesced> {
        let sanitizing = || Err(io::Error::new(io::ErrorKind::ResourceBusy, "it is being sanitized"));
        if self.lu.is_sanitizing() {
            return sanitizing();
        }
        self.lu.set_busy(true);
        let mut quiesced = Quiesced { unit: self.clone(), flushed: Ok(()), retired: false, alone: None };
        quiesced.alone = Some(self.task_set.handle(CoreIndex::current()).lock_exclusive().await);
        if self.lu.is_sanitizing() {
            return sanitizing();
        }
        quiesced.flushed = self.backend().flush().await;
        Ok(quiesced)
    }
}

/// A unit at rest: no command runs, and new ones are answered BUSY, until this is dropped.
pub struct Quiesced {
    /// The unit.
    pub unit: Arc<LogicalUnit>,
    /// Whether all that was written is stable.
    pub flushed: io::Result<()>,
    retired: bool,
    alone: Option<ExclusiveGuard>,
}

impl Quiesced {
    /// The unit goes on with these settings and blocks; what it knows of its initiators stays. `replaced`:
    /// these are other blocks than before.
    ///
    /// # Errors
    /// As [`Lu::redefine`]; nothing changes then.
    pub fn redefine(
        &self,
        settings: LuSettings,
        backend: Arc<dyn Backend>,
        replaced: bool,
    ) -> Result<(), InvalidDefinition> {
        self.unit.replace_backend(backend, |lu| lu.redefine(settings, replaced))
    }

    /// The unit serves nobody any more: it answers BUSY until the last session has noticed, lets go of its
    /// blocks, and leaves its state file to others.
    pub fn retire(mut self) {
        self.retired = true;
        self.unit.leave_state_file();
        if let Ok(nothing) = lunar_block::open(&BackendSpec::sized(BackendKind::Null, 1)) {
            _ = self.unit.replace_backend(nothing, |_| Ok::<(), InvalidDefinition>(()));
        }
    }
}

impl Drop for Quiesced {
    fn drop(&mut self) {
        if !self.retired {
            self.unit.lu.set_busy(false);
        }
        // Then the gate opens, to commands that have waited there.
        self.alone = None;
    }
}

#[cfg(test)]
mod tests;
