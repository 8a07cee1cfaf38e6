//! The latency of commands behind this router, by hop.

use lunar_runtime::latency::{LatencyCounter, LatencyTotal};

/// The latency of the two hops behind this router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// The wait for a path, or for the target's command window.
    pub queue: LatencyTotal,
    /// The time from sending to the response.
    pub upstream: LatencyTotal,
}

/// The counters for [`Hops`].
#[derive(Debug, Default)]
pub(crate) struct HopCounters {
    pub(crate) queue: LatencyCounter,
    pub(crate) upstream: LatencyCounter,
}

impl HopCounters {
    /// The current totals.
    pub(crate) fn hops(&self) -> Hops {
        Hops { queue: self.queue.total(), upstream: self.upstream.total() }
    }
}
