//! The requests of an initiator that are not answered, and its credits (SRP r16a section 4.6).

use crate::core::DataOutId;
use lunar_proto::transfer::DataOutSegment;
use lunar_wire::srp::MemoryDescriptor;

/// What a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// None: the slot is free.
    Free,
    /// A SCSI command, with its place in the order of the initiator.
    Command(u32),
    /// A task management function.
    Function,
}

/// What is being read from the memory of the initiator.
pub enum SlotRead {
    /// The table of descriptors of a command, which waits for it: its length in bytes, and the bytes of data that it says.
    Table { len: usize, declared_len: u32 },
    /// Data that were asked for, and whether they go into the buffer of their task, or into one of their own.
    Data { origin: DataOutId, segment: DataOutSegment, lands: bool },
}

/// A request that is not answered. Its place in the list is the tag by which the core knows it.
pub struct RequestSlot {
    /// What it is.
    pub kind: SlotKind,
    /// The initiator's name for it.
    pub tag: u64,
    /// Solicited notifications that are wanted.
    pub notifications: u8,
    /// Its data comes from the initiator.
    pub writes: bool,
    /// Where its data lies in the memory of the initiator.
    pub pieces: Vec<MemoryDescriptor>,
    /// What is being read for it.
    pub pending: Option<SlotRead>,
    /// The number of the latest RDMA Read for it.
    read: u64,
    /// What is to be sent or read for it and waits for something: until then nobody else gets the slot.
    pub queued: usize,
}

/// The requests of an initiator, and its credits.
#[derive(Default)]
pub struct RequestTable {
    list: Vec<RequestSlot>,
    free: Vec<u32>,
    /// Requests that the initiator may have unanswered.
    credits: usize,
    /// Credits of commands that got no answer, to be given back with the next.
    owed: usize,
    commands: usize,
    reads: usize,
    latest_read: u64,
}

impl RequestTable {
    /// None of the credits is used.
    pub fn new(credits: usize) -> RequestTable {
        let slot = || RequestSlot {
            kind: SlotKind::Free,
            tag: 0,
            notifications: 0,
            writes: false,
            pieces: Vec::new(),
            pending: None,
            read: 0,
            queued: 0,
        };
        let list: Vec<RequestSlot> = std::iter::repeat_with(slot).take(credits).collect();
        RequestTable {
            free: (0..list.len() as u32).rev().collect(),
            list,
            credits,
            owed: 0,
            commands: 0,
            reads: 0,
            latest_read: 0,
        }
    }

    fn used(&self) -> usize {
        self.list.len() - self.free.len()
    }

    /// A slot for a request; None if the initiator has no credit for it.
    pub fn take(&mut self, kind: SlotKind, tag: u64, notifications: u8) -> Option<u32> {
        if self.used() + self.owed >= self.credits {
            return None;
        }
        let free = self.free.pop()?;
        let slot = &mut self.list[free as usize];
        (slot.kind, slot.tag, slot.notifications) = (kind, tag, notifications);
        (slot.writes, slot.queued) = (false, 0);
        slot.pieces.clear();
        self.commands += usize::from(matches!(kind, SlotKind::Command(_)));
        Some(free)
    }

    /// The credits that go with the answer to a request that needs no slot; None if the initiator has none for it.
    pub fn answer_without_slot(&mut self) -> Option<i32> {
        (self.used() + self.owed < self.credits).then(|| self.returned_credits())
    }

    fn returned_credits(&mut self) -> i32 {
        1 + std::mem::take(&mut self.owed) as i32
    }

    /// Credits that are owed while no answer is to come with which they could go: they are given from now on.
    pub fn overdue(&mut self) -> Option<i32> {
        let owed = (self.used() == 0).then_some(self.owed).filter(|owed| *owed > 0)?;
        self.owed = 0;
        Some(owed as i32)
    }

    /// The request in this slot.
    pub fn get(&mut self, tag: u32) -> Option<&mut RequestSlot> {
        self.list.get_mut(tag as usize).filter(|slot| slot.kind != SlotKind::Free)
    }

