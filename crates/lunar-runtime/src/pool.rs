//! A bounded buffer pool. All cores share the bound; each core keeps its free buffers in power-of-two sizes, most
//! recently used first, so that they are warm in the cache.
//!
//! # Accounts
//!
//! An *owner* is an address with its CHAP user. All of its sessions share one account: at most a quarter of the limit, and
//! at most half of what it leaves to others. Each session may have one first buffer of up to 1 MiB beyond that, from a
//! reserve that is bounded and shared in the same way. So held buffers cannot starve others. Buffers of up to 64 KiB are
//! charged to the owner in steps of 128 KiB per session. So the fast path writes to one counter that cores share, that of
//! the pool.
//!
//! A promised buffer counts for its owner only. It claims room in the pool, and takes memory, when its first data
//! arrives. Memory of 2 MiB or more comes from the system, which zeroes the pages that are touched. So announcements
//! without data cost neither time nor room.
//!
//! Buffers that a core has not used for 5 s are freed, and the allocator then returns free pages to the system.

use crate::buf::{Buf, PAGE, Pages, pages};
use crate::race::either;
use crate::regions;
use event_listener::Event;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Size classes: 4 KiB << 0 to 4 KiB << 13 (32 MiB).
const CLASSES: usize = 14;
/// Bytes of free buffers that a core keeps per class.
const KEEP_BYTES: usize = 4 << 20;

thread_local! {
    static FREE: RefCell<[FreeList; CLASSES]> = const { RefCell::new([const { FreeList::new() }; CLASSES]) };
}

/// Free buffers of one class, last in, first out.
struct FreeList {
    buffers: Vec<Pages>,
    /// Buffers that were not used since the last trim.
    unused: usize,
}

impl FreeList {
    const fn new() -> FreeList {
        FreeList { buffers: Vec::new(), unused: 0 }
    }

    fn pop(&mut self) -> Option<Pages> {
        let pages = self.buffers.pop();
        self.unused = self.unused.min(self.buffers.len());
        pages
    }
}

/// Frees the buffers of this core that were not used since the last trim, and returns their bytes.
pub(crate) fn trim() -> usize {
    let unused = |class: &mut FreeList| {
        let unused: Vec<Pages> = class.buffers.drain(..class.unused).collect();
        class.unused = class.buffers.len();
        unused
    };
    // Freed outside the borrow of the lists.
    let all = FREE.try_with(|f| f.borrow_mut().iter_mut().flat_map(unused).collect::<Vec<_>>());
    all.unwrap_or_default().iter().map(Pages::bytes_len).sum()
}

/// A share is at most this fraction of the pool.
const SHARES: usize = 4;
/// A share without buffers gets one of up to this many bytes from the reserve, even if the pool is at its limit.
const RESERVED_BYTES: usize = 1 << 20;
/// Buffers of up to this many bytes count for the owner in steps ([`GRANT_BYTES`]), because all cores write to its
/// counter.
const SMALL_BYTES: usize = 64 << 10;
/// A share counts its small buffers for the owner in steps of this many bytes. It keeps one step when it has none.
const GRANT_BYTES: usize = 128 << 10;
/// Small buffers may always take this fraction of an owner's limit, while the same fraction of the pool is free.
const SMALL_PART: usize = 4;

struct PoolAccount {
    limit: usize,
    used: AtomicUsize,
    /// Bytes in use from the reserve.
    reserve: AtomicUsize,
    /// The number of waiters. A waiter counts itself before it checks once more, and a return frees bytes before it
    /// reads the count. All are SeqCst, so no return is missed.
    waiting: AtomicUsize,
    /// Counts returns that happened while there were waiters.
    returns: AtomicUsize,
    /// One event for each size class: a waiter for a large buffer must not consume the wake-up for a small one.
    returned: [Event; CLASSES],
    /// Owners of shares, by name.
    owners: Mutex<HashMap<String, Weak<ShareOwner>>>,
}

