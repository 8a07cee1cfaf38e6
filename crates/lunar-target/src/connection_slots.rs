//! Admission of connections: slots for all connections, and slots for connections before login. When all slots before
//! login are in use, a connection from a new address takes the slot of another one.

use crate::config::TargetLimits;
use crate::fair_share::{AdmissionSlot, SlotTable, SourcePrefix};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::time::Duration;

/// The reason why the login ends of a connection whose slot was taken.
const EVICTED: &str =
    "the server gave the slot of this connection to another address before its login completed";

/// The reason why a new connection is closed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// The server is stopping.
    ServerStop,
    /// The limit on connections, or the share of the address in it, is exhausted.
    ConnectionLimit,
    /// The file descriptors of this process are exhausted.
    FileDescriptors,
    /// The limit on connections before login, or the share of the address in it, is exhausted.
    LoginLimit,
}

impl AdmissionError {
    /// The word of the label `reason`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            AdmissionError::ServerStop => "server_stop",
            AdmissionError::ConnectionLimit => "connections",
            AdmissionError::FileDescriptors => "file_descriptors",
            AdmissionError::LoginLimit => "connections_before_login",
        }
    }
}

impl fmt::Display for AdmissionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AdmissionError::ServerStop => "the server is stopping",
            AdmissionError::ConnectionLimit => {
                "`connections` of [limits], or the share of this address in it, is used up"
            }
            AdmissionError::FileDescriptors => {
                "the limit of this process on open files, or the share of this address in it, is used up"
            }
            AdmissionError::LoginLimit => {
                "`connections_before_login` of [limits], or the share of this address in it, is used up"
            }
        })
    }
}

/// The slots in use: for all connections, and for connections before login.
#[derive(Default)]
pub struct ConnectionSlots {
    all: SlotTable,
    before_login: SlotTable,
    /// Connections before login, the oldest first.
    pending_logins: BTreeMap<u64, PendingLogin>,
    /// The serial number of the latest one.
    serial: u64,
}

/// A connection before login. Dropping it signals that its slot was taken.
pub struct PendingLogin {
    origin: SourcePrefix,
    slot: AdmissionSlot,
    _holds: flume::Sender<()>,
}

/// The slot of a connection before login.
pub struct LoginTicket {
    serial: u64,
    evicted: flume::Receiver<()>,
}

/// Resolves when the slot of a connection is taken.
#[derive(Default)]
pub struct EvictionNotice(Option<flume::Receiver<()>>);

impl LoginTicket {
    /// A future that resolves when the slot is taken.
    pub fn evicted(&self) -> EvictionNotice {
        EvictionNotice(Some(self.evicted.clone()))
    }
}

impl EvictionNotice {
    /// Runs `work`, which precedes a session, within `limit` and as long as the connection has its slot.
    ///
    /// # Errors
    /// Those of `work`, a timeout, and the loss of the slot.
    pub async fn or<T>(self, limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let evicted = async {
            match self.0 {
                Some(holds) => drop(holds.recv_async().await),
                None => std::future::pending().await,
            }
            Err(io::Error::other(EVICTED))
        };
        let work = compio::time::timeout(limit, lunar_runtime::either(work, evicted));
        work.await
            .unwrap_or_else(|_| Err(io::Error::other("the initiator did not complete the login in time")))
    }
}

impl ConnectionSlots {
    /// Number of connections.
    pub fn used(&self) -> usize {
        self.all.used()
    }

    /// Number of connections before login.
    pub fn used_before_login(&self) -> usize {
        self.before_login.used()
    }

    /// Checks whether a connection from this address would get a slot. `room`: the number of connections that the
    /// file descriptors of this process allow.
    ///
    /// # Errors
    /// The limit that is used up.
    pub fn admits(
        &self,
        origin: SourcePrefix,
        limits: &TargetLimits,
        room: usize,
    ) -> Result<(), AdmissionError> {
        if !self.all.has_room(origin, limits.connections) {
            return Err(AdmissionError::ConnectionLimit);
        }
        // If descriptors are scarce, the shares are shares of those.
        if !self.all.has_room(origin, limits.connections.min(room)) {
            return Err(AdmissionError::FileDescriptors);
        }
        if !self.before_login.has_room(origin, limits.connections_before_login)
            && self.victim(origin, limits).is_none()
        {
            return Err(AdmissionError::LoginLimit);
        }
        Ok(())
    }

