//! Copies that the storage makes by itself.

use lunar_runtime::LocalBoxFuture;
use std::io;

/// The alignment of copies, in bytes: each request of a copy, but the last, is a multiple of it and begins at one.
pub const GRANULE: u64 = 64 << 10;

/// Copies ranges without their bytes passing through this process, as EXTENDED COPY (SPC) does.
pub trait Offload {
    /// The length of one range in bytes, a multiple of [`GRANULE`]. The last range of a source may be shorter.
    fn piece(&self) -> u64;

    /// Copies `len` bytes at `offset` of the source to the same offset of the destination. The caller may ask for the
    /// same range once more after `ConnectionReset`, which leaves open whether the copy was made. After any other
    /// error, the caller reads and writes this range and all others.
    fn copy(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>>;
}
