//! A bounded supply of buffers. The bound is shared by all cores; free buffers are kept per core, in
//! power-of-two sizes, most recently used first, so that they are warm.

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
    static FREE: RefCell<[Free; CLASSES]> = const { RefCell::new([const { Free::new() }; CLASSES]) };
}

/// Free buffers of one class; those given back last are used first.
struct Free {
    buffers: Vec<Pages>,
    /// How many were never used since the last trim.
    unused: usize,
}

impl Free {
    const fn new() -> Free {
        Free { buffers: Vec::new(), unused: 0 }
    }

    fn pop(&mut self) -> Option<Pages> {
        let pages = self.buffers.pop();
        self.unused = self.unused.min(self.buffers.len());
        pages
    }
}

/// Frees the buffers of this core that were not used since the last time; how many bytes that are.
pub(crate) fn trim() -> usize {
    let unused = |class: &mut Free| {
        let unused: Vec<Pages> = class.buffers.drain(..class.unused).collect();
        class.unused = class.buffers.len();
        unused
    };
    // Freed when the lists are not borrowed any more.
    let all = FREE.try_with(|f| f.borrow_mut().iter_mut().flat_map(unused).collect::<Vec<_>>());
    all.unwrap_or_default().iter().map(Pages::bytes_len).sum()
}

/// A share takes at most this part of the pool.
const SHARES: usize = 4;
/// A share that has nothing gets a buffer of up to so many bytes although the pool is at its limit.
const RESERVED_BYTES: usize = 1 << 20;
/// Buffers of up to so many bytes do not count for the owner of several shares, whose count all cores write to. How many
/// of them a connection has is bounded by its commands.
const SMALL_BYTES: usize = 64 << 10;

struct Account {
    limit: usize,
    used: AtomicUsize,
    /// How many wait or are about to. They count themselves before they look once more, and buffers are
    /// given back before the count is read, all in one order (SeqCst): no return goes unnoticed.
    waiting: AtomicUsize,
    /// One for each class of sizes: who waits for much must not sleep on what would do for another.
    returned: [Event; CLASSES],
    /// Owners of shares, by name.
    owners: Mutex<HashMap<String, Weak<Owner>>>,
}

impl Account {
    /// Wakes one of each class. Those of one class want the same, so each who gets it wakes the next.
    fn wake(&self) {
        self.returned.iter().for_each(|class| {
            class.notify(1);
        });
    }
}

/// Counts one who waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, SeqCst);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// The owner of one share or several.
#[derive(Default)]
struct Owner {
    /// Bytes of its buffers above [`SMALL_BYTES`], promised ones among them.
    used: AtomicUsize,
    returned: Event,
}

/// What one user of the account has of it.
struct Share {
    account: Arc<Account>,
    owner: Arc<Owner>,
    limit: usize,
    reserved: usize,
    used: AtomicUsize,
    /// Bytes of `used` that the account does not count yet.
    promised: AtomicUsize,
}

/// Why there is no buffer.
enum Full {
    /// The share is used up.
    Share,
    /// The pool is.
    Pool,
}

/// A supply of buffers with a limit on the bytes in use.
#[derive(Clone)]
pub struct Pool(Arc<Share>);

/// Where a pooled buffer has its memory from, and where that goes when it is dropped.
pub(crate) struct Home {
    share: Arc<Share>,
    /// Small: buffers are moved often.
    class: u8,
    /// The account counts it.
    is_claimed: bool,
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
        let account = Arc::new(Account {
            limit,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            returned: std::array::from_fn(|_| Event::new()),
            owners: Mutex::default(),
        });
        Pool::of(account, Arc::default(), limit, 0)
    }

    fn of(account: Arc<Account>, owner: Arc<Owner>, limit: usize, reserved: usize) -> Self {
        let (used, promised) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Pool(Arc::new(Share { account, owner, limit, reserved, used, promised }))
    }

    /// The same supply for one user among many: never more than a quarter of it (or one largest buffer), and
    /// never less than one buffer of up to a mebibyte, which may go beyond the limit. Who holds on to
    /// buffers so keeps nobody else from going on.
    pub fn share(&self) -> Pool {
        self.share_with(Arc::default())
    }

    /// A share whose quarter is that of all shares of this owner together. Each still has its one buffer of up to a
    /// mebibyte.
    pub fn share_of(&self, owner: &str) -> Pool {
        let mut owners = self.0.account.owners.lock().unwrap_or_else(PoisonError::into_inner);
        owners.retain(|_, owner| owner.strong_count() > 0);
        let known = owners.get(owner).and_then(Weak::upgrade).unwrap_or_default();
        owners.insert(owner.to_owned(), Arc::downgrade(&known));
        drop(owners);
        self.share_with(known)
    }

    fn share_with(&self, owner: Arc<Owner>) -> Pool {
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

    fn attempt(&self, len: usize) -> Result<Buf, Full> {
        let class = class_of(len);
        self.0.take(PAGE << class)?;
        Ok(Buf::pooled(len, Home { share: self.0.clone(), class: class as u8, is_claimed: true }))
    }

    /// A buffer of `len` bytes that counts for the share alone until it is claimed ([`Buf::claim`]), which has to be before
    /// it is touched. None while there is no room for it: it is not known yet whether there will be.
    ///
    /// # Panics
    /// When `len` is above [`Pool::MAX_BUFFER`].
    pub fn promise(&self, len: usize) -> Option<Buf> {
        let class = class_of(len);
        self.0.promise(PAGE << class).ok()?;
        Some(Buf::pooled(len, Home { share: self.0.clone(), class: class as u8, is_claimed: false }))
    }

    /// A buffer of `len` bytes of unspecified content, as soon as there is room for it.
    pub async fn get(&self, len: usize) -> Buf {
        loop {
            if let Some(b) = self.try_get(len) {
                return b;
            }
            let _waiting = Waiting::new(&self.0.account.waiting);
            let (own, any) =
                (self.0.owner.returned.listen(), self.0.account.returned[class_of(len)].listen());
            match self.attempt(len) {
                Ok(b) => return b,
                // Room in the pool is for others: not to be woken by it.
                Err(Full::Share) => {
                    drop(any);
                    own.await;
                }
                Err(Full::Pool) => either(own, any).await,
            }
            // One returned buffer may serve several: each who was woken wakes the next, also one who may
            // not have it because its share is used up.
            match self.attempt(len) {
                Ok(b) => {
                    self.0.account.wake();
                    return b;
                }
                Err(Full::Share) => self.0.account.wake(),
                Err(Full::Pool) => {}
            }
        }
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.0.account.used.load(SeqCst)
    }
}