impl PoolAccount {
    /// Wakes one waiter of each class. A waiter that gets its buffer wakes the next of its class.
    fn wake(&self) {
        self.returned.iter().for_each(|class| {
            class.notify(1);
        });
    }

    /// The size of the reserve in bytes: the first buffers of shares beyond the limit.
    fn reserve_limit(&self) -> usize {
        (self.limit / SHARES).max(Pool::MAX_BUFFER)
    }
}

/// Counts a waiter.
struct WaiterCount<'a>(&'a AtomicUsize);

impl<'a> WaiterCount<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        WaiterCount(count)
    }
}

impl Drop for WaiterCount<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The owner of one or more shares.
#[derive(Default)]
struct ShareOwner {
    /// Bytes of its buffers above [`SMALL_BYTES`], including promised ones.
    used: AtomicUsize,
    /// Bytes granted to its shares for small buffers.
    small: AtomicUsize,
    /// Bytes of its buffers from the reserve.
    reserve: AtomicUsize,
    returned: Event,
}

/// The share of one user of the pool.
struct PoolShare {
    account: Arc<PoolAccount>,
    owner: Arc<ShareOwner>,
    limit: usize,
    reserved: usize,
    used: AtomicUsize,
    /// Bytes of `used` in large buffers or from the reserve, which the grants do not cover.
    other: AtomicUsize,
    /// Bytes that the owner has granted for small buffers: the only counter that the fast path reads.
    granted: AtomicUsize,
    /// Bytes of `used` that the account does not count yet.
    promised: AtomicUsize,
}

/// The counters that include a buffer, besides that of its share.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BufAccounting {
    /// The owner and the account.
    Pool,
    /// The account's reserve.
    Reserve,
    /// The owner; the account once it is claimed.
    Promise,
    /// None yet: the first buffer of its share, which may come from the reserve.
    FirstPromise,
}

/// The reason why there is no buffer.
enum PoolExhausted {
    /// The share or its owner is at its limit.
    Share,
    /// The owner would leave too little to others; these may take what is free.
    Owner,
    /// The pool is at its limit.
    Pool,
}

/// A buffer pool with a limit on the bytes in use.
#[derive(Clone)]
pub struct Pool(Arc<PoolShare>);

/// The origin of a pooled buffer, where its memory returns on drop.
pub(crate) struct PoolOrigin {
    share: Arc<PoolShare>,
    /// A byte, because buffers are moved often.
    class: u8,
    source: BufAccounting,
}

fn class_of(len: usize) -> usize {
    len.div_ceil(PAGE).max(1).next_power_of_two().trailing_zeros() as usize
}

impl Pool {
    /// The largest buffer in bytes.
    pub const MAX_BUFFER: usize = PAGE << (CLASSES - 1);

    /// A pool of at most `limit` bytes in use; never less than one largest buffer.
    pub fn new(limit: usize) -> Self {
        let limit = limit.max(Self::MAX_BUFFER);
        let account = Arc::new(PoolAccount {
            limit,
            used: AtomicUsize::new(0),
            reserve: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            returns: AtomicUsize::new(0),
            returned: std::array::from_fn(|_| Event::new()),
            owners: Mutex::default(),
        });
        Pool::of(account, Arc::default(), limit, 0)
    }

    fn of(account: Arc<PoolAccount>, owner: Arc<ShareOwner>, limit: usize, reserved: usize) -> Self {
        let [used, other, granted, promised] = [const { AtomicUsize::new(0) }; 4];
        Pool(Arc::new(PoolShare { account, owner, limit, reserved, used, other, granted, promised }))
    }

    /// A share of the pool for one user: at most a quarter of it (or one largest buffer). A share without buffers
    /// also gets one of up to 1 MiB from the reserve, which is a quarter of the pool (or one largest buffer). Held
    /// buffers therefore cannot starve other users.
    pub fn share(&self) -> Pool {
        self.share_with(Arc::default())
    }

