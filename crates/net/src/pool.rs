//! A bounded supply of buffers. The bound is shared by all cores; free buffers are kept per core, in power-of-two
//! sizes, most recently used first, so that they are warm.

use crate::buf::{Buf, PAGE, Pages, pages};
use event_listener::Event;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Size classes: 4 KiB << 0 to 4 KiB << 13 (32 MiB).
const CLASSES: usize = 14;
/// Bytes of free buffers that a core keeps per class.
const KEEP_BYTES: usize = 4 << 20;

thread_local! {
    static FREE: RefCell<[Vec<Pages>; CLASSES]> = const { RefCell::new([const { Vec::new() }; CLASSES]) };
}

struct Account {
    limit: usize,
    used: AtomicUsize,
    returned: Event,
}

/// A supply of buffers with a limit on the bytes in use.
#[derive(Clone)]
pub struct Pool(Arc<Account>);

/// Where a pooled buffer goes when it is dropped.
pub(crate) struct Home(Arc<Account>);

fn class_of(len: usize) -> usize {
    len.div_ceil(PAGE).max(1).next_power_of_two().trailing_zeros() as usize
}

impl Pool {
    /// The largest buffer in bytes.
    pub const MAX_BUFFER: usize = PAGE << (CLASSES - 1);

    /// A pool of at most `limit` bytes in use; never less than one largest buffer.
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(Self::MAX_BUFFER);
        Pool(Arc::new(Account { limit, used: AtomicUsize::new(0), returned: Event::new() }))
    }

    /// A buffer of `len` bytes of unspecified content, or None while the pool is at its limit.
    ///
    /// # Panics
    /// When `len` is above [`Pool::MAX_BUFFER`].
    pub fn try_get(&self, len: usize) -> Option<Buf> {
        let class = class_of(len);
        let bytes = PAGE << class;
        let used = self.0.used.fetch_add(bytes, Ordering::Relaxed);
        if used + bytes > self.0.limit {
            self.0.used.fetch_sub(bytes, Ordering::Relaxed);
            return None;
        }
        let free = FREE.with_borrow_mut(|f| f[class].pop());
        Some(Buf::pooled(free.unwrap_or_else(|| pages(bytes)), len, Home(self.0.clone())))
    }

    /// A buffer of `len` bytes of unspecified content, as soon as there is room for it.
    pub async fn get(&self, len: usize) -> Buf {
        loop {
            if let Some(b) = self.try_get(len) {
                return b;
            }
            let listener = self.0.returned.listen();
            if let Some(b) = self.try_get(len) {
                return b;
            }
            listener.await;
            // One returned buffer may serve several: each who was woken wakes the next.
            if let Some(b) = self.try_get(len) {
                self.0.returned.notify(1);
                return b;
            }
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }
}

impl Home {
    pub(crate) fn take_back(self, pages: Pages) {
        let bytes = pages.len() * PAGE;
        let class = class_of(bytes);
        // The thread may be ending: then the pages are simply freed.
        let _ = FREE.try_with(|f| {
            let mut free = f.borrow_mut();
            if free[class].len() * bytes < KEEP_BYTES.max(2 * bytes) {
                free[class].push(pages);
            }
        });
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        self.0.returned.notify(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_holds_and_a_return_makes_room() {
        let pool = Pool::new(Pool::MAX_BUFFER);
        let all = pool.try_get(Pool::MAX_BUFFER).expect("the first fits");
        assert!(pool.try_get(1).is_none());
        drop(all);
        assert_eq!(pool.used(), 0);
        assert_eq!(pool.try_get(5000).expect("room again").len(), 5000);
    }

    #[test]
    fn a_buffer_comes_back_to_its_core() {
        let pool = Pool::new(1 << 30);
        let first = pool.try_get(65536).expect("room");
        let at = first.as_ptr();
        drop(first);
        assert_eq!(pool.try_get(60000).expect("room").as_ptr(), at);
    }
}
