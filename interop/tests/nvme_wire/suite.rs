//! Cases of the test suite of Linux (blktests, its group of NVMe) that no test of another subject has.

use super::{NQN, config, controller, portal, queue, read, server, write};
use interop::Server;
use interop::nvme::{DISCOVERY, DNR, NvmeEntry, NvmeHostName, RawController};
use interop::scsi::pattern;
use std::thread;
use std::time::Duration;

const INVALID_OPCODE: u16 = DNR | 0x01;
const INVALID_NAMESPACE: u16 = DNR | 0x0b;
/// Fabrics commands have types, and Asynchronous Event Request has no completion.
const FABRICS: u8 = 0x7f;
const EVENT: u8 = 0x0c;
const KEEP_ALIVE: u8 = 0x18;

fn number(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("8 bytes"))
}

/// nvme/003: a host stays connected to a discovery controller, and sends it nothing but Keep Alive.
#[test]
fn discovery_controller_lives_by_keep_alive() {
    let server = server();
    let mut it = RawController::connect(portal(&server), &NvmeHostName::new("host"), DISCOVERY, 2000);
    it.enable();
    for _ in 0..12 {
        thread::sleep(Duration::from_millis(400));
        it.admin.execute(&NvmeEntry::new(KEEP_ALIVE, 0), &[]).is(0);
    }
    it.admin.expect_close(Duration::from_secs(20));
}

/// nvme/019: ten ranges far from each other, and no more entries than ranges.
#[test]
fn ten_ranges_are_deallocated_and_no_others() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    let mut data = pattern(1100 * 512, 7);
    write(&mut queue, 0, &data);
    let ranges: Vec<u8> = (1..11u64)
        .flat_map(|n| [&[0; 4][..], &10u32.to_le_bytes(), &(n * 100).to_le_bytes()].concat())
        .collect();
    let entry = NvmeEntry::new(9, 1).dword(10, 9).dword(11, 4).on_host(160);
    queue.execute(&entry, &ranges).is(0);
    (1..11).for_each(|n| data[n * 100 * 512..][..5120].fill(0));
    assert!(read(&mut queue, 0, 1100) == data);
}

/// nvme/023: the counters of the health log, also when the host asks for one namespace.
#[test]
fn smart_log_counts_commands_and_blocks() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    let mut log = |namespace: u32| {
        let entry = NvmeEntry::log(2, 512).bytes(4, &namespace.to_le_bytes());
        let page = it.admin.execute(&entry, &[]).good();
        assert_eq!((page[0], page[3]), (0, 100), "no warning, and all spare blocks");
        // Data units read and written, read and write commands, and errors.
        [32, 48, 64, 80, 176].map(|at| number(&page, at))
    };
    assert_eq!(log(u32::MAX), [0; 5]);
    (0..3).for_each(|_| write(&mut queue, 0, &pattern(512_000, 1)));
    (0..2).for_each(|_| _ = read(&mut queue, 0, 1000));
    queue.execute(&NvmeEntry::read(3, 0, 1), &[]).is(INVALID_NAMESPACE);
    for namespace in [u32::MAX, 0, 1] {
        assert_eq!(log(namespace), [2, 3, 2, 3, 1]);
    }
}

/// nvme/025: hosts let a user send only the commands that the log shows.
#[test]
fn effects_log_has_the_commands_that_are_served() {
    let server = server();
    let (mut it, mut queue) = queue(&server, "host");
    let page = it.admin.execute(&NvmeEntry::log(5, 4096), &[]).good();
    let is_shown = |base: usize, opcode: u8| page[base + 4 * usize::from(opcode)] & 1 == 1;
    for opcode in (0..=255).filter(|opcode| *opcode != FABRICS) {
        let reply = queue.execute(&NvmeEntry::new(opcode, 1), &[]);
        assert_eq!(reply.status != INVALID_OPCODE, is_shown(1024, opcode), "I/O {opcode:#x}");
    }
    assert!(is_shown(0, EVENT));
    for opcode in (0..=255).filter(|opcode| ![FABRICS, EVENT].contains(opcode)) {
        let reply = it.admin.execute(&NvmeEntry::new(opcode, 0), &[]);
        assert_eq!(reply.status != INVALID_OPCODE, is_shown(0, opcode), "admin {opcode:#x}");
    }
}

/// nvme/029: the lengths and places of its reads and writes by nvme-cli, which also has the data in a capsule.
#[test]
fn data_of_uneven_lengths_and_places_are_kept() {
    let server = server();
    let (_it, mut queue) = queue(&server, "host");
    let mut disk = pattern(2048 * 512, 1);
    write(&mut queue, 0, &disk);
    for (seed, (lba, blocks)) in (2..).zip([
        (1, 512),
        (1, 511),
        (1, 513),
        (511, 1024),
        (511, 1023),
        (511, 1025),
        (3, 1),
        (5, 15),
        (1535, 17),
    ]) {
        let data = pattern(usize::from(blocks) * 512, seed);
        write(&mut queue, lba, &data);
        disk[lba as usize * 512..][..data.len()].copy_from_slice(&data);
        assert!(read(&mut queue, lba, blocks) == data, "{blocks} blocks at {lba}");
    }
    assert!(read(&mut queue, 0, 2048) == disk, "a neighbour has changed");
}

