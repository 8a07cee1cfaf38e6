//! Where the time of commands goes behind this router.

use lunar_runtime::latency::{LatencyCounter, LatencyTotal};

/// The times of commands on the two stretches from here on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// Waiting for a path, or for the target to take more.
    pub queue: LatencyTotal,
    /// From the sending to the answer.
    pub upstream: LatencyTotal,
}

/// [`Hops`] that grow.
#[derive(Debug, Default)]
pub(crate) struct HopCounters {
    pub(crate) queue: LatencyCounter,
    pub(crate) upstream: LatencyCounter,
}

impl HopCounters {
    /// What they come to now.
    pub(crate) fn hops(&self) -> Hops {
        Hops { queue: self.queue.total(), upstream: self.upstream.total() }
    }
}
