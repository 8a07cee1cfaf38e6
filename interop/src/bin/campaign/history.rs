//! Checks that a history of sessions is possible if each block is an atomic register.
//!
//! Every write has a unique value, so the write that a read returned is known. A register is then linearizable
//! exactly if its zones are in order (Gibbons and Korach, Testing Shared Memories, 1997): see [`zones`].

use std::collections::{HashMap, HashSet};

/// End time of an operation whose end is unknown.
pub const NEVER: u64 = u64::MAX;

/// The effect of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpKind {
    /// The value that each block showed
    Read(Vec<u64>),
    /// One value for all blocks
    Write(u64),
    /// A write whose blocks appear together
    Atomic(u64),
    /// COMPARE AND WRITE that found these values, and replaced them by the last one
    Swap(Vec<u64>, u64),
}

/// One operation of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    pub session: usize,
    /// Position among the commands of its session
    pub order: u64,
    pub is_ordered: bool,
    pub is_head: bool,
    pub first: u64,
    pub blocks: u64,
    /// Time just before it was sent, in nanoseconds
    pub start: u64,
    /// Time of its status, in nanoseconds; [`NEVER`] if it is unknown
    pub end: u64,
    pub kind: OpKind,
}

impl Op {
    fn covers(&self, block: u64) -> bool {
        (self.first..self.first + self.blocks).contains(&block)
    }

    /// The value that it wrote.
    fn wrote(&self) -> Option<u64> {
        match &self.kind {
            OpKind::Read(_) => None,
            OpKind::Write(value) | OpKind::Atomic(value) | OpKind::Swap(_, value) => Some(*value),
        }
    }

    /// The value that it found in this block.
    fn found(&self, block: u64) -> Option<u64> {
        match &self.kind {
            OpKind::Read(values) | OpKind::Swap(values, _) => {
                values.get((block - self.first) as usize).copied()
            }
            OpKind::Write(_) | OpKind::Atomic(_) => None,
        }
    }

    fn is_atomic(&self) -> bool {
        matches!(self.kind, OpKind::Atomic(_) | OpKind::Swap(..))
    }

    fn text(&self) -> String {
        let what = match &self.kind {
            OpKind::Read(_) => "read".into(),
            OpKind::Write(value) => format!("write of {value:#x}"),
            OpKind::Atomic(value) => format!("atomic write of {value:#x}"),
            OpKind::Swap(_, value) => format!("compare and write of {value:#x}"),
        };
        let order = if self.is_ordered { " ORDERED" } else { "" };
        let end = if self.end == NEVER { "?".into() } else { (self.end / 1000).to_string() };
        let (first, last) = (self.first, self.first + self.blocks - 1);
        format!(
            "session {}:{order} {what}, LBA {first} to {last}, {} to {end} us",
            self.session,
            self.start / 1000
        )
    }
}

/// Checks a history that starts with all blocks 0; returns the first fault.
pub fn check(ops: &[Op], blocks: impl IntoIterator<Item = u64>) -> Result<(), String> {
    let writes: HashMap<u64, &Op> = ops.iter().filter_map(|op| Some((op.wrote()?, op))).collect();
    for block in blocks {
        let here: Vec<&Op> = ops.iter().filter(|op| op.covers(block)).collect();
        zones(&here, block)
            .and_then(|()| swaps(&here, block))
            .and_then(|()| orders(&here, &writes, block))?;
    }
    ops.iter().try_for_each(|op| whole(op, &writes))
}

/// The zone of a value in one block, from all operations with this value.
#[derive(Clone, Copy, Debug)]
struct ValueInterval<'a> {
    first_end: u64,
    last_start: u64,
    /// The operation that ended first and the one that started last
    ops: [Option<&'a Op>; 2],
}

impl ValueInterval<'_> {
    /// Whether the value was present during the whole interval.
    fn is_forward(&self) -> bool {
        self.first_end < self.last_start
    }

    fn low(&self) -> u64 {
        self.first_end.min(self.last_start)
    }

    fn high(&self) -> u64 {
        self.first_end.max(self.last_start)
    }

    fn text(&self) -> String {
        let texts: Vec<String> = self.ops.iter().flatten().map(|op| op.text()).collect();
        if texts.is_empty() { "the zeros of the beginning".into() } else { texts.join("; ") }
    }
}

