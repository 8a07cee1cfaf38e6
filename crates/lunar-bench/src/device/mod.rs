//! What a kernel has before a block device, for disks that no kernel stands before: its page cache, or, where that
//! is passed by, the cutting of large requests.

mod page_cache;
mod request_splitter;

use crate::{OpenTargets, TargetSpec};
use lunar_block::Backend;
use page_cache::PageCacheDisk;
pub use page_cache::{MAX_IN_FLIGHT, PIECE};
use request_splitter::RequestSplitter;
use std::sync::Arc;

/// A disk that the page cache of this host does not stand before.
pub fn is_remote(target: &TargetSpec) -> bool {
    !matches!(target, TargetSpec::Path(_) | TargetSpec::Null(_) | TargetSpec::Memory(_))
}

/// What stands before a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheModel {
    /// A page cache.
    PageCache,
    /// Nothing but the cutting of large requests.
    RequestSplitting,
    /// The same where bytes do not matter, for measuring: of large requests, what is read is dropped and what is
    /// written is zeros.
    RequestSplittingWithoutData,
}

/// Puts before remote disks what a kernel has before a block device. True if there was something to do.
pub fn emulate_block_layer(opened: &mut OpenTargets, target: &TargetSpec, before: CacheModel) -> bool {
    if !is_remote(target) {
        return false;
    }
    opened.wrap(|_, disk| -> Arc<dyn Backend> {
        match before {
            CacheModel::PageCache => Arc::new(PageCacheDisk::new(disk)),
            CacheModel::RequestSplitting => Arc::new(RequestSplitter::new(disk)),
            CacheModel::RequestSplittingWithoutData => Arc::new(RequestSplitter::without_data(disk)),
        }
    });
    true
}

/// Makes what the first session wrote stable, outside of any measurement.
pub fn flush(opened: &OpenTargets) -> Result<(), String> {
    let Some(place) = opened.places.first() else { return Ok(()) };
    let disk = place.disk.clone();
    let flushed = opened.cores.wait(place.core, move || async move { disk.flush().await });
    flushed.and_then(|result| result).map_err(|e| format!("flush: {e}"))
}
