//! Reads and writes: where the data are, faults of transfers and of descriptors, ranges, identifiers.

use super::{BLOCKS, iscsi, queue, queue_with, read, server, write};
use interop::nvme::{DNR, NvmeEntry, NvmeFrame, NvmeWire, pdu};
use interop::raw::patience;
use interop::scsi::pattern;

const INVALID_OPCODE: u16 = DNR | 1;
const INVALID_FIELD: u16 = DNR | 2;
const INVALID_NAMESPACE: u16 = DNR | 0x0b;
const SGL_LENGTH: u16 = DNR | 0x0f;
const SGL_TYPE: u16 = DNR | 0x11;
const SGL_OFFSET: u16 = DNR | 0x16;
const TRANSIENT: u16 = 0x22;
const OUT_OF_RANGE: u16 = DNR | 0x80;
const COMPARE_FAILURE: u16 = DNR | 0x285;

/// A write with its data in the capsule.
fn in_capsule(lba: u64, data: &[u8]) -> NvmeEntry {
    NvmeEntry::write(1, lba, (data.len() / 512) as u16).in_capsule(data.len() as u32)
}

#[test]
fn data_go_both_ways_in_capsules_and_by_requests() {
    let server = server();
    for digests in 0..4 {
        let (_controller, mut queue) = queue_with(&server, "host", digests);
        for (n, blocks) in [1, 8, 16, 17, 255, 2048].into_iter().enumerate() {
            let data = pattern(blocks * 512, n as u8 + digests);
            if data.len() <= 8192 {
                let reply = queue.execute(&in_capsule(9, &data), &data);
                assert_eq!((reply.status, &reply.requests[..]), (0, &[][..]));
                assert_eq!(read(&mut queue, 9, blocks as u16), data);
            }
            let reply = queue.execute(&NvmeEntry::write(1, 70, blocks as u16), &data);
            assert_eq!((reply.status, &reply.requests[..]), (0, &[(0, data.len() as u32)][..]));
            assert_eq!(read(&mut queue, 70, blocks as u16), data);
            assert_eq!(iscsi(&server).read_blocks(0, 70, blocks as u16), data, "the LUN is the same disk");
        }
    }
}

/// H2CData of uneven lengths.
#[test]
fn requested_data_may_come_in_many_pdus() {
    let server = server();
    let (_controller, mut queue) = queue_with(&server, "host", 3);
    let data = pattern(64 << 10, 5);
    let id = queue.submit(&NvmeEntry::write(1, 0, 128), &[]);
    let request = queue.recv_for(id);
    let (tag, mut at) = (request.get16(10), 0);
    for len in (1..).map(|n| n * 333) {
        let end = data.len().min(at + len);
        let flags = if end == data.len() { pdu::LAST } else { 0 };
        queue.send(&NvmeFrame::host_data(flags, id, tag, at as u32, &data[at..end]));
        at = end;
        if at == data.len() {
            break;
        }
    }
    queue.collect(id, &[]).is(0);
    assert_eq!(read(&mut queue, 0, 128), data);
}

#[test]
fn heads_of_the_queue_are_counted_modulo_its_size() {
    let server = server();
    let (controller, _queue) = queue(&server, "host");
    let (mut queue, connected) = controller.try_queue(2, 3);
    assert_eq!((connected.status, connected.head), (0, Some(1)));
    for head in [2, 3, 0, 1, 2] {
        let reply = queue.execute(&NvmeEntry::read(1, 0, 1), &[]);
        assert_eq!(reply.head, Some(head));
    }
}

/// A fault of the first H2CData of a write of 8 blocks: flags, change of CID, TTAG and DATAO, bytes of data.
#[test]
fn faulty_transfer_ends_the_queue_and_writes_nothing() {
    let server = server();
    let old = pattern(4096, 1);
    write(&mut queue(&server, "before").1, 8, &old);
    let last = pdu::LAST;
    for (what, flags, (id, tag, offset), len, fault) in [
        ("DATAO too high", last, (0, 0, 512), 3584, (4, 0)),
        ("DATAO far too high", last, (0, 0, u32::MAX), 4096, (4, 0)),
        ("too much data", last, (0, 0, 0), 4608, (4, 0)),
        ("unknown TTAG", last, (0, 1, 0), 4096, (2, 0)),
        ("another CID", last, (1, 0, 0), 4096, (2, 0)),
        ("no LAST", 0, (0, 0, 0), 4096, (1, 1)),
        ("LAST too early", last, (0, 0, 0), 512, (1, 1)),
        ("no data", last, (0, 0, 0), 0, (1, 16)),
    ] {
        println!("{what}");
        let (_controller, mut queue) = queue(&server, "host");
        let own = queue.submit(&NvmeEntry::write(1, 8, 8), &[]);
        let request = queue.recv_for(own);
        let (id, tag) = (own.wrapping_add(id), request.get16(10).wrapping_add(tag));
        let bytes = queue.encode(&NvmeFrame::host_data(flags, id, tag, offset, &pattern(len, 2)));
        queue.send_bytes(&bytes);
        queue.expect_term(fault, &bytes);
        assert_eq!(read(&mut super::queue(&server, "after").1, 8, 8), old, "{what}");
    }
}

