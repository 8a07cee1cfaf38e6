//! The receives of one connection: its own, or those of the shared queue.

use super::bounce::BounceBuffer;
use super::queues::QueuePair;
use super::receives::Receives;
use super::shared::{self, SharedReceives};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The receives of a connection.
pub enum Inbound {
    /// Its own receives.
    Own(Receives),
    /// The shared receive queue.
    Shared(ReceiveShare),
}

/// The use of the shared receive queue by one connection.
pub struct ReceiveShare {
    shared: Arc<SharedReceives>,
    /// The messages that the peer may send: their number, and their length in bytes. The shared queue does not
    /// enforce these limits.
    allowed: VecDeque<(usize, usize)>,
    /// Their current number, and its maximum so far, which is reserved in the shared queue.
    open: usize,
    reserved: usize,
    /// The number of taken receives that are not reposted yet.
    taken: usize,
}

impl ReceiveShare {
    /// Creates a share that allows no message yet.
    pub fn new(shared: Arc<SharedReceives>) -> ReceiveShare {
        ReceiveShare { shared, allowed: VecDeque::new(), open: 0, reserved: 0, taken: 0 }
    }

    /// Allows `count` more messages of `len` bytes.
    fn add(&mut self, count: usize, len: usize) -> io::Result<()> {
        match self.allowed.back_mut() {
            Some((more, same)) if *same == len => *more += count,
            _ => self.allowed.push_back((count, len)),
        }
        self.open += count;
        let more = self.open.saturating_sub(self.reserved);
        self.reserved += more;
        self.shared.reserve(more)
    }

    /// Checks a message against the allowed ones.
    fn allow(&mut self, len: usize) -> io::Result<()> {
        while let Some((0, _)) = self.allowed.front() {
            self.allowed.pop_front();
        }
        let wrong = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        match self.allowed.front_mut() {
            Some((count, max)) if *max >= len => {
                *count -= 1;
                self.open -= 1;
                Ok(())
            }
            Some(_) => wrong("the peer sent a message longer than its receive buffer"),
            None => wrong("the peer sent a message for which no receive buffer was posted"),
        }
    }
}

impl Drop for ReceiveShare {
    fn drop(&mut self) {
        self.shared.release(self.reserved);
    }
}

impl Inbound {
    /// Adds `count` receives of `len` bytes.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn add(&mut self, queues: &QueuePair, count: usize, len: usize) -> io::Result<()> {
        match self {
            Inbound::Own(receives) => receives.add(queues, count, len),
            Inbound::Shared(_) if len > shared::LEN => {
                let text = format!(
                    "receive buffer of {len} bytes: the limit of the shared receive queue is {} bytes",
                    shared::LEN
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            Inbound::Shared(share) => share.add(count, len),
        }
    }

    /// Posts receives while the device has room.
    ///
    /// # Errors
    /// When there is no memory, or the device accepts no receives at all.
    pub fn refill(&mut self, queues: &QueuePair) -> io::Result<()> {
        match self {
            Inbound::Own(receives) => receives.refill(queues),
            Inbound::Shared(share) => match std::mem::take(&mut share.taken) {
                0 => Ok(()),
                taken => share.shared.repost(taken),
            },
        }
    }

    /// Takes the buffer of a message of `len` bytes, and the length of its receive.
    ///
    /// # Errors
    /// When the peer was not allowed to send it.
    pub fn take(&mut self, slot: usize, len: usize) -> io::Result<Option<(BounceBuffer, usize)>> {
        match self {
            Inbound::Own(receives) => Ok(receives.take(slot)),
            Inbound::Shared(share) => {
                let chunk = share.shared.take(slot);
                share.taken += usize::from(chunk.is_some());
                share.allow(len)?;
                Ok(chunk.map(|chunk| (chunk, shared::LEN)))
            }
        }
    }

    /// Frees the slot of a failed receive.
    pub fn discard(&mut self, slot: usize) {
        match self {
            Inbound::Own(receives) => drop(receives.take(slot)),
            Inbound::Shared(share) => share.taken += usize::from(share.shared.take(slot).is_some()),
        }
    }

    /// The address of the shared queue, which identifies it in asynchronous events. Zero if there is none.
    pub fn place(&self) -> usize {
        match self {
            Inbound::Own(_) => 0,
            Inbound::Shared(share) => share.shared.as_ptr() as usize,
        }
    }

    /// Whether the receives are those of the shared queue. Unprocessed completions then withhold receives from other
    /// connections.
    pub fn is_shared(&self) -> bool {
        matches!(self, Inbound::Shared(_))
    }
}
