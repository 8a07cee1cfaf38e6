//! What waits at the datamover until RDMA Reads have ended, and all that comes behind it.

use lunar_runtime::out::Payload;
use lunar_wire::iscsi::pdu::STATUS;
use lunar_wire::iscsi::{Bhs, opcode};
use std::collections::VecDeque;

/// Answers that may wait, beside those of as many commands as a session may have; and the bytes of all.
const EXTRA: usize = 1024;
const MAX_BYTES: usize = 16 << 20;

/// PDUs that are held back, in their order.
#[derive(Default)]
pub struct DeferredResponses {
    list: VecDeque<(Bhs, Payload)>,
    /// Of them, those that answer something or tell of it; and bytes that are in no buffer of the pool.
    answers: usize,
    bytes: usize,
    /// Those that were ever held.
    ever: u64,
}

impl DeferredResponses {
    /// Holds one more back.
    pub fn hold(&mut self, header: Bhs, payload: Payload) {
        self.answers += usize::from(is_answer(&header));
        self.bytes += own(&payload);
        self.ever += 1;
        self.list.push_back((header, payload));
    }

    /// The first, if it need not wait any more.
    pub fn pop_ready(&mut self, is_busy_for: impl FnOnce(&Bhs) -> bool) -> Option<(Bhs, Payload)> {
        if is_busy_for(&self.list.front()?.0) {
            return None;
        }
        let (header, payload) = self.list.pop_front()?;
        self.answers -= usize::from(is_answer(&header));
        self.bytes -= own(&payload);
        Some((header, payload))
    }

    /// Nothing is held back.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Somebody asks on and on, and does not send what the answers wait for; of commands there may be so many.
    pub fn is_over_limit(&self, commands: usize) -> bool {
        self.answers > commands + EXTRA || self.bytes > MAX_BYTES
    }

    /// Whether a task of this tag has something here.
    pub fn names(&self, itt: u32) -> bool {
        self.list.iter().any(|(header, _)| header.itt() == itt)
    }

    /// A mark behind what is held back now.
    pub fn mark(&self) -> u64 {
        self.ever
    }

    /// Nothing from before this mark is held back.
    pub fn has_passed(&self, mark: u64) -> bool {
        self.ever - self.list.len() as u64 >= mark
    }
}

/// It is no part of an answer that follows.
fn is_answer(header: &Bhs) -> bool {
    header.opcode() != opcode::DATA_IN || header.flags() & STATUS != 0
}

fn own(payload: &Payload) -> usize {
    if let Payload::Bytes(bytes) = payload { bytes.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_wire::iscsi::{NONE, pdu};

    fn ping(held: &mut DeferredResponses, bytes: usize) {
        held.hold(pdu::nop_in(0, 1, NONE), Payload::Bytes(vec![0; bytes]));
    }

    #[test]
    fn what_has_gone_does_not_count_among_what_is_held() {
        let mut held = DeferredResponses::default();
        ping(&mut held, MAX_BYTES / 2);
        let mark = held.mark();
        assert!(held.pop_ready(|_| true).is_none() && !held.has_passed(mark));
        ping(&mut held, MAX_BYTES / 2 + 1);
        assert!(held.is_over_limit(0));
        assert!(held.pop_ready(|_| false).is_some() && held.has_passed(mark) && !held.is_over_limit(0));
        assert!(!held.is_empty() && !held.has_passed(held.mark()));
    }

    #[test]
    fn answers_are_bounded_and_data_before_its_answer_is_not() {
        let mut held = DeferredResponses::default();
        for _ in 0..2 * EXTRA {
            held.hold(Bhs::new(opcode::DATA_IN), Payload::Zeros(512));
        }
        (0..EXTRA + 7).for_each(|_| ping(&mut held, 0));
        assert_eq!([7, 6].map(|commands| held.is_over_limit(commands)), [false, true]);
    }
}
