//! The work that the commands of an I/O queue make: it decides which queue takes a command.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The sum of the weights of commands that have not ended.
#[derive(Debug, Default)]
pub struct LoadCounter(AtomicU64);

impl LoadCounter {
    /// The sum.
    pub fn sum(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds a weight until the returned value is dropped.
    pub fn add(self: &Arc<Self>, weight: u64) -> QueueLoad {
        self.0.fetch_add(weight, Ordering::Relaxed);
        QueueLoad(Some((self.clone(), weight)))
    }
}

/// The weight of a command, counted until this is dropped. The default counts nothing.
#[derive(Debug, Default)]
pub struct QueueLoad(Option<(Arc<LoadCounter>, u64)>);

impl Drop for QueueLoad {
    fn drop(&mut self) {
        if let Some((counter, weight)) = &self.0 {
            counter.0.fetch_sub(*weight, Ordering::Relaxed);
        }
    }
}
