//! Fused pairs: Compare, and the Write directly behind it, become one COMPARE AND WRITE.

use lunar_runtime::Buf;
use lunar_wire::nvme::Sqe;
use std::collections::BTreeMap;

/// One command of a pair.
pub struct FusedHalf {
    /// Its entry.
    pub sqe: Sqe,
    /// Its data, when they are here.
    pub data: Option<Buf>,
    /// Whether a part of them was damaged on the way.
    pub is_damaged: bool,
}

/// A pair, by the order of its commands.
pub struct FusedPair {
    /// Compare.
    pub first: FusedHalf,
    /// Write.
    pub second: FusedHalf,
}

impl FusedPair {
    /// Whether all data are here.
    pub fn is_complete(&self) -> bool {
        self.first.data.is_some() && self.second.data.is_some()
    }

    /// Whether data were damaged on the way.
    pub fn is_damaged(&self) -> bool {
        self.first.is_damaged || self.second.is_damaged
    }
}

/// The pairs of a queue.
#[derive(Default)]
pub struct FusedPairs {
    /// A first command, if it was the last command of the queue.
    first: Option<FusedHalf>,
    /// Pairs that wait for data.
    waiting: Vec<FusedPair>,
    /// The second commands of pairs that the core executes, by their first ones.
    executed: BTreeMap<u16, u16>,
}

impl FusedPairs {
    /// Holds a first command until the next command.
    pub fn hold(&mut self, half: FusedHalf) {
        self.first = Some(half);
    }

    /// Whether the last command of the queue was a first one.
    #[inline]
    pub fn has_first(&self) -> bool {
        self.first.is_some()
    }

    /// The first command, if it was the last command of the queue.
    pub fn take_first(&mut self) -> Option<FusedHalf> {
        self.first.take()
    }

    /// Adds a pair that waits for data.
    pub fn wait(&mut self, pair: FusedPair) {
        self.waiting.push(pair);
    }

    /// Adds data of a command. Returns its pair, if that is complete now.
    pub fn add_data(&mut self, id: u16, data: Buf, is_damaged: bool) -> Option<FusedPair> {
        let is_of = |pair: &FusedPair| [pair.first.sqe.id(), pair.second.sqe.id()].contains(&id);
        let at = self.waiting.iter().position(is_of)?;
        let pair = &mut self.waiting[at];
        let half = if pair.first.sqe.id() == id { &mut pair.first } else { &mut pair.second };
        (half.data, half.is_damaged) = (Some(data), is_damaged);
        pair.is_complete().then(|| self.waiting.swap_remove(at))
    }

    /// Records a pair that the core executes under the identifier of the first command.
    pub fn execute(&mut self, first: u16, second: u16) {
        self.executed.insert(first, second);
    }

    /// The second command of the pair with this first one, which has ended.
    #[inline]
    pub fn take_second(&mut self, first: u16) -> Option<u16> {
        if self.executed.is_empty() { None } else { self.executed.remove(&first) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(id: u16, data: Option<usize>) -> FusedHalf {
        FusedHalf { sqe: Sqe::new(0, id, 1), data: data.map(Buf::zeroed), is_damaged: false }
    }

    #[test]
    fn pair_is_complete_with_the_data_of_both() {
        let mut pairs = FusedPairs::default();
        pairs.wait(FusedPair { first: half(1, None), second: half(2, None) });
        pairs.wait(FusedPair { first: half(3, None), second: half(4, Some(8)) });
        assert!(pairs.add_data(1, Buf::zeroed(8), false).is_none());
        let other = pairs.add_data(3, Buf::zeroed(8), false).expect("a pair");
        assert_eq!((other.first.sqe.id(), other.is_damaged()), (3, false));
        let pair = pairs.add_data(2, Buf::zeroed(8), true).expect("a pair");
        assert_eq!((pair.second.sqe.id(), pair.is_damaged()), (2, true));
        assert!(pairs.add_data(1, Buf::zeroed(8), false).is_none());
    }

    #[test]
    fn second_command_ends_once_with_its_first() {
        let mut pairs = FusedPairs::default();
        pairs.execute(5, 6);
        assert_eq!([pairs.take_second(6), pairs.take_second(5), pairs.take_second(5)], [None, Some(6), None]);
    }
}
