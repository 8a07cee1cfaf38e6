//! Counts of rare events: connections, logins, and ends of sessions.

use crate::AdmissionError;
use crate::end_reason::EndReason;
use lunar_wire::iscsi::status::LoginStatus;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The counts of a server.
#[derive(Default)]
pub(crate) struct ServerEvents(Mutex<EventTotals>);

/// Events since the start of the server. A target is one of the configuration, so initiators cannot add any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventTotals {
    /// Logins by target and by class and detail of their status. No target: discovery, or one that is not served.
    pub logins: BTreeMap<(Option<String>, (u8, u8)), u64>,
    /// Ended sessions by target and reason, without discovery.
    pub ended: BTreeMap<(String, &'static str), u64>,
    /// Task management functions by target, function and response.
    pub managed: BTreeMap<(String, &'static str, &'static str), u64>,
    /// Accepted connections by portal group tag.
    pub accepted: BTreeMap<u16, u64>,
    /// Connections that were closed at once, by reason.
    pub refused: BTreeMap<&'static str, u64>,
}

impl ServerEvents {
    fn lock(&self) -> MutexGuard<'_, EventTotals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counts so far.
    pub fn totals(&self) -> EventTotals {
        self.lock().clone()
    }

    /// A login has ended with this status. `target`: a target of the configuration.
    pub fn login(&self, target: Option<&str>, LoginStatus(class, detail): LoginStatus) {
        let key = (target.map(str::to_owned), (class, detail));
        *self.lock().logins.entry(key).or_default() += 1;
    }

    /// A session has ended. Without a reason, its initiator closed the connection, or the connection failed (`broken`).
    pub fn ended(&self, target: &str, reason: Option<EndReason>, broken: bool) {
        let without = if broken { EndReason::ConnectionLost } else { EndReason::ConnectionClosed };
        let reason = reason.unwrap_or(without).word();
        *self.lock().ended.entry((target.to_owned(), reason)).or_default() += 1;
    }

    /// A task management function had this response.
    pub fn managed(&self, target: &str, function: &'static str, response: &'static str) {
        *self.lock().managed.entry((target.to_owned(), function, response)).or_default() += 1;
    }

    /// A connection was accepted by a portal of this group, or closed at once.
    pub fn connection(&self, portal_group: u16, refused: Option<AdmissionError>) {
        let mut totals = self.lock();
        let count = match refused {
            None => totals.accepted.entry(portal_group).or_default(),
            Some(reason) => totals.refused.entry(reason.word()).or_default(),
        };
        *count += 1;
    }
}
