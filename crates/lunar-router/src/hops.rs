//! Latency of commands behind this router, by hop.

use lunar_runtime::latency::{LatencyCounter, LatencyTotal};

/// The latency of the two hops behind this router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// Waiting for a path, or for the target to take more.
    pub queue: LatencyTotal,
    /// From sending to the response.
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
