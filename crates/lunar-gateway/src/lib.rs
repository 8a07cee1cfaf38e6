//! Gateways: several servers of one medium that decide on commands as one server.
//!
//! The state that they share (registrations, reservations, mode pages) is in the omap of an object of the cluster
//! ([`object`]). A member changes it by one compare-and-swap, installs it, and notifies the others, which install it
//! too ([`Member::publish`]). It answers the command when all of them have acknowledged the change. The cluster fences
//! a member that does not acknowledge. No member is a leader, and a member decides each command from its own copy.
//!
//! A [`Gateway`] connects the logical units of a target server to their objects in a Ceph cluster.
//!
//! The protocol ([`Member`]) has no sockets and no clock. The tests run it against a simulated cluster with delays,
//! lost messages, pauses and fences, on virtual time.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod change;
mod gateway;
mod member;
#[doc(hidden)]
#[allow(missing_docs)]
pub mod object;
mod rados_store;
mod shared_unit;
#[cfg(test)]
mod simulation;
mod status;
mod store;
mod target_unit;
mod waiting;

pub use change::{AccessChange, AccessChangeError};
pub use gateway::Gateway;
pub use member::{Lost, Member, Phase};
pub use object::{MemberId, MemberPort, MemberRecord, SharedView};
pub use shared_unit::SharedUnitGuard;
pub use status::{GatewayStatus, MemberStatus, SharedUnitStatus, UnitFailure};
pub use store::{Store, Swap, Unit, is_fenced};

use std::time::Duration;

/// Time within which the other members acknowledge a change. Later, the cluster fences them.
pub const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a member acknowledges a change that has not taken effect yet. The other member asks again.
pub const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(2);
/// Age of the watch for which the state of a member is current: no other member can have answered a change that is missing
/// here. Later, commands that do not reach the cluster end with BUSY; the cluster itself refuses those of a fenced member.
pub const CURRENT_FOR: Duration = Duration::from_secs(5);
/// Age of the watch above which a member reads the object, to know that its state is current.
pub const REFRESH_AFTER: Duration = Duration::from_secs(3);
/// Age of the state above which a member answers all commands with BUSY.
pub const STALE_AFTER: Duration = Duration::from_secs(7);
/// Age of the watch above which a member is lost: its sessions end, so that hosts use another path. Until then, the other
/// members have fenced it.
pub const LOST_AFTER: Duration = Duration::from_secs(10);
/// The same while the monitors of the cluster answer: only the server of the object is down, and no member can serve. It covers
/// the time in which a cluster notices a dead OSD.
pub const STORAGE_DOWN_FOR: Duration = Duration::from_secs(60);
/// The cluster forgets a watch of which it hears nothing for this time. A server of the object that hangs for less ends no watch.
/// Fenced members have none. A process that was killed before it joined delays each change until then.
pub const WATCH_TIMEOUT: Duration = Duration::from_secs(30);
