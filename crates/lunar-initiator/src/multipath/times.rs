//! Waiting and service times of operations.

use lunar_runtime::latency::LatencyTotal;

/// Waiting and service times of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// The time before a path accepted them.
    pub queue: LatencyTotal,
    /// The time from then on to their end.
    pub service: LatencyTotal,
}

impl Times {
    /// Both together.
    pub fn and(self, other: Times) -> Times {
        Times { queue: self.queue.and(other.queue), service: self.service.and(other.service) }
    }
}
