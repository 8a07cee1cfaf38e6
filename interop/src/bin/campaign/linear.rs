//! Each block is an atomic register for all sessions, and reads return an atomic write whole or not at all.
//!
//! Sessions write and read overlapping ranges of a few blocks at a queue depth above 1, with all task attributes,
//! immediate data and R2Ts. Some writes are so long that the target takes them in pieces. Every write has a unique
//! value. [`crate::history`] checks the values that reads returned.

use crate::NO_ANSWER;
use crate::history::{self, NEVER, Op, OpKind};
use crate::site::{self, ServedBy, Storage};
use crate::tally::{Tally, joined};
use interop::queued_session::{
    Command, Completion, HEAD_OF_QUEUE, ORDERED, QueuedSession, SIMPLE, SessionEvent,
};
use interop::scsi::{read10, write10};
use interop::{Random, Raw};
use std::collections::HashMap;
use std::thread;
use std::time::Instant;

const BLOCK: usize = 512;
/// Blocks that all kinds of commands use.
const BLOCKS: u64 = 48;
/// The next blocks, which only atomic writes write, and which reads often return as a whole: two values there are
/// then a fault.
const ATOMIC_BLOCKS: u64 = 64;
/// The first block of long writes, after those, and their length of 2.5 MiB.
const LONG: u64 = BLOCKS + ATOMIC_BLOCKS;
const LONG_BLOCKS: u64 = 5120;
/// The blocks of a long write that are checked: at the ends of its pieces of 1 MiB, and at its own end.
const WINDOW: u64 = 16;
const WINDOWS: [u64; 4] = [LONG, LONG + 2048 - 8, LONG + 4096 - 8, LONG + LONG_BLOCKS - WINDOW];
const SESSIONS: usize = 4;
const DEPTH: usize = 8;
/// MISCOMPARE DURING VERIFY OPERATION.
const MISCOMPARE: u32 = 0x0e_1d00;

/// Records one history over one path to one backend. Consecutive seeds use all combinations.
pub fn round(seed: u64, tally: &mut Tally) -> Result<(), String> {
    let mut random = Random::new(seed);
    let backends = [
        ("memory", "backend = \"memory\"\nsize = \"16MiB\"\nserial = \"m\"".to_owned()),
        ("file", site::file("disk.img", "")),
        ("direct file", site::file("disk.img", "direct = true")),
    ];
    let served_by = ServedBy::ALL[(seed % 3) as usize];
    let (backend, keys) = &backends[(seed / 3 % 3) as usize];
    let delay = *random.pick(&["", "", "filters = [{ kind = \"delay\", read_us = 300, write_us = 300 }]"]);
    let site = Storage::start(tally, served_by, &site::lun(0, &format!("{keys}\n{delay}")), "");
    let commands = if tally.is_short() { 300 } else { 10_000 };
    let (start, tally) = ((Instant::now(), *random.pick(&WORKLOADS)), &*tally);
    let sessions: Vec<Session> =
        (0..SESSIONS).map(|number| Session::open(&site, number, served_by, random.fork(), start)).collect();
    let ops = thread::scope(|scope| {
        let threads: Vec<_> =
            sessions.into_iter().map(|s| scope.spawn(move || s.run(commands, tally))).collect();
        threads.into_iter().map(joined).collect::<Result<Vec<_>, String>>()
    })?;
    let ops = ops.concat();
    tally.add("operations", ops.len() as u64);
    let read = |op: &Op| if matches!(op.kind, OpKind::Read(_)) { op.blocks } else { 0 };
    tally.add("blocks read", ops.iter().map(read).sum());
    let windows = WINDOWS.into_iter().flat_map(|first| first..first + WINDOW);
    history::check(&ops, (0..LONG).chain(windows))
        .map_err(|fault| format!("{served_by:?}, {backend}, {delay:?}, {:?}: {fault}", start.1))
}

/// The workload of the sessions of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Workload {
    /// All kinds of commands, several at a time
    Wild,
    /// SIMPLE commands one at a time, mostly atomic writes and reads of the same blocks: a command that needs
    /// exclusive access delays those that overlap it
    Calm,
    /// The same, but every second session only writes, with all data immediate, and the others only read. Each
    /// command has all atomic blocks
    Duel,
}

const WORKLOADS: [Workload; 4] = [Workload::Wild, Workload::Wild, Workload::Calm, Workload::Duel];