/// nvme/048: a host gets another number of queues when it connects again, and after a reset.
#[test]
fn number_of_queues_may_change_with_each_reset() {
    let server = server();
    let mut it = controller(&server, "host");
    for queues in [1u32, 3, 2] {
        let wanted = (queues - 1) << 16 | (queues - 1);
        let granted = it.admin.execute(&NvmeEntry::set_feature(7, wanted), &[]);
        assert_eq!((granted.status, granted.result), (0, u64::from(wanted)));
        let asked = it.admin.execute(&NvmeEntry::new(0x0a, 0).dword(10, 7), &[]);
        assert_eq!((asked.status, asked.result), (0, u64::from(wanted)), "Get Features");
        let all: Vec<_> = (1..=queues as u16).map(|queue| it.queue_again(queue)).collect();
        assert_ne!(it.try_queue(queues as u16 + 1, 31).1.status, 0, "one queue too many");
        it.admin.execute(&NvmeEntry::configure(0x46_0000), &[]).good();
        while it.admin.execute(&NvmeEntry::property(0x1c, false), &[]).result & 1 != 0 {}
        it.enable();
        drop(all);
    }
}

/// nvme/055: the host does not know yet that the namespace has gone. One write waits in the target meanwhile.
#[test]
fn write_to_a_namespace_that_went_fails_alone() {
    let third = "[[subsystem.namespace]]\nnsid = 3\nbackend = \"memory\"\nsize = \"8MiB\"\n\
                 filters = [{ kind = \"delay\", write_us = 2000000 }]\n";
    let mut server = Server::start(&config(third));
    let (mut it, mut queue) = queue(&server, "host");
    it.admin.execute(&NvmeEntry::set_feature(0x0b, 0), &[]).is(0);
    let data = pattern(4096, 1);
    queue.execute(&NvmeEntry::write(3, 0, 8), &data).is(0);
    let running = queue.submit(&NvmeEntry::blocks(1, 3, 8, 8).in_capsule(4096), &data);
    let waiting = queue.submit(&NvmeEntry::write(3, 16, 8), &[]);
    let request = queue.recv_for(waiting);
    server.rewrite(&config(""));
    server.said(&["reload", "--force"]);
    queue.answer(&request, &data);
    // The reload waits for the write that runs. The other one has begun nothing, and finds no namespace.
    queue.collect(running, &[]).is(0);
    queue.collect(waiting, &[]).is(INVALID_NAMESPACE);
    for entry in [NvmeEntry::write(3, 0, 8), NvmeEntry::read(3, 0, 8), NvmeEntry::new(0, 3)] {
        queue.execute(&entry, &data).is(INVALID_NAMESPACE);
    }
    read(&mut queue, 0, 8);
}

/// nvme/016 and 017: as many namespaces as a subsystem can have fill the list, which has no room for an end.
#[test]
fn list_of_all_namespaces_is_full() {
    let all: String = (3..=1024)
        .map(|nsid| format!("[[subsystem.namespace]]\nnsid = {nsid}\nbackend = \"null\"\nsize = \"1G\"\n"))
        .collect();
    let server = Server::start(&config(&all));
    let (mut it, mut queue) = queue(&server, "host");
    let mut list = |after: u32| {
        let page = it.admin.execute(&NvmeEntry::identify(2, after), &[]).good();
        let all = page.chunks_exact(4).map(|four| u32::from_le_bytes(four.try_into().expect("4 bytes")));
        all.take_while(|number| *number != 0).collect::<Vec<u32>>()
    };
    assert!(list(0) == (1..=1024).collect::<Vec<u32>>());
    assert_eq!((list(1022), list(1024)), (vec![1023, 1024], vec![]));
    queue.execute(&NvmeEntry::read(1024, 0, 1), &[]).good();
    queue.execute(&NvmeEntry::read(1025, 0, 1), &[]).is(INVALID_NAMESPACE);
}

/// nvme/002: the log of a thousand subsystems, read as nvme-cli does: the header, then pieces of 4096 bytes, then the header.
#[test]
fn discovery_log_of_many_subsystems_is_whole() {
    let name = |n: usize| format!("nqn.2026-11.org.example:many-{n:04}");
    let many: String = (0..1000).map(|n| format!("[[subsystem]]\nnqn = \"{}\"\n", name(n))).collect();
    let server = Server::start(&config(&many));
    let mut it = RawController::enabled(portal(&server), &NvmeHostName::new("host"), DISCOVERY, 0);
    let mut piece =
        |offset: u32, len: u32| it.admin.execute(&NvmeEntry::log(0x70, len).dword(12, offset), &[]).good();
    let head = piece(0, 1024);
    let records = number(&head, 8);
    assert_eq!(records, 1002, "the current one, and that of all tests");
    let mut page: Vec<u8> =
        (0..(records as u32 + 1).div_ceil(4)).flat_map(|n| piece(n * 4096, 4096)).collect();
    assert_eq!(number(&piece(0, 1024), 0), number(&head, 0), "the same generation");
    page.truncate((records as usize + 1) * 1024);
    let named = |record: &[u8]| {
        let text = String::from_utf8_lossy(&record[256..512]);
        text.trim_end_matches('\0').to_owned()
    };
    let mut seen: Vec<String> = page[1024..].chunks_exact(1024).map(named).collect();
    seen.sort_unstable();
    let mut expected: Vec<String> = (0..1000).map(name).chain([DISCOVERY.into(), NQN.into()]).collect();
    expected.sort_unstable();
    assert!(seen == expected, "{} records", seen.len());
}
