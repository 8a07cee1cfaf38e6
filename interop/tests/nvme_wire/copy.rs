//! Copy within a namespace.

use super::access::subsystem;
use super::reservations::{CONFLICT, EXCLUSIVE, acquire, register, release};
use super::{BLOCKS, NQN, config, controller, iscsi, portal, queue, queue_with, read, server, write};
use interop::Server;
use interop::nvme::{DNR, NvmeEntry, NvmeHostName, NvmeWire, RawController};
use interop::scsi::pattern;

const INVALID_FIELD: u16 = DNR | 2;
const SGL_LENGTH: u16 = DNR | 0x0f;
const WRITE_PROTECTED: u16 = DNR | 0x20;
const OUT_OF_RANGE: u16 = DNR | 0x80;
const SIZE_LIMIT: u16 = DNR | 0x183;
/// Force Unit Access, in command dword 12.
const FUA: u32 = 1 << 30;
/// The limits with blocks of 512 bytes.
const MAX_RANGE: u32 = 2048;
const MAX_RANGES: u32 = 64;

/// Source ranges of format 0: first block and number of blocks.
fn ranges(all: &[(u64, u32)]) -> Vec<u8> {
    let one = |(lba, blocks): &(u64, u32)| {
        let mut range = [0; 32];
        range[8..16].copy_from_slice(&lba.to_le_bytes());
        range[16..18].copy_from_slice(&((blocks - 1) as u16).to_le_bytes());
        range
    };
    all.iter().flat_map(one).collect()
}

/// Copy of `count` ranges to this block of namespace 1.
fn copy(lba: u64, count: u32) -> NvmeEntry {
    NvmeEntry::blocks(0x19, 1, lba, 1).dword(12, count - 1).on_host(count * 32)
}

fn run(queue: &mut NvmeWire, lba: u64, all: &[(u64, u32)]) -> u16 {
    queue.execute(&copy(lba, all.len() as u32), &ranges(all)).status
}

#[test]
fn copy_puts_its_ranges_behind_each_other() {
    let server = server();
    for digests in [0, 3] {
        let (_controller, mut queue) = queue_with(&server, "host", digests);
        let (one, other) = (pattern(4096, digests), pattern(512, digests + 1));
        write(&mut queue, 100, &one);
        write(&mut queue, 50_000, &other);
        let (entry, data) = (copy(7, 2), ranges(&[(100, 8), (50_000, 1)]));
        let with_fua = entry.dword(12, FUA | 1);
        for entry in [entry, entry.in_capsule(64), with_fua] {
            write(&mut queue, 7, &[0; 9 * 512]);
            queue.execute(&entry, &data).is(0);
            assert_eq!(read(&mut queue, 7, 9), [&one[..], &other].concat());
        }
        assert_eq!(iscsi(&server).read_blocks(0, 7, 8), one, "the LUN is the same disk");
    }
}

/// A range overlaps its destination, in both directions.
#[test]
fn longest_range_is_read_before_it_is_written() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    for destination in [999, 1001] {
        let data = pattern(1 << 20, destination as u8);
        write(&mut queue, 1000, &data);
        assert_eq!(run(&mut queue, destination, &[(1000, MAX_RANGE)]), 0);
        assert!(read(&mut queue, destination, 2048) == data, "to {destination}");
    }
}

#[test]
fn most_ranges_are_copied() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let data = pattern(64 * 512, 5);
    write(&mut queue, 0, &data);
    let all: Vec<_> = (0..u64::from(MAX_RANGES)).rev().map(|lba| (lba, 1)).collect();
    assert_eq!(run(&mut queue, 4096, &all), 0);
    let expected: Vec<u8> = data.chunks(512).rev().flatten().copied().collect();
    assert_eq!(read(&mut queue, 4096, 64), expected);
    let last = [(0, 1), (BLOCKS - 1, 1)];
    assert_eq!(run(&mut queue, BLOCKS - 2, &last), 0, "the last blocks");
}