impl Share {
    #[inline]
    fn take(&self, bytes: usize) -> Result<(), Full> {
        self.count(bytes)?;
        self.claim(bytes).inspect_err(|_| self.uncount(bytes))
    }

    fn promise(&self, bytes: usize) -> Result<(), Full> {
        self.count(bytes)?;
        let used = self.account.used.load(SeqCst);
        if !self.may_claim(bytes, used) && !self.is_first(bytes) {
            self.uncount(bytes);
            return Err(Full::Pool);
        }
        self.promised.fetch_add(bytes, SeqCst);
        Ok(())
    }

    /// Counts bytes for the share and its owner.
    #[inline]
    fn count(&self, bytes: usize) -> Result<(), Full> {
        let own = self.used.fetch_add(bytes, SeqCst);
        if own + bytes > self.limit {
            self.used.fetch_sub(bytes, SeqCst);
            return Err(Full::Share);
        }
        if bytes > SMALL_BYTES
            && self.owner.used.fetch_add(bytes, SeqCst) + bytes > self.limit
            && !self.is_first(bytes)
        {
            self.uncount(bytes);
            return Err(Full::Share);
        }
        Ok(())
    }

    fn uncount(&self, bytes: usize) {
        self.used.fetch_sub(bytes, SeqCst);
        if bytes > SMALL_BYTES {
            self.owner.used.fetch_sub(bytes, SeqCst);
        }
    }

    /// Counts bytes for the account that the share counts already.
    #[inline]
    fn claim(&self, bytes: usize) -> Result<(), Full> {
        // Never above the limit, not even for a moment: another who looks just then would wait for nothing.
        let room = |used: usize| self.may_claim(bytes, used).then_some(used + bytes);
        if self.account.used.fetch_update(SeqCst, SeqCst, room).is_ok() {
            return Ok(());
        }
        if !self.is_first(bytes) {
            return Err(Full::Pool);
        }
        self.account.used.fetch_add(bytes, SeqCst);
        Ok(())
    }

    /// There is room where so many bytes are in use. An owner that has something already leaves twice as much as it
    /// has to others: however many owners hold on to what they have, the next one finds room.
    #[inline]
    fn may_claim(&self, bytes: usize, used: usize) -> bool {
        let Some(left) = self.account.limit.checked_sub(used + bytes) else { return false };
        if bytes <= SMALL_BYTES || self.reserved == 0 {
            return true;
        }
        let owned = self.owner.used.load(SeqCst);
        owned <= bytes || owned <= left / 2
    }

    /// These bytes, which the share counts, are all that it has, but for promises: they are what is reserved for it.
    fn is_first(&self, bytes: usize) -> bool {
        let claimed = self.used.load(SeqCst).saturating_sub(self.promised.load(SeqCst));
        bytes <= self.reserved && claimed <= bytes
    }

    fn give(&self, bytes: usize, is_claimed: bool) {
        self.uncount(bytes);
        let counted = if is_claimed { &self.account.used } else { &self.promised };
        counted.fetch_sub(bytes, SeqCst);
        if self.account.waiting.load(SeqCst) > 0 {
            self.owner.returned.notify(usize::MAX);
            self.account.wake();
        }
    }
}

impl Home {
    fn class(&self) -> usize {
        self.class.into()
    }

    /// Bytes of the memory.
    pub(crate) fn bytes(&self) -> usize {
        PAGE << self.class()
    }

