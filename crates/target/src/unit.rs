//! A served logical unit: the device server's side and the blocks behind it.

use block::Backend;
use device::Lu;
use std::path::PathBuf;
use std::sync::Arc;

/// A logical unit with its backend and the file that keeps its state.
pub struct Unit {
    /// The device server's side.
    pub lu: Arc<Lu>,
    /// The blocks.
    pub backend: Arc<dyn Backend>,
    /// Where reservations with APTPL and saved mode pages are kept; None: not kept.
    pub state_file: Option<PathBuf>,
}
