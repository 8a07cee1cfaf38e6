//! Emulates the kernel's block layer for disks that the kernel does not serve: its page cache, or, for direct
//! I/O, the splitting of large requests.

mod page_cache;
mod request_splitter;

use crate::{OpenTargets, TargetSpec};
use lunar_block::Backend;
use page_cache::PageCacheDisk;
pub use page_cache::{MAX_IN_FLIGHT, PIECE};
use request_splitter::RequestSplitter;
use std::sync::Arc;

/// Whether the page cache of this host does not apply to a target.
pub fn is_remote(target: &TargetSpec) -> bool {
    match target {
        TargetSpec::Lun(_) | TargetSpec::Nbd(_) | TargetSpec::Nvme(_) | TargetSpec::Rbd(_) => true,
        TargetSpec::Path(_) | TargetSpec::InProcess(..) => false,
    }
}

/// The emulated part of the block layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheModel {
    /// The page cache.
    PageCache,
    /// Splitting of large requests only.
    RequestSplitting,
    /// Splitting without the data, for measurements only: of split requests, read data is dropped and written
    /// data is zeros.
    RequestSplittingWithoutData,
}

/// Emulates the block layer on top of remote disks. Returns whether it did.
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

/// Flushes the writes of the first session, outside of any measurement.
pub fn flush(opened: &OpenTargets) -> Result<(), String> {
    let Some(place) = opened.target_sessions.first() else { return Ok(()) };
    let disk = place.disk.clone();
    let flushed = opened.cores.wait(place.core, move || async move { disk.flush().await });
    flushed.and_then(|result| result).map_err(|e| format!("flush failed: {e}"))
}
