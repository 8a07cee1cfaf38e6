//! Waiting and service times of operations.

use lunar_runtime::latency::LatencyTotal;

/// Waiting and service times of operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// The time until a path accepts the operation.
    pub queue: LatencyTotal,
    /// The time from then until its completion.
    pub service: LatencyTotal,
}

impl Times {
    /// The sum of both.
    pub fn and(self, other: Times) -> Times {
        Times { queue: self.queue.and(other.queue), service: self.service.and(other.service) }
    }
}
