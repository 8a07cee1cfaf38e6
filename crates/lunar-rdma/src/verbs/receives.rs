//! The receives of a queue: posted ones, and those for which the queue has no free slot.

use super::bounce::{BounceBuffer, BouncePool};
use super::queues::PostReceive;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The maximum number of receives posted by one call.
const AT_ONCE: usize = 64;
/// The flag in a completion id that marks a receive. The other bits are its slot.
const MESSAGE: u64 = 1 << 63;

/// The slot of a completed receive. None if the id is that of a send.
pub fn slot(number: u64) -> Option<usize> {
    (number & MESSAGE != 0).then_some((number & !MESSAGE) as usize)
}

/// The receives of a queue.
pub struct Receives {
    pool: Arc<BouncePool>,
    /// The posted buffers, and the length of each receive in bytes.
    slots: Vec<Option<(BounceBuffer, usize)>>,
    free: Vec<usize>,
    depth: usize,
    /// Receives that are not posted yet: their number, and their length in bytes.
    wanted: VecDeque<(usize, usize)>,
}

impl Receives {
    /// Creates an empty set for a queue with `depth` slots.
    pub fn new(pool: Arc<BouncePool>, depth: usize) -> Receives {
        Receives { pool, slots: Vec::new(), free: Vec::new(), depth, wanted: VecDeque::new() }
    }

    /// Adds `count` receives of `len` bytes.
    ///
    /// # Errors
    /// Those of [`Receives::refill`].
    pub fn add(&mut self, queues: &impl PostReceive, count: usize, len: usize) -> io::Result<()> {
        match self.wanted.back_mut() {
            Some((more, same)) if *same == len => *more += count,
            _ => self.wanted.push_back((count, len)),
        }
        self.refill(queues)
    }

    /// Posts receives while the queue has free slots.
    ///
    /// # Errors
    /// When there is no memory, or the device accepts no receives at all.
    pub fn refill(&mut self, queues: &impl PostReceive) -> io::Result<()> {
        loop {
            let numbers = self.prepare()?;
            if numbers.is_empty() {
                return Ok(());
            }
            let batch: Vec<(u64, &BounceBuffer, usize)> =
                numbers.iter().filter_map(|n| self.describe(*n)).collect();
            let taken = queues.receive(&batch);
            if taken < numbers.len() {
                return self.put_back(&numbers[taken..]);
            }
        }
    }

    fn describe(&self, slot: usize) -> Option<(u64, &BounceBuffer, usize)> {
        let (chunk, len) = self.slots[slot].as_ref()?;
        Some((MESSAGE | slot as u64, chunk, *len))
    }

    /// Fills free slots, and returns them.
    fn prepare(&mut self) -> io::Result<Vec<usize>> {
        let mut numbers = Vec::new();
        while numbers.len() < AT_ONCE
            && self.used() < self.depth
            && let Some((count, len)) = self.wanted.front().copied()
        {
            if count == 0 {
                self.wanted.pop_front();
                continue;
            }
            let chunk = match self.pool.chunk(len) {
                Ok(chunk) => chunk,
                Err(e) if numbers.is_empty() => return Err(e),
                // Post those that have a buffer.
                Err(_) => break,
            };
            self.wanted[0].0 -= 1;
            let slot = self.free.pop().unwrap_or(self.slots.len());
            if slot == self.slots.len() {
                self.slots.push(None);
            }
            self.slots[slot] = Some((chunk, len));
            numbers.push(slot);
        }
        Ok(numbers)
    }

    /// Returns rejected slots to the wanted ones. They are posted again when the device completes a receive, unless
    /// it has none.
    fn put_back(&mut self, slots: &[usize]) -> io::Result<()> {
        for slot in slots.iter().rev() {
            if let Some((_, len)) = self.take(*slot) {
                self.wanted.push_front((1, len));
            }
        }
        self.depth = self.used();
        if self.depth == 0 {
            Err(io::Error::other("the RDMA device accepts no receive requests"))
        } else {
            Ok(())
        }
    }

