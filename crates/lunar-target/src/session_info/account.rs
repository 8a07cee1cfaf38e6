//! The counters of a session in tests.

use super::SessionInfo;
use std::sync::Arc;

/// Commands, reads, writes, bytes read, bytes written, failures.
pub type Counts = [u64; 6];

/// The counts of a command without GOOD.
pub const FAILED: Counts = [1, 0, 0, 0, 0, 1];

/// The counters of a session, and their values at the last look.
pub struct Account {
    info: Arc<SessionInfo>,
    before: Counts,
}

impl Account {
    /// The account of a session.
    pub fn new(info: Arc<SessionInfo>) -> Account {
        let mut account = Account { info, before: [0; 6] };
        account.moved();
        account
    }

    /// How far the counters have moved since the last look.
    pub fn moved(&mut self) -> Counts {
        let c = &self.info.counters;
        let all = [&c.commands, &c.reads, &c.writes, &c.read_bytes, &c.write_bytes, &c.errors];
        let now = all.map(|counter| counter.get());
        let before = std::mem::replace(&mut self.before, now);
        std::array::from_fn(|n| now[n] - before[n])
    }
}
