//! Random PDUs on queues of a running server, most of them with a right header. A neighbour goes on with its data.

use super::{NQN, iscsi, portal, server};
use interop::nvme::{NvmeEntry, NvmeFrame, NvmeHostName, NvmeWire, RawController, WireEvent, pdu};
use interop::scsi::pattern;
use interop::{Random, Server};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Opcodes that have a meaning on one of the queues, and others.
const OPCODES: [u8; 20] =
    [0, 1, 2, 4, 5, 6, 8, 9, 0x0a, 0x0c, 0x0d, 0x0e, 0x11, 0x15, 0x18, 0x19, 0x55, 0x7f, 0x7f, 0xc0];
const NAMESPACES: [u32; 6] = [0, 1, 1, 1, 0x1_0001, u32::MAX];
const DESCRIPTORS: [u8; 6] = [0x5a, 0x5a, 1, 1, 0, 0xff];
const LENGTHS: [u32; 8] = [0, 4, 16, 512, 4096, 8192, 1 << 20, u32::MAX];

/// A command with random fields. Small ranges are most likely.
fn entry(random: &mut Random, capsule: usize) -> NvmeEntry {
    let mut entry = NvmeEntry::new(*random.pick(&OPCODES), *random.pick(&NAMESPACES));
    for number in 10..16 {
        let value = if random.one_in(3) { random.next_u64() as u32 } else { random.below(16) as u32 };
        entry = entry.dword(number, value);
    }
    let len = if random.one_in(4) { *random.pick(&LENGTHS) } else { capsule as u32 };
    let kind = if random.one_in(8) {
        *random.pick(&DESCRIPTORS)
    } else if capsule > 0 {
        1
    } else {
        0x5a
    };
    let entry = entry.sgl(kind, if random.one_in(16) { 4 } else { 0 }, len).id(random.below(64) as u16);
    if random.one_in(4) { entry.fused(random.below(4) as u8) } else { entry }
}

/// A command without a fault, apart from its identifier, which may be in use. It has this many bytes in its capsule.
fn plausible(random: &mut Random, capsule: usize) -> NvmeEntry {
    let (lba, blocks) = (random.below(64), 1 + random.below(16) as u16);
    let entry = match capsule {
        0 if random.one_in(2) => NvmeEntry::read(1, lba, blocks),
        0 => NvmeEntry::write(1, lba, blocks).fused(random.below(3) as u8),
        16 => NvmeEntry::new(9, 1).dword(11, 4).in_capsule(16),
        _ => {
            let blocks = (capsule / 512) as u16;
            let opcode = *random.pick(&[1, 5]);
            NvmeEntry::blocks(opcode, 1, lba, blocks).in_capsule(capsule as u32).fused(random.below(3) as u8)
        }
    };
    entry.id(random.below(1 << 16) as u16)
}

fn frame(random: &mut Random) -> NvmeFrame {
    if random.one_in(8) {
        let len = [4, 512, 4096][random.below(3) as usize];
        let (id, tag) = (random.below(64) as u16, random.below(64) as u16);
        let flags = if random.one_in(2) { pdu::LAST } else { 0 };
        return NvmeFrame::host_data(flags, id, tag, random.below(3) as u32 * 512, &vec![7; len]);
    }
    let len = [0, 0, 16, 512, 1024, 4096, 8192][random.below(7) as usize];
    let entry = if random.one_in(2) { plausible(random, len) } else { entry(random, len) };
    NvmeFrame::command(&entry, &vec![random.below(256) as u8; len])
}

/// Completions by their status: success, others.
type Counts = [u32; 2];

/// Sends some PDUs and answers R2Ts, until the connection ends. The client checks the form of everything it receives.
fn attack(random: &mut Random, wire: &mut NvmeWire, counts: &mut Counts) {
    for _ in 0..random.below(100) {
        let mut bytes = wire.encode(&frame(random));
        if random.one_in(32) {
            let at = random.below(bytes.len().min(80) as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        wire.send_bytes(&bytes);
        // Waiting takes most of the time.
        if !random.one_in(6) {
            continue;
        }
        loop {
            match wire.get(Duration::from_millis(1)) {
                WireEvent::Pdu(request) if request.kind() == pdu::R2T && !random.one_in(4) => {
                    let len = request.get32(16) as usize;
                    assert!(len <= 1 << 20, "{request:x?}");
                    wire.answer(&request, &vec![9; request.get32(12) as usize + len]);
                }
                WireEvent::Pdu(frame) if frame.kind() == pdu::RESPONSE => {
                    counts[usize::from(frame.get16(22) >> 1 != 0)] += 1;
                }
                WireEvent::Pdu(_) => {}
                WireEvent::Closed => return,
                WireEvent::Nothing => break,
            }
        }
    }
}

fn attacker(server: &Server, seed: u64, end: Instant) -> Counts {
    let (mut random, mut counts) = (Random::new(seed), [0; 2]);
    let host = NvmeHostName::new(&format!("attacker-{seed}"));
    while Instant::now() < end {
        let mut it = RawController::enabled(portal(server), &host, NQN, random.below(4) as u8);
        let mut queue = it.queue(1);
        let wire = if random.one_in(4) { &mut it.admin } else { &mut queue };
        attack(&mut random, wire, &mut counts);
    }
    counts
}

/// A neighbour by iSCSI and one by NVMe/TCP, whose data no attacker writes. No seed of an attacker is that of another.
#[test]
fn random_pdus_leave_the_neighbours_alone() {
    let server = server();
    let seed = u64::from(std::process::id()) << 8;
    println!("seed {seed}");
    let (end, is_over) = (Instant::now() + Duration::from_secs(6), AtomicBool::new(false));
    thread::scope(|scope| {
        let neighbour = scope.spawn(|| {
            let mut raw = iscsi(&server);
            let (_it, mut queue) = super::queue(&server, "neighbour");
            for round in (0..=255u8).cycle() {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let data = pattern(8192, round);
                raw.write_blocks(2, u32::from(round), &data).good();
                assert_eq!(raw.read_blocks(2, u32::from(round), 16), data);
                // Attackers may hold reservations of namespace 1.
                let reply = queue.execute(&NvmeEntry::read(1, round.into(), 16), &[]);
                assert!(matches!(reply.status, 0 | 0x4083), "{:#x}", reply.status);
            }
        });
        let attackers: Vec<_> = (0..3)
            .map(|n| {
                scope.spawn({
                    let server = &server;
                    move || attacker(server, seed + n, end)
                })
            })
            .collect();
        let counts: Vec<Counts> =
            attackers.into_iter().map(|one| one.join().expect("an attacker ends")).collect();
        is_over.store(true, Ordering::Relaxed);
        neighbour.join().expect("the neighbour lives");
        println!("successes and failures {counts:?}, {} KiB", server.rss_kib());
        // Otherwise the campaign tests nothing.
        assert!(counts.iter().flatten().all(|count| *count > 10), "{counts:?}");
    });
    assert!(server.rss_kib() < 512 << 10, "{} KiB", server.rss_kib());
    let mut raw = iscsi(&server);
    raw.ping();
}
