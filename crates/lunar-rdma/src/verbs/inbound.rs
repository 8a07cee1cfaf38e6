//! Memory for the messages of one connection: its own, or a part of what all share.

use super::bounce::BounceBuffer;
use super::queues::QueuePair;
use super::receives::Receives;
use super::shared::{self, SharedReceives};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Where messages come to.
pub enum Inbound {
    /// Memory of its own.
    Own(Receives),
    /// What all share.
    Shared(ReceiveShare),
}

/// The part of one connection.
pub struct ReceiveShare {
    shared: Arc<SharedReceives>,
    /// Messages that may come: how many, and how long. The queue does not know whose turn it is.
    allowed: VecDeque<(usize, usize)>,
    /// Their number, and the most that it has been: so many were reserved.
    open: usize,
    reserved: usize,
    /// Memory that was taken, and is to be given back.
    taken: usize,
}

impl ReceiveShare {
    /// One that may take nothing yet.
    pub fn new(shared: Arc<SharedReceives>) -> ReceiveShare {
        ReceiveShare { shared, allowed: VecDeque::new(), open: 0, reserved: 0, taken: 0 }
    }

    /// So many more of them may come.
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

    /// A message of so many bytes may come now.
    fn allow(&mut self, len: usize) -> io::Result<()> {
        while let Some((0, _)) = self.allowed.front() {
            self.allowed.pop_front();
        }
        let wrong = |text| Err(io::Error::new(io::ErrorKind::InvalidData, text));
        match self.allowed.front_mut() {
            Some((count, most)) if *most >= len => {
                *count -= 1;
                self.open -= 1;
                Ok(())
            }
            Some(_) => wrong("the other side sent a message that is too long"),
            None => wrong("the other side sent a message too many"),
        }
    }
}

impl Drop for ReceiveShare {
    fn drop(&mut self) {
        self.shared.release(self.reserved);
    }
}

impl Inbound {
    /// Takes so many more messages of at most so many bytes.
    ///
    /// # Errors
    /// When there is no memory for them.
    pub fn add(&mut self, queues: &QueuePair, count: usize, len: usize) -> io::Result<()> {
        match self {
            Inbound::Own(receives) => receives.add(queues, count, len),
            Inbound::Shared(_) if len > shared::LEN => {
                let text = format!("messages of {len} bytes are too long for memory that is shared");
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            Inbound::Shared(share) => share.add(count, len),
        }
    }

    /// Gives the device what it has room for.
    ///
    /// # Errors
    /// When there is no memory for that, or the device takes none at all.
    pub fn refill(&mut self, queues: &QueuePair) -> io::Result<()> {
        match self {
            Inbound::Own(receives) => receives.refill(queues),
            Inbound::Shared(share) => match std::mem::take(&mut share.taken) {
                0 => Ok(()),
                taken => share.shared.repost(taken),
            },
        }
    }

    /// A message of so many bytes has come to a slot: its memory, and how much of that a message may have.
    ///
    /// # Errors
    /// When it may not come.
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

    /// No message has come to a slot, and none will.
    pub fn discard(&mut self, slot: usize) {
        match self {
            Inbound::Own(receives) => drop(receives.take(slot)),
            Inbound::Shared(share) => share.taken += usize::from(share.shared.take(slot).is_some()),
        }
    }

    /// The queue that is shared, as the library knows it; zero if none is.
    pub fn place(&self) -> usize {
        match self {
            Inbound::Own(_) => 0,
            Inbound::Shared(share) => share.shared.as_ptr() as usize,
        }
    }

    /// What has come and is not taken is missed by others.
    pub fn is_shared(&self) -> bool {
        matches!(self, Inbound::Shared(_))
    }
}
