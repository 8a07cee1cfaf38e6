//! Reservations of two hosts, and of a host of iSCSI: there is one state for both families.

use super::{controller, iscsi, queue, read, server, write};
use interop::Server;
use interop::nvme::{DNR, NvmeEntry, NvmeHostName, NvmeWire, RawController};
use interop::reserve::{RESERVATION_CONFLICT, action, holder, kind};
use interop::scsi::{pattern, read_keys, reserve_out};

pub const CONFLICT: u16 = DNR | 0x83;
const WRITE_EXCLUSIVE: u32 = 1;
pub const EXCLUSIVE: u32 = 2;
const WRITE_REGISTRANTS: u32 = 3;

pub fn register(queue: &mut NvmeWire, key: u64) -> u16 {
    queue.reserve(0x0d, 0, [0, key])
}

pub fn acquire(queue: &mut NvmeWire, key: u64, kind: u32) -> u16 {
    queue.reserve(0x11, kind << 8, [key, 0])
}

pub fn release(queue: &mut NvmeWire, key: u64, kind: u32) -> u16 {
    queue.reserve(0x15, kind << 8, [key, 0])
}

/// A report: type, and key, HOSTID and holder of each registrant.
fn report(queue: &mut NvmeWire) -> (u8, Vec<(u64, Vec<u8>, bool)>) {
    let entry = NvmeEntry::new(0x0e, 1).dword(10, 4096 / 4 - 1).dword(11, 1).on_host(4096);
    let data = queue.execute(&entry, &[]).good();
    let count = usize::from(u16::from_le_bytes([data[5], data[6]]));
    let one = |who: &[u8]| {
        assert_eq!(who[..2], [0xff, 0xff], "the controller is a dynamic one");
        let key = u64::from_le_bytes(who[8..16].try_into().expect("8 bytes"));
        (key, who[16..32].to_vec(), who[2] & 1 != 0)
    };
    let mut all: Vec<_> = data[64..].chunks_exact(64).take(count).map(one).collect();
    all.sort();
    (data[4], all)
}

fn two_hosts(server: &Server) -> [(RawController, NvmeWire); 2] {
    [queue(server, "one"), queue(server, "two")]
}

#[test]
fn reservation_excludes_the_other_host() {
    let server = server();
    let [(first, mut one), (second, mut two)] = two_hosts(&server);
    let data = pattern(512, 1);
    assert_eq!(register(&mut one, 0xa), 0);
    assert_eq!(report(&mut two), (0, vec![(0xa, first.host.id.to_vec(), false)]));
    assert_eq!(acquire(&mut two, 0xb, EXCLUSIVE), CONFLICT, "a host that is not registered");
    assert_eq!(acquire(&mut one, 0xb, EXCLUSIVE), CONFLICT, "another key");
    assert_eq!(release(&mut one, 0xa, EXCLUSIVE), 0, "there is none");
    assert_eq!(acquire(&mut one, 0xa, EXCLUSIVE), 0);
    assert_eq!(acquire(&mut one, 0xa, EXCLUSIVE), 0, "again by its holder");
    assert_eq!(register(&mut two, 0xb), 0);
    let both = vec![(0xa, first.host.id.to_vec(), true), (0xb, second.host.id.to_vec(), false)];
    assert_eq!(report(&mut two), (EXCLUSIVE as u8, both));
    for entry in [NvmeEntry::read(1, 0, 1), NvmeEntry::write(1, 0, 1), NvmeEntry::blocks(8, 1, 0, 1)] {
        two.execute(&entry, &data).is(CONFLICT);
    }
    write(&mut one, 0, &data);
    // All queues of a host are one registrant, and those of a new controller too.
    write(&mut first.queue(2), 0, &data);
    assert_eq!(acquire(&mut two, 0xb, EXCLUSIVE), CONFLICT);
    assert_eq!(release(&mut two, 0xb, EXCLUSIVE), 0, "it holds nothing");
    assert_eq!(release(&mut one, 0xa, WRITE_EXCLUSIVE), DNR | 2, "another type");
    assert_eq!(release(&mut one, 0xa, EXCLUSIVE), 0);
    write(&mut two, 0, &data);
}

