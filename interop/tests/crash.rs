//! `kill -9` of the server at random moments.
//!
//! Data that were acknowledged as stable must survive: FUA writes, writes before an acknowledged SYNCHRONIZE CACHE,
//! all writes if the write cache is off, and persistent state. The page cache survives the end of a process. So these
//! tests find writes that were acknowledged before the system had them, torn blocks, and files that a restart
//! damages. The executor's tests use a disk that loses its cache, and prove that the right writes become stable.

use interop::scsi::{WRITE, cdb10, read_keys, reserve_out, write10};
use interop::{Folder, Login, Random, Raw, Received, Server, TARGET, op};
use std::collections::HashMap;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

const BLOCK: usize = 512;
/// Blocks of one write.
const SLOT_BLOCKS: u32 = 8;
/// Concurrent writers, each with its own slots.
const WRITERS: u32 = 2;
const SLOTS: u32 = 48;
/// Commands in flight of one writer.
const DEPTH: usize = 12;
const ROUNDS: u64 = 6;
const FUA: u8 = 0x08;

fn configuration(keys: &str) -> String {
    format!(
        "[session]\nnop_interval_s = 0\n[[portal_group]]\ntag = 1\nportals = [\"127.0.0.1:0\"]\n[[target]]\n\
         name = \"{TARGET}\"\n[[target.lun]]\nlun = 0\nbackend = \"file\"\npath = \"disk.img\"\nsize = \"16MiB\"\n{keys}\n"
    )
}

/// A block that repeats owner, LBA and generation.
fn stamp(owner: u32, lba: u32, generation: u64) -> Vec<u8> {
    let one = [&owner.to_be_bytes()[..], &lba.to_be_bytes(), &generation.to_be_bytes()].concat();
    one.repeat(BLOCK / one.len())
}

/// The generation of a block, which must not be torn. None if the block was never written.
fn generation(owner: u32, lba: u32, block: &[u8]) -> Option<u64> {
    if block.iter().all(|b| *b == 0) {
        return None;
    }
    let generation = u64::from_be_bytes(block[8..16].try_into().expect("8 bytes"));
    assert!(block == stamp(owner, lba, generation), "LBA {lba} is torn or another's: {:02x?}", &block[..32]);
    Some(generation)
}

/// The newest generations of a slot: sent, acknowledged, and acknowledged as stable.
#[derive(Clone, Copy, Default)]
struct Generations {
    sent: u64,
    done: u64,
    stable: u64,
}

enum SentCommand {
    Write {
        slot: usize,
        fua: bool,
    },
    /// With the generations that were acknowledged when it was sent.
    Flush {
        done: Vec<u64>,
    },
}

struct Writer {
    owner: u32,
    /// Whether the write cache is on. If not, every acknowledged write is stable.
    cached: bool,
    random: Random,
    slots: Vec<Generations>,
    fua_done: u32,
    flushes_done: u32,
    writes_done: u32,
}

impl Writer {
    fn new(owner: u32, cached: bool) -> Writer {
        let slots = vec![Generations::default(); SLOTS as usize];
        Writer {
            owner,
            cached,
            random: Random::new(owner as u64),
            slots,
            fua_done: 0,
            flushes_done: 0,
            writes_done: 0,
        }
    }

    fn lba(&self, slot: usize) -> u32 {
        (self.owner * SLOTS + slot as u32) * SLOT_BLOCKS
    }

    /// Writes until the connection ends.
    fn write_on(mut self, mut raw: Raw) -> Writer {
        let mut in_flight = HashMap::new();
        loop {
            while in_flight.len() < DEPTH {
                let (tag, sent) = self.send(&mut raw, &in_flight);
                in_flight.insert(tag, sent);
            }
            match raw.get(Duration::from_secs(20)) {
                Received::Closed => return self,
                Received::Nothing => panic!("no answer"),
                Received::Pdu(pdu) => {
                    assert_eq!((pdu.opcode(), pdu.bhs[2], pdu.bhs[3]), (op::SCSI_RESPONSE, 0, 0), "{pdu:?}");
                    let sent = in_flight.remove(&pdu.tag()).expect("the tag of a command in flight");
                    self.ended(sent);
                }
            }
        }
    }

