//! The shared receive queue of a device.
//!
//! Each of the first [`UNSHARED`] connections has its own receives, enough for all messages that its peer may send.
//! With 128 commands in flight these take about 2 MiB, most of which is rarely used. Later connections share one
//! queue with fewer receives than their peers could use in total. If it is empty, InfiniBand and RoCE make the sender
//! wait (RNR). iWARP would end the connection, so iWARP devices have no shared queue.
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

/// The number of connections of a device that have their own receives.
pub const UNSHARED: usize = 16;
/// The maximum number of receives in the queue. The device may have a lower limit.
const DEPTH: u32 = 4096;
/// The length of a receive in bytes. It exceeds an iSER message with all headers and 8 KiB of data, and every SRP
/// message.
pub const LEN: usize = 12 << 10;

/// A shared receive queue of the library.
struct SrqHandle {
    srq: *mut ibv_srq,
    pd: Arc<Pd>,
}

// SAFETY: the library accepts calls for a queue from all threads.
unsafe impl Send for SrqHandle {}
// SAFETY: the same.
unsafe impl Sync for SrqHandle {}

impl PostReceive for SrqHandle {
    fn receive(&self, into: &[(u64, &BounceBuffer, usize)]) -> usize {
        hand_over(into, |first, bad| {
            // SAFETY: the queue is valid as long as this, with its context and the functions in it.
            unsafe { ((*(*self.srq).context).ops.post_srq_recv)(self.srq, first, bad) }
        })
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        // SAFETY: owned, and no longer used: each connection holds this until its queues are destroyed.
        let status = unsafe { (self.pd.library.ibv_destroy_srq)(self.srq) };
        if status != 0 {
            tracing::debug!(status, "shared receive queue was not destroyed");
        }
    }
}

/// The shared queue of a device, and its receives. The queue is destroyed before its memory.
pub struct SharedReceives {
    queue: SrqHandle,
    depth: u32,
    async_sink: Arc<AsyncEventSink>,
    inside: Mutex<SrqSlots>,
}

struct SrqSlots {
    receives: Receives,
    /// The number of messages that the peers of all connections may send.
    reserved: usize,
}

impl SharedReceives {
    /// Creates an empty queue.
    ///
    /// # Errors
    /// When the device has no free queues.
    pub fn new(domain: &Domain) -> io::Result<SharedReceives> {
        // Its completions must fit into half of a completion queue.
        let max = domain.attr.max_srq_wr.min(domain.attr.max_cqe / 2);
        let max = u32::try_from(max).unwrap_or(0).clamp(1, DEPTH);
        let mut attr = ibv_srq_init_attr { srq_context: null_mut(), max_wr: max, max_sge: 1, srq_limit: 0 };
        let pd = domain.shared_pd();
        // SAFETY: the domain is valid, and so are the attributes until the call returns.
        let srq = unsafe { (pd.library.ibv_create_srq)(pd.pd, &raw mut attr) };
        if srq.is_null() {
            return Err(last_error("create an RDMA shared receive queue"));
        }
        let inside = SrqSlots { receives: Receives::new(domain.pool(), max as usize), reserved: 0 };
        let async_sink = domain.async_events.add([srq as usize, 0, 0]);
        Ok(SharedReceives {
            queue: SrqHandle { srq, pd },
            depth: max,
            async_sink,
            inside: Mutex::new(inside),
        })
    }

    /// Whether the device has not reported a failure of the queue.
    pub fn is_healthy(&self) -> bool {
        self.async_sink.event().is_none()
    }

    /// The maximum number of posted receives.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// The queue as a pointer of the library.
    pub fn as_ptr(&self) -> *mut ibv_srq {
        self.queue.srq
    }

    fn inside(&self) -> MutexGuard<'_, SrqSlots> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves receives for `count` more messages, and posts them up to the limit of the device.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn reserve(&self, count: usize) -> io::Result<()> {
        let mut inside = self.inside();
        inside.reserved += count;
        let more = inside.reserved.min(inside.receives.depth()).saturating_sub(inside.receives.count());
        let before = inside.receives.used();
        let added = inside.receives.add(&self.queue, more, LEN);
        if added.is_err() {
            // Otherwise the next message of another connection would retry these, and fail.
            let filled = inside.receives.used().saturating_sub(before);
            inside.receives.cancel_wanted(more.saturating_sub(filled));
        }
        added
    }

    /// Releases reserved receives. They stay posted for later connections.
    pub fn release(&self, count: usize) {
        self.inside().reserved -= count;
    }

    /// Takes the buffer of a completed receive.
    pub fn take(&self, slot: usize) -> Option<BounceBuffer> {
        self.inside().receives.take(slot).map(|(chunk, _)| chunk)
    }

    /// Posts receives in place of `count` completed ones.
    ///
    /// # Errors
    /// When the queue has no receive at all.
    pub fn repost(&self, count: usize) -> io::Result<()> {
        let mut inside = self.inside();
        let added = inside.receives.add(&self.queue, count, LEN);
        if inside.receives.used() > 0 { Ok(()) } else { added }
    }
}
