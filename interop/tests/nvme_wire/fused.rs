//! Fused Compare and Write.

use super::{iscsi, queue, queue_with, read, server, write};
use interop::compare;
use interop::nvme::{DNR, NvmeEntry, NvmeFrame, NvmeWire, pdu};
use interop::scsi::pattern;

const FAILED: u16 = DNR | 0x09;
const MISSING: u16 = DNR | 0x0a;
const MISCOMPARE: u16 = DNR | 0x285;

fn compare(lba: u64) -> NvmeEntry {
    NvmeEntry::blocks(5, 1, lba, 1).on_host(512).fused(1)
}

fn fused_write(lba: u64) -> NvmeEntry {
    NvmeEntry::write(1, lba, 1).fused(2)
}

/// Sends a pair in one segment, with the data in the capsules or by request, and returns the status of both.
fn pair(queue: &mut NvmeWire, old: &[u8], new: &[u8], in_capsule: [bool; 2]) -> [u16; 2] {
    let place = |entry: NvmeEntry, inside: bool| if inside { entry.in_capsule(512) } else { entry };
    let halves = [(place(compare(5), in_capsule[0]), old), (place(fused_write(5), in_capsule[1]), new)];
    let mut bytes = Vec::new();
    let ids = halves.map(|(entry, data)| {
        let id = queue.take_id();
        let capsule = if entry.is_in_capsule() { data } else { &[] };
        bytes.extend(queue.encode(&NvmeFrame::command(&entry.id(id), capsule)));
        id
    });
    queue.send_bytes(&bytes);
    for (id, (_, data)) in ids.into_iter().zip(halves).filter(|(_, (entry, _))| !entry.is_in_capsule()) {
        let request = queue.recv_for(id);
        queue.answer(&request, data);
    }
    ids.map(|id| queue.collect(id, &[]).status)
}

#[test]
fn pair_compares_and_writes_wherever_its_data_are() {
    let server = server();
    for digests in [0, 3] {
        let (_controller, mut queue) = queue_with(&server, "host", digests);
        for places in [[true, true], [false, false], [true, false], [false, true]] {
            let (old, new) = (pattern(512, 1), pattern(512, 2));
            write(&mut queue, 5, &old);
            assert_eq!(pair(&mut queue, &old, &new, places), [0, 0]);
            assert_eq!(read(&mut queue, 5, 1), new);
            assert_eq!(pair(&mut queue, &old, &pattern(512, 3), places), [MISCOMPARE, FAILED]);
            assert_eq!(read(&mut queue, 5, 1), new, "nothing was written");
        }
    }
}

#[test]
fn half_without_the_other_is_refused() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let (old, new) = (pattern(512, 1), pattern(512, 2));
    write(&mut queue, 5, &old);
    // A second one alone.
    queue.execute(&fused_write(5).in_capsule(512), &new).is(MISSING);
    // A first one, and another command behind it.
    let first = queue.submit(&compare(5).in_capsule(512), &old);
    queue.expect_silence();
    assert_eq!(read(&mut queue, 5, 1), old);
    queue.collect(first, &old).is(MISSING);
    // Two first ones: the second of them has a partner.
    let alone = queue.submit(&compare(5).in_capsule(512), &old);
    assert_eq!(pair(&mut queue, &old, &new, [true, false]), [0, 0]);
    queue.collect(alone, &old).is(MISSING);
    // A command that fails is between the halves.
    let first = queue.submit(&compare(5), &[]);
    queue.execute(&NvmeEntry::new(0x55, 1), &[]).is(DNR | 1);
    queue.collect(first, &[]).is(MISSING);
    queue.execute(&fused_write(5).in_capsule(512), &old).is(MISSING);
    assert_eq!(read(&mut queue, 5, 1), new);
}

/// The fourth value of the field is reserved. Data that were requested for such a command would have no owner.
#[test]
fn reserved_value_of_fuse_is_refused() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let register = NvmeEntry::new(0x0d, 1).dword(10, 0);
    let report = NvmeEntry::new(0x0e, 1).dword(10, 15).dword(11, 1).on_host(64);
    let keys = [0u64, 5].map(u64::to_le_bytes).concat();
    for entry in [
        register.on_host(16),
        register.in_capsule(16),
        report,
        NvmeEntry::read(1, 0, 1),
        NvmeEntry::new(0, 1),
        NvmeEntry::new(9, 1).dword(11, 4).on_host(16),
        NvmeEntry::blocks(0x19, 1, 0, 1).on_host(32),
    ] {
        println!("{entry:x?}");
        let reply = queue.execute(&entry.fused(3), &keys);
        assert_eq!((reply.data.len(), reply.requests.len()), (0, 0));
        reply.is(DNR | 2);
    }
    assert_eq!(queue.execute(&report, &[]).good()[5], 0, "no host is registered");
}