    /// A share that has a common limit, a quarter of the pool, with all shares of this owner. Each may get its buffer
    /// of up to 1 MiB from the reserve while the owner leaves twice as much of the reserve to others as it has.
    pub fn share_of(&self, owner: &str) -> Pool {
        let mut owners = self.0.account.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.retain(|_, owner| owner.strong_count() > 0);
        let known = owners.get(owner).and_then(Weak::upgrade).unwrap_or_default();
        owners.insert(owner.to_owned(), Arc::downgrade(&known));
        drop(owners);
        self.share_with(known)
    }

    fn share_with(&self, owner: Arc<ShareOwner>) -> Pool {
        let account = self.0.account.clone();
        let limit = (account.limit / SHARES).max(Self::MAX_BUFFER);
        Pool::of(account, owner, limit, RESERVED_BYTES)
    }

    /// A buffer of `len` bytes of unspecified content, or None while the pool is at its limit.
    ///
    /// # Panics
    /// When `len` is above [`Pool::MAX_BUFFER`].
    #[inline]
    pub fn try_get(&self, len: usize) -> Option<Buf> {
        self.attempt(len).ok()
    }

    fn attempt(&self, len: usize) -> Result<Buf, PoolExhausted> {
        let class = class_of(len);
        let source = self.0.take(PAGE << class)?;
        Ok(Buf::pooled(len, PoolOrigin { share: self.0.clone(), class: class as u8, source }))
    }

    /// Promises a buffer of `len` bytes, which counts for the share alone until [`Buf::claim`]. It must be claimed
    /// before it is touched, and the claim may fail. None while there is no room.
    ///
    /// # Panics
    /// When `len` is above [`Pool::MAX_BUFFER`].
    pub fn promise(&self, len: usize) -> Option<Buf> {
        let class = class_of(len);
        let source = self.0.promise(PAGE << class).ok()?;
        Some(Buf::pooled(len, PoolOrigin { share: self.0.clone(), class: class as u8, source }))
    }

    /// Waits for a buffer of `len` bytes of unspecified content.
    pub async fn get(&self, len: usize) -> Buf {
        let mut passed_on = None;
        loop {
            if let Some(b) = self.try_get(len) {
                return b;
            }
            let _waiting = WaiterCount::new(&self.0.account.waiting);
            let (own, any) =
                (self.0.owner.returned.listen(), self.0.account.returned[class_of(len)].listen());
            match self.attempt(len) {
                Ok(b) => return b,
                // Room in the pool does not help: only a return of this owner does.
                Err(PoolExhausted::Share) => {
                    drop(any);
                    own.await;
                }
                Err(PoolExhausted::Owner | PoolExhausted::Pool) => either(own, any).await,
            }
            // One returned buffer may serve several waiters: each woken waiter wakes the next, even if its own share
            // is at its limit. A waiter whose owner is at its limit wakes the next only once for each return, so that
            // such waiters do not wake each other forever.
            let returns = Some(self.0.account.returns.load(SeqCst));
            match self.attempt(len) {
                Ok(b) => {
                    self.0.account.wake();
                    return b;
                }
                Err(PoolExhausted::Share) => self.0.account.wake(),
                Err(PoolExhausted::Owner) if passed_on != returns => {
                    passed_on = returns;
                    self.0.account.wake();
                }
                Err(PoolExhausted::Owner | PoolExhausted::Pool) => {}
            }
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.0.account.used.load(SeqCst)
    }
}

impl PoolShare {
    #[inline]
    fn take(&self, bytes: usize) -> Result<BufAccounting, PoolExhausted> {
        self.enter(bytes)?;
        self.obtain(bytes).inspect_err(|_| self.leave(bytes))
    }

