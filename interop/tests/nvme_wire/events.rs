//! Asynchronous events of namespaces and of the discovery service, and the discovery log.

use super::{BLOCKS, NQN, PRIVATE, config, controller, iscsi, portal, queue, server};
use interop::Server;
use interop::nvme::{DISCOVERY, DNR, NvmeEntry, NvmeHostName, NvmeWire, RawController};
use interop::raw::QUIET;
use interop::scsi::pattern;
use std::fs::OpenOptions;

/// Results of Asynchronous Event Requests.
const NAMESPACE_CHANGED: u32 = 0x0004_0002;
const DISCOVERY_CHANGED: u32 = 0x0070_f002;
const LIMIT_EXCEEDED: u16 = DNR | 0x105;
/// Asynchronous Event Configuration: a feature, and its bit of namespaces.
const CONFIGURATION: u8 = 0x0b;
const NAMESPACES: u32 = 1 << 8;
/// Get Log Page: the event is retained.
const RETAIN: u32 = 1 << 15;
const CHANGED: u8 = 4;
/// The unit attention CAPACITY DATA HAS CHANGED.
const CAPACITY_CHANGED: u32 = 0x06_2a09;

const THIRD: &str = "[[subsystem.namespace]]\nnsid = 3\nbackend = \"memory\"\nsize = \"8MiB\"\n";

fn reload(server: &mut Server, text: &str) {
    server.rewrite(text);
    server.said(&["reload", "--force"]);
}

/// The namespaces of the log of changes.
fn changed(admin: &mut NvmeWire, retain: u32) -> Vec<u32> {
    let entry = NvmeEntry::log(CHANGED, 4096);
    let dword = u32::from(CHANGED) | (4096 / 4 - 1) << 16;
    let list = admin.execute(&entry.dword(10, dword | retain), &[]).good();
    let numbers = list.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("4 bytes")));
    numbers.take_while(|number| *number != 0).collect()
}