#[test]
fn length_of_data_must_be_that_of_the_pdu() {
    let server = server();
    for len in [0, 4092, 4100, u32::MAX] {
        let (_controller, mut queue) = queue(&server, "host");
        let id = queue.submit(&NvmeEntry::write(1, 8, 8), &[]);
        let tag = queue.recv_for(id).get16(10);
        let frame = NvmeFrame::host_data(pdu::LAST, id, tag, 0, &pattern(4096, 2)).set32(16, len);
        let bytes = queue.encode(&frame);
        queue.send_bytes(&bytes);
        queue.expect_term((1, 16), &bytes);
    }
}

#[test]
fn second_data_pdu_must_follow_the_first() {
    let server = server();
    for offset in [0, 1024] {
        let (_controller, mut queue) = queue(&server, "host");
        let id = queue.submit(&NvmeEntry::write(1, 8, 8), &[]);
        let tag = queue.recv_for(id).get16(10);
        queue.send(&NvmeFrame::host_data(0, id, tag, 0, &pattern(512, 2)));
        let bytes = queue.encode(&NvmeFrame::host_data(0, id, tag, offset, &pattern(512, 2)));
        queue.send_bytes(&bytes);
        queue.expect_term((4, 0), &bytes);
    }
}

#[test]
fn bad_data_digest_fails_the_write_alone() {
    let server = server();
    for digests in [2, 3] {
        let (_controller, mut queue) = queue_with(&server, "host", digests);
        let (old, new) = (pattern(8192, 3), pattern(8192, 4));
        write(&mut queue, 0, &old);
        let id = queue.take_id();
        let mut bytes = queue.encode(&NvmeFrame::command(&in_capsule(0, &new).id(id), &new));
        *bytes.last_mut().expect("a digest") ^= 0x80;
        queue.send_bytes(&bytes);
        queue.collect(id, &[]).is(TRANSIENT);
        assert_eq!(read(&mut queue, 0, 16), old);

        for len in [8192, 64 << 10] {
            let new = pattern(len, 4);
            let before = read(&mut queue, 0, (len / 512) as u16);
            let id = queue.submit(&NvmeEntry::write(1, 0, (len / 512) as u16), &[]);
            let tag = queue.recv_for(id).get16(10);
            let half = len / 2;
            let first = queue.encode(&NvmeFrame::host_data(0, id, tag, 0, &new[..half]));
            let mut bytes = first.clone();
            *bytes.last_mut().expect("a digest") ^= 1;
            queue.send_bytes(&bytes);
            queue.send(&NvmeFrame::host_data(pdu::LAST, id, tag, half as u32, &new[half..]));
            queue.collect(id, &[]).is(TRANSIENT);
            assert_eq!(read(&mut queue, 0, (len / 512) as u16), before, "{len} bytes with digests {digests}");
        }
    }
}