#[test]
fn type_decides_who_reads_and_writes() {
    let server = server();
    let [(_first, mut one), (_second, mut two)] = two_hosts(&server);
    let data = pattern(512, 1);
    assert_eq!(register(&mut one, 0xa), 0);
    for kind in 1..=6 {
        assert_eq!(acquire(&mut one, 0xa, kind), 0, "type {kind}");
        let (reads, writes) =
            (two.execute(&NvmeEntry::read(1, 0, 1), &[]), two.execute(&NvmeEntry::write(1, 0, 1), &data));
        let may_read = matches!(kind, 1 | 3 | 5);
        assert_eq!(
            (reads.status, writes.status),
            (if may_read { 0 } else { CONFLICT }, CONFLICT),
            "type {kind}"
        );
        assert_eq!(register(&mut two, 0xb), 0);
        let writes = two.execute(&NvmeEntry::write(1, 0, 1), &data).status;
        assert_eq!(writes, if kind > 2 { 0 } else { CONFLICT }, "type {kind}, registered");
        assert_eq!(two.reserve(0x0d, 1, [0xb, 0]), 0, "unregister");
        assert_eq!(release(&mut one, 0xa, kind), 0, "type {kind}");
    }
    assert_eq!(acquire(&mut one, 0xa, 0), DNR | 2);
    assert_eq!(acquire(&mut one, 0xa, 7), DNR | 2);
}

#[test]
fn preempt_takes_the_reservation_over() {
    let server = server();
    let [(_first, mut one), (second, mut two)] = two_hosts(&server);
    assert_eq!((register(&mut one, 0xa), register(&mut two, 0xb)), (0, 0));
    for action in [1, 2] {
        assert_eq!(acquire(&mut one, 0xa, WRITE_EXCLUSIVE), 0);
        assert_eq!(two.reserve(0x11, action | WRITE_REGISTRANTS << 8, [0xb, 0xa]), 0);
        assert_eq!(report(&mut one), (WRITE_REGISTRANTS as u8, vec![(0xb, second.host.id.to_vec(), true)]));
        one.execute(&NvmeEntry::write(1, 0, 1), &pattern(512, 1)).is(CONFLICT);
        assert_eq!(release(&mut two, 0xb, WRITE_REGISTRANTS), 0);
        assert_eq!(register(&mut one, 0xa), 0);
    }
    // Clear.
    assert_eq!(one.reserve(0x15, 1, [0xa, 0]), 0);
    assert_eq!(report(&mut one), (0, vec![]));
    assert_eq!(one.reserve(0x15, 1, [0xa, 0]), CONFLICT);
}

/// The key 0 preempts under an all registrants type only. nvmet of Linux accepts any key from the holder itself.
#[test]
fn preempt_of_the_key_0_is_refused() {
    let server = server();
    let [(first, mut one), (second, mut two)] = two_hosts(&server);
    assert_eq!((register(&mut one, 0xa), register(&mut two, 0xb)), (0, 0));
    assert_eq!(acquire(&mut one, 0xa, WRITE_EXCLUSIVE), 0);
    let hosts = vec![(0xa, first.host.id.to_vec(), true), (0xb, second.host.id.to_vec(), false)];
    for action in [1, 2] {
        assert_eq!(one.reserve(0x11, action | WRITE_REGISTRANTS << 8, [0xa, 0]), DNR | 2, "the holder");
        assert_eq!(two.reserve(0x11, action | WRITE_REGISTRANTS << 8, [0xb, 0]), DNR | 2, "another host");
        assert_eq!(report(&mut one), (WRITE_EXCLUSIVE as u8, hosts.clone()));
    }
    assert_eq!(one.reserve(0x11, 1 | WRITE_REGISTRANTS << 8, [0xa, 0xa]), 0, "the holder's own key");
    assert_eq!(report(&mut one), (WRITE_REGISTRANTS as u8, hosts));
}

#[test]
fn register_replaces_and_ignores_keys() {
    let server = server();
    let (it, mut queue) = queue(&server, "one");
    let id = it.host.id.to_vec();
    assert_eq!(queue.reserve(0x0d, 2, [0, 5]), CONFLICT, "replace without a registration");
    assert_eq!(queue.reserve(0x0d, 1, [5, 0]), CONFLICT, "unregister without a registration");
    assert_eq!(register(&mut queue, 5), 0);
    assert_eq!(register(&mut queue, 5), 0, "the same key again");
    assert_eq!(register(&mut queue, 6), CONFLICT, "another key");
    assert_eq!(queue.reserve(0x0d, 2, [7, 6]), CONFLICT, "the old key is wrong");
    assert_eq!(queue.reserve(0x0d, 2, [5, 6]), 0);
    assert_eq!(queue.reserve(0x0d, 2 | 8, [99, 7]), 0, "IEKEY");
    assert_eq!(report(&mut queue), (0, vec![(7, id, false)]));
    assert_eq!(queue.reserve(0x0d, 1, [7, 0]), 0);
    assert_eq!(report(&mut queue), (0, vec![]));
    for entry in [0x0d, 0x11, 0x15] {
        let dword = if entry == 0x0d { 7 } else { 7 | 1 << 8 };
        assert_eq!(queue.reserve(entry, dword, [7, 8]), DNR | 2, "an unknown action of {entry:#x}");
    }
    // IEKEY is not for these.
    assert_eq!(queue.reserve(0x11, 8 | 1 << 8, [7, 0]), DNR | 2);
    assert_eq!(queue.reserve(0x15, 8 | 1 << 8, [7, 0]), DNR | 2);
    queue.execute(&NvmeEntry::new(0x0d, 1).in_capsule(4), &[0; 4]).is(DNR | 0x0f);
}

