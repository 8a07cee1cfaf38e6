//! Sums of counters.

use super::{FAILURES, NexusCounters, OpClass, StageTotals};

/// The counts of the commands of a logical unit since the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LuTotals {
    /// Commands that ended, by [`OpClass`].
    pub commands: [u64; OpClass::ALL.len()],
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that ended without GOOD, as in [`FAILURES`].
    pub failures: [u64; FAILURES.len()],
    /// Commands that ended with sense data, by sense key.
    pub senses: [u64; 16],
    /// Tasks that have not ended.
    pub in_flight: u64,
    /// Latencies, by [`OpClass`]; None for a kind that was not used.
    pub latency: [Option<Box<StageTotals>>; OpClass::ALL.len()],
}

impl LuTotals {
    pub(crate) fn add(&mut self, nexus: &NexusCounters) {
        let sum = |all: &mut [u64], counters: &[crate::SessionCounter]| {
            all.iter_mut().zip(counters).for_each(|(sum, counter)| *sum += counter.get());
        };
        sum(&mut self.commands, &nexus.commands);
        sum(&mut self.failures, &nexus.failures);
        sum(&mut self.senses, &nexus.senses);
        self.read_bytes += nexus.read_bytes.get();
        self.written_bytes += nexus.written_bytes.get();
        // A task may end between the two reads.
        let ended = nexus.ended.get();
        self.in_flight += nexus.begun.get().saturating_sub(ended);
        for (sum, used) in self.latency.iter_mut().zip(&nexus.latency) {
            if let Some(counters) = used.get() {
                sum.get_or_insert_default().add(counters);
            }
        }
    }
}