    /// The limit of posted receives.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// The number of posted and wanted receives.
    pub fn count(&self) -> usize {
        self.used() + self.wanted.iter().map(|(count, _)| count).sum::<usize>()
    }

    /// Removes the last `count` wanted receives.
    pub fn cancel_wanted(&mut self, mut count: usize) {
        while count > 0
            && let Some((more, _)) = self.wanted.back_mut()
        {
            let less = count.min(*more);
            *more -= less;
            count -= less;
            if *more == 0 {
                self.wanted.pop_back();
            }
        }
    }

    /// The number of posted receives.
    pub fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Frees the slot of a completed receive. Returns its buffer, and its length in bytes.
    pub fn take(&mut self, slot: usize) -> Option<(BounceBuffer, usize)> {
        let taken = self.slots.get_mut(slot)?.take()?;
        self.free.push(slot);
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::bounce::RegisteredMemory;

    fn receives(depth: usize) -> Receives {
        let known = |_, _| Ok(RegisteredMemory { lkey: 1, _keep: Box::new(()) });
        Receives::new(BouncePool::new(Box::new(known)), depth)
    }

    #[test]
    fn receive_without_a_slot_waits_for_one() {
        let mut receives = receives(3);
        receives.wanted.extend([(2, 100), (4, 8268)]);
        assert_eq!(receives.prepare().unwrap(), [0, 1, 2]);
        assert!(receives.prepare().unwrap().is_empty());
        assert_eq!(receives.take(1).map(|(_, len)| len), Some(100));
        assert!(receives.take(1).is_none() && receives.take(9).is_none());
        assert_eq!(receives.prepare().unwrap(), [1]);
        assert_eq!(receives.take(1).map(|(chunk, len)| (chunk.len(), len)), Some((12 << 10, 8268)));
        assert_eq!(receives.wanted, [(2, 8268)]);
    }

    #[test]
    fn rejected_receive_is_posted_again() {
        let mut receives = receives(8);
        receives.wanted.push_back((4, 100));
        let slots = receives.prepare().unwrap();
        receives.put_back(&slots[1..]).unwrap();
        assert_eq!((receives.used(), receives.depth), (1, 1));
        assert_eq!(receives.wanted.iter().map(|(count, _)| count).sum::<usize>(), 3);
        receives.take(slots[0]);
        assert!(receives.put_back(&[]).is_err());
    }

    /// A queue that accepts every receive.
    struct All;

    impl PostReceive for All {
        fn receive(&self, messages: &[(u64, &BounceBuffer, usize)]) -> usize {
            messages.len()
        }
    }

    #[test]
    fn memory_shortage_posts_what_fits_and_loses_nothing() {
        let left = std::sync::atomic::AtomicUsize::new(1);
        let known = move |_, _| match left.swap(0, std::sync::atomic::Ordering::SeqCst) {
            0 => Err(io::Error::from(io::ErrorKind::OutOfMemory)),
            _ => Ok(RegisteredMemory { lkey: 1, _keep: Box::new(()) }),
        };
        let mut receives = Receives::new(BouncePool::new(Box::new(known)), 100_000);
        assert!(receives.add(&All, 90_000, 8268).is_err());
        let posted = receives.used();
        assert!(posted > 0 && receives.count() == 90_000);
        receives.cancel_wanted(90_000 - posted);
        assert_eq!(receives.count(), posted);
        // A returned buffer is reused by the next receive.
        for _ in 0..3 {
            drop(receives.take(0));
            receives.add(&All, 1, 8268).unwrap();
            assert_eq!((receives.used(), receives.count()), (posted, posted));
        }
    }

    #[test]
    fn receive_ids_differ_from_send_ids() {
        assert_eq!((slot(MESSAGE | 5), slot(5)), (Some(5), None));
    }
}