#[test]
fn faulty_descriptor_fails_the_command_alone() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let old = pattern(8192, 1);
    write(&mut queue, 0, &old);
    let new = pattern(8192, 2);
    let one = |entry: NvmeEntry| entry.in_capsule(512);
    let write = NvmeEntry::write(1, 0, 1);
    for (what, entry, capsule, status) in [
        ("more than is in the capsule", write.in_capsule(1024), 512, SGL_LENGTH),
        ("less than is in the capsule", write.in_capsule(512), 1024, SGL_LENGTH),
        ("an empty capsule", one(write), 0, SGL_LENGTH),
        ("a capsule for data on the host", write, 512, SGL_LENGTH),
        ("a capsule for two blocks", one(NvmeEntry::write(1, 0, 2)), 512, SGL_LENGTH),
        ("a longer descriptor", write.on_host(1024), 0, SGL_LENGTH),
        ("a shorter descriptor", NvmeEntry::write(1, 0, 2).on_host(512), 0, SGL_LENGTH),
        ("no descriptor", write.on_host(0), 0, SGL_LENGTH),
        ("4 GiB", write.on_host(u32::MAX), 0, INVALID_FIELD),
        ("more than MDTS", NvmeEntry::write(1, 0, 2049), 0, INVALID_FIELD),
        ("a shorter read", NvmeEntry::read(1, 0, 2).on_host(512), 0, SGL_LENGTH),
        ("a longer read", NvmeEntry::read(1, 0, 2).on_host(1536), 0, SGL_LENGTH),
        ("a keyed descriptor", write.sgl(0x4f, 0, 512), 0, SGL_TYPE),
        ("an unknown descriptor", write.sgl(0xff, 0, 512), 0, SGL_TYPE),
        ("a memory address", write.sgl(0, 0x1000, 512), 0, SGL_TYPE),
        ("an offset in the capsule", write.sgl(1, 4, 512), 512, SGL_OFFSET),
        ("PRP", write.byte(1, 0), 0, INVALID_FIELD),
        ("Flush with data", NvmeEntry::new(0, 1).in_capsule(512), 512, SGL_LENGTH),
        ("Write Zeroes with data", NvmeEntry::blocks(8, 1, 0, 1).on_host(512), 0, SGL_LENGTH),
        ("ranges without data", NvmeEntry::new(9, 1).dword(11, 4).on_host(0), 0, SGL_LENGTH),
        (
            "more ranges than data",
            NvmeEntry::new(9, 1).dword(10, 1).dword(11, 4).in_capsule(16),
            16,
            SGL_LENGTH,
        ),
    ] {
        println!("{what}");
        let id = queue.submit(&entry, &new[..capsule]);
        let reply = queue.collect(id, &[]);
        assert_eq!((reply.data.len(), reply.requests.len()), (0, 0), "{what}");
        reply.is(status);
        assert_eq!(read(&mut queue, 0, 16), old, "{what}");
    }
}

#[test]
fn ranges_beyond_the_end_are_refused() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let before = read(&mut queue, BLOCKS - 8, 8);
    let data = pattern(4096, 9);
    for lba in [BLOCKS - 7, BLOCKS, 1 << 32, 1 << 63, u64::MAX - 7, u64::MAX] {
        println!("{lba:#x}");
        queue.execute(&NvmeEntry::read(1, lba, 8), &[]).is(OUT_OF_RANGE);
        queue.execute(&NvmeEntry::write(1, lba, 8), &data).is(OUT_OF_RANGE);
        queue.execute(&in_capsule(lba, &data), &data).is(OUT_OF_RANGE);
        queue.execute(&NvmeEntry::blocks(5, 1, lba, 8).in_capsule(4096), &data).is(OUT_OF_RANGE);
        queue.execute(&NvmeEntry::blocks(8, 1, lba, 8), &[]).is(OUT_OF_RANGE);
        queue.execute(&NvmeEntry::blocks(0x0c, 1, lba, 8), &[]).is(OUT_OF_RANGE);
        let mut range = [0; 16];
        range[4] = 8;
        range[8..].copy_from_slice(&lba.to_le_bytes());
        queue.execute(&NvmeEntry::new(9, 1).dword(11, 4).in_capsule(16), &range).is(OUT_OF_RANGE);
    }
    assert_eq!(read(&mut queue, BLOCKS - 8, 8), before);
}