    /// The slot of the command that the initiator calls so, and its place in the order.
    pub fn command(&self, tag: u64) -> Option<(u32, u32)> {
        (0..).zip(&self.list).find_map(|(place, slot)| match slot.kind {
            SlotKind::Command(sequence) if slot.tag == tag => Some((place, sequence)),
            _ => None,
        })
    }

    /// A request is answered: the credits that go with it.
    pub fn answer(&mut self, tag: u32) -> i32 {
        self.release(tag);
        self.returned_credits()
    }

    /// SCSI commands that are not answered.
    pub fn commands(&self) -> usize {
        self.commands
    }

    /// Something is being read from the initiator.
    pub fn is_reading(&self) -> bool {
        self.reads > 0
    }

    /// Takes note of what is being read for a request.
    pub fn begin(&mut self, tag: u32, pending: SlotRead) {
        let read = self.latest_read + 1;
        let Some(slot) = self.get(tag) else { return };
        slot.read = read;
        let is_first = slot.pending.replace(pending).is_none();
        self.latest_read = read;
        self.reads += usize::from(is_first);
    }

    /// The number of the latest RDMA Read.
    pub fn latest_read(&self) -> u64 {
        self.latest_read
    }

    /// An RDMA Read up to this number has not ended.
    pub fn reads_up_to(&self, number: u64) -> bool {
        self.reads > 0 && self.list.iter().any(|slot| slot.pending.is_some() && slot.read <= number)
    }

    /// One more thing waits for a request, or one less.
    pub fn queue(&mut self, tag: u32, waits: bool) {
        if let Some(slot) = self.get(tag) {
            slot.queued = if waits { slot.queued + 1 } else { slot.queued.saturating_sub(1) };
        }
    }

    /// What was being read for a request has come.
    pub fn take_read(&mut self, tag: u32) -> Option<SlotRead> {
        let pending = self.get(tag)?.pending.take()?;
        self.reads -= 1;
        Some(pending)
    }

    /// Forgets the commands that will get no answer, because nobody knows them any more. One whose data is still
    /// coming is left for later.
    pub fn forget(&mut self, is_known: impl Fn(u32) -> bool) {
        for tag in 0..self.list.len() as u32 {
            let slot = &self.list[tag as usize];
            let waits = slot.queued > 0 || slot.pending.is_some();
            if matches!(slot.kind, SlotKind::Command(_)) && !waits && !is_known(tag) {
                self.release(tag);
                self.owed += 1;
            }
        }
    }

    fn release(&mut self, tag: u32) {
        let Some(slot) = self.get(tag) else { return };
        let kind = std::mem::replace(&mut slot.kind, SlotKind::Free);
        self.free.push(tag);
        self.commands -= usize::from(matches!(kind, SlotKind::Command(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_requests_than_credits() {
        let mut slots = RequestTable::new(2);
        let first = slots.take(SlotKind::Command(1), 7, 0).unwrap();
        let second = slots.take(SlotKind::Function, 8, 0).unwrap();
        assert_eq!((slots.take(SlotKind::Command(2), 9, 0), slots.answer_without_slot()), (None, None));
        assert_eq!((slots.command(7), slots.command(8)), (Some((first, 1)), None));
        assert_eq!(slots.answer(second), 1);
        assert_eq!(slots.answer_without_slot(), Some(1));
        assert_eq!((slots.commands(), slots.answer(first), slots.commands()), (1, 1, 0));
    }

    #[test]
    fn the_credit_of_a_command_without_an_answer_comes_back_with_the_next() {
        let mut slots = RequestTable::new(3);
        let [aborted, reading, known] =
            [1, 2, 3].map(|n| slots.take(SlotKind::Command(n), n.into(), 0).unwrap());
        slots.begin(reading, SlotRead::Table { len: 16, declared_len: 0 });
        slots.forget(|tag| tag == known);
        assert!(slots.get(aborted).is_none() && slots.get(reading).is_some() && slots.is_reading());
        // The initiator has not heard of it yet.
        assert_eq!(slots.take(SlotKind::Function, 4, 0), None);
        assert_eq!(slots.answer(known), 2);
        assert!(slots.take_read(reading).is_some() && !slots.is_reading());
    }
}
