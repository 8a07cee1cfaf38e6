//! Which of several paths takes the next operation, as arguments and files name it.

use lunar_config::{InvalidValue, unknown};
use lunar_initiator::multipath;
use serde::{Deserialize, Serialize};

/// Which of the best paths takes the next operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// The first that works takes all.
    Failover,
    /// One after another.
    RoundRobin,
    /// The one with the fewest operations.
    #[default]
    LeastQueue,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 3] = [Policy::Failover, Policy::RoundRobin, Policy::LeastQueue];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Failover => "failover",
            Policy::RoundRobin => "round-robin",
            Policy::LeastQueue => "least-queue",
        }
    }

    /// As several paths take it.
    pub fn of_paths(self) -> multipath::PathPolicy {
        match self {
            Policy::Failover => multipath::PathPolicy::Failover,
            Policy::RoundRobin => multipath::PathPolicy::RoundRobin,
            Policy::LeastQueue => multipath::PathPolicy::LeastQueue,
        }
    }
}

/// The policy of a name.
pub(super) fn policy(text: &str) -> Result<Policy, InvalidValue> {
    let names = Policy::ALL.map(Policy::name);
    let named = Policy::ALL.into_iter().find(|policy| policy.name() == text);
    named.ok_or_else(|| unknown("policy", text, names, format!("policies are {}", names.join(", "))))
}