#[test]
fn unknown_namespaces_and_opcodes_are_refused() {
    let server = server();
    let (mut controller, mut queue) = queue(&server, "host");
    // As LUNs in the form of flat space addressing, 4001h and C002h are the numbers 1 and 2.
    for namespace in [0, 3, 1025, 0x4001, 0xc002, 0x1_0001, u32::MAX] {
        for entry in [
            NvmeEntry::read(namespace, 0, 1),
            NvmeEntry::write(namespace, 0, 1),
            NvmeEntry::new(0, namespace),
            NvmeEntry::blocks(8, namespace, 0, 1),
            NvmeEntry::new(0x0e, namespace).dword(10, 15).dword(11, 1).on_host(64),
        ] {
            println!("{namespace:#x} {:#x}", entry.0[0]);
            queue.execute(&entry, &[]).is(INVALID_NAMESPACE);
        }
    }
    for opcode in [0x04, 0x10, 0x55, 0x7e, 0x80, 0xff] {
        queue.execute(&NvmeEntry::new(opcode, 1), &[]).is(INVALID_OPCODE);
    }
    queue.execute(&NvmeEntry::new(0x7f, 4), &[]).is(INVALID_FIELD);
    let empty = controller.admin.execute(&NvmeEntry::identify(0, 3), &[]).good();
    assert!(empty == [0; 4096], "an inactive namespace is all zeros");
    controller.admin.execute(&NvmeEntry::identify(0, u32::MAX), &[]).is(INVALID_NAMESPACE);
    controller.admin.execute(&NvmeEntry::identify(0x77, 0), &[]).is(INVALID_FIELD);
    controller.admin.execute(&NvmeEntry::identify(1, 0).on_host(4092), &[]).is(SGL_LENGTH);
    controller.admin.execute(&NvmeEntry::log(0x7f, 512), &[]).is(DNR | 0x109);
}

#[test]
fn compare_zeroes_and_ranges_do_their_work() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let data = pattern(8192, 9);
    write(&mut queue, 0, &data);
    let compare = |blocks: u16| NvmeEntry::blocks(5, 1, 0, blocks).on_host(u32::from(blocks) * 512);
    queue.execute(&compare(16), &data).is(0);
    queue.execute(&compare(16), &pattern(8192, 8)).is(COMPARE_FAILURE);
    queue.execute(&NvmeEntry::blocks(8, 1, 2, 3), &[]).is(0);
    let mut ranges = vec![0; 4096];
    for (range, (lba, blocks)) in ranges.chunks_exact_mut(16).zip([(8u64, 2u32), (12, 1)]) {
        range[4..8].copy_from_slice(&blocks.to_le_bytes());
        range[8..].copy_from_slice(&lba.to_le_bytes());
    }
    // As Linux sends it: 256 entries for 2 ranges.
    queue.execute(&NvmeEntry::new(9, 1).dword(10, 1).dword(11, 4).in_capsule(4096), &ranges).is(0);
    let mut expected = data;
    for blocks in [2..5, 8..10, 12..13] {
        expected[blocks.start * 512..blocks.end * 512].fill(0);
    }
    assert_eq!(read(&mut queue, 0, 16), expected);
    queue.execute(&NvmeEntry::new(0, 1), &[]).is(0);
}

/// Commands of namespace 2, which takes 0.5 s for each.
fn slow_read() -> NvmeEntry {
    NvmeEntry::read(2, 0, 1)
}

#[test]
fn identifier_in_use_ends_the_queue() {
    let server = server();
    let (_controller, mut queue) = queue(&server, "host");
    let bytes = queue.encode(&NvmeFrame::command(&slow_read().id(5), &[]));
    queue.send_bytes(&bytes);
    queue.send_bytes(&bytes);
    queue.expect_term((2, 0), &bytes);
}

#[test]
fn more_commands_than_the_queue_has_end_it() {
    let server = server();
    let (controller, _queue) = queue(&server, "host");
    let (mut queue, connected) = controller.try_queue(2, 3);
    connected.is(0);
    let ids: Vec<u16> = (0..3).map(|_| queue.submit(&slow_read(), &[])).collect();
    ids.into_iter().for_each(|id| queue.collect(id, &[]).is(0));
    let mut bytes = Vec::new();
    for id in 0..8 {
        bytes = queue.encode(&NvmeFrame::command(&slow_read().id(100 + id), &[]));
        queue.send_bytes(&bytes);
    }
    let term = std::iter::repeat_with(|| queue.recv()).find(|frame| frame.kind() != pdu::RESPONSE);
    let term = term.expect("it ends");
    assert_eq!((term.kind(), term.get16(8)), (pdu::TERM, 2));
    assert_eq!((term.data.len(), &term.data[..10]), (72, &bytes[..10]));
    queue.expect_close(patience());
}

/// As many identifiers as the largest queue has, in flight at once.
#[test]
fn largest_queue_takes_as_many_commands() {
    let server = server();
    let (controller, _queue) = queue(&server, "host");
    let (mut queue, connected): (NvmeWire, _) = controller.try_queue(2, 1023);
    connected.is(0);
    let ids: Vec<u16> = (0..1023).map(|_| queue.submit(&NvmeEntry::read(1, 0, 1), &[])).collect();
    ids.into_iter().for_each(|id| assert_eq!(queue.collect(id, &[]).good().len(), 512));
}
