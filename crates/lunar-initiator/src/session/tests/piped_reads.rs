//! Reads whose owner sends the data on from a pipe.

use super::*;
use lunar_proto::parameters::Parameters;
use lunar_runtime::PipedBytes;

const LEN: usize = 200_000;
/// Bytes of a Data-In.
const SEGMENT: usize = 40_000;

fn piped_read(peer: &mut Peer) -> u32 {
    let tag = peer.read(LEN);
    peer.state.permit_pipe(tag);
    peer.sent();
    tag
}

fn data(seed: usize) -> Vec<u8> {
    (0..LEN).map(|i| (i / 4096 + i + seed) as u8 | 1).collect()
}

/// The Data-In of a read in segments of this length, without the status.
fn data_ins(tag: u32, data: &[u8], segment: usize) -> Vec<u8> {
    let one = |(n, part): (usize, &[u8])| {
        let mut header = Bhs::new(opcode::DATA_IN);
        header.set_itt(tag);
        header.set_data_sn(n as u32);
        header.set_buffer_offset((n * segment) as u32);
        pdu::stamp(&mut header, 0, 2, 32);
        encode(Digests::default(), header, &[], part)
    };
    data.chunks(segment).enumerate().flat_map(one).collect()
}

fn bytes(piped: &PipedBytes) -> Vec<u8> {
    let mut bytes = vec![0; piped.len()];
    piped.move_to(&mut bytes).expect("bytes of a pipe");
    bytes
}

#[test]
fn data_in_stay_in_the_pipe_of_their_read() {
    let mut peer = Peer::new(parameters());
    let tag = piped_read(&mut peer);
    data_ins(tag, &data(0), SEGMENT).chunks(100).for_each(|chunk| peer.bytes(chunk));
    assert!(peer.state.take_pipe(tag).is_none(), "the read has not ended");
    peer.respond(tag, 0, 0, 0, &[]);
    let piped = peer.state.take_pipe(tag).expect("a pipe");
    assert!(bytes(&piped) == data(0));
    let (done, buf) = peer.done(tag);
    assert_eq!((done.transferred, buf.expect("the buffer").len()), (LEN, LEN));
}

#[test]
fn data_in_that_cannot_be_piped_move_all_to_the_buffer() {
    let data = data(0);
    // Whole PDUs, small segments, and segments that start in a long receive.
    for (segment, step) in [(SEGMENT, 1 << 20), (10_000, 100), (65_000, 100), (SEGMENT, 30_000)] {
        let mut peer = Peer::new(parameters());
        let tag = piped_read(&mut peer);
        let sent = data_ins(tag, &data, segment);
        let cut = if segment == SEGMENT && step > 100 { 60_000 } else { 0 };
        // The first one fits, if it is delivered in small receives.
        sent[..cut].chunks(100).for_each(|chunk| peer.bytes(chunk));
        sent[cut..].chunks(step).for_each(|chunk| peer.bytes(chunk));
        peer.respond(tag, 0, 0, 0, &[]);
        assert!(peer.state.take_pipe(tag).is_none(), "segments of {segment}, steps of {step}");
        let (done, buf) = peer.done(tag);
        assert_eq!(done.transferred, LEN);
        assert!(buf.expect("the buffer")[..] == data, "segments of {segment}, steps of {step}");
    }
}

#[test]
fn read_that_is_sent_again_uses_its_buffer() {
    for arrived in [100, 30_000, 40_100, 130_000, 200_240] {
        let mut peer = Peer::new(parameters());
        let tag = piped_read(&mut peer);
        data_ins(tag, &data(0), SEGMENT)[..arrived].chunks(100).for_each(|chunk| peer.bytes(chunk));
        peer.state.disconnect(&Error::new(ErrorCode::ConnectionLost, "cut"));
        assert!(peer.state.take_pipe(tag).is_none());
        peer.log_in(parameters());
        assert_eq!(peer.sent().len(), 1, "the command is sent again");
        data_ins(tag, &data(1), SEGMENT).chunks(100).for_each(|chunk| peer.bytes(chunk));
        peer.respond(tag, 0, 0, 0, &[]);
        assert!(peer.state.take_pipe(tag).is_none(), "{arrived} bytes before the loss");
        assert!(peer.done(tag).1.expect("the buffer")[..] == data(1), "{arrived} bytes before the loss");
    }
}

#[test]
fn short_or_aborted_read_has_no_pipe() {
    let mut peer = Peer::new(parameters());
    let tag = piped_read(&mut peer);
    let short = 2 * SEGMENT;
    data_ins(tag, &data(0)[..short], SEGMENT).chunks(100).for_each(|chunk| peer.bytes(chunk));
    peer.respond(tag, 0x02, 0, (LEN - short) as u32, &[]);
    assert!(peer.state.take_pipe(tag).is_none());
    assert_eq!(peer.done(tag).0.transferred, short);
    let tag = piped_read(&mut peer);
    data_ins(tag, &data(0), SEGMENT)[..100_000].chunks(100).for_each(|chunk| peer.bytes(chunk));
    peer.state.abort(tag, &Error::new(ErrorCode::Aborted, "aborted"));
    peer.state.ended_by_abort([tag], "aborted");
    assert!(peer.state.take_pipe(tag).is_none());
    assert!(matches!(peer.end(tag), Some((Err(_), Some(_)))));
}

#[test]
fn read_in_any_order_has_no_pipe() {
    let mut peer = Peer::new(Parameters { data_pdu_in_order: false, ..parameters() });
    let tag = piped_read(&mut peer);
    data_ins(tag, &data(0), SEGMENT).chunks(100).for_each(|chunk| peer.bytes(chunk));
    peer.respond(tag, 0, 0, 0, &[]);
    assert!(peer.state.take_pipe(tag).is_none() && peer.done(tag).1.expect("the buffer")[..] == data(0));
}
