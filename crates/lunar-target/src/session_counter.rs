//! A counter that many cores read.
//!
//! To add a counter of each session:
//!
//! 1. Add a `SessionCounter` to `SessionCounters` in `session_info.rs`. Only the session's core writes it.
//! 2. Count where the event happens. Every command, also an aborted one, is counted in `core/complete.rs`: in `count`, or in
//!    `complete_read` or `complete_write` for a READ or WRITE that ends at once.
//! 3. Add the field to `Counters` in `crates/lunar-admin/src/session.rs`, with `#[serde(default)]`, and to the text form
//!    there. A counter of each LUN is in `lu_counters.rs`, and `crates/lunar-api/src/metrics` names it.
//! 4. Copy the value in `crates/lunar/src/server.rs`. `lunar session show` then prints it, with `--json` too.
//! 5. Describe it in `docs/operate.md`. `crates/lunar/tests/command.rs` tests the whole text: add the line there.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A counter with one writer.
#[derive(Default)]
pub struct SessionCounter(AtomicU64);

impl SessionCounter {
    /// Adds to the counter. Only the core of the session may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed) + n, Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}
