//! Options of a multipath logical unit.

use super::PathPolicy;
use crate::Timeouts;
use std::time::Duration;

/// Options of a multipath logical unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MultipathOptions {
    /// The choice among the best paths for the next operation.
    pub policy: PathPolicy,
    /// The interval of path checks.
    pub check: Duration,
    /// The time that operations wait for a path after the last one was lost. After it they fail at once. Zero disables
    /// the wait.
    pub queue: Duration,
    /// An operation of this age is not retried on another path.
    pub operation: Duration,
}

impl Default for MultipathOptions {
    fn default() -> Self {
        MultipathOptions {
            policy: PathPolicy::LeastQueue,
            check: Duration::from_secs(5),
            queue: Duration::from_secs(120),
            operation: Timeouts::default().operation,
        }
    }
}

impl MultipathOptions {
    /// These options with another [`MultipathOptions::policy`].
    pub fn with_policy(self, policy: PathPolicy) -> MultipathOptions {
        MultipathOptions { policy, ..self }
    }

    /// These options with another [`MultipathOptions::check`].
    pub fn with_check(self, check: Duration) -> MultipathOptions {
        MultipathOptions { check, ..self }
    }

    /// These options with another [`MultipathOptions::queue`].
    pub fn with_queue(self, queue: Duration) -> MultipathOptions {
        MultipathOptions { queue, ..self }
    }

    /// These options with another [`MultipathOptions::operation`].
    pub fn with_operation(self, operation: Duration) -> MultipathOptions {
        MultipathOptions { operation, ..self }
    }
}