struct Session {
    number: usize,
    depth: QueuedSession,
    random: Random,
    epoch: Instant,
    /// A router in block mode does not offer WRITE ATOMIC
    has_atomic: bool,
    mood: Workload,
    sent: u64,
    in_flight: HashMap<u32, Op>,
    done: Vec<Op>,
    /// First block and values of the last read, which the next COMPARE AND WRITE expects
    seen: (u64, Vec<u64>),
}

impl Session {
    fn open(
        site: &Storage,
        number: usize,
        served_by: ServedBy,
        mut random: Random,
        start: (Instant, Workload),
    ) -> Session {
        let login = site.login(number + 1);
        let (mut immediate, mut bursts) =
            (&["Yes", "Yes", "Yes", "No"][..], &["1024", "65536", "65536", "65536"][..]);
        if start.1 == Workload::Duel {
            (immediate, bursts) = (&immediate[..1], &bursts[1..]);
        }
        let login = login.key("ImmediateData", random.pick::<&str>(immediate));
        let login = login.key("FirstBurstLength", random.pick::<&str>(bursts));
        let login = login.key("MaxRecvDataSegmentLength", random.pick::<&str>(&["8192", "262144", "262144"]));
        let raw: Raw = site.session(&login, &[0]);
        let ((epoch, mood), depth, has_atomic) =
            (start, QueuedSession::new(raw), served_by != ServedBy::Block);
        let (in_flight, done, seen) = (HashMap::new(), Vec::new(), (0, Vec::new()));
        Session { number, depth, random, epoch, has_atomic, mood, sent: 0, in_flight, done, seen }
    }

    /// Sends this many commands, and returns their operations. A response that is not allowed is an error.
    fn run(mut self, commands: u64, tally: &Tally) -> Result<Vec<Op>, String> {
        while self.sent < commands || self.depth.in_flight() > 0 {
            let max = if self.mood == Workload::Wild { DEPTH } else { 1 };
            while self.sent < commands && self.depth.in_flight() < max && self.depth.has_window() {
                self.send();
            }
            match self.depth.next(NO_ANSWER) {
                SessionEvent::Completion(end) => self.ended(&end, tally)?,
                SessionEvent::Nothing => return Err("no answer".into()),
                SessionEvent::Closed => return Err("the connection was closed".into()),
            }
        }
        Ok(self.done)
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }

    fn send(&mut self) {
        let attribute = match self.random.below(10) {
            _ if self.mood != Workload::Wild => SIMPLE,
            0 => ORDERED,
            1 => HEAD_OF_QUEUE,
            _ => SIMPLE,
        };
        let value = (self.number as u64 + 1) << 32 | self.sent;
        let (first, blocks, kind) = self.choose(value);
        let command = command(first, blocks, &kind);
        let is_immediate = self.mood == Workload::Duel || !self.random.one_in(5);
        let start = self.now();
        let tag = self.depth.send(Command { attribute, is_immediate, ..command });
        let (is_ordered, is_head) = (attribute == ORDERED, attribute == HEAD_OF_QUEUE);
        let (session, order, end) = (self.number, self.sent, NEVER);
        self.in_flight
            .insert(tag, Op { session, order, is_ordered, is_head, first, blocks, start, end, kind });
        self.sent += 1;
    }

    /// Position, length and kind of the next command; a read has no values yet.
    fn choose(&mut self, value: u64) -> (u64, u64, OpKind) {
        if self.has_atomic && self.mood == Workload::Duel {
            let kind =
                if self.number.is_multiple_of(2) { OpKind::Atomic(value) } else { OpKind::Read(Vec::new()) };
            return (BLOCKS, ATOMIC_BLOCKS, kind);
        }
        if self.random.one_in(400) {
            return (LONG, LONG_BLOCKS, OpKind::Write(value));
        }
        if self.random.one_in(10) {
            let blocks = 1 + self.random.below(WINDOW);
            let first = *self.random.pick(&WINDOWS) + self.random.below(WINDOW - blocks + 1);
            let kind = if self.random.one_in(4) { OpKind::Write(value) } else { OpKind::Read(Vec::new()) };
            return (first, blocks, kind);
        }
        let is_calm = self.mood != Workload::Wild;
        if self.has_atomic && (is_calm && !self.random.one_in(16) || self.random.one_in(3)) {
            let blocks =
                if self.random.one_in(2) { ATOMIC_BLOCKS } else { 2 + self.random.below(ATOMIC_BLOCKS - 1) };
            let first = BLOCKS + self.random.below(ATOMIC_BLOCKS - blocks + 1);
            let kind = if self.random.one_in(2) { OpKind::Atomic(value) } else { OpKind::Read(Vec::new()) };
            return (first, blocks, kind);
        }
        let kind = self.random.below(20);
        let longest = if matches!(kind, 0 | 18) { BLOCKS } else { 16 };
        let blocks = if kind == 0 { BLOCKS } else { 1 + self.random.below(longest) };
        let first = self.random.below(BLOCKS - blocks + 1);
        match kind {
            0..10 => (first, blocks, OpKind::Read(Vec::new())),
            10..12 if !self.seen.1.is_empty() => {
                let (first, mut seen) = std::mem::take(&mut self.seen);
                seen.truncate(1 + self.random.below(4) as usize);
                (first, seen.len() as u64, OpKind::Swap(seen, value))
            }
            17..20 if self.has_atomic => (first, blocks, OpKind::Atomic(value)),
            _ => (first, blocks, OpKind::Write(value)),
        }
    }

