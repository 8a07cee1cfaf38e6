//! Copies that the storage executes itself.

use lunar_runtime::LocalBoxFuture;
use std::io;

/// The alignment of copies in bytes. The offset of each request is a multiple of it, and so is the length of all but the
/// last.
pub const GRANULE: u64 = 64 << 10;

/// Copies ranges without their bytes passing through this process, as EXTENDED COPY (SPC) does.
pub trait Offload {
    /// The length of one range in bytes, a multiple of [`GRANULE`]. The last range of a source may be shorter.
    fn piece(&self) -> u64;

    /// Copies `len` bytes at `offset` of the source to the same offset of the destination. `ConnectionReset` means that
    /// the result is unknown, and the caller may repeat the request once. After any other error, the caller copies this
    /// range and all later ones by reads and writes.
    fn copy(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>>;
}
