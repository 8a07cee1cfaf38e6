//! The path policy in arguments and files.

use super::PathPolicy;
use lunar_config::{InvalidValue, unknown};
use lunar_initiator::multipath;

/// The equivalent policy of the multipath module.
pub fn of_paths(policy: PathPolicy) -> multipath::PathPolicy {
    match policy {
        PathPolicy::Failover => multipath::PathPolicy::Failover,
        PathPolicy::RoundRobin => multipath::PathPolicy::RoundRobin,
        PathPolicy::LeastQueue => multipath::PathPolicy::LeastQueue,
    }
}

/// The policy of a name.
pub(super) fn policy(text: &str) -> Result<PathPolicy, InvalidValue> {
    let names = PathPolicy::ALL.map(PathPolicy::name);
    let named = PathPolicy::ALL.into_iter().find(|policy| policy.name() == text);
    named.ok_or_else(|| unknown("policy", text, names, format!("policies are {}", names.join(", "))))
}
