//! Which router of a pair is active: the decision of one router from the storage and the peer's heartbeats.
//!
//! Nothing here keeps two routers from writing: the reservation of the logical units does. This decides when to ask
//! for it, so that one of the two has it, and none takes it from one that does well.

use std::time::Duration;

/// Silence after which a peer counts as gone.
pub const DEAD: Duration = Duration::from_secs(3);
/// An active router without sight of the storage yields only after this time: by then the peer has probed too, and reported
/// whether it sees more. Commands are held meanwhile.
pub const UNSURE: Duration = Duration::from_secs(3);
/// How long the router that is not preferred waits for the other one.
pub const GRACE: Duration = Duration::from_secs(3);
/// How long a preempted router waits for a sign of its peer at the storage.
pub const STILL: Duration = Duration::from_secs(5);
/// Silence after which even a peer that lives at the storage is taken from: hosts may not reach it either. Shorter
/// than hosts wait before they abort.
pub const CUT_OFF: Duration = Duration::from_secs(10);

/// What a router is in its pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The other one serves.
    #[default]
    Standby,
    /// It is about to serve.
    Taking,
    /// It serves.
    Active,
    /// It is about to serve no more, and for some time after that: the other one may take at once.
    Yielding,
}

const ROLES: [(Role, &str); 4] = [
    (Role::Standby, "standby"),
    (Role::Taking, "taking"),
    (Role::Active, "active"),
    (Role::Yielding, "yielding"),
];

impl Role {
    /// Its name, for people and in heartbeats.
    pub fn name(self) -> &'static str {
        ROLES.iter().find(|row| row.0 == self).map_or("standby", |row| row.1)
    }
}

/// The status that a router reports to its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// What it is.
    pub role: Role,
    /// It may become active.
    pub eligible: bool,
    /// It is the one that is to serve while both can.
    pub preferred: bool,
    /// It reaches the storage.
    pub healthy: bool,
    /// Its reservation key.
    pub key: u64,
}

/// What stands for yes and no in a heartbeat.
const ELIGIBLE: [&str; 2] = ["held", "eligible"];
const PREFERRED: [&str; 2] = ["-", "preferred"];
const HEALTHY: [&str; 2] = ["sick", "healthy"];

impl PeerStatus {
    /// As a heartbeat carries it.
    pub fn encode(&self) -> String {
        let word = |words: [&'static str; 2], is: bool| words[usize::from(is)];
        let (eligible, preferred) = (word(ELIGIBLE, self.eligible), word(PREFERRED, self.preferred));
        let healthy = word(HEALTHY, self.healthy);
        format!("{},{eligible},{preferred},{healthy},{:016x}", self.role.name(), self.key)
    }

    /// The same from a heartbeat; None for anything else. Words after those that are known may follow some day.
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

/// The holder of the reservations of all logical units together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// None of them can be seen.
    #[default]
    Unknown,
    /// Nobody.
    Nobody,
    /// We.
    Ours,
    /// Somebody else, of at least one.
    Other,
}

/// What one router sees.
#[derive(Clone, Copy, Debug, Default)]
pub struct PairView {
    /// It serves.
    pub is_active: bool,
    /// It may.
    pub eligible: bool,
    /// It is preferred.
    pub preferred: bool,
    /// It gave up its place on demand not long ago.
    pub yielded: bool,
    /// Hosts are logged in to it.
    pub has_hosts: bool,
    /// Its place was taken from it since the peer was heard last.
    pub was_fenced: bool,
    /// The holder of the reservations.
    pub holder: Holder,
    /// Since when the storage can be seen.
    pub seen: Duration,
    /// Since when it cannot.
    pub blind: Duration,
    /// Since when nobody does.
    pub free: Duration,
    /// Since when nothing has moved at the storage.
    pub still: Duration,
    /// The last status of the peer.
    pub peer: Option<PeerStatus>,
    /// Since when it is silent.
    pub silent: Duration,
    /// Since when it reports that it does not serve.
    pub idle: Duration,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Stay,
    /// Reserve what is free.
    Take,
    /// Reserve all of it, whoever has it.
    Seize,
    /// Serve no more.
    Yield,
}
use Decision::*;

impl PairView {
    /// The peer, if it was heard not long ago.
    pub fn heard(&self) -> Option<PeerStatus> {
        self.peer.filter(|_| self.silent < DEAD)
    }

    /// The peer would serve if we did not.
    pub fn can_hand_over(&self) -> bool {
        self.heard().is_some_and(|peer| peer.eligible && peer.healthy)
    }

    /// What is to be done.
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

    /// Nobody serves.
    fn free(&self) -> Decision {
        let waited = self.free >= GRACE;
        let take = match self.heard() {
            Some(peer) => match peer.role {
                // It is about to have it, or has lost it and takes it back.
                Role::Active | Role::Taking => self.free >= CUT_OFF,
                Role::Yielding => true,
                Role::Standby => self.preferred || !peer.eligible || !peer.healthy || waited,
            },
            None => self.preferred || waited,
        };
        if take { Take } else { Stay }
    }

    /// Somebody else has the reservation: it may be taken from them.
    pub fn may_seize(&self) -> bool {
        if let Some(peer) = self.heard() {
            return match peer.role {
                Role::Yielding => true,
                Role::Standby => self.idle >= GRACE,
                Role::Active | Role::Taking => false,
            };
        }
        let quiet = if self.was_fenced { STILL } else { DEAD };
        // While this one was cut off itself it heard nothing either.
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
