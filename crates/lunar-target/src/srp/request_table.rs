//! The unanswered requests of an initiator, and its credits (SRP r16a section 4.6).

use crate::core::DataOutId;
use lunar_proto::transfer::DataOutSegment;
use lunar_wire::srp::MemoryDescriptor;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// The slot is free.
    Free,
    /// A SCSI command, with its position in the order of the initiator.
    Command(u32),
    /// A task management function.
    Function,
}

/// An RDMA Read from memory of the initiator.
pub enum SlotRead {
    /// The descriptor table of a command: its length, and the data length in the command, in bytes.
    Table { len: usize, declared_len: u32 },
    /// Data of a command. `lands`: they are placed in the buffer of the task, instead of a buffer of their own.
    Data { origin: DataOutId, segment: DataOutSegment, lands: bool },
}

/// An unanswered request. Its index in the table is the tag that the core uses.
pub struct RequestSlot {
    /// The kind of the request.
    pub kind: SlotKind,
    /// The tag that the initiator gave it.
    pub tag: u64,
    /// The solicited notifications that the initiator requests.
    pub notifications: u8,
    /// Whether the data come from the initiator.
    pub writes: bool,
    /// The descriptors of its data in memory of the initiator.
    pub pieces: Vec<MemoryDescriptor>,
    /// The RDMA Read in flight for it.
    pub pending: Option<SlotRead>,
    /// The number of the latest RDMA Read for it.
    read: u64,
    /// Number of sends and reads that wait for this request. The slot is not reused before they have ended.
    pub queued: usize,
}

/// The requests of an initiator, and its credits.
#[derive(Default)]
pub struct RequestTable {
    list: Vec<RequestSlot>,
    free: Vec<u32>,
    /// Maximum number of unanswered requests.
    credits: usize,
    /// Credits of commands without a response. The next response returns them.
    owed: usize,
    commands: usize,
    reads: usize,
    latest_read: u64,
}

impl RequestTable {
    /// An empty table with this many credits.
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

    /// Takes a slot for a request. None: the initiator has no credit left.
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

    fn returned_credits(&mut self) -> i32 {
        1 + std::mem::take(&mut self.owed) as i32
    }

    /// Takes the credits that no response will return, so that the target must grant them itself.
    pub fn overdue(&mut self) -> Option<i32> {
        let owed = (self.used() == 0).then_some(self.owed).filter(|owed| *owed > 0)?;
        self.owed = 0;
        Some(owed as i32)
    }

    /// The request in this slot.
    pub fn get(&mut self, tag: u32) -> Option<&mut RequestSlot> {
        self.list.get_mut(tag as usize).filter(|slot| slot.kind != SlotKind::Free)
    }

    /// The slot and the position of the command to which the initiator gave this tag.
    pub fn command(&self, tag: u64) -> Option<(u32, u32)> {
        (0..).zip(&self.list).find_map(|(place, slot)| match slot.kind {
            SlotKind::Command(sequence) if slot.tag == tag => Some((place, sequence)),
            _ => None,
        })
    }

    /// Answers a request, and returns the credits to return with the response.
    pub fn answer(&mut self, tag: u32) -> i32 {
        self.release(tag);
        self.returned_credits()
    }

    /// Number of unanswered SCSI commands.
    pub fn commands(&self) -> usize {
        self.commands
    }

    /// Whether an RDMA Read is in flight.
    pub fn is_reading(&self) -> bool {
        self.reads > 0
    }

    /// Whether the response to a request must wait for RDMA Reads: for its own, or for all if it is a function.
    pub fn is_busy_for(&mut self, tag: u32) -> bool {
        match self.get(tag) {
            Some(slot) if slot.kind == SlotKind::Function => self.is_reading(),
            Some(slot) => slot.pending.is_some(),
            None => false,
        }
    }

    /// Records the RDMA Read of a request.
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

    /// Whether an RDMA Read up to this number is in flight.
    pub fn reads_up_to(&self, number: u64) -> bool {
        self.reads > 0 && self.list.iter().any(|slot| slot.pending.is_some() && slot.read <= number)
    }

    /// Counts a send or read that starts or stops waiting for a request.
    pub fn queue(&mut self, tag: u32, waits: bool) {
        if let Some(slot) = self.get(tag) {
            slot.queued = if waits { slot.queued + 1 } else { slot.queued.saturating_sub(1) };
        }
    }

    /// Takes the completed RDMA Read of a request.
    pub fn take_read(&mut self, tag: u32) -> Option<SlotRead> {
        let pending = self.get(tag)?.pending.take()?;
        self.reads -= 1;
        Some(pending)
    }

    /// Releases commands that the core no longer knows and that get no response. A command with a read in flight is
    /// kept.
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
    fn requests_do_not_exceed_credits() {
        let mut slots = RequestTable::new(2);
        let first = slots.take(SlotKind::Command(1), 7, 0).unwrap();
        let second = slots.take(SlotKind::Function, 8, 0).unwrap();
        assert_eq!(slots.take(SlotKind::Command(2), 9, 0), None);
        assert_eq!((slots.command(7), slots.command(8)), (Some((first, 1)), None));
        assert_eq!(slots.answer(second), 1);
        assert_eq!((slots.commands(), slots.answer(first), slots.commands()), (1, 1, 0));
    }

    #[test]
    fn unanswered_credit_returns_with_next_response() {
        let mut slots = RequestTable::new(3);
        let [aborted, reading, known] =
            [1, 2, 3].map(|n| slots.take(SlotKind::Command(n), n.into(), 0).unwrap());
        slots.begin(reading, SlotRead::Table { len: 16, declared_len: 0 });
        slots.forget(|tag| tag == known);
        assert!(slots.get(aborted).is_none() && slots.get(reading).is_some() && slots.is_reading());
        // The credit was not returned to the initiator yet.
        assert_eq!(slots.take(SlotKind::Function, 4, 0), None);
        assert_eq!(slots.answer(known), 2);
        assert!(slots.take_read(reading).is_some() && !slots.is_reading());
    }
}