/// The zone of a value lies between the first end and the last start of its operations. In a forward zone, the end
/// comes first, so the block had the value during the whole zone. Forward zones must not overlap, and no backward
/// zone may lie within one.
fn zones(here: &[&Op], block: u64) -> Result<(), String> {
    let zones = of_values(here, block)?;
    let (mut forward, backward): (Vec<_>, Vec<_>) = zones.into_iter().partition(ValueInterval::is_forward);
    forward.sort_by_key(ValueInterval::low);
    for pair in forward.windows(2) {
        if pair[1].low() < pair[0].high() {
            return Err(disorder(block, &pair[0], &pair[1]));
        }
    }
    for zone in &backward {
        let around = forward[..forward.partition_point(|f| f.low() < zone.low())].last();
        if let Some(around) = around.filter(|around| zone.high() < around.high()) {
            return Err(disorder(block, around, zone));
        }
    }
    Ok(())
}

fn disorder(block: u64, one: &ValueInterval, other: &ValueInterval) -> String {
    format!("LBA {block} held two values at a time, or one again.\n  {}\n  {}", one.text(), other.text())
}

fn of_values<'a>(here: &[&'a Op], block: u64) -> Result<Vec<ValueInterval<'a>>, String> {
    let mut zones: HashMap<u64, ValueInterval> = HashMap::new();
    zones.insert(0, ValueInterval { first_end: 0, last_start: 0, ops: [None; 2] });
    for op in here {
        if let Some(value) = op.wrote() {
            zones
                .insert(value, ValueInterval { first_end: op.end, last_start: op.start, ops: [Some(op); 2] });
        }
    }
    for op in here.iter().copied() {
        let Some(value) = op.found(block) else { continue };
        let zone = zones
            .get_mut(&value)
            .ok_or_else(|| format!("LBA {block} was never written so: {value:#x}; {}", op.text()))?;
        let write_start =
            zone.ops[0].filter(|write| write.wrote() == Some(value)).map_or(0, |write| write.start);
        if op.end < write_start {
            return Err(format!("LBA {block} shows {value:#x} before it was written: {}", op.text()));
        }
        if op.end < zone.first_end {
            (zone.first_end, zone.ops[0]) = (op.end, Some(op));
        }
        if op.start > zone.last_start {
            (zone.last_start, zone.ops[1]) = (op.start, Some(op));
        }
    }
    // A write whose end is unknown and that no read returned may not have happened.
    Ok(zones.into_values().filter(|zone| zone.first_end != NEVER).collect())
}

/// A value is written once: only one COMPARE AND WRITE can find and replace it.
fn swaps(here: &[&Op], block: u64) -> Result<(), String> {
    let mut found = HashMap::new();
    for op in here.iter().filter(|op| matches!(op.kind, OpKind::Swap(..))) {
        let value = op.found(block).expect("a swap finds values");
        if let Some(other) = found.insert(value, op) {
            let (one, two) = (other.text(), op.text());
            return Err(format!("LBA {block}: two replaced {value:#x}\n  {one}\n  {two}"));
        }
    }
    Ok(())
}

/// No command of a session passes its ORDERED commands (SAM-5 section 8.6), except HEAD OF QUEUE. So a read must not
/// return a value that an earlier ORDERED write has replaced.
fn orders(here: &[&Op], writes: &HashMap<u64, &Op>, block: u64) -> Result<(), String> {
    let mut sessions: HashMap<usize, Vec<&Op>> = HashMap::new();
    here.iter().for_each(|op| sessions.entry(op.session).or_default().push(op));
    for ops in sessions.values_mut() {
        ops.sort_by_key(|op| op.order);
        let (mut last, mut last_ordered): (Option<&Op>, Option<&Op>) = (None, None);
        for op in ops {
            if let (Some(value), false) = (op.found(block), op.is_head) {
                let before = if op.is_ordered { last } else { last_ordered };
                let end = writes.get(&value).map_or(0, |write| write.end);
                if let Some(before) = before.filter(|before| before.end != NEVER && end < before.start) {
                    let (one, two) = (before.text(), op.text());
                    return Err(format!(
                        "LBA {block}: a command passed another\n  {one}\n  {two}, found {value:#x}"
                    ));
                }
            }
            if op.wrote().is_some() {
                last = Some(op);
                last_ordered = if op.is_ordered { Some(op) } else { last_ordered };
            }
        }
    }
    Ok(())
}

