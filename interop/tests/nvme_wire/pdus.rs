//! Initialization, and faults of the headers of PDUs.

use super::{NQN, portal, queue_with, server};
use interop::nvme::{NvmeEntry, NvmeFrame, NvmeHostName, NvmeWire, RawController, connect_data, pdu};
use interop::raw::patience;

/// FES.
const INVALID_FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const LIMIT: u16 = 5;
const UNSUPPORTED: u16 = 6;

/// A fault: its name, the PDU, bytes that are changed in it after its encoding, and FES with FEI.
type Fault = (&'static str, NvmeFrame, &'static [(usize, u8)], (u16, u32));

fn bytes_of(wire: &NvmeWire, (_, frame, changes, _): &Fault) -> Vec<u8> {
    let mut bytes = wire.encode(frame);
    changes.iter().for_each(|(at, value)| bytes[*at] = *value);
    bytes
}

#[test]
fn initialization_is_answered_with_limits() {
    let server = server();
    for digests in 0..4 {
        let mut wire = NvmeWire::open(portal(&server));
        wire.send(&NvmeFrame::ic_request(digests).set32(12, 15));
        let response = wire.recv();
        assert_eq!(response.head[..8], [1, 0, 128, 0, 128, 0, 0, 0]);
        assert_eq!((response.get16(8), response.head[10], response.head[11]), (0, 0, digests));
        let max = response.get32(12);
        assert!(max >= 4096 && max.is_multiple_of(4), "MAXH2CDATA {max}");
        assert!(response.head[16..].iter().all(|byte| *byte == 0), "reserved bytes: {response:x?}");
        wire.expect_silence();
    }
}

#[test]
fn faulty_initialization_ends_with_its_reason() {
    let server = server();
    let request = || NvmeFrame::ic_request(0);
    let capsule = NvmeFrame::command(&NvmeEntry::identify(1, 0), &[]);
    let faults: [Fault; 13] = [
        ("HLEN", request(), &[(2, 127)], (INVALID_FIELD, 2)),
        ("PLEN too short", request(), &[(4, 127)], (INVALID_FIELD, 4)),
        ("PLEN too long", request(), &[(4, 132)], (INVALID_FIELD, 4)),
        ("HDGSTF", request(), &[(1, pdu::HEADER_DIGEST)], (INVALID_FIELD, 1)),
        ("PFV", request(), &[(8, 1)], (INVALID_FIELD, 8)),
        ("HPDA reserved", request(), &[(10, 32)], (INVALID_FIELD, 10)),
        ("HPDA 1", request(), &[(10, 1)], (UNSUPPORTED, 10)),
        ("HPDA 31", request(), &[(10, 31)], (UNSUPPORTED, 10)),
        ("a capsule", capsule, &[], (SEQUENCE, 0)),
        ("data", NvmeFrame::host_data(pdu::LAST, 1, 1, 0, b"data"), &[], (SEQUENCE, 0)),
        ("ICResp", NvmeFrame::new(pdu::IC_RESPONSE), &[], (SEQUENCE, 0)),
        ("R2T", NvmeFrame::new(pdu::R2T), &[], (SEQUENCE, 0)),
        ("an unknown type", request(), &[(0, 0x55)], (SEQUENCE, 0)),
    ];
    for fault in &faults {
        println!("{}", fault.0);
        let mut wire = NvmeWire::open(portal(&server));
        let bytes = bytes_of(&wire, fault);
        wire.send_bytes(&bytes);
        wire.expect_term(fault.3, &bytes);
    }
}

/// Faults of a connection that is initialized.
fn faults() -> Vec<Fault> {
    let capsule =
        |data: &[u8]| NvmeFrame::command(&NvmeEntry::new(0x7f, 4).in_capsule(data.len() as u32).id(7), data);
    let data = || NvmeFrame::host_data(pdu::LAST, 7, 7, 0, &[1; 512]);
    let term = NvmeFrame { data: vec![0; 129], ..NvmeFrame::new(pdu::HOST_TERM) };
    vec![
        ("an unknown type", capsule(&[]), &[(0, 0x55)], (INVALID_FIELD, 0)),
        ("type 8", capsule(&[]), &[(0, 8)], (INVALID_FIELD, 0)),
        ("ICResp", NvmeFrame::new(pdu::IC_RESPONSE), &[], (INVALID_FIELD, 0)),
        ("C2HTermReq", NvmeFrame::new(pdu::TERM), &[], (INVALID_FIELD, 0)),
        ("a completion", NvmeFrame::new(pdu::RESPONSE), &[], (INVALID_FIELD, 0)),
        ("C2HData", NvmeFrame::new(pdu::DATA), &[], (INVALID_FIELD, 0)),
        ("R2T", NvmeFrame::new(pdu::R2T), &[], (INVALID_FIELD, 0)),
        ("ICReq again", NvmeFrame::ic_request(0), &[], (SEQUENCE, 0)),
        ("HLEN of a capsule", capsule(&[]), &[(2, 71)], (INVALID_FIELD, 2)),
        ("HLEN 0", capsule(&[]), &[(2, 0)], (INVALID_FIELD, 2)),
        ("HLEN of data", data(), &[(2, 72)], (INVALID_FIELD, 2)),
        ("PLEN 0", capsule(&[]), &[(4, 0)], (INVALID_FIELD, 4)),
        ("PLEN below HLEN", capsule(&[]), &[(4, 71)], (INVALID_FIELD, 4)),
        ("PLEN of 4 GiB", capsule(&[]), &[(4, 255), (5, 255), (6, 255), (7, 255)], (INVALID_FIELD, 4)),
        ("PLEN of data", data(), &[(7, 1)], (INVALID_FIELD, 4)),
        ("PDO in the header", capsule(&[1; 512]), &[(3, 68)], (INVALID_FIELD, 3)),
        ("PDO 0", capsule(&[1; 512]), &[(3, 0)], (INVALID_FIELD, 3)),
        ("PDO without alignment", capsule(&[1; 512]), &[(3, 82)], (INVALID_FIELD, 3)),
        ("PDO behind the end", capsule(&[1; 8]), &[(3, 200)], (INVALID_FIELD, 3)),
        ("too much in a capsule", capsule(&[1; 8196]), &[], (LIMIT, 0)),
        ("data without a request", data(), &[], (SEQUENCE, 0)),
        ("a long H2CTermReq", term, &[], (INVALID_FIELD, 4)),
    ]
}