    fn promise(&self, bytes: usize) -> Result<BufAccounting, PoolExhausted> {
        self.enter(bytes)?;
        let owned =
            self.own(bytes).and_then(|()| match self.may_claim(bytes, self.account.used.load(SeqCst)) {
                true => Ok(()),
                false => {
                    self.disown(bytes);
                    Err(PoolExhausted::Pool)
                }
            });
        let source = match owned {
            Ok(()) => BufAccounting::Promise,
            Err(_) if self.is_first(bytes) => {
                self.other.fetch_add(bytes, SeqCst);
                BufAccounting::FirstPromise
            }
            Err(full) => {
                self.leave(bytes);
                return Err(full);
            }
        };
        self.promised.fetch_add(bytes, SeqCst);
        Ok(source)
    }

    /// Counts bytes for the share.
    #[inline]
    fn enter(&self, bytes: usize) -> Result<(), PoolExhausted> {
        if self.used.fetch_add(bytes, SeqCst) + bytes > self.limit {
            self.used.fetch_sub(bytes, SeqCst);
            return Err(PoolExhausted::Share);
        }
        Ok(())
    }

    fn leave(&self, bytes: usize) {
        self.used.fetch_sub(bytes, SeqCst);
    }

    /// Counts bytes that the share counts for the owner and the account, or takes them from the reserve.
    #[inline]
    fn obtain(&self, bytes: usize) -> Result<BufAccounting, PoolExhausted> {
        match self.own(bytes).and_then(|()| self.claim(bytes).inspect_err(|_| self.disown(bytes))) {
            Ok(()) => Ok(BufAccounting::Pool),
            Err(_) if self.is_first(bytes) && self.take_reserve(bytes) => {
                self.other.fetch_add(bytes, SeqCst);
                Ok(BufAccounting::Reserve)
            }
            Err(full) => Err(full),
        }
    }

    /// Counts bytes for the owner.
    #[inline]
    fn own(&self, bytes: usize) -> Result<(), PoolExhausted> {
        if bytes > SMALL_BYTES {
            return self.own_large(bytes);
        }
        if self.small() > self.granted.load(SeqCst) && self.reserved > 0 {
            return self.grant();
        }
        Ok(())
    }

    fn own_large(&self, bytes: usize) -> Result<(), PoolExhausted> {
        if self.owner.used.fetch_add(bytes, SeqCst) + bytes > self.limit {
            self.owner.used.fetch_sub(bytes, SeqCst);
            return Err(PoolExhausted::Share);
        }
        self.other.fetch_add(bytes, SeqCst);
        Ok(())
    }

    /// Uncounts bytes for the owner; the share still counts them.
    fn disown(&self, bytes: usize) {
        if bytes > SMALL_BYTES {
            self.owner.used.fetch_sub(bytes, SeqCst);
            self.other.fetch_sub(bytes, SeqCst);
        }
    }

    /// Bytes of the share's small buffers.
    #[inline]
    fn small(&self) -> usize {
        self.used.load(SeqCst).saturating_sub(self.other.load(SeqCst))
    }

    /// Requests one more step for small buffers from the owner.
    #[cold]
    fn grant(&self) -> Result<(), PoolExhausted> {
        let small = self.owner.small.fetch_add(GRANT_BYTES, SeqCst) + GRANT_BYTES;
        let left = self.account.limit.saturating_sub(self.account.used.load(SeqCst));
        let is_few = small <= self.limit / SMALL_PART && left >= self.account.limit / SMALL_PART;
        if is_few || small <= self.limit && self.owner.used.load(SeqCst) + small <= left / 2 {
            self.granted.fetch_add(GRANT_BYTES, SeqCst);
            return Ok(());
        }
        self.owner.small.fetch_sub(GRANT_BYTES, SeqCst);
        Err(PoolExhausted::Owner)
    }

    /// Returns unused steps except one.
    #[inline]
    fn give_grants_back(&self) {
        let granted = self.granted.load(SeqCst);
        let unused = granted.saturating_sub(self.small()) / GRANT_BYTES;
        if unused < 2 {
            return;
        }
        let back = (unused - 1) * GRANT_BYTES;
        if self.granted.compare_exchange(granted, granted - back, SeqCst, SeqCst).is_ok() {
            self.owner.small.fetch_sub(back, SeqCst);
        }
    }

