//! The provider as a whole: two connected engines, protocol errors, and connections over TCP.

mod exchange;
mod faults;
mod sockets;

use super::*;
use crate::{EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use lunar_wire::iwarp::ddp::{opcode, queue};
use lunar_wire::iwarp::{DdpHeader, ReadRequest, TaggedHeader, Terminate, UntaggedHeader, mpa};

const TERMS: ConnParam = ConnParam { ord: 4, ird: 4, receives: (8, 256) };

/// An engine with the parameters of these tests.
fn engine(crc: bool, mss: Option<usize>, first: Option<FirstFrame>) -> Engine {
    let ConnParam { ord, ird, receives } = TERMS;
    Engine::new(&NegotiatedMpa { crc, ord, ird, receives, first }, mss, vec![])
}

/// The initiator and the responder.
fn pair(crc: bool, mss: Option<usize>) -> [Engine; 2] {
    [engine(crc, mss, None), engine(crc, mss, Some(FirstFrame::Any))]
}

/// Moves queued bytes in both directions, in pieces of this length, until both queues are empty.
fn exchange_by(ends: &mut [Engine; 2], into: &mut [EndpointEvents; 2], piece: usize) {
    let mut is_idle = false;
    while !std::mem::replace(&mut is_idle, true) {
        for from in [0, 1] {
            let bytes = ends[from].take_bytes();
            is_idle &= bytes.is_empty();
            bytes.chunks(piece).for_each(|piece| ends[1 - from].feed(piece, &mut into[1 - from]));
        }
    }
    ends.iter_mut().zip(into).for_each(|(end, into)| end.take_news(into));
}

fn exchange(ends: &mut [Engine; 2]) -> [EndpointEvents; 2] {
    let mut into = [EndpointEvents::default(), EndpointEvents::default()];
    exchange_by(ends, &mut into, usize::MAX);
    into
}

/// An FPDU without a CRC.
fn fpdu(header: DdpHeader, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![];
    header.put(payload.len(), &mut bytes);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len() + mpa::padding(bytes.len()) + mpa::CRC_LEN, 0);
    bytes
}

fn write(to: RemoteAddress, payload: &[u8]) -> Vec<u8> {
    tagged(opcode::WRITE, true, to, payload)
}

fn tagged(opcode: u8, last: bool, to: RemoteAddress, payload: &[u8]) -> Vec<u8> {
    fpdu(DdpHeader::Tagged(TaggedHeader { opcode, last, stag: to.stag, offset: to.offset }), payload)
}

const SEND: UntaggedHeader =
    UntaggedHeader { opcode: opcode::SEND, last: true, stag: 0, queue: queue::SEND, msn: 1, offset: 0 };

fn send(header: UntaggedHeader, payload: &[u8]) -> Vec<u8> {
    fpdu(DdpHeader::Untagged(header), payload)
}

/// A Read Request with this sequence number.
fn asking(msn: u32, from: RemoteAddress, len: u32) -> Vec<u8> {
    let request = ReadRequest { sink: (9, 0), len, source: (from.stag, from.offset) };
    let header = UntaggedHeader { opcode: opcode::READ_REQUEST, queue: queue::READ, msn, ..SEND };
    fpdu(DdpHeader::Untagged(header), &request.encode())
}

/// Deterministic pseudo-random bytes.
fn noise(len: usize) -> Vec<u8> {
    let mut state = len as u64 | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn buf(bytes: &[u8]) -> Buf {
    Buf::copy_of(bytes)
}

/// The received messages, with the steering tags that they invalidated.
fn messages(events: &EndpointEvents) -> Vec<(&[u8], Option<u32>)> {
    let message = |event: &EndpointEvent| match event {
        EndpointEvent::Message(range, tag) => Some((range.clone(), *tag)),
        _ => None,
    };
    events.list.iter().filter_map(message).map(|(range, tag)| (&events.bytes[range], tag)).collect()
}

/// The end of the connection, if it is among the events: its reason, or None for a graceful end.
fn end(events: &EndpointEvents) -> Option<Option<String>> {
    match events.list.last() {
        Some(EndpointEvent::End(why)) => Some(why.as_ref().map(ToString::to_string)),
        _ => None,
    }
}

/// The buffer of revoked memory that was exposed for writing.
fn sunk(memory: Option<MemoryRegion>) -> Buf {
    match memory {
        Some(MemoryRegion::Sink(buf)) => buf,
        other => panic!("{other:?}"),
    }
}
