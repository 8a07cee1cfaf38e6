//! The places of connections: in all, and before login. A new address gets one of the latter in a full table.

use crate::setup::Limits;
use crate::share::{Crowd, Origin, Place};
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// Why a connection whose place another one has is closed.
pub const EVICTED: &str = "its login was not done, and another address needed its place";

/// Why no connection gets in any more, whatever the limits are.
pub const NO_DESCRIPTORS: &str = "there are as many as the open files of this process allow";

/// Connections in all, and those not logged in.
#[derive(Default)]
pub struct Crowds {
    all: Crowd,
    before_login: Crowd,
    /// Those not logged in, the oldest first.
    unfinished: BTreeMap<u64, Unfinished>,
    /// Of the latest.
    serial: u64,
}

/// A connection that is not logged in. When this is dropped, it has lost its place.
pub struct Unfinished {
    origin: Origin,
    place: Place,
    _holds: flume::Sender<()>,
}

/// The place of a connection among those not logged in.
pub struct Waits {
    serial: u64,
    evicted: flume::Receiver<()>,
}

/// Comes back when a place is lost.
#[derive(Default)]
pub struct Evicted(Option<flume::Receiver<()>>);

impl Waits {
    /// Comes back when the place is lost.
    pub fn evicted(&self) -> Evicted {
        Evicted(Some(self.evicted.clone()))
    }
}

impl Evicted {
    /// What comes before a session, unless it takes too long or its place is lost.
    ///
    /// # Errors
    /// Those of `work`, and why it was cut off.
    pub async fn or<T>(self, limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let evicted = async {
            match self.0 {
                Some(holds) => drop(holds.recv_async().await),
                None => std::future::pending().await,
            }
            Err(io::Error::other(EVICTED))
        };
        let work = compio::time::timeout(limit, lunar_runtime::either(work, evicted));
        work.await.unwrap_or_else(|_| Err(io::Error::other("the login took too long")))
    }
}

impl Crowds {
    /// Connections in all.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.all.used()
    }

    /// There is a place for a connection from this address, where file descriptors allow `room` connections.
    ///
    /// # Errors
    /// Why there is none.
    pub fn admits(&self, origin: Origin, limits: &Limits, room: usize) -> Result<(), &'static str> {
        if !self.all.has_room(origin, limits.connections) {
            return Err("it has its share, or there are as many as `connections` of [limits] allows");
        }
        // The shares are of what there are.
        if !self.all.has_room(origin, limits.connections.min(room)) {
            return Err(NO_DESCRIPTORS);
        }
        if !self.before_login.has_room(origin, limits.connections_before_login)
            && self.victim(origin, limits).is_none()
        {
            return Err(
                "it has its share, or there are as many as `connections_before_login` of [limits] allows",
            );
        }
        Ok(())
    }

    /// The login that gives way to a connection from this address, in a table without a free place: the oldest of those
    /// that have the most.
    fn victim(&self, origin: Origin, limits: &Limits) -> Option<u64> {
        if self.before_login.used() < limits.connections_before_login {
            return None;
        }
        let largest = self.before_login.largest_before(origin)?;
        let mut logins = self.unfinished.iter();
        logins.find(|(_, login)| self.before_login.is_of(largest, login.origin)).map(|(serial, _)| *serial)
    }

    /// Takes a place for a connection from this address, in all and before login.
    ///
    /// # Errors
    /// Why there is none.
    pub fn enter(
        &mut self,
        origin: Origin,
        limits: &Limits,
        room: usize,
    ) -> Result<(Place, Waits), &'static str> {
        self.admits(origin, limits, room)?;
        if let Some(victim) = self.victim(origin, limits) {
            self.end_wait(victim);
        }
        let all = self.all.enter(origin, limits.connections.min(room));
        let place = self.before_login.enter(origin, limits.connections_before_login);
        self.serial += 1;
        let (holds, evicted) = flume::bounded(0);
        self.unfinished.insert(self.serial, Unfinished { origin, place, _holds: holds });
        Ok((all, Waits { serial: self.serial, evicted }))
    }

    fn end_wait(&mut self, serial: u64) -> Option<Unfinished> {
        let login = self.unfinished.remove(&serial)?;
        self.before_login.leave(login.place);
        Some(login)
    }

    /// The login is done. None: another connection has its place.
    pub fn logged_in(&mut self, waits: &Waits) -> Option<Unfinished> {
        self.end_wait(waits.serial)
    }

    /// A connection is over.
    pub fn leave(&mut self, place: Place, waits: Option<Waits>) {
        self.all.leave(place);
        waits.map(|waits| self.end_wait(waits.serial));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    fn limits() -> Limits {
        Limits {
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
    fn among_equal_addresses_the_oldest_login_gives_way() {
        let origin = |last: u8| Origin::from(IpAddr::from([192, 0, 2, last]));
        let (limits, mut crowds) = (limits(), Crowds::default());
        let mut all: Vec<_> =
            (0..5).map(|last| crowds.enter(origin(last), &limits, usize::MAX).expect("room").1).collect();
        for last in 5..40 {
            let (_, new) = crowds.enter(origin(last), &limits, usize::MAX).expect("the place of the oldest");
            all.push(new);
        }
        let left: Vec<bool> = all.iter().map(|waits| crowds.logged_in(waits).is_some()).collect();
        assert_eq!(left, [vec![false; 35], vec![true; 5]].concat());
    }

    /// A table of logins that one network has filled takes a neighbour of its site; the oldest of the network is over.
    #[test]
    fn a_full_table_takes_a_new_network_of_the_same_site() {
        let origin = |address: &str| Origin::from(address.parse::<IpAddr>().expect("an address"));
        let limits = limits();
        let mut crowds = Crowds::default();
        let mut enter = |address| crowds.enter(origin(address), &limits, usize::MAX);
        let (_, neighbour) = enter("fd00:0:0:1::1").expect("room");
        let greedy: Vec<_> = (0..3).map(|_| enter("fd00::1").expect("room").1).collect();
        let (_, last) = enter("fd00:0:0:2::1").expect("the last place");
        let (_, new) = enter("fd00:0:0:3::1").expect("the place of another");
        assert!(enter("fd00::2").is_err());
        assert!(crowds.logged_in(&greedy[0]).is_none(), "the oldest of the largest");
        assert!([&neighbour, &greedy[1], &last, &new].iter().all(|waits| crowds.logged_in(waits).is_some()));
    }
}
