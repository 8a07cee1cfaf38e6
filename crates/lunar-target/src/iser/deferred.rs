//! PDUs that wait for the end of RDMA Reads, and their limits.

use crate::core::InFlightReads;
use crate::deferred_responses::DeferredResponses;
use lunar_runtime::send_queue::Payload;
use lunar_wire::iscsi::flag::STATUS;
use lunar_wire::iscsi::{Bhs, opcode};

/// Maximum number of deferred responses in excess of one per command of a session, and of bytes. A connection that
/// exceeds one of them ends.
const EXTRA_RESPONSES: usize = 1024;
const MAX_BYTES: usize = 16 << 20;

/// Deferred PDUs in queue order.
#[derive(Default)]
pub struct DeferredPdus {
    queue: DeferredResponses<(Bhs, Payload)>,
    /// Number of deferred responses and events, and of bytes that count in no pool.
    answers: usize,
    bytes: usize,
}

impl DeferredPdus {
    /// Whether a PDU must be deferred (see [`DeferredResponses::must_defer`]).
    pub fn must_defer(&self, is_busy: impl FnOnce() -> bool) -> bool {
        self.queue.must_defer(is_busy)
    }

    /// Defers a PDU.
    pub fn push(&mut self, header: Bhs, payload: Payload) {
        self.answers += usize::from(is_answer(&header));
        self.bytes += own(&payload);
        self.queue.push((header, payload));
    }

    /// Takes the first PDU, if it need not wait any longer.
    pub fn pop_ready(&mut self, is_busy: impl FnOnce(&Bhs) -> bool) -> Option<(Bhs, Payload)> {
        let (header, payload) = self.queue.pop_ready(|(header, _)| is_busy(header))?;
        self.answers -= usize::from(is_answer(&header));
        self.bytes -= own(&payload);
        Some((header, payload))
    }

    /// Whether no PDU is deferred.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether the initiator sends too many requests while it withholds the data for which their responses wait.
    /// `commands`: maximum number of commands of the session.
    pub fn is_over_limit(&self, commands: usize) -> bool {
        self.answers > commands + EXTRA_RESPONSES || self.bytes > MAX_BYTES
    }

    /// Whether a deferred PDU has this tag.
    pub fn names(&self, itt: u32) -> bool {
        self.queue.iter().any(|(header, _)| header.itt() == itt)
    }

    /// See [`DeferredResponses::mark`].
    pub fn mark(&self, latest: u64) -> InFlightReads {
        self.queue.mark(latest)
    }

    /// See [`DeferredResponses::has_passed`].
    pub fn has_passed(&self, mark: InFlightReads, reads_up_to: impl FnOnce(u64) -> bool) -> bool {
        self.queue.has_passed(mark, reads_up_to)
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

    fn ping(held: &mut DeferredPdus, bytes: usize) {
        held.push(pdu::nop_in(0, 1, NONE), Payload::Bytes(vec![0; bytes]));
    }

    #[test]
    fn sent_responses_do_not_count_as_deferred() {
        let mut held = DeferredPdus::default();
        ping(&mut held, MAX_BYTES / 2);
        assert!(held.pop_ready(|_| true).is_none() && !held.is_over_limit(0));
        ping(&mut held, MAX_BYTES / 2 + 1);
        assert!(held.is_over_limit(0));
        assert!(held.pop_ready(|_| false).is_some() && !held.is_over_limit(0) && !held.is_empty());
    }

    #[test]
    fn deferred_responses_are_bounded_without_data() {
        let mut held = DeferredPdus::default();
        for _ in 0..2 * EXTRA_RESPONSES {
            held.push(Bhs::new(opcode::DATA_IN), Payload::Zeros(512));
        }
        (0..EXTRA_RESPONSES + 7).for_each(|_| ping(&mut held, 0));
        assert_eq!([7, 6].map(|commands| held.is_over_limit(commands)), [false, true]);
    }
}
