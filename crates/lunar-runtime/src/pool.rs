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

mod origin;
mod share;

use crate::buf::{Buf, PAGE};
use crate::race::either;
use event_listener::Event;
pub(crate) use origin::{PoolOrigin, trim};
use share::{PoolAccount, PoolExhausted, PoolShare, RESERVED_BYTES, SHARES, ShareOwner, WaiterCount};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Size classes: 4 KiB << 0 to 4 KiB << 13 (32 MiB).
const CLASSES: usize = 14;

/// A buffer pool with a limit on the bytes in use.
#[derive(Clone)]
pub struct Pool(Arc<PoolShare>);

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
            kept: AtomicUsize::new(0),
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

#[cfg(test)]
mod tests;
