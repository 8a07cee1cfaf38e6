//! A writer that writes a different value each time, and the values that its blocks may contain.

use crate::NO_ANSWER;
use crate::tally::Tally;
use interop::queued_session::{Command, Completion, QueuedSession, SessionEvent};
use interop::scsi::{cdb10, read10};
use interop::{Random, Raw};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

const SLOTS: usize = 41;
/// The last slots are large, for R2Ts and for atomic writes that take their time.
const LARGE: usize = 4;
const LARGE_BYTES: usize = 1 << 20;
/// The last slot, whose plain writes the target takes in pieces.
const LONG: usize = SLOTS - 1;
const LONG_BYTES: usize = 3 << 20;
/// Blocks from one slot to the next, and from one writer to the next.
const SPACE: u64 = 64;
const WRITER_SPACE: u64 = 16384;
/// COMPARE AND WRITE has a byte for the number of blocks.
const COMPARE_MAX: u64 = 255;
const DEPTH: usize = 12;
const FUA: u8 = 0x08;
const UNMAP: u8 = 0x08;

/// The contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotContent {
    Zero,
    /// The stamp of this generation
    Of(u64),
}

/// Some blocks that one command writes at a time.
#[derive(Clone, Debug)]
struct Slot {
    lba: u64,
    blocks: u64,
    sent: u64,
    /// The contents acknowledged last, then those that may have been written since
    may_hold: Vec<SlotContent>,
    /// The last of these is an atomic write
    is_atomic: bool,
}

/// The command that writes a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteKind {
    Write,
    Fua,
    Atomic,
    Compare,
    Same,
    SameUnmap,
    Unmap,
}

const WRITE_KINDS: [WriteKind; 10] = [
    WriteKind::Write,
    WriteKind::Write,
    WriteKind::Write,
    WriteKind::Fua,
    WriteKind::Atomic,
    WriteKind::Atomic,
    WriteKind::Compare,
    WriteKind::Same,
    WriteKind::SameUnmap,
    WriteKind::Unmap,
];

/// Writes slots of its own, over any number of sessions.
pub struct Writer {
    pub host: usize,
    block: usize,
    has_atomic: bool,
    /// Large atomic writes are in flight all the time
    is_storm: bool,
    random: Random,
    slots: Vec<Slot>,
    in_flight: HashMap<u32, Option<usize>>,
}

impl Writer {
    /// A writer of LUN 0 with blocks of this size.
    pub fn new(host: usize, block: usize, has_atomic: bool, mut random: Random) -> Writer {
        let large = (LARGE_BYTES / block) as u64;
        let first_large = (SLOTS - LARGE) as u64 * SPACE;
        let slot = |number: usize| {
            let at = match number.checked_sub(SLOTS - LARGE) {
                None => number as u64 * SPACE,
                Some(n) => first_large + n as u64 * large,
            };
            let small = *random.pick(&[1, 8, 8, 8, 16, SPACE]);
            let blocks = match number {
                LONG => (LONG_BYTES / block) as u64,
                _ if at < first_large => small,
                _ => large,
            };
            let lba = host as u64 * WRITER_SPACE + at;
            Slot { lba, blocks, sent: 0, may_hold: vec![SlotContent::Zero], is_atomic: false }
        };
        let slots = (0..SLOTS).map(slot).collect();
        let is_storm = has_atomic && random.one_in(2);
        Writer { host, block, has_atomic, is_storm, random, slots, in_flight: HashMap::new() }
    }

    /// Writes until the connection ends, or until all commands have ended after `stop`.
    pub fn write_on(&mut self, raw: Raw, stop: &AtomicBool, tally: &Tally) -> Result<(), String> {
        let mut depth = QueuedSession::new(raw);
        self.in_flight.clear();
        loop {
            let is_over = stop.load(Ordering::Relaxed);
            while !is_over && depth.in_flight() < DEPTH && depth.has_window() {
                self.send(&mut depth);
            }
            if depth.in_flight() == 0 {
                return Ok(());
            }
            match depth.next(NO_ANSWER) {
                SessionEvent::Completion(end) => self.ended(&end, tally)?,
                SessionEvent::Closed => return Ok(()),
                SessionEvent::Nothing => return Err("no answer".into()),
            }
        }
    }

    fn send(&mut self, depth: &mut QueuedSession) {
        let is_busy = |slot: usize| self.in_flight.values().any(|other| *other == Some(slot));
        let free: Vec<usize> = (0..SLOTS).filter(|slot| !is_busy(*slot)).collect();
        if self.random.one_in(16) {
            let tag = depth.send(Command::new(&cdb10(0x35, 0, 0)));
            self.in_flight.insert(tag, None);
            return;
        }
        // Large slots more often, because a kill is more likely to interrupt their writes.
        let large = free
            .iter()
            .copied()
            .find(|slot| *slot >= SLOTS - LARGE)
            .filter(|_| self.is_storm || self.random.one_in(3));
        let slot = large.unwrap_or_else(|| *self.random.pick(&free));
        let command = self.command(slot);
        self.in_flight.insert(depth.send(command), Some(slot));
    }

    fn means(&mut self, slot: usize) -> WriteKind {
        match slot {
            LONG => *self.random.pick(&[WriteKind::Write, WriteKind::Fua]),
            _ if slot >= SLOTS - LARGE && self.random.one_in(2) => WriteKind::Atomic,
            _ => *self.random.pick(&WRITE_KINDS),
        }
    }

