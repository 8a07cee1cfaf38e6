//! A controller that violates the protocol: each violation ends the connection, with the right fatal error status.

use super::*;
use crate::ErrorCode;

const FIELD: u16 = 1;
const SEQUENCE: u16 = 2;
const HEADER_DIGEST: u16 = 3;
const OUT_OF_RANGE: u16 = 4;
const LIMIT: u16 = 5;

/// A queue with a read of 1000 bytes (identifier 0), a write in a capsule (1), and a write of 10,000 bytes (2).
fn busy() -> Pair {
    let mut pair = Pair::new(8);
    pair.read(1000);
    pair.write(&[1; 512]);
    pair.write(&[2; 10_000]);
    pair.sent();
    pair
}

#[test]
fn invalid_data_from_the_controller_end_the_connection() {
    let data = [0; 1001];
    for (name, bytes, violation) in [
        ("unknown identifier", c2h_data(3, 0, &data[..4], 4), (FIELD, 8)),
        ("identifier beyond the queue", c2h_data(0xffff, 0, &data[..4], 4), (FIELD, 8)),
        ("data of a write", c2h_data(1, 0, &data[..4], 4), (FIELD, 8)),
        ("more data than asked for", c2h_data(0, 0, &data, 4), (OUT_OF_RANGE, 0)),
        ("data with a gap", c2h_data(0, 4, &data[..4], 0), (OUT_OF_RANGE, 0)),
        ("an offset near 4 GiB", c2h_data(0, u32::MAX, &data[..4], 0), (OUT_OF_RANGE, 0)),
        ("no data", header(7, 4, 0, 24, (0, 0, 0, 0)), (FIELD, 16)),
        ("another length", [header(7, 4, 24, 28, (0, 0, 0, 5)), vec![0; 4]].concat(), (FIELD, 16)),
        ("success without the last data", c2h_data(0, 0, &data[..1000], 8), (FIELD, 1)),
        ("success with a part of the data", c2h_data(0, 0, &data[..4], 12), (FIELD, 1)),
        ("a digest that was not agreed on", c2h_data(0, 0, &data[..4], 1), (FIELD, 1)),
        (
            "data again",
            [c2h_data(0, 0, &data[..4], 0), c2h_data(0, 0, &data[..4], 0)].concat(),
            (OUT_OF_RANGE, 0),
        ),
        (
            "data behind the last",
            [c2h_data(0, 0, &data[..4], 4), c2h_data(0, 4, &data[..4], 4)].concat(),
            (SEQUENCE, 0),
        ),
    ] {
        assert_eq!(busy().violation(&bytes), violation, "{name}");
    }
}

#[test]
fn large_invalid_data_do_not_land_in_the_buffer() {
    let mut pair = Pair::new(4);
    let key = pair.read(100_000);
    let bytes = c2h_data(0, 50_000, &[7; 60_000], 4);
    let status = bytes.chunks(10_000).find_map(|chunk| pair.feed(chunk).err()).expect("a violation");
    assert!(matches!(status, NvmeReceiveError::Pdu { error, .. } if error.status == OUT_OF_RANGE));
    assert!(pair.poll(key).is_pending());
}

#[test]
fn invalid_requests_for_data_end_the_connection() {
    for (name, bytes, violation) in [
        ("unknown identifier", r2t(3, 1, 0, 4), (FIELD, 8)),
        ("request to a read", r2t(0, 1, 0, 4), (FIELD, 8)),
        ("request for data in a capsule", r2t(1, 1, 0, 4), (FIELD, 8)),
        ("no data", r2t(2, 1, 0, 0), (FIELD, 16)),
        ("beyond the command", r2t(2, 1, 0, 10_001), (OUT_OF_RANGE, 0)),
        ("a gap", r2t(2, 1, 1, 10), (OUT_OF_RANGE, 0)),
        ("an overflow", r2t(2, 1, u32::MAX, u32::MAX), (OUT_OF_RANGE, 0)),
        ("two at a time", [r2t(2, 1, 0, 100), r2t(2, 2, 100, 100)].concat(), (LIMIT, 0)),
    ] {
        assert_eq!(busy().violation(&bytes), violation, "{name}");
    }
    let mut pair = busy();
    pair.take(&r2t(2, 1, 0, 100));
    pair.sent();
    assert_eq!(pair.violation(&r2t(2, 1, 0, 100)), (OUT_OF_RANGE, 0), "data that were sent");
}

