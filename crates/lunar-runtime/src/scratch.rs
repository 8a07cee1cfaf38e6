//! The shared receive buffer of a core.

use crate::Buf;
use std::cell::RefCell;

/// Bytes of one receive, small enough that a copy from here hits the cache.
pub const SCRATCH: usize = 256 << 10;

thread_local! {
    /// Page-aligned. Memory of the allocator starts a few bytes behind a page, and AMD's Zen 3 copies to such
    /// addresses five times slower.
    static BUFFER: RefCell<Buf> = RefCell::new(Buf::zeroed(SCRATCH));
}

/// Runs `work` on this thread's page-aligned buffer of [`SCRATCH`] bytes of unspecified content.
pub fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => work(&mut buffer),
        // Nested: `work` itself receives.
        Err(_) => work(&mut Buf::zeroed(SCRATCH)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_page_aligned_and_exclusive() {
        let place = |bytes: &mut [u8]| (bytes.as_ptr() as usize, bytes.len());
        let (outer, inner) = with_scratch(|bytes| (place(bytes), with_scratch(place)));
        assert_eq!((outer.0 % 4096, outer.1, inner.0 % 4096, inner.1), (0, SCRATCH, 0, SCRATCH));
        assert_ne!(outer.0, inner.0);
        assert_eq!(with_scratch(place), outer, "each thread has one buffer");
    }
}
