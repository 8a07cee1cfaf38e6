//! Quiesces a logical unit, so that its settings or its backend can be changed while it is served.

use crate::LogicalUnit;
use crate::task_set_lock::ExclusiveGuard;
use lunar_block::{Backend, BackendKind, BackendSpec};
use lunar_scsi::{CoreIndex, InvalidDefinition, LuSettings};
use std::io;
use std::sync::Arc;

impl LogicalUnit {
    /// Quiesces the logical unit: new commands end with BUSY. When the future resolves, no command runs, and
    /// `flushed` is the result of the final flush. Dropping the future undoes it.
    ///
    /// # Errors
    /// `ResourceBusy` during a SANITIZE operation, which may take days.
    pub async fn quiesce(self: &Arc<Self>) -> io::Result<Quiesced> {
        let sanitizing = || {
            Err(io::Error::new(io::ErrorKind::ResourceBusy, "a SANITIZE operation of the LUN is in progress"))
        };
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

/// A quiesced logical unit: no command runs, and new ones end with BUSY, until this is dropped.
pub struct Quiesced {
    /// The logical unit.
    pub unit: Arc<LogicalUnit>,
    /// The result of the flush; after success all writes are stable.
    pub flushed: io::Result<()>,
    retired: bool,
    alone: Option<ExclusiveGuard>,
}

impl Quiesced {
    /// Changes settings and backend. The state of the initiators is kept. `replaced`: the medium is another one.
    ///
    /// # Errors
    /// The same as for [`Lu::redefine`]. In this case nothing changes.
    pub fn redefine(
        &self,
        settings: LuSettings,
        backend: Arc<dyn Backend>,
        replaced: bool,
    ) -> Result<(), InvalidDefinition> {
        self.unit.replace_backend(backend, |lu| lu.redefine(settings, replaced))
    }

    /// Retires the logical unit: it responds with BUSY until its last session has ended, closes its backend, and
    /// releases its state file.
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
        // Then release the lock for the commands that wait for it.
        self.alone = None;
    }
}

#[cfg(test)]
mod tests;