/// If a read returns one block of an atomic write, it returns all common blocks of that write. Blocks that a newer
/// write has overwritten are excepted.
fn whole(op: &Op, writes: &HashMap<u64, &Op>) -> Result<(), String> {
    let (OpKind::Read(values) | OpKind::Swap(values, _)) = &op.kind else { return Ok(()) };
    let shown: HashSet<u64> = values.iter().copied().collect();
    for atomic in shown.iter().filter_map(|value| writes.get(value)).filter(|write| write.is_atomic()) {
        let wrote = atomic.wrote();
        for (block, value) in (op.first..).zip(values).filter(|(block, _)| atomic.covers(*block)) {
            let is_older = || match writes.get(value) {
                None => true,
                Some(other) => {
                    let both = |(at, seen): (u64, &u64)| Some(*seen) == wrote && other.covers(at);
                    other.end < atomic.start || (other.is_atomic() && (op.first..).zip(values).any(both))
                }
            };
            if Some(*value) != wrote && is_older() {
                let (one, two) = (atomic.text(), op.text());
                return Err(format!("torn: LBA {block} shows {value:#x} beside\n  {one}\n  {two}"));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operation of session 0 on the first `blocks` blocks.
    fn op(kind: OpKind, blocks: u64, start: u64, end: u64) -> Op {
        Op { session: 0, order: start, is_ordered: false, is_head: false, first: 0, blocks, start, end, kind }
    }

    fn read(value: u64, start: u64, end: u64) -> Op {
        op(OpKind::Read(vec![value]), 1, start, end)
    }

    fn write(value: u64, start: u64, end: u64) -> Op {
        op(OpKind::Write(value), 1, start, end)
    }

    fn fault(ops: &[Op]) -> String {
        check(ops, 0..2).expect_err("a fault")
    }

    #[test]
    fn overlapping_operations_in_any_order_pass() {
        let ops = [write(1, 10, 20), write(2, 15, 25), read(2, 26, 30), read(0, 5, 12), read(1, 14, 24)];
        assert_eq!(check(&ops, 0..2), Ok(()));
        assert_eq!(check(&[write(1, 10, NEVER), read(0, 20, 30), read(1, 40, 50)], 0..2), Ok(()));
        assert_eq!(check(&[write(1, 10, NEVER), read(0, 20, 30)], 0..2), Ok(()));
    }

    #[test]
    fn stale_read_is_detected() {
        assert!(fault(&[write(1, 10, 20), read(0, 30, 40)]).contains("LBA 0"));
        assert!(fault(&[write(1, 10, 20), write(2, 30, 40), read(1, 50, 60)]).contains("LBA 0"));
    }

    #[test]
    fn returning_value_is_detected() {
        let ops = [write(1, 10, 100), write(2, 11, 100), read(1, 20, 21), read(2, 30, 31), read(1, 40, 41)];
        assert!(fault(&ops).contains("LBA 0"));
    }

    #[test]
    fn value_before_its_write_is_detected() {
        assert!(fault(&[read(1, 1, 2), write(1, 10, 20)]).contains("before it was written"));
        assert!(fault(&[read(9, 1, 2)]).contains("never written"));
    }

    #[test]
    fn torn_atomic_write_is_detected() {
        let torn = op(OpKind::Read(vec![1, 0]), 2, 12, 18);
        assert!(fault(&[op(OpKind::Atomic(1), 2, 10, 20), torn.clone()]).starts_with("torn"));
        assert_eq!(check(&[op(OpKind::Write(1), 2, 10, 20), torn], 0..2), Ok(()));
        let two = [op(OpKind::Atomic(1), 2, 10, 20), op(OpKind::Atomic(2), 2, 10, 20)];
        let mixed = [&two[..], &[op(OpKind::Read(vec![1, 2]), 2, 12, 18)]].concat();
        assert!(fault(&mixed).starts_with("torn"));
    }

    #[test]
    fn double_compare_and_write_is_detected() {
        let swap = |value| op(OpKind::Swap(vec![0], value), 1, 10, 20);
        assert!(fault(&[swap(1), swap(2)]).contains("two replaced"));
    }

    #[test]
    fn read_that_passes_an_ordered_write_is_detected() {
        let ordered = Op { is_ordered: true, ..write(1, 10, 30) };
        assert!(fault(&[ordered, read(0, 11, 29)]).contains("passed"));
        assert_eq!(check(&[write(1, 10, 30), read(0, 11, 29)], 0..2), Ok(()));
    }
}