    /// Counts bytes for the account, after the owner.
    #[inline]
    fn claim(&self, bytes: usize) -> Result<(), PoolExhausted> {
        // Never exceeds the limit, even briefly: a concurrent request would wait needlessly.
        let room = |used: usize| self.may_claim(bytes, used).then_some(used + bytes);
        let claimed = self.account.used.fetch_update(SeqCst, SeqCst, room);
        claimed.map(drop).map_err(|used| match used + bytes > self.account.limit {
            true => PoolExhausted::Pool,
            false => PoolExhausted::Owner,
        })
    }

    /// Whether `bytes` fit while `used` bytes are in use. An owner that already holds buffers must leave at least
    /// twice as much free as it holds. So the next owner always finds room, however many owners hold buffers.
    #[inline]
    fn may_claim(&self, bytes: usize, used: usize) -> bool {
        let Some(left) = self.account.limit.checked_sub(used + bytes) else { return false };
        if bytes <= SMALL_BYTES || self.reserved == 0 {
            return true;
        }
        let (large, small) = (self.owner.used.load(SeqCst), self.owner.small.load(SeqCst));
        large <= bytes || large + small <= left / 2
    }

    /// Whether these bytes are all that the share has, apart from promises: they may come from the reserve.
    fn is_first(&self, bytes: usize) -> bool {
        let claimed = self.used.load(SeqCst).saturating_sub(self.promised.load(SeqCst));
        bytes <= self.reserved && claimed <= bytes
    }

    /// Takes bytes from the reserve if it has room. An owner must leave at least twice as much of it free as it
    /// holds.
    fn take_reserve(&self, bytes: usize) -> bool {
        let own = self.owner.reserve.fetch_add(bytes, SeqCst) + bytes;
        let room = |used: usize| {
            let left = self.account.reserve_limit().checked_sub(used + bytes)?;
            (own <= bytes || own <= left / 2).then_some(used + bytes)
        };
        let may = self.account.reserve.fetch_update(SeqCst, SeqCst, room).is_ok();
        if !may {
            self.owner.reserve.fetch_sub(bytes, SeqCst);
        }
        may
    }

    fn give(&self, bytes: usize, source: BufAccounting) {
        match source {
            BufAccounting::Pool => drop(self.account.used.fetch_sub(bytes, SeqCst)),
            BufAccounting::Reserve => {
                self.account.reserve.fetch_sub(bytes, SeqCst);
                self.owner.reserve.fetch_sub(bytes, SeqCst);
            }
            BufAccounting::Promise | BufAccounting::FirstPromise => {
                self.promised.fetch_sub(bytes, SeqCst);
            }
        }
        match source {
            BufAccounting::Pool | BufAccounting::Promise => self.disown(bytes),
            BufAccounting::Reserve | BufAccounting::FirstPromise => drop(self.other.fetch_sub(bytes, SeqCst)),
        }
        self.leave(bytes);
        self.give_grants_back();
        self.returned();
    }