#[test]
fn success_before_the_command_has_left_is_a_violation() {
    let mut pair = Pair::new(4);
    pair.write(&[1; 512]);
    assert_eq!(pair.violation(&response(0, 0, 0)), (SEQUENCE, 0), "data in the capsule");
    let mut pair = Pair::new(4);
    pair.write(&[1; 10_000]);
    pair.sent();
    pair.take(&r2t(0, 1, 0, 10_000));
    assert_eq!(pair.violation(&response(0, 0, 0)), (SEQUENCE, 0), "data that were asked for");
}

#[test]
fn invalid_completions_end_the_connection() {
    for (name, bytes, violation) in [
        ("unknown identifier", response(3, 0, 0), (FIELD, 20)),
        ("a read without its data", response(0, 0, 0), (SEQUENCE, 0)),
        ("a write whose data were not fetched", response(2, 0, 0), (SEQUENCE, 0)),
        ("twice", [response(1, 0, 0), response(1, 0, 0)].concat(), (FIELD, 20)),
        ("ICResp", [vec![1, 0, 128, 0, 128, 0, 0, 0], vec![0; 120]].concat(), (SEQUENCE, 0)),
        ("a PDU of a host", vec![4, 0, 72, 0, 72, 0, 0, 0], (FIELD, 0)),
        ("an unknown PDU", vec![0x0b, 0, 24, 0, 24, 0, 0, 0], (FIELD, 0)),
        ("another header length", vec![5, 0, 25, 0, 25, 0, 0, 0], (FIELD, 2)),
        ("another length", vec![5, 0, 24, 0, 25, 0, 0, 0], (FIELD, 4)),
    ] {
        assert_eq!(busy().violation(&bytes), violation, "{name}");
    }
}

#[test]
fn header_digest_mismatch_ends_the_connection() {
    let mut pair = Pair::with(4, Digests { header: true, data: false });
    pair.read(4);
    let mut bytes = response(0, 0, 0);
    (bytes[1], bytes[4]) = (1, 28);
    bytes.extend([0; 4]);
    assert_eq!(pair.violation(&bytes), (HEADER_DIGEST, 0));
}

#[test]
fn end_by_the_controller_has_its_reason() {
    let mut pair = busy();
    let mut bytes = vec![3, 0, 24, 0, 26, 0, 0, 0, 1, 0, 9, 0, 0, 0];
    bytes.extend([0; 10]);
    bytes.extend([6, 4]);
    assert_eq!(pair.feed(&bytes).expect("no violation"), ReceiveStatus::End);
    let fault = pair.state.take_fault().expect("a reason");
    assert_eq!(fault.code, ErrorCode::ProtocolError);
    assert!(fault.what.ends_with("invalid PDU header field at byte 9"), "{fault}");
}

#[test]
fn violation_is_reported_behind_what_has_begun_to_leave() {
    let mut pair = busy();
    pair.write(&[3; 512]);
    let error = lunar_wire::nvme::NvmePduError::field(8);
    pair.state.out.terminate(error, &[7, 0, 24]);
    let mut expected = vec![2, 0, 24, 0, 27, 0, 0, 0, 1, 0, 8, 0, 0, 0];
    expected.extend([0; 10]);
    expected.extend([7, 0, 24]);
    assert_eq!(pair.sent(), expected, "the write that had not begun to leave is dropped");
}
