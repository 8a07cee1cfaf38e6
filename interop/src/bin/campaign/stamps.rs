//! Writes with stamps, and what a block may hold after them.
//!
//! If a write has ended, with success or not, before another write of its block is sent, the later write must replace
//! it: once the later write is acknowledged, the block must not hold the earlier stamp.

use std::collections::BTreeMap;

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteState {
    InFlight,
    /// Its end is unknown: it may be executed at any time
    Lost,
    Good,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    block: u64,
    end: WriteState,
    /// The first stamp that was not yet in use when it ended
    ended_before: u64,
}

/// All writes, by their stamps, which increase.
#[derive(Debug, Default)]
pub struct Stamps {
    writes: BTreeMap<u64, Write>,
}

impl Stamps {
    /// A stamp for a write of this block, which is sent now.
    pub fn send(&mut self, block: u64) -> u64 {
        let stamp = self.next();
        self.writes.insert(stamp, Write { block, end: WriteState::InFlight, ended_before: u64::MAX });
        stamp
    }

    fn next(&self) -> u64 {
        self.writes.last_key_value().map_or(1, |(last, _)| last + 1)
    }

    /// Records the end of a write.
    pub fn ended(&mut self, stamp: u64, is_good: bool) {
        let ended_before = self.next();
        let write = self.writes.get_mut(&stamp).expect("a stamp of these writes");
        (write.end, write.ended_before) =
            (if is_good { WriteState::Good } else { WriteState::Failed }, ended_before);
    }

    /// Records that the end of a write will stay unknown.
    pub fn lost(&mut self, stamp: u64) {
        self.writes.get_mut(&stamp).expect("a stamp of these writes").end = WriteState::Lost;
    }

    /// Whether a write of this block is in flight. Lost writes do not count.
    pub fn is_flying(&self, block: u64) -> bool {
        self.writes.values().any(|write| write.block == block && write.end == WriteState::InFlight)
    }

    /// Whether no write is in flight.
    pub fn none_flies(&self) -> bool {
        self.writes.values().all(|write| write.end != WriteState::InFlight)
    }

    /// Whether this write has ended or is lost.
    pub fn has_ended(&self, stamp: u64) -> bool {
        self.writes[&stamp].end != WriteState::InFlight
    }

    /// Whether this write has ended with success.
    pub fn is_acknowledged(&self, stamp: u64) -> bool {
        self.writes[&stamp].end == WriteState::Good
    }

    /// Whether the block may have this value.
    pub fn check(&self, block: u64, found: &[u8]) -> Result<(), String> {
        let stamp = u64::from_be_bytes(found[8..16].try_into().expect("8 bytes"));
        let write = self.writes.get(&stamp).filter(|write| write.block == block);
        let Some(write) = write.filter(|_| found == data(block, stamp, found.len())) else {
            return Err(format!(
                "block {block} holds {:02x?}, which was never written, or is torn",
                &found[..32]
            ));
        };
        let newer = self.writes.range(write.ended_before..);
        let newest = newer.rev().find(|(_, other)| other.block == block && other.end == WriteState::Good);
        match newest {
            None => Ok(()),
            Some((newest, _)) => Err(format!(
                "block {block} holds write {stamp}, which had ended ({:?}) before write {newest} was sent, \
                 which was acknowledged",
                write.end
            )),
        }
    }
}

/// The contents of a block with this stamp.
pub fn data(block: u64, stamp: u64, length: usize) -> Vec<u8> {
    [block.to_be_bytes(), stamp.to_be_bytes()].concat().repeat(length / 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_write_over_a_newer_one_is_detected() {
        let mut stamps = Stamps::default();
        let old = stamps.send(5);
        stamps.ended(old, false);
        assert_eq!(stamps.check(5, &data(5, old, 512)), Ok(()));
        let new = stamps.send(5);
        assert_eq!(stamps.check(5, &data(5, old, 512)), Ok(()), "the new write may not have been executed");
        stamps.ended(new, true);
        assert_eq!(stamps.check(5, &data(5, new, 512)), Ok(()));
        assert!(stamps.check(5, &data(5, old, 512)).expect_err("late").contains("Failed"));
        assert!(stamps.check(6, &data(5, new, 512)).is_err(), "of another block");
    }

    #[test]
    fn concurrent_writes_in_any_order_pass() {
        let mut stamps = Stamps::default();
        let (one, two) = (stamps.send(5), stamps.send(5));
        stamps.ended(two, true);
        stamps.ended(one, true);
        assert_eq!(stamps.check(5, &data(5, one, 512)), Ok(()));
        assert_eq!(stamps.check(5, &data(5, two, 512)), Ok(()));
        assert!(!stamps.is_flying(5) && stamps.none_flies());
    }
}