#[test]
fn commands_that_are_no_pair_fail_both() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let data = pattern(512, 1);
    write(&mut queue, 5, &data);
    let first = compare(5).in_capsule(512);
    let second = fused_write(5).in_capsule(512);
    let two = NvmeEntry::write(1, 5, 2).fused(2);
    for (what, first, second) in [
        ("other blocks", first, fused_write(6).in_capsule(512)),
        ("more blocks", first, two),
        ("another namespace", first, second.bytes(4, &2u32.to_le_bytes())),
        ("Write first", NvmeEntry::write(1, 5, 1).in_capsule(512).fused(1), second),
        ("Compare twice", first, compare(5).in_capsule(512).fused(2)),
        (
            "a namespace that is not there",
            first.bytes(4, &9u32.to_le_bytes()),
            second.bytes(4, &9u32.to_le_bytes()),
        ),
    ] {
        println!("{what}");
        let ids = [(first, &data), (second, &pattern(512, 7))].map(|(entry, data)| {
            let capsule = if entry.is_in_capsule() { &data[..] } else { &[] };
            queue.submit(&entry, capsule)
        });
        for id in ids {
            let reply = queue.collect(id, &[]);
            assert!(reply.status != 0 && reply.requests.is_empty(), "{what}: {reply:x?}");
        }
        assert_eq!(read(&mut queue, 5, 1), data, "{what}");
    }
}

/// Data of a pair are asked for while other commands run, and arrive in the other order.
#[test]
fn data_of_a_pair_mix_with_other_commands() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let (old, new, other) = (pattern(512, 1), pattern(512, 2), pattern(8192, 3));
    write(&mut queue, 5, &old);
    let first = queue.submit(&compare(5), &[]);
    let second = queue.submit(&fused_write(5), &[]);
    let large = queue.submit(&NvmeEntry::write(1, 100, 16), &[]);
    let requests = [first, second, large].map(|id| queue.recv_for(id));
    assert!(requests.iter().all(|request| request.kind() == pdu::R2T));
    let part = |offset: usize, flags| {
        let tag = requests[2].get16(10);
        NvmeFrame::host_data(flags, large, tag, offset as u32, &other[offset..offset + 4096])
    };
    queue.send(&part(0, 0));
    queue.answer(&requests[1], &new);
    assert_eq!(read(&mut queue, 5, 1), old, "the pair waits");
    queue.send(&part(4096, pdu::LAST));
    queue.collect(large, &[]).is(0);
    queue.answer(&requests[0], &old);
    queue.collect(first, &[]).is(0);
    queue.collect(second, &[]).is(0);
    assert_eq!((read(&mut queue, 5, 1), read(&mut queue, 100, 16)), (new, other));
}

/// Two hosts that increment a number by Compare and Write lose no increment.
#[test]
fn pairs_of_two_hosts_exclude_each_other() {
    let server = server();
    let rounds = 100u64;
    let increment = |queue: &mut NvmeWire| loop {
        let old = read(queue, 5, 1);
        let mut new = old.clone();
        let number = u64::from_le_bytes(old[..8].try_into().expect("8 bytes"));
        new[..8].copy_from_slice(&(number + 1).to_le_bytes());
        match pair(queue, &old, &new, [true, false]) {
            [0, 0] => return,
            other => assert_eq!(other, [MISCOMPARE, FAILED]),
        }
    };
    std::thread::scope(|scope| {
        for host in ["one", "two"] {
            let (server, increment) = (&server, &increment);
            scope.spawn(move || {
                let (_controller, mut queue) = queue(server, host);
                (0..rounds).for_each(|_| increment(&mut queue));
            });
        }
    });
    let last = read(&mut queue(&server, "last").1, 5, 1);
    assert_eq!(u64::from_le_bytes(last[..8].try_into().expect("8 bytes")), 2 * rounds);
}

/// As the locks of VMFS on one disk: a host of iSCSI counts by COMPARE AND WRITE, one of NVMe by fused pairs.
#[test]
fn pairs_and_compare_and_write_lose_no_increment() {
    let server = server();
    let rounds = 200;
    std::thread::scope(|scope| {
        scope.spawn(|| compare::increment(&mut iscsi(&server), 5, rounds, |_| {}));
        let (_controller, mut queue) = queue(&server, "host");
        let mut done = 0;
        while done < rounds {
            let old = read(&mut queue, 5, 1);
            let new = compare::with_number(&old, compare::number_in(&old) + 1);
            match pair(&mut queue, &old, &new, [true, true]) {
                [0, 0] => done += 1,
                other => assert_eq!(other, [MISCOMPARE, FAILED]),
            }
        }
    });
    assert_eq!(compare::number_in(&iscsi(&server).read_blocks(0, 5, 1)), 2 * rounds);
    let last = read(&mut queue(&server, "last").1, 5, 1);
    assert_eq!(compare::number_in(&last), 2 * rounds, "both see one disk");
}

#[test]
fn bad_data_digest_fails_both_halves() {
    let server = server();
    let (_controller, mut queue) = queue_with(&server, "host", 3);
    let (old, new) = (pattern(512, 1), pattern(512, 2));
    write(&mut queue, 5, &old);
    for damaged in [0, 1] {
        let ids = [compare(5), fused_write(5)].map(|entry| queue.submit(&entry, &[]));
        let requests = ids.map(|id| queue.recv_for(id));
        for (n, data) in [&old, &new].into_iter().enumerate() {
            let tag = requests[n].get16(10);
            let mut bytes = queue.encode(&NvmeFrame::host_data(pdu::LAST, ids[n], tag, 0, data));
            if n == damaged {
                *bytes.last_mut().expect("a digest") ^= 1;
            }
            queue.send_bytes(&bytes);
        }
        let status = ids.map(|id| queue.collect(id, &[]).status);
        assert!(status.contains(&0x22) && !status.contains(&0), "{status:x?}");
        assert_eq!(read(&mut queue, 5, 1), old);
    }
}