    /// The login that loses its slot to a connection from this address if no slot is free: the oldest one from the
    /// prefixes with the most logins.
    fn victim(&self, origin: SourcePrefix, limits: &TargetLimits) -> Option<u64> {
        if self.before_login.used() < limits.connections_before_login {
            return None;
        }
        let largest = self.before_login.largest_before(origin)?;
        let mut logins = self.pending_logins.iter();
        logins.find(|(_, login)| self.before_login.is_of(largest, login.origin)).map(|(serial, _)| *serial)
    }

    /// Takes a slot among all connections and one before login, for a connection from this address.
    ///
    /// # Errors
    /// The limit that is used up.
    pub fn enter(
        &mut self,
        origin: SourcePrefix,
        limits: &TargetLimits,
        room: usize,
    ) -> Result<(AdmissionSlot, LoginTicket), AdmissionError> {
        self.admits(origin, limits, room)?;
        if let Some(victim) = self.victim(origin, limits) {
            self.end_login(victim);
        }
        let all = self.all.enter(origin, limits.connections.min(room));
        let slot = self.before_login.enter(origin, limits.connections_before_login);
        self.serial += 1;
        let (holds, evicted) = flume::bounded(0);
        self.pending_logins.insert(self.serial, PendingLogin { origin, slot, _holds: holds });
        Ok((all, LoginTicket { serial: self.serial, evicted }))
    }

    fn end_login(&mut self, serial: u64) -> Option<PendingLogin> {
        let login = self.pending_logins.remove(&serial)?;
        self.before_login.leave(login.slot);
        Some(login)
    }

    /// Completes the login. None: another connection took the slot.
    pub fn logged_in(&mut self, ticket: &LoginTicket) -> Option<PendingLogin> {
        self.end_login(ticket.serial)
    }

    /// Releases the slots of a connection.
    pub fn leave(&mut self, slot: AdmissionSlot, ticket: Option<LoginTicket>) {
        self.all.leave(slot);
        ticket.map(|ticket| self.end_login(ticket.serial));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn limits() -> TargetLimits {
        TargetLimits {
            connections: 64,
            connections_before_login: 5,
            login_timeout: Duration::MAX,
            sessions: 64,
            sessions_per_initiator: 64,
            discovery_sessions: 64,
            discovery_timeout: Duration::MAX,
            commands_per_session: 1,
            text_bytes: 4096,
            memory: 1 << 20,
        }
    }

    #[test]
    fn equal_addresses_oldest_login_is_evicted() {
        let origin = |last: u8| SourcePrefix::from(IpAddr::from([192, 0, 2, last]));
        let (limits, mut slots) = (limits(), ConnectionSlots::default());
        let mut all: Vec<_> =
            (0..5).map(|last| slots.enter(origin(last), &limits, usize::MAX).expect("room").1).collect();
        for last in 5..40 {
            let (_, new) = slots.enter(origin(last), &limits, usize::MAX).expect("the slot of the oldest");
            all.push(new);
        }
        let left: Vec<bool> = all.iter().map(|ticket| slots.logged_in(ticket).is_some()).collect();
        assert_eq!(left, [vec![false; 35], vec![true; 5]].concat());
    }

    /// One network fills the table of logins. Another network of the same site is still admitted, and the oldest
    /// login of the first network ends.
    #[test]
    fn full_table_admits_new_network_of_same_site() {
        let origin = |address: &str| SourcePrefix::from(address.parse::<IpAddr>().expect("an address"));
        let limits = limits();
        let mut slots = ConnectionSlots::default();
        let mut enter = |address| slots.enter(origin(address), &limits, usize::MAX);
        let (_, neighbour) = enter("fd00:0:0:1::1").expect("room");
        let greedy: Vec<_> = (0..3).map(|_| enter("fd00::1").expect("room").1).collect();
        let (_, last) = enter("fd00:0:0:2::1").expect("the last slot");
        let (_, new) = enter("fd00:0:0:3::1").expect("the slot of another");
        assert!(enter("fd00::2").is_err());
        assert!(slots.logged_in(&greedy[0]).is_none(), "the oldest of the largest");
        assert!([&neighbour, &greedy[1], &last, &new].iter().all(|ticket| slots.logged_in(ticket).is_some()));
    }
}
