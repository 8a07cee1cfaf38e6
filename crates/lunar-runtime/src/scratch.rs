//! Where a core receives what has no place of its own yet.

use crate::Buf;
use std::cell::RefCell;

/// Bytes of one receive: what is copied from here once more is still in the cache.
pub const SCRATCH: usize = 256 << 10;

thread_local! {
    /// It begins with a page, as what is received mostly does. Memory of an allocator begins a few bytes behind that, and
    /// to there some processors (AMD's Zen 3) copy five times slower.
    static BUFFER: RefCell<Buf> = RefCell::new(Buf::zeroed(SCRATCH));
}

/// Does something with this thread's [`SCRATCH`] bytes, of unspecified content. Page-aligned.
pub fn with_scratch<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with(|buffer| match buffer.try_borrow_mut() {
        Ok(mut buffer) => work(&mut buffer),
        // Who receives while something that was received is handed over.
        Err(_) => work(&mut Buf::zeroed(SCRATCH)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_a_page_and_is_nobody_elses() {
        let place = |bytes: &mut [u8]| (bytes.as_ptr() as usize, bytes.len());
        let (outer, inner) = with_scratch(|bytes| (place(bytes), with_scratch(place)));
        assert_eq!((outer.0 % 4096, outer.1, inner.0 % 4096, inner.1), (0, SCRATCH, 0, SCRATCH));
        assert_ne!(outer.0, inner.0);
        assert_eq!(with_scratch(place), outer, "it is there once");
    }
}
