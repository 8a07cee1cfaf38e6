//! Where the time of operations goes.

use lunar_runtime::latency::LatencyTotal;

/// Where the time of operations goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// Until a path took them.
    pub queue: LatencyTotal,
    /// From then on to their end.
    pub service: LatencyTotal,
}

impl Times {
    /// Both together.
    pub fn and(self, other: Times) -> Times {
        Times { queue: self.queue.and(other.queue), service: self.service.and(other.service) }
    }
}