/// Connections before Connect, of an admin queue, and of an I/O queue. The controller keeps the last one.
fn stages(address: std::net::SocketAddr, digests: u8) -> Vec<(NvmeWire, Option<RawController>)> {
    let host = NvmeHostName::new("faults");
    let fresh = NvmeWire::begin(address, digests);
    let mut admin = NvmeWire::begin(address, digests);
    admin.execute(&NvmeEntry::connect(0, 31, 0), &connect_data(&host, 0xffff, NQN)).good();
    let other = NvmeHostName::new("other");
    let controller = RawController::enabled(address, &other, NQN, digests);
    let queue = controller.queue(1);
    vec![(fresh, None), (admin, None), (queue, Some(controller))]
}

#[test]
fn faulty_header_ends_the_connection_at_each_stage() {
    let server = server();
    for fault in faults() {
        for (stage, (mut wire, _controller)) in stages(portal(&server), 0).into_iter().enumerate() {
            println!("{} at stage {stage}", fault.0);
            let bytes = bytes_of(&wire, &fault);
            wire.send_bytes(&bytes);
            wire.expect_term(fault.3, &bytes);
        }
    }
}

#[test]
fn flag_of_a_digest_must_be_as_agreed() {
    let server = server();
    let capsule = NvmeFrame::command(&NvmeEntry::new(0x7f, 4).in_capsule(512).id(7), &[1; 512]);
    let without = NvmeFrame::command(&NvmeEntry::new(0x7f, 4).id(7), &[]);
    for (digests, frame, flags) in [
        (0, &capsule, pdu::HEADER_DIGEST),
        (0, &capsule, pdu::DATA_DIGEST),
        (3, &capsule, 0),
        (3, &capsule, pdu::HEADER_DIGEST),
        (3, &capsule, pdu::DATA_DIGEST),
        (3, &without, 0),
        (3, &without, pdu::HEADER_DIGEST | pdu::DATA_DIGEST),
    ] {
        for (mut wire, _controller) in stages(portal(&server), digests) {
            println!("{digests} agreed, {flags} sent");
            let mut bytes = wire.encode(frame);
            bytes[1] = flags;
            wire.send_bytes(&bytes);
            wire.expect_term((INVALID_FIELD, 1), &bytes);
        }
    }
}

#[test]
fn bad_header_digest_ends_the_connection() {
    let server = server();
    for digests in [1, 3] {
        for (mut wire, _controller) in stages(portal(&server), digests) {
            let mut bytes = wire.encode(&NvmeFrame::command(&NvmeEntry::new(0x7f, 4).id(7), &[]));
            bytes[72] ^= 1;
            wire.send_bytes(&bytes);
            let term = wire.recv();
            assert_eq!((term.kind(), term.get16(8)), (pdu::TERM, HEADER_DIGEST));
            assert!(!term.data.is_empty() && bytes.starts_with(&term.data));
            wire.expect_close(patience());
        }
    }
}

/// The other queues of a controller end only with the admin queue.
#[test]
fn fault_on_one_queue_leaves_the_others() {
    let server = server();
    let (controller, mut first) = queue_with(&server, "faults", 0);
    let mut second = controller.queue(2);
    first.send_bytes(&[0x55, 0, 24, 0, 24, 0, 0, 0]);
    assert_eq!(first.recv().kind(), pdu::TERM);
    first.expect_close(patience());
    super::read(&mut second, 0, 1);
    drop(first);
    let mut first = controller.queue_again(1);
    super::read(&mut first, 0, 1);
    let RawController { mut admin, .. } = controller;
    admin.send_bytes(&[0x55, 0, 24, 0, 24, 0, 0, 0]);
    assert_eq!(admin.recv().kind(), pdu::TERM);
    first.expect_close(patience());
    second.expect_close(patience());
}

#[test]
fn termination_by_the_host_closes_the_connection() {
    let server = server();
    for (mut wire, _controller) in stages(portal(&server), 3).into_iter().skip(1) {
        wire.send(&NvmeFrame { data: vec![4; 24], ..NvmeFrame::new(pdu::HOST_TERM).byte(8, 2) });
        wire.expect_close(patience());
    }
}

/// Every byte of a connection in a segment of its own.
#[test]
fn slow_bytes_make_the_same_queue() {
    let server = server();
    let mut wire = NvmeWire::open(portal(&server));
    let data = connect_data(&NvmeHostName::new("slow"), 0xffff, NQN);
    let request = NvmeFrame::ic_request(3).encode(false, false);
    let connect = NvmeFrame::command(&NvmeEntry::connect(0, 31, 0).id(1), &data).encode(true, true);
    request.iter().for_each(|byte| wire.send_bytes(&[*byte]));
    assert_eq!(wire.recv().kind(), pdu::IC_RESPONSE);
    (wire.header_digest, wire.data_digest) = (true, true);
    connect.iter().for_each(|byte| wire.send_bytes(&[*byte]));
    wire.collect(1, &[]).is(0);
}