    /// Counts it for the account, if there is room.
    pub(crate) fn claim(&mut self) -> bool {
        if !self.is_claimed {
            let bytes = self.bytes();
            self.share.promised.fetch_sub(bytes, SeqCst);
            self.is_claimed = self.share.claim(bytes).is_ok();
            if !self.is_claimed {
                self.share.promised.fetch_add(bytes, SeqCst);
            }
        }
        self.is_claimed
    }

    /// The memory, of unspecified content: that which was given back last on this core, if there is some.
    pub(crate) fn supply(&self) -> Pages {
        // The thread may be ending: then there is nothing to be used again.
        let free = FREE.try_with(|f| f.borrow_mut()[self.class()].pop()).ok().flatten();
        let free = free.or_else(|| regions::cut(self.class(), self.share.account.limit).map(Pages::Cut));
        free.unwrap_or_else(|| pages(self.bytes()))
    }

    /// The buffer is dropped: its memory, if it was touched.
    pub(crate) fn take_back(self, pages: Option<Pages>) {
        if let Some(pages) = pages {
            self.keep(pages);
        }
        self.share.give(self.bytes(), self.is_claimed);
    }

    fn keep(&self, pages: Pages) {
        let (bytes, class) = (self.bytes(), self.class());
        // With regions, memory that is of none is not used again.
        let stays = matches!(pages, Pages::Cut(_)) || !regions::is_on();
        // The thread may be ending: then the pages are simply freed.
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
    fn a_share_leaves_something_for_the_others() {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let (greedy, modest) = (pool.share(), pool.share());
        let all = greedy.try_get(Pool::MAX_BUFFER).expect("a quarter");
        assert!(greedy.try_get(1).is_none());
        let rest: Vec<Buf> = (0..3).map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room")).collect();
        let first = modest.try_get(RESERVED_BYTES).expect("the first, beyond the limit");
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
        let first = two.try_get(RESERVED_BYTES).expect("each has its first");
        assert!(two.try_get(RESERVED_BYTES).is_none());
        assert!(other.try_get(Pool::MAX_BUFFER).is_some());
        drop((all, first, one, two));
        assert_eq!(pool.used(), 0);
        assert!(pool.share_of("a").try_get(Pool::MAX_BUFFER).is_some());
        assert_eq!(pool.0.account.owners.lock().unwrap().len(), 2, "nobody is remembered for good");
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

    #[test]
    fn a_promise_takes_nothing_from_the_pool_until_it_is_claimed() {
        let pool = Pool::new(4 * Pool::MAX_BUFFER);
        let shares = ["a", "b", "c", "d", "e"].map(|owner| pool.share_of(owner));
        let mut promised = shares.each_ref().map(|share| share.promise(Pool::MAX_BUFFER).expect("a promise"));
        assert!(shares[0].promise(2 << 20).is_none(), "the share counts it");
        assert_eq!(pool.used(), 0);
        let claimed = promised.each_mut().map(Buf::claim);
        assert_eq!(claimed, [true, true, true, true, false]);
        assert!(promised[0].claim(), "once is enough");
        assert_eq!(pool.used(), 4 * Pool::MAX_BUFFER);
        assert!(pool.share_of("f").promise(2 << 20).is_none(), "there is no room now");
        assert!(pool.share_of("f").promise(RESERVED_BYTES).is_some_and(|mut first| first.claim()));
        drop(promised);
        assert_eq!(pool.used(), 0);
        assert!(shares[0].try_get(Pool::MAX_BUFFER).is_some());
    }

    /// Two of one share and one of another wait, and room for two comes at once: the one that its share keeps
    /// from it goes to the other share.
    #[test]
    fn who_may_not_have_a_returned_buffer_passes_the_news_on() {
        compio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let pool = Pool::new(2 * Pool::MAX_BUFFER);
            let all = [0, 1].map(|_| pool.try_get(Pool::MAX_BUFFER).expect("room"));
            let (greedy, modest) = (pool.share(), pool.share());
            let (told, got) = flume::unbounded();
            for (share, name) in [(greedy.clone(), "first"), (greedy, "second"), (modest, "other")] {
                let told = told.clone();
                crate::spawn(async move {
                    let buf = share.get(Pool::MAX_BUFFER).await;
                    let _ = told.send((name, buf));
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

    /// One waits for much and one, after it, for little; room comes for the little one.
    #[test]
    fn who_wants_much_does_not_sleep_on_what_would_do_for_others() {
        compio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let pool = Pool::new(Pool::MAX_BUFFER);
            let mut parts: Vec<Buf> =
                (0..2).map(|_| pool.try_get(Pool::MAX_BUFFER / 2).expect("room")).collect();
            let (told, got) = flume::unbounded();
            for len in [Pool::MAX_BUFFER, PAGE] {
                let (pool, told) = (pool.clone(), told.clone());
                crate::spawn(async move { drop(told.send(pool.get(len).await)) });
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
        assert_eq!(second[8999], 1, "what was given back last");
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
        assert_eq!(trim(), 0, "all were used");
        drop(touched(PAGE));
        assert_eq!(trim(), 3 * PAGE, "one of the two, and the large one");
        assert_eq!((trim(), trim()), (PAGE, 0));
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