#[test]
fn namespace_event_is_held_then_masked_until_its_log_is_read() {
    let mut server = server();
    let mut it = controller(&server, "host");
    let mut admin = std::mem::replace(&mut it.admin, NvmeWire::open(portal(&server)));
    admin.execute(&NvmeEntry::set_feature(CONFIGURATION, NAMESPACES), &[]).is(0);
    // No request waits yet: the event is held.
    reload(&mut server, &config(THIRD));
    let event = admin.execute(&NvmeEntry::event(), &[]);
    assert_eq!((event.status, event.result as u32), (0, NAMESPACE_CHANGED));
    // Now a request waits, and the next event is masked.
    let waiting = admin.submit(&NvmeEntry::event(), &[]);
    reload(&mut server, &config(""));
    admin.expect_silence();
    assert_eq!(changed(&mut admin, RETAIN), [3]);
    admin.expect_silence();
    assert_eq!(changed(&mut admin, 0), [3]);
    // The namespace went before its log was read, or after: both are right.
    let waiting = match admin.get(QUIET) {
        interop::nvme::WireEvent::Pdu(frame) => {
            assert_eq!((frame.get16(20), frame.get32(8)), (waiting, NAMESPACE_CHANGED));
            changed(&mut admin, 0);
            admin.submit(&NvmeEntry::event(), &[])
        }
        _ => waiting,
    };
    assert_eq!(changed(&mut admin, 0), [0; 0], "all changes were read");
    admin.expect_silence();
    reload(&mut server, &config(THIRD));
    assert_eq!(admin.collect(waiting, &[]).result as u32, NAMESPACE_CHANGED);
    assert_eq!(changed(&mut admin, 0), [3]);
    let list = admin.execute(&NvmeEntry::identify(2, 0), &[]).good();
    assert_eq!(list[..16], [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn event_that_is_off_is_not_reported() {
    let mut server = server();
    let mut it = controller(&server, "host");
    it.admin.execute(&NvmeEntry::set_feature(CONFIGURATION, 0), &[]).is(0);
    it.admin.submit(&NvmeEntry::event(), &[]);
    reload(&mut server, &config(THIRD));
    it.admin.expect_silence();
    assert_eq!(changed(&mut it.admin, 0), [3], "the log has it all the same");
}

/// A disk with a host of each family. Both reach the new blocks, and see the data of each other.
#[test]
fn grown_disk_is_seen_by_hosts_of_both_families() {
    let memory = "backend = \"memory\"\nsize = \"64MiB\"\nserial = \"memory-0\"";
    let text = config("").replacen(memory, "backend = \"file\"\npath = \"disk.img\"\nsize = \"64MiB\"", 1);
    assert!(text.contains("disk.img"), "LUN 0 is a file");
    let server = Server::start(&text);
    let (mut scsi, (mut it, mut queue)) = (iscsi(&server), queue(&server, "host"));
    it.admin.execute(&NvmeEntry::set_feature(CONFIGURATION, NAMESPACES), &[]).is(0);
    let waiting = it.admin.submit(&NvmeEntry::event(), &[]);
    let (first, last) = (BLOCKS, 2 * BLOCKS - 1);
    queue.execute(&NvmeEntry::read(1, first, 1), &[]).is(DNR | 0x80);
    it.admin.expect_silence();
    scsi.simple(0, &[0; 6]).good();

    let disk = OpenOptions::new().write(true).open(server.dir().join("disk.img")).expect("the disk");
    disk.set_len(2 * BLOCKS * 512).expect("a larger file");
    server.said(&["reload"]);
    assert_eq!(it.admin.collect(waiting, &[]).result as u32, NAMESPACE_CHANGED);
    assert_eq!(changed(&mut it.admin, 0), [1]);
    let identity = it.admin.execute(&NvmeEntry::identify(0, 1), &[]).good();
    assert_eq!(identity[..8], (2 * BLOCKS).to_le_bytes(), "NSZE");
    assert_eq!(identity[8..16], (2 * BLOCKS).to_le_bytes(), "NCAP");
    scsi.simple(0, &[0; 6]).check(CAPACITY_CHANGED);
    let capacity = scsi.read(0, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8).good();
    assert_eq!(capacity[..4], (last as u32).to_be_bytes(), "the last LBA");

    let (one, other) = (pattern(512, 5), pattern(512, 6));
    super::write(&mut queue, first, &one);
    scsi.write_blocks(0, last as u32, &other).good();
    assert_eq!(scsi.read_blocks(0, first as u32, 1), one);
    assert_eq!(super::read(&mut queue, last, 1), other);
    it.admin.submit(&NvmeEntry::event(), &[]);
    it.admin.expect_silence();
}

#[test]
fn requests_above_the_limit_are_refused_until_a_reset() {
    let server = server();
    let mut it = controller(&server, "host");
    let identity = it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    let limit = usize::from(identity[259]) + 1;
    for _ in 0..2 {
        (0..limit).for_each(|_| _ = it.admin.submit(&NvmeEntry::event(), &[]));
        it.admin.execute(&NvmeEntry::event(), &[]).is(LIMIT_EXCEEDED);
        it.admin.expect_silence();
        it.admin.execute(&NvmeEntry::configure(0x46_0000), &[]).good();
        while it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result & 1 != 0 {}
        it.enable();
    }
    it.admin.expect_silence();
}

/// A record of the discovery log.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    subtype: u8,
    subsystem: String,
}

fn text(field: &[u8]) -> String {
    let text = String::from_utf8_lossy(field);
    text.trim_end_matches([' ', '\0']).to_owned()
}

/// The generation and the records of the log, which is read in pieces too.
fn log(admin: &mut NvmeWire, port: u16) -> (u64, Vec<Record>) {
    let len = 1024 * 6;
    let page = admin.execute(&NvmeEntry::log(0x70, len), &[]).good();
    for (offset, piece) in [(0, 16), (1020, 1024), (2048, 4)] {
        let part = admin.execute(&NvmeEntry::log(0x70, piece).dword(12, offset), &[]).good();
        assert_eq!(part, page[offset as usize..][..piece as usize]);
    }
    let number = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"));
    let records = page[1024..].chunks_exact(1024).take(number(8) as usize);
    let records = records.map(|record| {
        // TCP, IPv4; the portal group; a dynamic controller; 32 entries.
        assert_eq!((record[0], record[1], &record[4..10]), (3, 1, &[1, 0, 0xff, 0xff, 32, 0][..]));
        assert_eq!((text(&record[32..64]), text(&record[512..768])), (port.to_string(), "127.0.0.1".into()));
        assert_eq!(record[768], 0, "no TLS");
        Record { subtype: record[2], subsystem: text(&record[256..512]) }
    });
    (number(0), records.collect())
}

fn records(own: &[&str]) -> Vec<Record> {
    let current = Record { subtype: 3, subsystem: DISCOVERY.into() };
    let one = |name: &&str| Record { subtype: 2, subsystem: name.to_string() };
    std::iter::once(current).chain(own.iter().map(one)).collect()
}

#[test]
fn discovery_log_has_what_the_host_may_connect() {
    let server = server();
    let port = portal(&server).port();
    for (host, names) in [("stranger", &[NQN][..]), ("friend", &[NQN, PRIVATE])] {
        let mut it = RawController::enabled(portal(&server), &NvmeHostName::new(host), DISCOVERY, 0);
        assert_eq!(log(&mut it.admin, port).1, records(names), "{host}");
        let identity = it.admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
        assert_eq!(identity[111], 2, "CNTRLTYPE");
        it.admin.execute(&NvmeEntry::log(2, 512), &[]).is(DNR | 0x109);
        it.admin.execute(&NvmeEntry::log(0x70, 1024).dword(12, 2), &[]).is(DNR | 2);
        assert_ne!(it.try_queue(1, 31).1.status, 0, "it has no I/O queues");
    }
}

#[test]
fn change_of_the_discovery_log_is_an_event() {
    let mut server = server();
    let port = portal(&server).port();
    let host = NvmeHostName::new("stranger");
    let mut it = RawController::enabled(portal(&server), &host, DISCOVERY, 0);
    it.admin.execute(&NvmeEntry::set_feature(CONFIGURATION, 1 << 31), &[]).is(0);
    let (before, _) = log(&mut it.admin, port);
    let waiting = it.admin.submit(&NvmeEntry::event(), &[]);
    it.admin.expect_silence();
    let public = config("").replace("allowed_hosts = [\"nqn.2026-11.org.example:friend\"]\n", "");
    reload(&mut server, &public);
    assert_eq!(it.admin.collect(waiting, &[]).result as u32, DISCOVERY_CHANGED);
    let (after, seen) = log(&mut it.admin, port);
    assert!(after > before, "generation {before}, then {after}");
    assert_eq!(seen, records(&[NQN, PRIVATE]));
    assert_eq!(log(&mut it.admin, port).0, after, "no change, the same generation");
}
