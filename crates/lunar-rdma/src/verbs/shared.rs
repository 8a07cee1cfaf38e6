//! Memory for messages that many connections of a device share.
//!
//! Each of the first [`UNSHARED`] connections has memory of its own for all that its peer may send. That is about two
//! mebibytes for one that may have 128 commands under way, and most of it waits in vain. Those that come later take it
//! from one queue of the device, in which there is less than was reserved to all of them together. When it is empty
//! InfiniBand and RoCE let the sender wait (RNR). iWARP would end the connection, so its devices share nothing.
#![allow(unsafe_code)]

use super::async_events::AsyncEventSink;
use super::bounce::BounceBuffer;
use super::domain::{Domain, Pd};
use super::ffi::*;
use super::library::last_error;
use super::queues::{PostReceive, hand_over};
use super::receives::Receives;
use std::io;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Connections of a device that have memory of their own.
pub const UNSHARED: usize = 16;
/// Messages that there is memory for, if the device takes so many.
const DEPTH: u32 = 4096;
/// Bytes of each: one of iSER with all its headers and 8 KiB of data is shorter, and so is every one of SRP.
pub const LEN: usize = 12 << 10;

/// A shared receive queue of the library.
struct SrqHandle {
    srq: *mut ibv_srq,
    pd: Arc<Pd>,
}

// SAFETY: the library takes calls for a queue from all threads.
unsafe impl Send for SrqHandle {}
// SAFETY: the same.
unsafe impl Sync for SrqHandle {}

impl PostReceive for SrqHandle {
    fn receive(&self, into: &[(u64, &BounceBuffer, usize)]) -> usize {
        hand_over(into, |first, bad| {
            // SAFETY: the queue lives as long as this, with its context and the functions of that.
            unsafe { ((*(*self.srq).context).ops.post_srq_recv)(self.srq, first, bad) }
        })
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        // SAFETY: ours; each connection that uses it holds it for longer than its queues.
        let status = unsafe { (self.pd.library.ibv_destroy_srq)(self.srq) };
        if status != 0 {
            tracing::debug!(status, "a shared receive queue was not given back");
        }
    }
}

/// The queue of a device, and what the device has of it. The queue goes before the memory.
pub struct SharedReceives {
    queue: SrqHandle,
    depth: u32,
    async_sink: Arc<AsyncEventSink>,
    inside: Mutex<SrqSlots>,
}

struct SrqSlots {
    receives: Receives,
    /// Messages that may come to all connections.
    reserved: usize,
}

impl SharedReceives {
    /// A queue without memory.
    ///
    /// # Errors
    /// When the device has no more queues.
    pub fn new(domain: &Domain) -> io::Result<SharedReceives> {
        // All of it has room in half of a completion queue.
        let most = domain.attr.max_srq_wr.min(domain.attr.max_cqe / 2);
        let most = u32::try_from(most).unwrap_or(0).clamp(1, DEPTH);
        let mut attr = ibv_srq_init_attr { srq_context: null_mut(), max_wr: most, max_sge: 1, srq_limit: 0 };
        let pd = domain.shared_pd();
        // SAFETY: the domain lives, and the attributes until the call returns.
        let srq = unsafe { (pd.library.ibv_create_srq)(pd.pd, &raw mut attr) };
        if srq.is_null() {
            return Err(last_error("make a shared receive queue"));
        }
        let inside = SrqSlots { receives: Receives::new(domain.pool(), most as usize), reserved: 0 };
        let async_sink = domain.async_events.add([srq as usize, 0, 0]);
        Ok(SharedReceives {
            queue: SrqHandle { srq, pd },
            depth: most,
            async_sink,
            inside: Mutex::new(inside),
        })
    }

    /// The device has said nothing else.
    pub fn is_healthy(&self) -> bool {
        self.async_sink.event().is_none()
    }

    /// Messages that there is memory for at most, to all connections together.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The queue as the library knows it.
    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.queue.srq
    }

    fn inside(&self) -> MutexGuard<'_, SrqSlots> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many more messages may come. Beyond what the device takes there is no more memory for them.
    ///
    /// # Errors
    /// When there is no memory at all.
    pub fn reserve(&self, count: usize) -> io::Result<()> {
        let mut inside = self.inside();
        inside.reserved += count;
        let more = inside.reserved.min(inside.receives.depth()).saturating_sub(inside.receives.count());
        let before = inside.receives.used();
        let added = inside.receives.add(&self.queue, more, LEN);
        if added.is_err() {
            // Else those who share would be asked for it at their next message.
            let filled = inside.receives.used().saturating_sub(before);
            inside.receives.cancel_wanted(more.saturating_sub(filled));
        }
        added
    }

    /// So many of them are not to come any more. The memory stays for those to whom it will be reserved next.
    pub fn release(&self, count: usize) {
        self.inside().reserved -= count;
    }

    /// The device is done with a slot: its memory.
    pub fn take(&self, slot: usize) -> Option<BounceBuffer> {
        self.inside().receives.take(slot).map(|(chunk, _)| chunk)
    }

    /// So much of what was taken is free again.
    ///
    /// # Errors
    /// When the device has no memory for messages at all.
    pub fn repost(&self, count: usize) -> io::Result<()> {
        let mut inside = self.inside();
        let added = inside.receives.add(&self.queue, count, LEN);
        if inside.receives.used() > 0 { Ok(()) } else { added }
    }
}
