//! The path policy in arguments and files.

use lunar_config::{InvalidValue, unknown};
use lunar_initiator::multipath;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The policy that selects one of the best paths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PathPolicy {
    /// The first usable path takes all operations.
    Failover,
    /// Paths take turns.
    RoundRobin,
    /// The path with the fewest operations in flight.
    #[default]
    LeastQueue,
}

impl PathPolicy {
    /// All of them.
    pub const ALL: [PathPolicy; 3] = [PathPolicy::Failover, PathPolicy::RoundRobin, PathPolicy::LeastQueue];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            PathPolicy::Failover => "failover",
            PathPolicy::RoundRobin => "round-robin",
            PathPolicy::LeastQueue => "least-queue",
        }
    }

    /// The equivalent policy of the multipath module.
    pub fn of_paths(self) -> multipath::PathPolicy {
        match self {
            PathPolicy::Failover => multipath::PathPolicy::Failover,
            PathPolicy::RoundRobin => multipath::PathPolicy::RoundRobin,
            PathPolicy::LeastQueue => multipath::PathPolicy::LeastQueue,
        }
    }
}

/// The policy of a name.
pub(super) fn policy(text: &str) -> Result<PathPolicy, InvalidValue> {
    let names = PathPolicy::ALL.map(PathPolicy::name);
    let named = PathPolicy::ALL.into_iter().find(|policy| policy.name() == text);
    named.ok_or_else(|| unknown("policy", text, names, format!("policies are {}", names.join(", "))))
}
