//! The free buffers of a core, and the return of a dropped buffer to them.

use super::CLASSES;
use super::share::{BufAccounting, PoolAccount, PoolShare, SMALL_BYTES};
use crate::buf::{PAGE, Pages, pages};
use crate::regions;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes of free buffers of up to [`SMALL_BYTES`] that a core keeps per class. All cores together keep as many bytes
/// of larger ones as one owner may use: the memory of a burst is not worth a page fault for each page of the next.
const KEEP_BYTES: usize = 4 << 20;

thread_local! {
    static FREE: RefCell<[FreeList; CLASSES]> = const { RefCell::new([const { FreeList::new() }; CLASSES]) };
}

/// The memory of a free buffer.
struct FreeBuffer {
    pages: Pages,
    _kept: Option<KeptBytes>,
}

/// Bytes of a large free buffer, counted for the account.
struct KeptBytes {
    account: Arc<PoolAccount>,
    bytes: usize,
}

impl KeptBytes {
    /// None if there is no room.
    fn new(account: &Arc<PoolAccount>, bytes: usize) -> Option<KeptBytes> {
        let room = |kept: usize| Some(kept + bytes).filter(|kept| *kept <= account.keep_limit());
        account.kept.fetch_update(SeqCst, SeqCst, room).ok()?;
        Some(KeptBytes { account: account.clone(), bytes })
    }
}

impl Drop for KeptBytes {
    fn drop(&mut self) {
        self.account.kept.fetch_sub(self.bytes, SeqCst);
    }
}

/// Free buffers of one class, last in, first out.
struct FreeList {
    buffers: Vec<FreeBuffer>,
    /// Buffers that were not used since the last trim.
    unused: usize,
}

impl FreeList {
    const fn new() -> FreeList {
        FreeList { buffers: Vec::new(), unused: 0 }
    }

    fn pop(&mut self) -> Option<Pages> {
        let free = self.buffers.pop()?;
        self.unused = self.unused.min(self.buffers.len());
        Some(free.pages)
    }
}

/// Frees the buffers of this core that were not used since the last trim, and returns their bytes.
pub(crate) fn trim() -> usize {
    let unused = |class: &mut FreeList| {
        let unused: Vec<FreeBuffer> = class.buffers.drain(..class.unused).collect();
        class.unused = class.buffers.len();
        unused
    };
    // Freed outside the borrow of the lists.
    let all = FREE.try_with(|f| f.borrow_mut().iter_mut().flat_map(unused).collect::<Vec<_>>());
    all.unwrap_or_default().iter().map(|free| free.pages.bytes_len()).sum()
}

/// The origin of a pooled buffer, where its memory returns on drop.
pub(crate) struct PoolOrigin {
    pub(super) share: Arc<PoolShare>,
    /// A byte, because buffers are moved often.
    pub(super) class: u8,
    pub(super) source: BufAccounting,
}

impl PoolOrigin {
    fn class(&self) -> usize {
        self.class.into()
    }

    /// Bytes of the memory of the buffer's class.
    pub(crate) fn bytes(&self) -> usize {
        PAGE << self.class()
    }

    /// Counts the buffer for the account if there is room.
    pub(crate) fn claim(&mut self) -> bool {
        let (share, bytes) = (&self.share, self.bytes());
        if !matches!(self.source, BufAccounting::Promise | BufAccounting::FirstPromise) {
            return true;
        }
        share.promised.fetch_sub(bytes, SeqCst);
        let claimed = self.of_promise();
        match claimed {
            Some(source) => self.source = source,
            None => drop(share.promised.fetch_add(bytes, SeqCst)),
        }
        claimed.is_some()
    }

    /// The accounting of a claimed promise.
    fn of_promise(&self) -> Option<BufAccounting> {
        let (share, bytes) = (&self.share, self.bytes());
        if self.source == BufAccounting::FirstPromise {
            share.other.fetch_sub(bytes, SeqCst);
            let obtained = share.obtain(bytes).ok();
            if obtained.is_none() {
                share.other.fetch_add(bytes, SeqCst);
            }
            return obtained;
        }
        if share.claim(bytes).is_ok() {
            return Some(BufAccounting::Pool);
        }
        if !share.is_first(bytes) || !share.take_reserve(bytes) {
            return None;
        }
        share.disown(bytes);
        share.other.fetch_add(bytes, SeqCst);
        Some(BufAccounting::Reserve)
    }

