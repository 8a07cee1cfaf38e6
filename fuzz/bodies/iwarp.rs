//! An iWARP connection: what the other side sends. Input: the size of a receive as a byte, a byte of switches (1: with
//! CRCs, 2: this side was called), then frames of five bytes each: operation and flags, a choice of steering tag,
//! offset or number, length, content. A frame of 0xff takes the rest of the input as it is.

use lunar_rdma::iwarp::{Engine, FirstFrame, NegotiatedMpa};
use lunar_rdma::{EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::iscsi::digest::crc32c;
use lunar_runtime::send_queue::Payload;
use lunar_wire::iwarp::ddp::{opcode, queue};
use lunar_wire::iwarp::{DdpHeader, ReadRequest, TaggedHeader, UntaggedHeader, mpa};
use std::rc::Rc;

/// Bytes of each memory, and of the longest message.
const LEN: usize = 64;

/// An end with something of everything: memory, reads under way, a message that waits.
struct End {
    engine: Engine,
    sink: RemoteAddress,
    source: RemoteAddress,
    /// What the connection begins with.
    said: Vec<u8>,
}

fn end(switches: u8) -> End {
    let first = (switches & 2 != 0).then_some(FirstFrame::Send);
    let agreed = NegotiatedMpa { crc: switches & 1 != 0, ord: 2, ird: 2, receives: (4, LEN), first };
    let mut engine = Engine::new(&agreed, Some(148), vec![]);
    let sink = engine.expose(MemoryRegion::Sink(Buf::zeroed(LEN))).expect("room for it");
    let source = engine.expose(MemoryRegion::Source(Rc::new(Buf::zeroed(LEN)))).expect("room for it");
    (0..3).for_each(|id| engine.read(id, source, Buf::zeroed(LEN), 0, LEN));
    engine.send(b"hello", Payload::Zeros(300), None);
    let said = engine.take_bytes();
    End { engine, sink, source, said }
}

/// The FPDUs of an input.
fn stream(mut input: &[u8], end: &End, crc: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    // As the first read asks for it.
    let read = RemoteAddress { stag: 0x1_ffff, offset: 1 << 32 };
    let mut numbers = [1, 1];
    while let Some((frame, rest)) = input.split_first_chunk::<5>() {
        if frame[0] == 0xff {
            break;
        }
        input = rest;
        let [kind, choice, at, len, content] = *frame;
        let name = [end.sink, end.source, read, RemoteAddress { stag: at.into(), offset: 0 }]
            [usize::from(choice & 3)];
        let payload = vec![content; usize::from(len) % (2 * LEN)];
        put(&mut bytes, crc, kind, name, at, &payload, &mut numbers);
    }
    bytes.extend_from_slice(input);
    bytes
}

fn put(
    to: &mut Vec<u8>,
    crc: bool,
    kind: u8,
    name: RemoteAddress,
    at: u8,
    payload: &[u8],
    numbers: &mut [u32; 2],
) {
    let (opcode, last) = (kind & 7, kind & 0x10 == 0);
    // By default the next number; sometimes another one.
    let mut number = |queue: usize| {
        let this = numbers[queue] + u32::from(kind & 0x20 != 0);
        numbers[queue] += u32::from(last);
        this
    };
    let offset = u32::from(if kind & 0x40 != 0 { at } else { 0 });
    let untagged = |queue, msn| UntaggedHeader { opcode, last, stag: name.stag, queue, msn, offset };
    let request = ReadRequest {
        sink: (5, 0),
        len: payload.len() as u32,
        source: (name.stag, name.offset + u64::from(offset)),
    };
    let (header, payload) = match opcode {
        opcode::WRITE | opcode::READ_RESPONSE => {
            let offset = name.offset + u64::from(offset);
            (DdpHeader::Tagged(TaggedHeader { opcode, last, stag: name.stag, offset }), payload)
        }
        opcode::READ_REQUEST => {
            let header = UntaggedHeader { offset: 0, ..untagged(queue::READ, number(1)) };
            (DdpHeader::Untagged(header), &request.encode()[..])
        }
        opcode::TERMINATE => (DdpHeader::Untagged(untagged(queue::TERMINATE, 1)), payload),
        _ => (DdpHeader::Untagged(untagged(queue::SEND, number(0))), payload),
    };
    let start = to.len();
    header.put(payload.len(), to);
    to.extend_from_slice(payload);
    to.resize(to.len() + mpa::padding(to.len() - start), 0);
    let digest = if crc { crc32c(&[&to[start..]]).to_le_bytes() } else { [0; 4] };
    to.extend_from_slice(&digest);
}

/// What comes of a stream in pieces of so many bytes: events, messages, answers, and memory.
fn talk(input: &[u8], switches: u8, step: usize) -> (String, Vec<u8>, Vec<u8>, Vec<u8>) {
    let mut end = end(switches);
    let bytes = stream(input, &end, switches & 1 != 0);
    let mut into = EndpointEvents::default();
    for piece in bytes.chunks(step.max(1)) {
        end.engine.feed(piece, &mut into);
        end.engine.take_news(&mut into);
    }
    end.engine.hang_up(None);
    end.engine.take_news(&mut into);
    check(&into, bytes.len());
    let answers = end.engine.take_bytes();
    assert!(answers.len() <= end.said.len() + 1000 + 4 * bytes.len(), "answers out of proportion");
    let memory = match end.engine.revoke(end.sink.stag) {
        Some(MemoryRegion::Sink(buf)) => buf.to_vec(),
        other => panic!("{other:?} where memory was"),
    };
    (format!("{:?}", into.list), into.bytes, answers, memory)
}

/// Reads come back once each, and the end is the last and only one.
fn check(into: &EndpointEvents, sent: usize) {
    assert!(into.bytes.len() <= sent, "more came out than went in");
    let mut reads = Vec::new();
    for (at, event) in into.list.iter().enumerate() {
        match event {
            EndpointEvent::Message(range, _) => assert!(range.len() <= LEN),
            EndpointEvent::Read(id, buf, _) => {
                assert_eq!(buf.len(), LEN);
                reads.push(*id);
            }
            EndpointEvent::End(_) => assert_eq!(at + 1, into.list.len(), "something after the end"),
        }
    }
    assert!(matches!(into.list.last(), Some(EndpointEvent::End(_))));
    assert_eq!(reads, [0, 1, 2]);
}

pub fn run(input: &[u8]) {
    let [step, switches, rest @ ..] = input else { return };
    let whole = talk(rest, *switches, usize::MAX);
    assert_eq!(talk(rest, *switches, 1 + usize::from(*step)), whole, "the segmentation matters");
}