    /// The next command of a slot. After a command whose end is unknown, the next one writes all blocks of the slot.
    fn command(&mut self, number: usize) -> Command {
        let mut means = self.means(number);
        let is_immediate = !self.random.one_in(4);
        let slot = &mut self.slots[number];
        let is_known = slot.may_hold.len() == 1;
        let may_be = match means {
            WriteKind::Atomic => self.has_atomic,
            WriteKind::Compare => slot.blocks <= COMPARE_MAX,
            _ => true,
        };
        if !is_known || !may_be {
            means = WriteKind::Write;
        }
        slot.sent += 1;
        let before = slot.may_hold[0];
        let content = match means {
            WriteKind::SameUnmap | WriteKind::Unmap => SlotContent::Zero,
            _ => SlotContent::Of(slot.sent),
        };
        slot.may_hold.push(content);
        slot.is_atomic = means == WriteKind::Atomic;
        let slot = slot.clone();
        let data = |content| fill(self.block, self.host, number, content).repeat(slot.blocks as usize);
        let (cdb, out) = match means {
            WriteKind::Write => (cdb16(0x8a, 0, &slot), data(content)),
            WriteKind::Fua => (cdb16(0x8a, FUA, &slot), data(content)),
            WriteKind::Atomic => (atomic(&slot), data(content)),
            WriteKind::Compare => (compare(&slot), [data(before), data(content)].concat()),
            WriteKind::Same => (cdb16(0x93, 0, &slot), fill(self.block, self.host, number, content)),
            WriteKind::SameUnmap => (cdb16(0x93, UNMAP, &slot), vec![0; self.block]),
            WriteKind::Unmap => unmap(&slot),
        };
        Command { is_immediate, ..Command::new(&cdb).writes(out) }
    }

    /// Handles the end of a command. After a failure, the slot may hold the old or the new contents.
    fn ended(&mut self, end: &Completion, tally: &Tally) -> Result<(), String> {
        let Some(number) = self.in_flight.remove(&end.tag).expect("the tag of a command in flight") else {
            tally.add("flushes", end.is_good().into());
            return Ok(());
        };
        let slot = &mut self.slots[number];
        if end.sense >> 16 == 0x0e {
            return Err(format!(
                "LBA {}: COMPARE AND WRITE found something else than {:?}",
                slot.lba, slot.may_hold
            ));
        }
        if end.sense >> 16 == 5 {
            return Err(format!("LBA {}: refused with {}", slot.lba, end.text()));
        }
        if end.is_good() {
            let last = slot.may_hold.pop().expect("what was sent");
            (slot.may_hold, slot.is_atomic) = (vec![last], false);
            tally.add("writes acknowledged", 1);
            tally.add("long writes acknowledged", (number == LONG).into());
        } else {
            tally.add("writes failed", 1);
        }
        Ok(())
    }

    /// Checks that every block has an allowed value.
    pub fn check(&mut self, raw: &mut Raw, tally: &Tally) -> Result<(), String> {
        for number in 0..SLOTS {
            let Slot { lba, blocks, ref may_hold, is_atomic, .. } = self.slots[number];
            let length = blocks as usize * self.block;
            let cdb = read10(lba as u32, blocks as u16);
            let data = raw.settled(|raw| raw.read(0, &cdb, length as u32)).good();
            if data.len() != length {
                return Err(format!("LBA {lba}: {} bytes, not {length}", data.len()));
            }
            let is =
                |block: &[u8], content: &SlotContent| block == fill(self.block, self.host, number, *content);
            let what = |block: &[u8]| may_hold.iter().rposition(|content| is(block, content));
            let found: Vec<Option<usize>> = data.chunks(self.block).map(what).collect();
            if let Some(at) = found.iter().position(Option::is_none) {
                let block = &data[at * self.block..][..32];
                return Err(format!(
                    "LBA {} of the slot at {lba} holds {block:02x?}, which is none of {may_hold:?}",
                    lba + at as u64
                ));
            }
            let newest = Some(may_hold.len() - 1);
            if is_atomic && found.contains(&newest) && found.iter().any(|at| *at != newest) {
                let there = found.iter().filter(|at| **at == newest).count();
                return Err(format!("LBA {lba}: {there} of {blocks} blocks of an atomic write are there"));
            }
            tally.add("blocks compared", blocks);
        }
        Ok(())
    }
}

/// A block that repeats host, slot and generation.
fn fill(block: usize, host: usize, slot: usize, content: SlotContent) -> Vec<u8> {
    match content {
        SlotContent::Zero => vec![0; block],
        SlotContent::Of(generation) => {
            let place = ((host as u64 + 1) << 32 | slot as u64).to_be_bytes();
            [place, generation.to_be_bytes()].concat().repeat(block / 16)
        }
    }
}

/// A 16-byte CDB with LOGICAL BLOCK ADDRESS at byte 2 and the number of blocks at byte 10.
fn cdb16(opcode: u8, flags: u8, slot: &Slot) -> Vec<u8> {
    let (lba, blocks) = (slot.lba.to_be_bytes(), (slot.blocks as u32).to_be_bytes());
    [&[opcode, flags][..], &lba, &blocks, &[0, 0]].concat()
}

fn atomic(slot: &Slot) -> Vec<u8> {
    let (lba, blocks) = (slot.lba.to_be_bytes(), (slot.blocks as u16).to_be_bytes());
    [&[0x9c, 0][..], &lba, &[0, 0], &blocks, &[0, 0]].concat()
}

fn compare(slot: &Slot) -> Vec<u8> {
    [&[0x89, 0][..], &slot.lba.to_be_bytes(), &[0, 0, 0, slot.blocks as u8, 0, 0]].concat()
}

fn unmap(slot: &Slot) -> (Vec<u8>, Vec<u8>) {
    let (lba, blocks) = (slot.lba.to_be_bytes(), (slot.blocks as u32).to_be_bytes());
    let list = [&[0, 22, 0, 16, 0, 0, 0, 0][..], &lba, &blocks, &[0; 4]].concat();
    (vec![0x42, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0], list)
}