    /// Memory of unspecified content: the last one returned on this core, if any.
    pub(crate) fn supply(&self) -> Pages {
        // On an ending thread, there is nothing to reuse.
        let free = FREE.try_with(|f| f.borrow_mut()[self.class()].pop()).ok().flatten();
        let free = free.or_else(|| regions::cut(self.class(), self.share.account.limit).map(Pages::Cut));
        free.unwrap_or_else(|| pages(self.bytes()))
    }

    /// Takes the memory of a dropped buffer, if it was touched.
    pub(crate) fn take_back(self, pages: Option<Pages>) {
        if let Some(pages) = pages {
            self.keep(pages);
        }
        self.share.give(self.bytes(), self.source);
    }

    fn keep(&self, pages: Pages) {
        // With regions on, memory outside them is not reused.
        if regions::is_on() && !matches!(pages, Pages::Cut(_)) {
            return;
        }
        let (bytes, class) = (self.bytes(), self.class());
        let kept = match bytes > SMALL_BYTES {
            true => KeptBytes::new(&self.share.account, bytes),
            false => None,
        };
        // On an ending thread, the pages are freed.
        let _ = FREE.try_with(|f| {
            let list = &mut f.borrow_mut()[class].buffers;
            if kept.is_some() || (bytes <= SMALL_BYTES && (list.len() + 1) * bytes <= KEEP_BYTES) {
                list.push(FreeBuffer { pages, _kept: kept });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn memory_is_taken_when_it_is_touched() {
        let pool = Pool::new(1 << 30);
        let (mut first, second) = (pool.try_get(9000).expect("room"), pool.try_get(9000).expect("room"));
        assert_eq!((pool.used(), second.len(), second.capacity()), (2 * 16384, 9000, 16384));
        first[8999] = 1;
        let at = first.as_ptr();
        drop(first);
        assert_eq!(second[8999], 1, "the buffer returned last");
        assert_eq!(second.as_ptr(), at);
        drop(pool.try_get(9000));
        drop(second);
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn buffers_that_are_not_used_are_freed_at_the_second_trim() {
        let pool = Pool::new(1 << 30);
        let touched = |len| {
            let mut buf = pool.try_get(len).expect("room");
            buf[0] = 1;
            buf
        };
        drop([touched(PAGE), touched(PAGE), touched(2 * PAGE)]);
        assert_eq!(trim(), 0, "all buffers were used");
        drop(touched(PAGE));
        assert_eq!(trim(), 3 * PAGE, "one of the two, and the large one");
        assert_eq!((trim(), trim()), (PAGE, 0));
    }

    #[test]
    fn buffer_comes_back_to_its_core() {
        let pool = Pool::new(1 << 30);
        let first = pool.try_get(65536).expect("room");
        let at = first.as_ptr();
        drop(first);
        assert_eq!(pool.try_get(60000).expect("room").as_ptr(), at);
    }

    /// The addresses of `count` touched buffers of this size that are in use at the same time, in order.
    fn burst(pool: &Pool, count: usize, len: usize) -> Vec<usize> {
        let mut all: Vec<_> = (0..count).map(|_| pool.try_get(len).expect("room")).collect();
        all.iter_mut().for_each(|buf| buf[0] = 1);
        let mut places: Vec<_> = all.iter().map(|buf| buf.as_ptr() as usize).collect();
        places.sort_unstable();
        places
    }

    #[test]
    fn memory_of_a_burst_serves_the_next_until_it_is_trimmed() {
        const LEN: usize = 512 << 10;
        let pool = Pool::new(256 << 20);
        let kept = || pool.0.account.kept.load(SeqCst);
        let first = burst(&pool, 64, LEN);
        assert_eq!((burst(&pool, 64, LEN) == first, kept()), (true, 64 * LEN));
        burst(&pool, 200, LEN);
        assert_eq!(kept(), 64 << 20, "a quarter of the pool");
        let other = pool.clone();
        std::thread::spawn(move || drop(burst(&other, 2, LEN))).join().expect("a core");
        assert_eq!((kept(), trim()), (64 << 20, 0));
        assert_eq!((trim(), kept()), (64 << 20, 0));
    }

    #[test]
    fn ended_core_keeps_no_memory() {
        let pool = Pool::new(256 << 20);
        let other = pool.clone();
        std::thread::spawn(move || drop(burst(&other, 2, 512 << 10))).join().expect("a core");
        assert_eq!(pool.0.account.kept.load(SeqCst), 0);
    }
}
