//! Turns of connections that share a core, so that long responses of one do not delay short ones of another.

use std::cell::Cell;

/// Bytes of a turn: some 40 microseconds. With half of it, the polls between turns cost a tenth of the throughput.
pub const TURN: usize = 256 << 10;
/// Turns after which a connection that received nothing counts as idle: some 40 milliseconds.
const IDLE: u32 = 1024;

thread_local! {
    /// Receives of all connections of this core.
    static RECEIVES: Cell<u64> = const { Cell::new(0) };
}

/// The turns of one connection.
pub struct Turns {
    /// Its receives.
    own: Cell<u64>,
    /// The receives of other connections before its last turn.
    others: Cell<u64>,
    /// Turns until the others count as idle.
    left: Cell<u32>,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { own: Cell::default(), others: Cell::new(RECEIVES.get()), left: Cell::default() }
    }
}

impl Turns {
    /// Counts a receive of the connection.
    #[inline]
    pub fn received(&self) {
        RECEIVES.set(RECEIVES.get().wrapping_add(1));
        self.own.set(self.own.get().wrapping_add(1));
    }

    /// Bytes that the connection may send now, unlimited while the others are idle.
    pub fn next_len(&self) -> usize {
        let others = RECEIVES.get().wrapping_sub(self.own.get());
        if self.others.replace(others) != others {
            self.left.set(IDLE);
        }
        let Some(left) = self.left.get().checked_sub(1) else { return usize::MAX };
        self.left.set(left);
        TURN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_limited_while_others_receive() {
        let turns = Turns::default();
        let other = Turns::default();
        other.received();
        for _ in 0..IDLE {
            assert_eq!(turns.next_len(), TURN);
        }
        assert_eq!(turns.next_len(), usize::MAX, "the other is idle");
        other.received();
        assert_eq!(turns.next_len(), TURN);
    }

    #[test]
    fn lone_connection_has_unlimited_turns() {
        Turns::default().received(); // of a connection that is gone
        let turns = Turns::default();
        for _ in 0..3 {
            turns.received();
            assert_eq!(turns.next_len(), usize::MAX);
        }
    }
}