#[test]
fn faulty_copy_is_refused_and_copies_nothing() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let (old, one) = (pattern(8192, 1), ranges(&[(100, 1)]));
    write(&mut queue, 0, &old);
    write(&mut queue, 100, &pattern(512, 2));
    let many = ranges(&vec![(100, 1); MAX_RANGES as usize + 1]);
    let base = copy(0, 1);
    for (what, entry, data, status) in [
        ("format 1", base.dword(12, 1 << 8), &one, INVALID_FIELD),
        ("format 15", base.dword(12, 15 << 8), &one, INVALID_FIELD),
        ("65 ranges", copy(0, MAX_RANGES + 1), &many, SIZE_LIMIT),
        ("256 ranges", base.dword(12, 255).on_host(8192), &many, SIZE_LIMIT),
        ("a long range", base, &ranges(&[(100, MAX_RANGE + 1)]), SIZE_LIMIT),
        ("65536 blocks", base, &ranges(&[(0, 65536)]), SIZE_LIMIT),
        ("no data", base.on_host(0), &one, SGL_LENGTH),
        ("less data than ranges", copy(0, 2).on_host(32), &one, SGL_LENGTH),
        ("more data than ranges", base.on_host(64), &many, SGL_LENGTH),
        ("half a range", base.on_host(16), &one, SGL_LENGTH),
        ("a source beyond the end", copy(0, 2), &ranges(&[(100, 1), (BLOCKS, 1)]), OUT_OF_RANGE),
        ("a source across the end", base, &ranges(&[(BLOCKS - 1, 2)]), OUT_OF_RANGE),
        ("a source of all ones", base, &ranges(&[(u64::MAX, 1)]), OUT_OF_RANGE),
        ("a destination across the end", copy(BLOCKS - 1, 2), &ranges(&[(100, 1); 2]), OUT_OF_RANGE),
        ("a destination of all ones", copy(u64::MAX, 1), &one, OUT_OF_RANGE),
        ("an unknown namespace", base.bytes(4, &9u32.to_le_bytes()), &one, DNR | 0x0b),
    ] {
        println!("{what}");
        queue.execute(&entry, data).is(status);
        assert_eq!(read(&mut queue, 0, 16), old, "{what}");
    }
}

#[test]
fn read_only_namespace_is_no_destination() {
    let server = Server::start(&config(&subsystem("archive", "read_only = true")));
    let name = NQN.replace("disks", "archive");
    let guest = RawController::enabled(portal(&server), &NvmeHostName::new("guest"), &name, 0);
    assert_eq!(run(&mut guest.queue(1), 0, &[(8, 1)]), WRITE_PROTECTED);
}

#[test]
fn reservation_of_another_host_excludes_a_copy() {
    let server = server();
    let [(_first, mut one), (_second, mut two)] = ["one", "two"].map(|host| queue(&server, host));
    assert_eq!(register(&mut one, 0xa), 0);
    for kind in 1..=6 {
        assert_eq!(acquire(&mut one, 0xa, kind), 0);
        assert_eq!(run(&mut two, 0, &[(8, 1)]), CONFLICT, "type {kind}");
        assert_eq!(run(&mut one, 0, &[(8, 1)]), 0, "type {kind}");
        assert_eq!(release(&mut one, 0xa, kind), 0);
    }
    assert_eq!(acquire(&mut one, 0xa, EXCLUSIVE), 0);
    assert_eq!(run(&mut two, 0, &[(8, 1)]), CONFLICT);
}

#[test]
fn identify_shows_the_limits_of_copy() {
    let server = server();
    let mut admin = controller(&server, "host").admin;
    let page = admin.execute(&NvmeEntry::identify(1, 0), &[]).good();
    assert_eq!((page[521] & 1, page[534]), (1, 1), "ONCS and OCFS");
    let page = admin.execute(&NvmeEntry::identify(0, 1), &[]).good();
    assert_eq!(page[74..76], (MAX_RANGE as u16).to_le_bytes());
    assert_eq!(page[76..80], (MAX_RANGE * MAX_RANGES).to_le_bytes());
    assert_eq!(u32::from(page[80]) + 1, MAX_RANGES);
    let effects = admin.execute(&NvmeEntry::log(5, 4096), &[]).good();
    assert_eq!(effects[1024 + 4 * 0x19] & 3, 3, "it changes data");
}