    /// One command in eight is a flush; one write in four has FUA. No block has two writes in flight.
    fn send(&mut self, raw: &mut Raw, in_flight: &HashMap<u32, SentCommand>) -> (u32, SentCommand) {
        let busy = |slot: usize| {
            in_flight.values().any(|s| matches!(s, SentCommand::Write { slot: other, .. } if *other == slot))
        };
        if self.random.below(8) == 0 {
            let pdu = raw.command(0, 0x80, &cdb10(0x35, 0, 0), 0);
            raw.send(&pdu);
            return (pdu.tag(), SentCommand::Flush { done: self.slots.iter().map(|s| s.done).collect() });
        }
        let mut slot = self.random.below(SLOTS as u64) as usize;
        while busy(slot) {
            slot = (slot + 1) % SLOTS as usize;
        }
        let fua = self.random.below(4) == 0;
        self.slots[slot].sent += 1;
        let (lba, generation) = (self.lba(slot), self.slots[slot].sent);
        let data: Vec<u8> =
            (lba..lba + SLOT_BLOCKS).flat_map(|lba| stamp(self.owner, lba, generation)).collect();
        let mut cdb = write10(lba, SLOT_BLOCKS as u16);
        cdb[1] = if fua { FUA } else { 0 };
        let pdu = raw.command(0, 0x80 | WRITE, &cdb, data.len() as u32).data(&data);
        raw.send(&pdu);
        (pdu.tag(), SentCommand::Write { slot, fua })
    }

    fn ended(&mut self, sent: SentCommand) {
        match sent {
            SentCommand::Write { slot, fua } => {
                let slot = &mut self.slots[slot];
                slot.done = slot.sent;
                self.writes_done += 1;
                self.fua_done += fua as u32;
                if fua || !self.cached {
                    slot.stable = slot.sent;
                }
            }
            SentCommand::Flush { done } => {
                self.flushes_done += 1;
                self.slots.iter_mut().zip(done).for_each(|(slot, done)| slot.stable = slot.stable.max(done));
            }
        }
    }

    /// Every block has its newest stable generation, or a newer one that was sent.
    fn check(&self, raw: &mut Raw, round: u64) {
        for (number, slot) in self.slots.iter().enumerate() {
            let lba = self.lba(number);
            let data = raw.read_blocks(0, lba, SLOT_BLOCKS as u16);
            for (lba, block) in (lba..).zip(data.chunks(BLOCK)) {
                let found = generation(self.owner, lba, block).unwrap_or(0);
                assert!(
                    (slot.stable..=slot.sent).contains(&found),
                    "round {round}, LBA {lba}: generation {found}, stable was {}, sent was {}",
                    slot.stable,
                    slot.sent
                );
            }
        }
    }
}

fn kill_in_rounds(server: &mut Server, cached: bool, seed: u64) -> Vec<Writer> {
    let mut writers: Vec<Writer> = (0..WRITERS).map(|owner| Writer::new(owner, cached)).collect();
    let mut moments = Random::new(seed);
    for round in 0..ROUNDS {
        let begin = |w: Writer| {
            let raw = Raw::session(server.portal(), &[]);
            thread::spawn(move || w.write_on(raw))
        };
        let threads: Vec<_> = writers.into_iter().map(begin).collect();
        thread::sleep(Duration::from_millis(60 + moments.below(200)));
        server.kill9();
        writers = threads.into_iter().map(|t| t.join().expect("a writer")).collect();
        server.restart();
        let mut raw = Raw::session(server.portal(), &[]);
        writers.iter().for_each(|w| w.check(&mut raw, round));
    }
    writers
}