#[test]
fn report_needs_extended_data_and_its_length() {
    let server = server();
    let (_it, mut queue) = queue(&server, "one");
    assert_eq!(register(&mut queue, 5), 0);
    let report = |len: u32| NvmeEntry::new(0x0e, 1).dword(10, len / 4 - 1).dword(11, 1).on_host(len);
    queue.execute(&report(64).dword(11, 0), &[]).is(DNR | 0x18);
    queue.execute(&report(64).on_host(128), &[]).is(DNR | 0x0f);
    // A short buffer has the whole number of registrants.
    let short = queue.execute(&report(16), &[]).good();
    assert_eq!((short.len(), short[5]), (16, 1));
}

#[test]
fn host_without_identifier_cannot_register() {
    let server = server();
    let nobody = NvmeHostName { id: [0; 16], ..NvmeHostName::new("nobody") };
    let it = RawController::enabled(super::portal(&server), &nobody, super::NQN, 0);
    let mut queue = it.queue(1);
    assert_eq!(register(&mut queue, 5), DNR | 2);
    read(&mut queue, 0, 1);
}

/// A registration outlives its controller.
#[test]
fn host_that_comes_back_is_registered() {
    let server = server();
    let (_other, mut other) = queue(&server, "two");
    {
        let (_it, mut queue) = queue(&server, "one");
        assert_eq!((register(&mut queue, 5), acquire(&mut queue, 5, EXCLUSIVE)), (0, 0));
    }
    other.execute(&NvmeEntry::read(1, 0, 1), &[]).is(CONFLICT);
    let it = controller(&server, "one");
    read(&mut it.queue(1), 0, 1);
}

#[test]
fn reservation_of_nvme_excludes_iscsi() {
    let server = server();
    let (_it, mut queue) = queue(&server, "one");
    let mut raw = iscsi(&server);
    assert_eq!((register(&mut queue, 0xa), acquire(&mut queue, 0xa, EXCLUSIVE)), (0, 0));
    let data = pattern(512, 1);
    let answers = [
        raw.settled(|raw| raw.write_blocks(0, 0, &data)).status,
        raw.read(0, &interop::scsi::read10(0, 1), 512).status,
    ];
    assert_eq!(answers, [RESERVATION_CONFLICT; 2]);
    assert_eq!(holder(&mut raw, 0), Some((0xa, 3)), "EXCLUSIVE ACCESS");
    assert_eq!(read_keys(&mut raw, 0), [0xa]);
    assert_eq!(release(&mut queue, 0xa, EXCLUSIVE), 0);
    raw.settled(|raw| raw.write_blocks(0, 0, &data)).good();
}

#[test]
fn reservation_of_iscsi_excludes_nvme() {
    let server = server();
    let (_it, mut queue) = queue(&server, "one");
    let mut raw = iscsi(&server);
    reserve_out(&mut raw, 0, action::REGISTER, 0, 0, 0xa, 0).good();
    reserve_out(&mut raw, 0, action::RESERVE, kind::WRITE_EXCLUSIVE, 0xa, 0, 0).good();
    queue.execute(&NvmeEntry::write(1, 0, 1), &pattern(512, 1)).is(CONFLICT);
    read(&mut queue, 0, 1);
    let (kind, all) = report(&mut queue);
    assert_eq!((kind, all.len(), all[0].0, all[0].2), (1, 1, 0xa, true));
    reserve_out(&mut raw, 0, action::CLEAR, 0, 0xa, 0, 0).good();
    write(&mut queue, 0, &pattern(512, 1));
}

/// No report could show registrants of both families.
#[test]
fn registrations_of_the_other_family_are_refused() {
    let server = server();
    let (_it, mut queue) = queue(&server, "one");
    let mut raw = iscsi(&server);
    assert_eq!(register(&mut queue, 0xa), 0);
    for action in [action::REGISTER, action::REGISTER_AND_IGNORE] {
        let reply = raw.settled(|raw| reserve_out(raw, 0, action, 0, 0, 0xb, 0));
        assert_eq!(reply.status, RESERVATION_CONFLICT);
    }
    assert_eq!(report(&mut queue).1.len(), 1);
    assert_eq!(queue.reserve(0x0d, 1, [0xa, 0]), 0);
    raw.settled(|raw| reserve_out(raw, 0, action::REGISTER, 0, 0, 0xb, 0)).good();
    assert_eq!(register(&mut queue, 0xa), CONFLICT);
    assert_eq!(queue.reserve(0x0d, 8, [0, 0xa]), CONFLICT, "IEKEY");
    assert_eq!(read_keys(&mut raw, 0), [0xb]);
    reserve_out(&mut raw, 0, action::REGISTER, 0, 0xb, 0, 0).good();
    assert_eq!(register(&mut queue, 0xa), 0);
}

