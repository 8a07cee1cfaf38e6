//! Accounts: the bytes of the pool, of the owners, and of their shares.

use super::{CLASSES, Pool};
use event_listener::Event;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};

/// A share is at most this fraction of the pool.
pub(super) const SHARES: usize = 4;
/// A share without buffers gets one of up to this many bytes from the reserve, even if the pool is at its limit.
pub(super) const RESERVED_BYTES: usize = 1 << 20;
/// Buffers of up to this many bytes count for the owner in steps ([`GRANT_BYTES`]), because all cores write to its
/// counter.
pub(super) const SMALL_BYTES: usize = 64 << 10;
/// A share counts its small buffers for the owner in steps of this many bytes. It keeps one step when it has none.
pub(super) const GRANT_BYTES: usize = 128 << 10;
/// Small buffers may always take this fraction of an owner's limit, while the same fraction of the pool is free.
const SMALL_PART: usize = 4;

pub(super) struct PoolAccount {
    pub(super) limit: usize,
    pub(super) used: AtomicUsize,
    /// Bytes in use from the reserve.
    pub(super) reserve: AtomicUsize,
    /// The number of waiters. A waiter counts itself before it checks once more, and a return frees bytes before it
    /// reads the count. All are SeqCst, so no return is missed.
    pub(super) waiting: AtomicUsize,
    /// Bytes of free buffers above [`SMALL_BYTES`] that all cores keep.
    pub(super) kept: AtomicUsize,
    /// Counts returns that happened while there were waiters.
    pub(super) returns: AtomicUsize,
    /// One event for each size class: a waiter for a large buffer must not consume the wake-up for a small one.
    pub(super) returned: [Event; CLASSES],
    /// Owners of shares, by name.
    pub(super) owners: Mutex<HashMap<String, Weak<ShareOwner>>>,
}

impl PoolAccount {
    /// Wakes one waiter of each class. A waiter that gets its buffer wakes the next of its class.
    pub(super) fn wake(&self) {
        self.returned.iter().for_each(|class| {
            class.notify(1);
        });
    }

    /// The maximum of `kept`.
    pub(super) fn keep_limit(&self) -> usize {
        self.limit / SHARES
    }

    /// The size of the reserve in bytes: the first buffers of shares beyond the limit.
    fn reserve_limit(&self) -> usize {
        (self.limit / SHARES).max(Pool::MAX_BUFFER)
    }
}

/// Counts a waiter.
pub(super) struct WaiterCount<'a>(&'a AtomicUsize);

impl<'a> WaiterCount<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
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
pub(super) struct ShareOwner {
    /// Bytes of its buffers above [`SMALL_BYTES`], including promised ones.
    pub(super) used: AtomicUsize,
    /// Bytes granted to its shares for small buffers.
    pub(super) small: AtomicUsize,
    /// Bytes of its buffers from the reserve.
    pub(super) reserve: AtomicUsize,
    pub(super) returned: Event,
}

/// The share of one user of the pool.
pub(super) struct PoolShare {
    pub(super) account: Arc<PoolAccount>,
    pub(super) owner: Arc<ShareOwner>,
    pub(super) limit: usize,
    pub(super) reserved: usize,
    pub(super) used: AtomicUsize,
    /// Bytes of `used` in large buffers or from the reserve, which the grants do not cover.
    pub(super) other: AtomicUsize,
    /// Bytes that the owner has granted for small buffers: the only counter that the fast path reads.
    pub(super) granted: AtomicUsize,
    /// Bytes of `used` that the account does not count yet.
    pub(super) promised: AtomicUsize,
}

/// The counters that include a buffer, besides that of its share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BufAccounting {
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
pub(super) enum PoolExhausted {
    /// The share or its owner is at its limit.
    Share,
    /// The owner would leave too little to others; these may take what is free.
    Owner,
    /// The pool is at its limit.
    Pool,
}

impl PoolShare {
    #[inline]
    pub(super) fn take(&self, bytes: usize) -> Result<BufAccounting, PoolExhausted> {
        self.enter(bytes)?;
        self.obtain(bytes).inspect_err(|_| self.leave(bytes))
    }

    pub(super) fn promise(&self, bytes: usize) -> Result<BufAccounting, PoolExhausted> {
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
    pub(super) fn obtain(&self, bytes: usize) -> Result<BufAccounting, PoolExhausted> {
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
    pub(super) fn disown(&self, bytes: usize) {
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
    pub(super) fn claim(&self, bytes: usize) -> Result<(), PoolExhausted> {
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
    pub(super) fn is_first(&self, bytes: usize) -> bool {
        let claimed = self.used.load(SeqCst).saturating_sub(self.promised.load(SeqCst));
        bytes <= self.reserved && claimed <= bytes
    }

    /// Takes bytes from the reserve if it has room. An owner must leave at least twice as much of it free as it
    /// holds.
    pub(super) fn take_reserve(&self, bytes: usize) -> bool {
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

    pub(super) fn give(&self, bytes: usize, source: BufAccounting) {
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