    /// Wakes the waiters.
    fn returned(&self) {
        if self.account.waiting.load(SeqCst) > 0 {
            self.account.returns.fetch_add(1, SeqCst);
            self.owner.returned.notify(usize::MAX);
            self.account.wake();
        }
    }
}

impl Drop for PoolShare {
    fn drop(&mut self) {
        self.owner.small.fetch_sub(*self.granted.get_mut(), SeqCst);
        self.returned();
    }
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
        let (bytes, class) = (self.bytes(), self.class());
        // With regions on, memory outside them is not reused.
        let stays = matches!(pages, Pages::Cut(_)) || !regions::is_on();
        // On an ending thread, the pages are freed.
        let _ = FREE.try_with(|f| {
            let mut free = f.borrow_mut();
            if stays && (free[class].buffers.len() + 1) * bytes <= KEEP_BYTES {
                free[class].buffers.push(pages);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Poll, Wake};

    #[test]
    fn limit_holds_and_a_return_makes_room() {
        let pool = Pool::new(Pool::MAX_BUFFER);
        let all = pool.try_get(Pool::MAX_BUFFER).expect("the first buffer fits");
        assert!(pool.try_get(1).is_none());
        drop(all);
        assert_eq!(pool.used(), 0);
        assert_eq!(pool.try_get(5000).expect("room again").len(), 5000);
    }

    #[test]
    fn share_leaves_something_for_the_others() {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let (greedy, modest) = (pool.share(), pool.share());
        let all = greedy.try_get(Pool::MAX_BUFFER).expect("a quarter");
        assert!(greedy.try_get(1).is_none());
        let rest: Vec<Buf> = (0..3).map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room")).collect();
        let first = modest.try_get(RESERVED_BYTES).expect("the first buffer, above the limit");
        assert!(modest.try_get(1).is_none());
        assert!(pool.share().try_get(RESERVED_BYTES + 1).is_none());
        drop((first, all, rest));
        assert_eq!(pool.used(), 0);
        assert!(greedy.try_get(Pool::MAX_BUFFER).is_some());
    }

    #[test]
    fn shares_of_one_owner_have_one_quarter_together() {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let (one, two, other) = (pool.share_of("a"), pool.share_of("a"), pool.share_of("b"));
        let all = one.try_get(Pool::MAX_BUFFER).expect("a quarter");
        assert!(two.try_get(2 << 20).is_none(), "the quarter is used up");
        let first = two.try_get(RESERVED_BYTES).expect("each share gets its first buffer");
        assert!(two.try_get(RESERVED_BYTES).is_none());
        assert!(other.try_get(Pool::MAX_BUFFER).is_some());
        drop((all, first, one, two));
        assert_eq!(pool.used(), 0);
        assert!(pool.share_of("a").try_get(Pool::MAX_BUFFER).is_some());
        assert_eq!(pool.0.account.owners.lock().unwrap().len(), 2, "unused owners are removed");
    }

    #[test]
    fn owners_that_keep_their_buffers_leave_room_for_the_next() {
        const PART: usize = 2 << 20;
        let pool = Pool::new(32 * Pool::MAX_BUFFER);
        let hoard = |n: usize| {
            let share = pool.share_of(&n.to_string());
            let all: Vec<Buf> = std::iter::from_fn(|| share.try_get(PART)).collect();
            (share, all)
        };
        let hoards: Vec<_> = (0..4).map(hoard).collect();
        assert!(hoards.iter().all(|(_, all)| all.len() * PART > Pool::MAX_BUFFER));
        let next = pool.share_of("next");
        let two = [0, 1].map(|_| next.try_get(Pool::MAX_BUFFER));
        assert!(two.iter().all(Option::is_some));
    }

    /// All buffers of this size that `shares` shares of one owner get, at most `each` per share.
    fn hoard(pool: &Pool, owner: &str, shares: usize, bytes: usize, each: usize) -> Vec<Buf> {
        let of_one = |_| {
            let share = pool.share_of(owner);
            (0..each).map_while(|_| share.try_get(bytes)).collect::<Vec<_>>()
        };
        (0..shares).flat_map(of_one).collect()
    }

    #[test]
    fn small_buffers_count_for_the_owner_of_all_shares() {
        let pool = Pool::new(1 << 30);
        let held = hoard(&pool, "a", 128, SMALL_BYTES, 128);
        assert!(pool.used() <= pool.0.account.limit / 3, "{} of {} bytes", pool.used(), pool.0.account.limit);
        assert!(pool.used() >= pool.0.account.limit / 4, "{} of {} bytes", pool.used(), pool.0.account.limit);
        let other = pool.share_of("b");
        assert!([0, 1, 2, 3].map(|_| other.try_get(Pool::MAX_BUFFER)).iter().all(Option::is_some));
        drop(held);
        assert_eq!(pool.used(), 0);
        let again = hoard(&pool, "a", 128, PAGE, 128);
        assert_eq!(again.len(), 128 * 128, "returned buffers are available again");
    }

    #[test]
    fn owners_of_small_buffers_leave_room_for_the_next() {
        let pool = Pool::new(1 << 30);
        let held: Vec<_> = (0..6).map(|n| hoard(&pool, &n.to_string(), 64, SMALL_BYTES, 128)).collect();
        let next = pool.share_of("next");
        assert!(next.try_get(Pool::MAX_BUFFER).is_some());
        assert!((0..32).map(|_| next.try_get(PAGE)).all(|buf| buf.is_some()));
        drop(held);
    }

    /// An idle share keeps one step. This step must not keep buffers from other shares of its owner.
    #[test]
    fn unused_steps_of_small_buffers_go_back_to_the_owner() {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let (one, two) = (pool.share_of("a"), pool.share_of("a"));
        let held: Vec<Buf> = (0..64).map(|_| one.try_get(SMALL_BYTES).expect("room")).collect();
        let owner = one.0.owner.clone();
        assert_eq!(owner.small.load(SeqCst), 64 * SMALL_BYTES);
        drop(held);
        assert_eq!(owner.small.load(SeqCst), GRANT_BYTES);
        assert!(two.try_get(Pool::MAX_BUFFER).is_some());
        drop(one);
        assert_eq!(owner.small.load(SeqCst), 0);
    }

    #[test]
    fn first_buffers_beyond_the_limit_are_bounded_together() {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let all: Vec<Buf> = (0..4).map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room")).collect();
        let firsts = |owner: &str| {
            let shares: Vec<Pool> = (0..100).map(|_| pool.share_of(owner)).collect();
            shares.iter().map_while(|share| share.try_get(RESERVED_BYTES)).collect::<Vec<Buf>>()
        };
        let greedy = firsts("a");
        assert!((1..=12).contains(&greedy.len()), "{} of 32 MiB", greedy.len());
        let others: Vec<_> = (0..8).map(|n| firsts(&n.to_string())).collect();
        assert!(others.iter().all(|held| !held.is_empty()), "each owner gets one");
        let promised = pool.share_of("late").promise(RESERVED_BYTES);
        assert!(promised.is_some_and(|mut first| first.claim()));
        drop((greedy, others, all));
        assert_eq!((pool.used(), pool.0.account.reserve.load(SeqCst)), (0, 0));
    }

    #[test]
    fn promise_takes_nothing_until_it_is_claimed() {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let shares = ["a", "b", "c", "d", "e"].map(|owner| pool.share_of(owner));
        let mut promised = shares.each_ref().map(|share| share.promise(Pool::MAX_BUFFER).expect("a promise"));
        assert!(shares[0].promise(2 << 20).is_none(), "the promise counts for its share");
        assert_eq!(pool.used(), 0);
        let claimed = promised.each_mut().map(Buf::claim);
        assert_eq!(claimed, [true, true, true, true, false]);
        assert!(promised[0].claim(), "a second claim has no effect");
        assert_eq!(pool.used(), 4 * Pool::MAX_BUFFER);
        assert!(pool.share_of("f").promise(2 << 20).is_none(), "the pool is at its limit");
        assert!(pool.share_of("f").promise(RESERVED_BYTES).is_some_and(|mut first| first.claim()));
        drop(promised);
        assert_eq!(pool.used(), 0);
        assert!(shares[0].try_get(Pool::MAX_BUFFER).is_some());
    }

    /// Two waiters of one share and one of another, and two buffers return at once. The limit of the first share
    /// admits only one of its waiters, so the second buffer goes to the other share.
    #[test]
    fn waiter_over_its_share_wakes_the_next() {
        compio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let pool = Pool::new(2 * Pool::MAX_BUFFER);
            let all = [0, 1].map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room"));
            let (greedy, modest) = (pool.share(), pool.share());
            let (sender, got) = flume::unbounded();
            for (share, name) in [(greedy.clone(), "first"), (greedy, "second"), (modest, "other")] {
                let sender = sender.clone();
                crate::spawn(async move {
                    let buf = share.get(Pool::MAX_BUFFER).await;
                    let _ = sender.send((name, buf));
                });
            }
            compio::time::sleep(std::time::Duration::from_millis(20)).await;
            drop(all);
            let mut held = Vec::new();
            for expected in ["first", "other"] {
                let next = compio::time::timeout(std::time::Duration::from_secs(10), got.recv_async()).await;
                let (name, buf) = next.expect("in time").expect("a sender");
                assert_eq!(name, expected);
                held.push(buf);
            }
        });
    }

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }

    type Getting<'a> = (Pin<Box<dyn Future<Output = Buf> + 'a>>, Arc<Woken>);

    fn getting(pool: &Pool, len: usize) -> Getting<'_> {
        (Box::pin(pool.get(len)), Arc::new(Woken(true.into())))
    }

    /// Polls the woken futures until none is woken. Returns the buffers with the index of their waiter.
    fn settle(all: &mut [Getting<'_>]) -> Vec<(usize, Buf)> {
        let mut came = Vec::new();
        for _ in 0..100 {
            let mut woken = all.iter_mut().enumerate();
            let Some((who, (get, woken))) = woken.find(|(_, (_, woken))| woken.0.swap(false, SeqCst)) else {
                return came;
            };
            if let Poll::Ready(buf) = get.as_mut().poll(&mut Context::from_waker(&woken.clone().into())) {
                came.push((who, buf));
                *get = Box::pin(std::future::pending());
            }
        }
        panic!("the waiters wake each other endlessly")
    }

    /// Two waiters that would leave too little to others precede one of another owner, and one buffer returns.
    #[test]
    fn waiter_over_its_owners_limit_wakes_the_next() {
        for bytes in [SMALL_BYTES, 2 << 20] {
            let pool = Pool::new(4 * Pool::MAX_BUFFER);
            let (greedy, modest) = (pool.share_of("a"), pool.share_of("b"));
            let held: Vec<Buf> = (0..8).map(|_| greedy.try_get(bytes).expect("room")).collect();
            // The next buffer is then not its first one, which it would get above the limit.
            let first = modest.try_get(PAGE).expect("room");
            let mut others: Vec<Buf> = std::iter::from_fn(|| pool.try_get(bytes)).collect();
            let mut all = [&greedy, &greedy, &modest].map(|share| getting(share, bytes));
            assert!(settle(&mut all).is_empty(), "{bytes}: the pool is at its limit");
            others.pop();
            let came = settle(&mut all);
            assert_eq!(came.iter().map(|(who, _)| *who).collect::<Vec<_>>(), [2], "{bytes}");
            drop((held, first));
            assert!(!settle(&mut all).is_empty(), "{bytes}: its owner is below the limit again");
        }
    }

    /// A waiter for a large buffer precedes one for a small buffer, and room for the small one returns.
    #[test]
    fn waiter_for_a_large_buffer_does_not_block_small_ones() {
        compio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let pool = Pool::new(Pool::MAX_BUFFER);
            let mut parts: Vec<Buf> =
                (0..2).map(|_| pool.try_get(Pool::MAX_BUFFER / 2).expect("room")).collect();
            let (sender, got) = flume::unbounded();
            for len in [Pool::MAX_BUFFER, PAGE] {
                let (pool, sender) = (pool.clone(), sender.clone());
                crate::spawn(async move { drop(sender.send(pool.get(len).await)) });
                compio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            parts.pop();
            let next = compio::time::timeout(std::time::Duration::from_secs(10), got.recv_async()).await;
            assert_eq!(next.expect("in time").expect("a sender").len(), PAGE);
        });
    }

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
}