    fn ended(&mut self, end: &Completion, tally: &Tally) -> Result<(), String> {
        let mut op = self.in_flight.remove(&end.tag).expect("the tag of a command in flight");
        op.end = self.now();
        if matches!(op.kind, OpKind::Swap(..)) && end.sense == MISCOMPARE {
            tally.add("miscompares", 1);
            return Ok(());
        }
        if !end.is_good() {
            return Err(format!("{}: {op:?}", end.text()));
        }
        match &mut op.kind {
            OpKind::Read(values) => {
                *values = values_of(op.first, op.blocks, &end.data)?;
                if op.first < BLOCKS {
                    self.seen = (op.first, values.clone());
                }
            }
            OpKind::Swap(..) => tally.add("swaps", 1),
            OpKind::Atomic(_) => tally.add("atomic writes", 1),
            OpKind::Write(_) => tally.add("long writes", (op.blocks == LONG_BLOCKS).into()),
        }
        self.done.push(op);
        Ok(())
    }
}

fn command(first: u64, blocks: u64, kind: &OpKind) -> Command {
    let (lba, count) = (first as u32, blocks as u16);
    match kind {
        OpKind::Read(_) => Command::new(&read10(lba, count)).reads(blocks as u32 * BLOCK as u32),
        OpKind::Write(value) => {
            Command::new(&write10(lba, count)).writes(stamps(first, &vec![*value; blocks as usize]))
        }
        OpKind::Atomic(value) => {
            Command::new(&write_atomic(lba, count)).writes(stamps(first, &vec![*value; blocks as usize]))
        }
        OpKind::Swap(expected, value) => {
            let out = [stamps(first, expected), stamps(first, &vec![*value; expected.len()])].concat();
            Command::new(&compare_and_write(lba, expected.len() as u8)).writes(out)
        }
    }
}

fn write_atomic(lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x9c;
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn compare_and_write(lba: u32, blocks: u8) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x89;
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    cdb[13] = blocks;
    cdb
}

/// Blocks that repeat their value and LBA; zeros for value 0.
fn stamps(first: u64, values: &[u64]) -> Vec<u8> {
    let stamp = |(lba, value): (u64, &u64)| match value {
        0 => vec![0; BLOCK],
        value => [value.to_be_bytes(), lba.to_be_bytes()].concat().repeat(BLOCK / 16),
    };
    (first..).zip(values).flat_map(stamp).collect()
}

/// The values of blocks, each of which must hold one value.
fn values_of(first: u64, blocks: u64, data: &[u8]) -> Result<Vec<u64>, String> {
    if data.len() as u64 != blocks * BLOCK as u64 {
        return Err(format!("LBA {first}: {} bytes for {blocks} blocks", data.len()));
    }
    let value = |(lba, block): (u64, &[u8])| {
        let value = u64::from_be_bytes(block[..8].try_into().expect("8 bytes"));
        let is_whole = block == stamps(lba, &[value]);
        is_whole
            .then_some(value)
            .ok_or_else(|| format!("LBA {lba} is torn or of another: {:x?}", words(block)))
    };
    (first..).zip(data.chunks(BLOCK)).map(value).collect()
}

/// The different pairs of value and LBA in a block, in order.
fn words(block: &[u8]) -> Vec<[u64; 2]> {
    let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
    let mut words: Vec<[u64; 2]> =
        block.chunks(16).map(|pair| [word(&pair[..8]), word(&pair[8..])]).collect();
    words.dedup();
    words
}
