//! Responses that wait for the end of RDMA Reads, and all PDUs queued after them.

use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::flag::STATUS;
use lunar_wire::iscsi::{Bhs, opcode};
use std::collections::VecDeque;

/// Maximum number of deferred responses in excess of one per command of a session, and of bytes. A connection that
/// exceeds one of them ends.
const EXTRA_RESPONSES: usize = 1024;
const MAX_BYTES: usize = 16 << 20;

/// Deferred PDUs in queue order.
#[derive(Default)]
pub struct DeferredResponses {
    list: VecDeque<(Bhs, Payload)>,
    /// Number of deferred responses and events, and of bytes that count in no pool.
    answers: usize,
    bytes: usize,
    /// Number of PDUs that were deferred since the start.
    ever: u64,
}

impl DeferredResponses {
    /// Defers a PDU.
    pub fn hold(&mut self, header: Bhs, payload: Payload) {
        self.answers += usize::from(is_answer(&header));
        self.bytes += own(&payload);
        self.ever += 1;
        self.list.push_back((header, payload));
    }

    /// The first PDU, if it need not wait any longer.
    pub fn pop_ready(&mut self, is_busy_for: impl FnOnce(&Bhs) -> bool) -> Option<(Bhs, Payload)> {
        if is_busy_for(&self.list.front()?.0) {
            return None;
        }
        let (header, payload) = self.list.pop_front()?;
        self.answers -= usize::from(is_answer(&header));
        self.bytes -= own(&payload);
        Some((header, payload))
    }

    /// Whether no PDU is deferred.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the initiator sends too many requests while it withholds the data for which their responses wait.
    /// `commands`: maximum number of commands of the session.
    pub fn is_over_limit(&self, commands: usize) -> bool {
        self.answers > commands + EXTRA_RESPONSES || self.bytes > MAX_BYTES
    }

    /// Whether a deferred PDU has this tag.
    pub fn names(&self, itt: u32) -> bool {
        self.list.iter().any(|(header, _)| header.itt() == itt)
    }

    /// A mark after the PDUs that are deferred now.
    pub fn mark(&self) -> u64 {
        self.ever
    }

    /// Whether all PDUs before this mark were sent.
    pub fn has_passed(&self, mark: u64) -> bool {
        self.ever - self.list.len() as u64 >= mark
    }
}

/// Whether the PDU completes a response, unlike a Data-In without status.
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
    fn sent_responses_do_not_count_as_deferred() {
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
    fn deferred_responses_are_bounded_without_data() {
        let mut held = DeferredResponses::default();
        for _ in 0..2 * EXTRA_RESPONSES {
            held.hold(Bhs::new(opcode::DATA_IN), Payload::Zeros(512));
        }
        (0..EXTRA_RESPONSES + 7).for_each(|_| ping(&mut held, 0));
        assert_eq!([7, 6].map(|commands| held.is_over_limit(commands)), [false, true]);
    }
}
