//! What a kernel has before a block device, for disks that no kernel stands before: its page cache, or, where that
//! is passed by, the cutting of large requests.

mod burst;
mod stream;

use crate::{OpenTargets, Target};
use burst::Burst;
use lunar_block::Backend;
use std::sync::Arc;
use stream::Stream;
pub use stream::{FLIGHT, PIECE};

/// A disk that the page cache of this host does not stand before.
pub fn is_remote(target: &Target) -> bool {
    !matches!(target, Target::Path(_) | Target::Null(_) | Target::Memory(_))
}

/// What stands before a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Before {
    /// A page cache.
    PageCache,
    /// Nothing but the cutting of large requests.
    Cutting,
    /// The same where bytes do not matter, for measuring: of large requests, what is read is dropped and what is
    /// written is zeros.
    CuttingZeros,
}

/// Puts before remote disks what a kernel has before a block device. True if there was something to do.
pub fn like_a_block_device(rig: &mut OpenTargets, target: &Target, before: Before) -> bool {
    if !is_remote(target) {
        return false;
    }
    rig.wrap(|_, disk| -> Arc<dyn Backend> {
        match before {
            Before::PageCache => Arc::new(Stream::new(disk)),
            Before::Cutting => Arc::new(Burst::carrying(disk)),
            Before::CuttingZeros => Arc::new(Burst::dropping_what_is_read_and_writing_zeros(disk)),
        }
    });
    true
}

/// Makes what the first session wrote stable, outside of any measurement.
pub fn flush(rig: &OpenTargets) -> Result<(), String> {
    let Some(place) = rig.places.first() else { return Ok(()) };
    let disk = place.disk.clone();
    let flushed = rig.cores.wait(place.core, move || async move { disk.flush().await });
    flushed.and_then(|result| result).map_err(|e| format!("flush: {e}"))
}
