//! Counters of initiators, which outlive their sessions. Initiators choose their names, so the names are bounded.

use crate::session_info::{SessionCounters, SessionInfo};
use std::collections::BTreeMap;

/// Maximum number of pairs of a target and an initiator with counters of their own.
pub const MAX_INITIATORS: usize = 1000;
/// The name for the initiators beyond them.
pub const OTHER_INITIATORS: &str = "other";

/// The counts of the commands of an initiator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InitiatorTotals {
    /// Its current sessions.
    pub sessions: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands without GOOD.
    pub errors: u64,
}

impl InitiatorTotals {
    fn add(&mut self, counters: &SessionCounters) {
        self.reads += counters.reads.get();
        self.writes += counters.writes.get();
        self.read_bytes += counters.read_bytes.get();
        self.written_bytes += counters.write_bytes.get();
        self.errors += counters.errors.get();
    }
}

/// The target and the name of an initiator.
pub type InitiatorKey = (String, String);

/// Counters by target and initiator.
#[derive(Default)]
pub struct InitiatorTable {
    ended: BTreeMap<InitiatorKey, InitiatorTotals>,
    /// Keys without a session, the one whose session ended first in front.
    idle: Vec<InitiatorKey>,
}

impl InitiatorTable {
    /// A session begins. Returns the key for which it counts; None for discovery.
    pub fn begin(&mut self, info: &SessionInfo) -> Option<InitiatorKey> {
        let target = info.target.clone().filter(|_| !info.is_discovery())?;
        let mut key = (target, info.initiator.clone());
        if !self.ended.contains_key(&key) && self.named() >= MAX_INITIATORS && !self.forget_idle() {
            key.1 = OTHER_INITIATORS.to_owned();
        }
        self.idle.retain(|idle| *idle != key);
        self.ended.entry(key.clone()).or_default().sessions += 1;
        Some(key)
    }

    /// A session of this key ends.
    pub fn end(&mut self, key: &InitiatorKey, info: &SessionInfo) {
        let Some(totals) = self.ended.get_mut(key) else { return };
        totals.add(&info.counters);
        totals.sessions = totals.sessions.saturating_sub(1);
        if totals.sessions == 0 && key.1 != OTHER_INITIATORS {
            self.idle.push(key.clone());
        }
    }

    fn named(&self) -> usize {
        self.ended.keys().filter(|(_, initiator)| initiator != OTHER_INITIATORS).count()
    }

    /// Forgets an initiator without a session. False: all have one.
    fn forget_idle(&mut self) -> bool {
        let is_any = !self.idle.is_empty();
        if is_any {
            let key = self.idle.remove(0);
            self.ended.remove(&key);
        }
        is_any
    }

    /// The totals with these current sessions.
    pub fn totals<'a>(
        &self,
        current: impl Iterator<Item = (&'a InitiatorKey, &'a SessionInfo)>,
    ) -> BTreeMap<InitiatorKey, InitiatorTotals> {
        let mut totals = self.ended.clone();
        current.for_each(|(key, info)| totals.entry(key.clone()).or_default().add(&info.counters));
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session_info::{Addresses, IscsiSessionInfo, SessionProtocol, SessionTransport};

    fn info(initiator: &str) -> SessionInfo {
        let address = ([127, 0, 0, 1], 1).into();
        let protocol = SessionProtocol::Iscsi(IscsiSessionInfo::default());
        let addresses = Addresses { local: address, peer: address };
        let target = (Some("iqn.t".to_owned()), 1);
        SessionInfo::new(initiator.into(), addresses, target, SessionTransport::Tcp, protocol)
    }

    #[test]
    fn counters_outlive_their_session() {
        let (mut table, one) = (InitiatorTable::default(), info("iqn.a"));
        let key = table.begin(&one).expect("a target");
        one.counters.reads.add(3);
        let now = table.totals([(&key, &one)].into_iter());
        assert_eq!((now[&key].reads, now[&key].sessions), (3, 1));
        table.end(&key, &one);
        let again = info("iqn.a");
        again.counters.reads.add(4);
        assert_eq!(table.begin(&again).as_ref(), Some(&key));
        let now = table.totals([(&key, &again)].into_iter());
        assert_eq!((now[&key].reads, now[&key].sessions), (7, 1));
    }

    #[test]
    fn initiators_beyond_the_maximum_share_a_name() {
        let mut table = InitiatorTable::default();
        let names = (0..MAX_INITIATORS + 5).map(|n| format!("iqn.{n}"));
        let keys: Vec<_> = names.map(|name| (table.begin(&info(&name)).expect("a target"), name)).collect();
        let other = keys.iter().filter(|(key, _)| key.1 == OTHER_INITIATORS).count();
        assert_eq!((other, table.ended.len()), (5, MAX_INITIATORS + 1));
        // A name without a session makes room.
        table.end(&keys[7].0, &info(&keys[7].1));
        assert_eq!(table.begin(&info("iqn.new")).expect("a target").1, "iqn.new");
        assert!(!table.ended.contains_key(&keys[7].0));
    }
}
