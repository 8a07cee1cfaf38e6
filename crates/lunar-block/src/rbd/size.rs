//! The size of an image that other clients resize.

use crate::locked;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// The size of an image, and the number of changes of its header: of the size, of snapshots.
pub struct ImageSize {
    bytes: AtomicU64,
    changes: AtomicU64,
    /// The number of changes at which a read of the size began. The size is as new or newer.
    read_at: AtomicU64,
    /// Held while a size is stored.
    storing: Mutex<()>,
}

/// The state for which a range is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSize {
    pub bytes: u64,
    changes: u64,
}

impl ImageSize {
    /// No change is known.
    pub fn new() -> ImageSize {
        let zero = || AtomicU64::new(0);
        ImageSize { bytes: zero(), changes: zero(), read_at: zero(), storing: Mutex::default() }
    }

    /// Records a change of the header.
    pub fn has_changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// The last size that was read.
    pub fn known(&self) -> KnownSize {
        // In this order: the size may be newer than the changes, and not older.
        let changes = self.read_at.load(Ordering::SeqCst);
        KnownSize { bytes: self.bytes.load(Ordering::SeqCst), changes }
    }

    /// Whether the header has not changed since that size was read.
    pub fn is_current(&self, known: KnownSize) -> bool {
        self.changes.load(Ordering::SeqCst) == known.changes
    }

    /// Reads the size. After a failure, the known size is as old as before.
    pub fn read(&self, read: impl FnOnce() -> io::Result<u64>) -> io::Result<u64> {
        let changes = self.changes.load(Ordering::SeqCst);
        let bytes = read()?;
        let _storing = locked(&self.storing);
        // Another thread may have begun later, and ended earlier.
        if changes >= self.read_at.load(Ordering::SeqCst) {
            self.bytes.store(bytes, Ordering::SeqCst);
            self.read_at.store(changes, Ordering::SeqCst);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(size: &ImageSize, bytes: u64) {
        assert_eq!(size.read(|| Ok(bytes)).ok(), Some(bytes));
    }

    #[test]
    fn size_that_was_read_before_a_change_is_not_current() {
        let size = ImageSize::new();
        read(&size, 64);
        let known = size.known();
        assert!(known.bytes == 64 && size.is_current(known));
        size.has_changed();
        assert!(!size.is_current(known), "the image shrinks after the check");
        let late = size.known();
        assert!(
            late.bytes == 64 && !size.is_current(late),
            "the check comes after the change, with the old size"
        );
        read(&size, 32);
        assert!(size.known().bytes == 32 && size.is_current(size.known()) && !size.is_current(known));
    }

    #[test]
    fn change_during_a_read_leaves_the_size_old() {
        let size = ImageSize::new();
        let seen = size.read(|| {
            size.has_changed();
            Ok(64)
        });
        assert!(seen.is_ok() && !size.is_current(size.known()));
    }

    #[test]
    fn failed_read_leaves_the_size_old() {
        let size = ImageSize::new();
        read(&size, 64);
        size.has_changed();
        assert!(size.read(|| Err(io::ErrorKind::TimedOut.into())).is_err());
        assert!(size.known().bytes == 64 && !size.is_current(size.known()));
    }

    #[test]
    fn read_that_ends_late_keeps_the_newer_size() {
        let size = ImageSize::new();
        let old = size.read(|| {
            size.has_changed();
            read(&size, 32);
            Ok(64)
        });
        assert!(old.is_ok() && size.known().bytes == 32 && size.is_current(size.known()));
    }
}
