//! The active role in a pair: the decision of one router, from the storage and the peer's heartbeats.
//!
//! The reservations prevent concurrent writes, not this module. It decides when to take a reservation, so that one
//! router has it, and none takes it from a healthy router.

use std::time::Duration;

/// The time without a heartbeat after which the peer counts as dead.
pub const DEAD: Duration = Duration::from_secs(3);
/// An active router without access to the storage yields only after this time. By then the peer has probed too, and
/// reported whether it has access. Meanwhile commands are held.
pub const UNSURE: Duration = Duration::from_secs(3);
/// The time for which the router that is not preferred waits for the preferred one.
pub const GRACE: Duration = Duration::from_secs(3);
/// The time for which a preempted router waits for a sign of its peer at the storage.
pub const STILL: Duration = Duration::from_secs(5);
/// The time without a heartbeat after which this router takes over even from a peer that is alive at the storage:
/// hosts may not reach the peer either. It is shorter than the time after which hosts abort commands.
pub const CUT_OFF: Duration = Duration::from_secs(10);

/// The role of a router in its pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The peer serves.
    #[default]
    Standby,
    /// This router is about to serve.
    Taking,
    /// This router serves.
    Active,
    /// This router stops serving, or has just stopped: the peer may take over at once.
    Yielding,
}

const ROLES: [(Role, &str); 4] = [
    (Role::Standby, "standby"),
    (Role::Taking, "taking"),
    (Role::Active, "active"),
    (Role::Yielding, "yielding"),
];

impl Role {
    /// The name, in output and in heartbeats.
    pub fn name(self) -> &'static str {
        ROLES.iter().find(|row| row.0 == self).map_or("standby", |row| row.1)
    }

    /// The role in a sentence of the log: this router is so.
    pub fn description(self) -> &'static str {
        match self {
            Role::Standby | Role::Active => self.name(),
            Role::Taking => "taking over",
            Role::Yielding => "handing over",
        }
    }
}

/// The status that a router reports to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// The role.
    pub role: Role,
    /// Whether it may become active.
    pub eligible: bool,
    /// Whether it serves while both can.
    pub preferred: bool,
    /// Whether it reaches the storage.
    pub healthy: bool,
    /// The reservation key.
    pub key: u64,
}

/// The words for `eligible` in a heartbeat: false, true.
const ELIGIBLE: [&str; 2] = ["held", "eligible"];
const PREFERRED: [&str; 2] = ["-", "preferred"];
const HEALTHY: [&str; 2] = ["sick", "healthy"];

impl PeerStatus {
    /// Encodes the status for a heartbeat.
    pub fn encode(&self) -> String {
        let word = |words: [&'static str; 2], is: bool| words[usize::from(is)];
        let (eligible, preferred) = (word(ELIGIBLE, self.eligible), word(PREFERRED, self.preferred));
        let healthy = word(HEALTHY, self.healthy);
        format!("{},{eligible},{preferred},{healthy},{:016x}", self.role.name(), self.key)
    }

    /// Parses a heartbeat. None if it is malformed. Unknown words at the end are ignored, for compatibility with
    /// later versions.
    pub fn decode(text: &str) -> Option<PeerStatus> {
        let mut words = text.split(',');
        let mut next = || words.next();
        let role = next().and_then(|word| ROLES.iter().find(|row| row.1 == word))?.0;
        let mut is = |names: [&str; 2]| {
            let word = next()?;
            names.iter().position(|name| *name == word).map(|at| at == 1)
        };
        let (eligible, preferred, healthy) = (is(ELIGIBLE)?, is(PREFERRED)?, is(HEALTHY)?);
        let key = next().filter(|word| word.len() == 16 && word.bytes().all(|b| b.is_ascii_hexdigit()))?;
        Some(PeerStatus { role, eligible, preferred, healthy, key: u64::from_str_radix(key, 16).ok()? })
    }
}

/// The combined holder of the reservations of all logical units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// No logical unit is reachable.
    #[default]
    Unknown,
    /// No initiator holds any.
    Nobody,
    /// This router holds them.
    Ours,
    /// Another initiator holds at least one.
    Other,
}

/// The inputs of a decision.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairView {
    /// Whether this router serves.
    pub is_active: bool,
    /// Whether it may become active.
    pub eligible: bool,
    /// Whether it is preferred.
    pub preferred: bool,
    /// Whether it yielded on request recently.
    pub yielded: bool,
    /// Whether hosts are logged in to it.
    pub has_hosts: bool,
    /// Whether it was preempted after the last status of the peer.
    pub was_fenced: bool,
    /// The holder of the reservations.
    pub holder: Holder,
    /// The time for which the storage has been reachable.
    pub seen: Duration,
    /// The time for which it has been unreachable.
    pub blind: Duration,
    /// The time for which no router has held the reservations.
    pub free: Duration,
    /// The time for which nothing has changed at the storage.
    pub still: Duration,
    /// The last status of the peer.
    pub peer: Option<PeerStatus>,
    /// The time since the last heartbeat of the peer.
    pub silent: Duration,
    /// The time for which the peer has reported that it does not serve.
    pub idle: Duration,
}

/// A decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Change nothing.
    Stay,
    /// Take free reservations.
    Take,
    /// Take all reservations, and preempt other holders.
    Seize,
    /// Stop serving.
    Yield,
}
use Decision::*;

impl PairView {
    /// The status of the peer, if it is recent.
    pub fn heard(&self) -> Option<PeerStatus> {
        self.peer.filter(|_| self.silent < DEAD)
    }

    /// Whether the peer would serve if this router did not.
    pub fn can_hand_over(&self) -> bool {
        self.heard().is_some_and(|peer| peer.eligible && peer.healthy)
    }

    /// Makes the decision.
    pub fn decide(&self) -> Decision {
        let blind = self.holder == Holder::Unknown;
        if self.is_active {
            let is_sure = blind && self.blind >= UNSURE;
            return if is_sure && self.can_hand_over() { Yield } else { Stay };
        }
        if !self.eligible || blind {
            return Stay;
        }
        if self.yielded && (self.holder == Holder::Other || self.can_hand_over()) {
            return Stay;
        }
        match self.holder {
            Holder::Unknown => Stay,
            Holder::Ours => Take,
            Holder::Nobody => self.free(),
            Holder::Other if self.may_seize() => Seize,
            Holder::Other => Stay,
        }
    }

    /// The decision while no router holds the reservations.
    fn free(&self) -> Decision {
        let waited = self.free >= GRACE;
        let take = match self.heard() {
            Some(peer) => match peer.role {
                // The peer is about to take the reservations, or is retaking lost ones.
                Role::Active | Role::Taking => self.free >= CUT_OFF,
                Role::Yielding => true,
                Role::Standby => self.preferred || !peer.eligible || !peer.healthy || waited,
            },
            None => self.preferred || waited,
        };
        if take { Take } else { Stay }
    }

    /// Whether to take the reservations from another holder.
    pub fn may_seize(&self) -> bool {
        if let Some(peer) = self.heard() {
            return match peer.role {
                Role::Yielding => true,
                Role::Standby => self.idle >= GRACE,
                Role::Active | Role::Taking => false,
            };
        }
        let quiet = if self.was_fenced { STILL } else { DEAD };
        // A router that was cut off itself received no heartbeats either.
        let silent = self.silent.min(self.seen);
        let is_gone = silent >= DEAD && self.still >= quiet;
        // A preempted router that neither hears its peer nor sees it gone stays on standby.
        let is_cut_off = silent >= CUT_OFF && self.has_hosts && !self.was_fenced;
        is_gone || is_cut_off
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
