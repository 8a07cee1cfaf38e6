//! Reads whose owner takes the data in parts.

use super::*;
use lunar_proto::parameters::Parameters;

const LEN: usize = 600_000;
/// Bytes of a Data-In.
const SEGMENT: usize = 40_000;

/// A read whose owner takes parts.
fn long_read(peer: &mut Peer) -> u32 {
    let tag = peer.read(LEN);
    peer.state.make_parts(tag);
    peer.sent();
    tag
}

/// The bytes of the parts that the owner can take.
fn taken(peer: &mut Peer, tag: u32) -> Vec<u8> {
    std::iter::from_fn(|| peer.state.take_part(tag)).flat_map(|part| part.to_vec()).collect()
}

fn data(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i / 4096 + i + seed) as u8).collect()
}

/// The Data-In of a read, without the status.
fn data_ins(tag: u32, data: &[u8]) -> Vec<u8> {
    let one = |(n, part): (usize, &[u8])| {
        let mut header = Bhs::new(opcode::DATA_IN);
        header.set_itt(tag);
        header.set_data_sn(n as u32);
        header.set_buffer_offset((n * SEGMENT) as u32);
        pdu::stamp(&mut header, 0, 2, 32);
        encode(Digests::default(), header, &[], part)
    };
    data.chunks(SEGMENT).enumerate().flat_map(one).collect()
}

#[test]
fn owner_takes_parts_of_a_read_before_it_ends() {
    let data = data(0);
    for step in [1000, 30_000, 1 << 20] {
        let mut peer = Peer::new(parameters());
        let tag = long_read(&mut peer);
        let (mut arrived, mut parts, mut got) = (0, 0, Vec::new());
        for chunk in data_ins(tag, &data).chunks(step) {
            arrived += chunk.len();
            peer.bytes(chunk);
            let part = taken(&mut peer, tag);
            parts += usize::from(!part.is_empty());
            got.extend(part);
            assert!(got.len() < arrived, "steps of {step}");
            let is_late = arrived > (128 << 10) && got.is_empty();
            assert!(!is_late, "steps of {step}: {arrived} bytes have arrived");
        }
        assert!(parts > 1 || step > LEN, "{parts} parts, steps of {step}");
        peer.respond(tag, 0, 0, 0, &[]);
        let (done, rest) = peer.done(tag);
        let rest = rest.expect("the rest");
        assert_eq!((done.transferred, got.len() + rest.len()), (LEN, LEN));
        assert!(!rest.is_empty() && [&got, &rest[..]].concat() == data, "steps of {step}");
    }
}

#[test]
fn first_part_leaves_in_the_middle_of_a_data_in() {
    let mut peer = Peer::new(parameters());
    let tag = long_read(&mut peer);
    let bytes = data_ins(tag, &data(0));
    peer.bytes(&bytes[..30_000]);
    assert!(taken(&mut peer, tag).is_empty() && !peer.state.has_first_part);
    peer.bytes(&bytes[30_000..38_000]);
    assert!(std::mem::take(&mut peer.state.has_first_part), "the session yields once");
    assert!((32 << 10..38_000).contains(&taken(&mut peer, tag).len()));
    peer.bytes(&bytes[38_000..]);
    assert!(!taken(&mut peer, tag).is_empty() && !peer.state.has_first_part);
}

/// The owner has passed the first bytes on: they are not received again, and the rest follows them.
#[test]
fn repeated_read_continues_after_the_parts_taken() {
    let (first, second) = (data(0), data(1));
    for arrived in [38_000, 70_000, 130_000, 475_001, 600_600] {
        let mut peer = Peer::new(parameters());
        let tag = long_read(&mut peer);
        peer.bytes(&data_ins(tag, &first)[..arrived]);
        let before = taken(&mut peer, tag);
        assert!(!before.is_empty() && first.starts_with(&before));
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        peer.log_in(parameters());
        assert_eq!(peer.sent().len(), 1, "the command is sent again");
        peer.bytes(&data_ins(tag, &second));
        let after = taken(&mut peer, tag);
        peer.respond(tag, 0, 0, 0, &[]);
        let rest = peer.done(tag).1.expect("the rest");
        let all = [&before, &after, &rest[..]].concat();
        assert!(all == [&before[..], &second[before.len()..]].concat(), "{arrived} bytes before the loss");
    }
}

#[test]
fn short_read_has_parts_and_a_rest() {
    let (mut peer, data) = (Peer::new(parameters()), data(0));
    let tag = long_read(&mut peer);
    let short = 2 * SEGMENT;
    peer.bytes(&data_ins(tag, &data[..short]));
    peer.respond(tag, 0x02, 2, (LEN - short) as u32, &Sense::CAPACITY_CHANGED.encode(false));
    let part = taken(&mut peer, tag);
    let (done, rest) = peer.done(tag);
    assert_eq!((done.status, done.transferred), (2, short));
    assert!(
        part.len() < short
            && [&part, &rest.expect("the rest")[..short - part.len()]].concat() == data[..short]
    );
}

#[test]
fn data_in_any_order_come_with_the_end() {
    let unordered = Parameters { data_pdu_in_order: false, ..parameters() };
    let (mut peer, data) = (Peer::new(unordered), data(0));
    let tag = long_read(&mut peer);
    data_ins(tag, &data).chunks(1000).for_each(|chunk| peer.bytes(chunk));
    assert!(taken(&mut peer, tag).is_empty());
    peer.respond(tag, 0, 0, 0, &[]);
    assert!(peer.done(tag).1.expect("the buffer")[..] == data);
}

#[test]
fn read_of_256_kib_has_no_parts() {
    let mut peer = Peer::new(parameters());
    let tag = peer.read(256 << 10);
    peer.state.make_parts(tag);
    peer.bytes(&data_ins(tag, &data(0)[..256 << 10]));
    assert!(taken(&mut peer, tag).is_empty());
}

#[test]
fn read_beside_another_command_has_no_parts() {
    for is_first in [false, true] {
        let mut peer = Peer::new(parameters());
        let before = (!is_first).then(|| peer.read(512));
        let tag = long_read(&mut peer);
        let other = before.unwrap_or_else(|| peer.read(512));
        let (bytes, some) = (data_ins(tag, &data(0)), 7 * (BHS_LEN + SEGMENT));
        peer.bytes(&bytes[..some]);
        assert!(taken(&mut peer, tag).is_empty());
        peer.respond(other, 0x02, 0, 512, &[]);
        peer.bytes(&bytes[some..]);
        assert_eq!(taken(&mut peer, tag).is_empty(), !is_first, "the other command has ended");
    }
}