/// RESERVE(6) and RELEASE(6).
#[test]
fn scsi_2_reservation_excludes_nvme() {
    let server = server();
    let (_it, mut queue) = queue(&server, "one");
    let mut raw = iscsi(&server);
    raw.simple(0, &[0x16, 0, 0, 0, 0, 0]).good();
    queue.execute(&NvmeEntry::write(1, 0, 1), &[1; 512]).is(CONFLICT);
    queue.execute(&NvmeEntry::read(1, 0, 1), &[]).is(CONFLICT);
    assert_eq!(register(&mut queue, 0xa), CONFLICT);
    raw.simple(0, &[0x17, 0, 0, 0, 0, 0]).good();
    write(&mut queue, 0, &[1; 512]);
}

#[test]
fn host_is_its_name_with_its_identifier() {
    let server = server();
    let (_it, mut own) = queue(&server, "one");
    assert_eq!((register(&mut own, 0xa), acquire(&mut own, 0xa, EXCLUSIVE)), (0, 0));
    let namesake = NvmeHostName { id: [9; 16], ..NvmeHostName::new("one") };
    let it = RawController::enabled(super::portal(&server), &namesake, super::NQN, 0);
    let mut other = it.queue(1);
    other.execute(&NvmeEntry::read(1, 0, 1), &[]).is(CONFLICT);
    assert_eq!(acquire(&mut other, 0xa, EXCLUSIVE), CONFLICT);
    read(&mut own, 0, 1);
}

#[test]
fn reservation_persists_when_the_host_asks_for_it() {
    let mut server = server();
    let id = {
        let (it, mut queue) = queue(&server, "one");
        assert_eq!(queue.reserve(0x0d, 3 << 30, [0, 0xa]), 0);
        assert_eq!(acquire(&mut queue, 0xa, EXCLUSIVE), 0);
        it.host.id.to_vec()
    };
    server.restart();
    let [(_one, mut one), (_two, mut two)] = two_hosts(&server);
    assert_eq!(report(&mut two), (EXCLUSIVE as u8, vec![(0xa, id, true)]));
    two.execute(&NvmeEntry::read(1, 0, 1), &[]).is(CONFLICT);
    read(&mut one, 0, 1);
    // Without persistence from now on.
    assert_eq!(one.reserve(0x0d, 2 | 2 << 30, [0xa, 0xb]), 0);
    server.restart();
    assert_eq!(report(&mut queue(&server, "two").1), (0, vec![]));
}

/// The log of reservation events: type, further entries, namespace.
fn notification(it: &mut RawController) -> (u8, u8, u32) {
    let log = it.admin.execute(&NvmeEntry::log(0x80, 64), &[]).good();
    (log[8], log[9], u32::from_le_bytes(log[12..16].try_into().expect("4 bytes")))
}

#[test]
fn loss_of_a_registration_or_reservation_is_an_event() {
    const EVENT: u32 = 0x0080_0006;
    let server = server();
    let [(mut first, mut one), (mut second, mut two)] = two_hosts(&server);
    assert_eq!((register(&mut one, 0xa), register(&mut two, 0xb)), (0, 0));
    let waiting = second.admin.submit(&NvmeEntry::event(), &[]);
    // A reservation of registrants is released: the others are informed.
    assert_eq!(
        (acquire(&mut one, 0xa, WRITE_REGISTRANTS), release(&mut one, 0xa, WRITE_REGISTRANTS)),
        (0, 0)
    );
    assert_eq!(second.admin.collect(waiting, &[]).result as u32, EVENT);
    assert_eq!((notification(&mut second), notification(&mut second)), ((2, 0, 1), (0, 0, 0)));
    assert_eq!(notification(&mut first), (0, 0, 0), "not the host that releases");
    // A registration is preempted.
    assert_eq!(two.reserve(0x11, 1 | WRITE_EXCLUSIVE << 8, [0xb, 0xa]), 0);
    assert_eq!(first.admin.execute(&NvmeEntry::event(), &[]).result as u32, EVENT);
    assert_eq!(notification(&mut first), (1, 0, 1));
    // Masked: registration preempted.
    first.admin.execute(&NvmeEntry::set_feature(0x82, 2).bytes(4, &1u32.to_le_bytes()), &[]).is(0);
    assert_eq!(register(&mut one, 0xa), 0);
    first.admin.submit(&NvmeEntry::event(), &[]);
    assert_eq!(two.reserve(0x11, 1 | WRITE_EXCLUSIVE << 8, [0xb, 0xa]), 0);
    first.admin.expect_silence();
}
