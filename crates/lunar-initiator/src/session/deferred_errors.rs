//! Deferred errors (SPC-5 section 4.4.7): acknowledged data are lost.

use super::event::lock;
use lunar_wire::scsi::Sense;
use std::collections::HashMap;
use std::sync::Mutex;

/// The last deferred error of each LUN. Any command may return one. The next flush reports it, as fsync does for a
/// file.
#[derive(Default)]
pub struct DeferredErrors(Mutex<HashMap<u64, Sense>>);

impl DeferredErrors {
    pub fn note(&self, lun: u64, sense: Sense) {
        lock(&self.0).insert(lun, sense);
    }

    pub fn take(&self, lun: u64) -> Option<Sense> {
        lock(&self.0).remove(&lun)
    }
}