#[test]
fn stable_writes_survive_kill_9() {
    let mut server = Server::start_in(Folder::fresh(), &configuration("write_cache = true"));
    for writer in kill_in_rounds(&mut server, true, 1) {
        assert!(
            writer.fua_done > 0 && writer.flushes_done > 0,
            "the rounds were too short to prove anything"
        );
        assert!(writer.slots.iter().any(|s| s.stable > 0));
    }
}

#[test]
fn writes_without_a_cache_survive_kill_9() {
    let mut server = Server::start_in(Folder::fresh(), &configuration("write_cache = false"));
    for writer in kill_in_rounds(&mut server, false, 2) {
        assert!(writer.writes_done > 0, "the rounds were too short to prove anything");
        assert!(writer.slots.iter().all(|s| s.stable == s.done));
    }
}

/// Bytes of the largest WRITE ATOMIC.
const ATOMIC: usize = 1 << 20;

fn write_atomic(lba: u32, blocks: u16) -> [u8; 16] {
    let mut cdb = [0; 16];
    cdb[0] = 0x9c;
    cdb[6..10].copy_from_slice(&lba.to_be_bytes());
    cdb[12..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

/// Writes one generation after the other to the first blocks until the connection ends. Returns the last acknowledged
/// one.
fn write_atomically(mut raw: Raw, mut generation: u64) -> u64 {
    loop {
        let data = (generation + 1).to_be_bytes().repeat(ATOMIC / 8);
        let cdb = write_atomic(0, (ATOMIC / BLOCK) as u16);
        let write = raw.command(0, 0x80 | WRITE, &cdb, ATOMIC as u32);
        raw.send(&write);
        loop {
            match raw.get(Duration::from_secs(20)) {
                Received::Closed => return generation,
                Received::Nothing => panic!("no answer"),
                Received::Pdu(pdu) if pdu.opcode() == op::R2T => raw.answer(&pdu, &data),
                Received::Pdu(pdu) => {
                    assert_eq!((pdu.opcode(), pdu.bhs[2], pdu.bhs[3]), (op::SCSI_RESPONSE, 0, 0), "{pdu:?}");
                    break generation += 1;
                }
            }
        }
    }
}

#[test]
fn killed_atomic_write_is_whole_or_absent() {
    for keys in ["", "direct = true"] {
        let mut server = Server::start_in(Folder::fresh(), &configuration(keys));
        let (mut moments, mut acknowledged) = (Random::new(3), 0);
        for round in 0..ROUNDS {
            let raw = Raw::session(server.portal(), &[]);
            let writer = thread::spawn(move || write_atomically(raw, acknowledged));
            thread::sleep(Duration::from_millis(60 + moments.below(200)));
            server.kill9();
            acknowledged = writer.join().expect("a writer");
            server.restart();
            let data = Raw::session(server.portal(), &[]).read_blocks(0, 0, (ATOMIC / BLOCK) as u16);
            let found = u64::from_be_bytes(data[..8].try_into().expect("8 bytes"));
            assert!(data.chunks(8).all(|word| word == found.to_be_bytes()), "round {round}, {keys}: torn");
            assert!((acknowledged..=acknowledged + 1).contains(&found), "{found}, not {acknowledged}");
            acknowledged = found;
        }
        assert!(acknowledged > 0, "the rounds were too short to prove anything");
    }
}

/// Kills the server, and leaves the first half of an atomic write of ones on the medium, with its record in the
/// journal. Returns the image.
fn cut_off(server: &mut Server) -> PathBuf {
    let image = server.dir().join("disk.img");
    Raw::session(server.portal(), &[]).write(0, &write_atomic(8, 8), &[1; 8 * BLOCK]).good();
    server.kill9();
    let journal = std::fs::read_dir(server.dir().join("atomic")).expect("a folder").next();
    let journal = journal.expect("a journal").expect("a journal").path();
    let mut record = std::fs::read(&journal).expect("a record");
    assert!(record[..8] == [0; 8], "the record of a completed write is not cleared");
    record[..8].copy_from_slice(b"LUNARWA2");
    std::fs::write(&journal, record).expect("a record");
    let mut half = std::fs::read(&image).expect("an image");
    half[12 * BLOCK..16 * BLOCK].fill(0);
    std::fs::write(&image, half).expect("an image");
    image
}

#[test]
fn restart_completes_a_partial_atomic_write() {
    let mut server = Server::start_in(Folder::fresh(), &configuration(""));
    cut_off(&mut server);
    server.restart();
    assert_eq!(Raw::session(server.portal(), &[]).read_blocks(0, 8, 8), [1; 8 * BLOCK]);
}

/// The other image has the same blocks as the first one before the write, so only its identity differs.
#[test]
fn partial_atomic_write_leaves_another_image_alone() {
    let mut server = Server::start_in(Folder::fresh(), &configuration(""));
    let image = cut_off(&mut server);
    let (away, size) = (image.with_extension("away"), std::fs::metadata(&image).expect("an image").len());
    std::fs::rename(&image, &away).expect("moved");
    std::fs::File::create(&image).and_then(|file| file.set_len(size)).expect("another image");
    server.restart();
    let mut raw = Raw::session(server.portal(), &[]);
    assert_eq!(raw.read_blocks(0, 8, 8), [0; 8 * BLOCK]);
    raw.write(0, &write_atomic(8, 8), &[3; 8 * BLOCK]).good();
    drop(raw);
    server.kill9();
    std::fs::rename(&away, &image).expect("the first image is back");
    server.restart();
    assert_eq!(Raw::session(server.portal(), &[]).read_blocks(0, 8, 8), [1; 8 * BLOCK]);
}

const ISID: [u8; 6] = [0x80, 0, 0, 7, 0, 1];
const REGISTER: u8 = 0;
const RESERVE: u8 = 1;
const WRITE_EXCLUSIVE: u8 = 1;
const APTPL: u8 = 1;
const CONFLICT: u8 = 0x18;

fn registrant(server: &Server) -> Raw {
    let mut raw = Login::new().isid(ISID).on(server.portal());
    raw.clear_attentions(0);
    raw
}

fn registered(flags: u8) -> Server {
    let mut server = Server::start(&configuration(""));
    let mut raw = registrant(&server);
    reserve_out(&mut raw, 0, REGISTER, 0, 0, 0xabcd, flags).good();
    reserve_out(&mut raw, 0, RESERVE, WRITE_EXCLUSIVE, 0xabcd, 0, 0).good();
    server.restart();
    server
}

#[test]
fn registrations_with_aptpl_survive_kill_9() {
    let server = registered(APTPL);
    let mut raw = registrant(&server);
    assert_eq!(read_keys(&mut raw, 0), [0xabcd]);
    raw.write_blocks(0, 0, &[1; BLOCK]).good();
    let mut other = Raw::session(server.portal(), &[]);
    assert_eq!(other.write_blocks(0, 0, &[2; BLOCK]).status, CONFLICT);
}

/// A change that cannot be saved is not made, and a restart finds the earlier state.
#[test]
fn preemption_that_cannot_be_saved_changes_nothing() {
    let mut server = registered(APTPL);
    let state = server.dir().join("lu");
    let mut holder = registrant(&server);
    let mut other = Raw::session(server.portal(), &[]);
    other.clear_attentions(0);
    reserve_out(&mut other, 0, REGISTER, 0, 0, 2, APTPL).good();
    std::fs::rename(&state, server.dir().join("away")).expect("move the state folder away");
    std::fs::write(&state, "no folder").expect("write a file in its place");
    const PREEMPT: u8 = 4;
    const PREEMPT_AND_ABORT: u8 = 5;
    for action in [PREEMPT, PREEMPT_AND_ABORT] {
        reserve_out(&mut other, 0, action, WRITE_EXCLUSIVE, 2, 0xabcd, 0).check(0x044400);
        assert_eq!(read_keys(&mut other, 0).len(), 2);
        holder.write_blocks(0, 0, &[1; BLOCK]).good();
        assert_eq!(other.write_blocks(0, 0, &[2; BLOCK]).status, CONFLICT);
    }
    std::fs::remove_file(&state).expect("remove the file");
    std::fs::rename(server.dir().join("away"), &state).expect("move the state folder back");
    server.restart();
    let mut holder = registrant(&server);
    assert_eq!(read_keys(&mut holder, 0).len(), 2);
    holder.write_blocks(0, 0, &[3; BLOCK]).good();
}

#[test]
fn registrations_without_aptpl_do_not_survive() {
    let server = registered(0);
    assert_eq!(read_keys(&mut registrant(&server), 0), Vec::<u64>::new());
    Raw::session(server.portal(), &[]).write_blocks(0, 0, &[2; BLOCK]).good();
}

/// APTPL of the latest registration decides for all (SPC-5 section 5.14.5).
#[test]
fn cleared_aptpl_is_not_saved() {
    let mut server = registered(APTPL);
    let mut raw = registrant(&server);
    reserve_out(&mut raw, 0, REGISTER, 0, 0xabcd, 0xabce, 0).good();
    server.restart();
    assert_eq!(read_keys(&mut registrant(&server), 0), Vec::<u64>::new());
}

fn state_file(server: &Server) -> PathBuf {
    server.dir().join("lu").join(TARGET).join("0.state")
}

#[test]
fn corrupt_state_file_is_rejected_and_kept() {
    let mut server = registered(APTPL);
    server.kill9();
    let file = state_file(&server);
    let good = std::fs::read(&file).expect("state was kept");
    let flipped = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 0x10;
        bytes
    };
    let longer = [&good[..], b"more"].concat();
    let damaged = [
        Vec::new(),
        b"something else".to_vec(),
        good[..good.len() - 1].to_vec(),
        longer,
        flipped(0),
        flipped(good.len() / 2),
        flipped(good.len() - 1),
    ];
    for bytes in damaged {
        std::fs::write(&file, &bytes).expect("write the state file");
        let before = server.log().len();
        let log = Server::refused(server.dir(), &configuration(""));
        let said = &log[before..];
        assert!(said.contains("0.state"), "the file is not named:\n{said}");
        assert_eq!(std::fs::read(&file).expect("still there"), bytes, "the file was changed");
    }
    std::fs::write(&file, &good).expect("write the state file");
    server.restart();
    assert_eq!(read_keys(&mut registrant(&server), 0), [0xabcd]);
}

/// D_SENSE and TAS of the control mode page.
const D_SENSE: (usize, u8) = (2, 0x04);
const TAS: (usize, u8) = (5, 0x40);

/// MODE SELECT(6) of the control page with one bit set, saved when `save`.
fn set(raw: &mut Raw, (byte, bit): (usize, u8), save: bool) {
    let mut list = [0; 16];
    list[4..8].copy_from_slice(&[0x0a, 0x0a, 0, 0x10]);
    list[4 + byte] |= bit;
    raw.write(0, &[0x15, 0x10 | save as u8, 0, 0, list.len() as u8, 0], &list).good();
}

fn is_set(raw: &mut Raw, (byte, bit): (usize, u8)) -> bool {
    raw.read(0, &[0x1a, 0x08, 0x0a, 0, 0xff, 0], 0xff).good()[4 + byte] & bit != 0
}

#[test]
fn only_saved_mode_pages_survive() {
    let mut server = Server::start(&configuration(""));
    let mut raw = Raw::session(server.portal(), &[]);
    set(&mut raw, D_SENSE, true);
    assert!(is_set(&mut raw, D_SENSE));
    server.restart();
    let mut raw = Raw::session(server.portal(), &[]);
    assert!(is_set(&mut raw, D_SENSE));
    set(&mut raw, TAS, false);
    assert!(is_set(&mut raw, TAS) && !is_set(&mut raw, D_SENSE));
    server.restart();
    let mut raw = Raw::session(server.portal(), &[]);
    assert!(is_set(&mut raw, D_SENSE) && !is_set(&mut raw, TAS));
}
