//! The receiving side of an iWARP connection. Input: the size of a receive as a byte, a byte of flags (1: CRC, 2:
//! passive side), then frames of five bytes: opcode and flags, a choice of steering tag, offset or message number,
//! length, content. From a frame that starts with 0xff on, the input is raw bytes.

use lunar_rdma::iwarp::{Engine, FirstFrame, NegotiatedMpa};
use lunar_rdma::{EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::iscsi::digest::crc32c;
use lunar_runtime::send_queue::Payload;
use lunar_wire::iwarp::ddp::{opcode, queue};
use lunar_wire::iwarp::{DdpHeader, ReadRequest, TaggedHeader, UntaggedHeader, mpa};
use std::rc::Rc;

/// Bytes of each memory region, and of the longest message.
const LEN: usize = 64;

/// An endpoint with memory regions, RDMA Reads in flight, and a queued message.
struct End {
    engine: Engine,
    sink: RemoteAddress,
    source: RemoteAddress,
    /// Its first bytes on the connection.
    said: Vec<u8>,
}

fn end(switches: u8) -> End {
    let first = (switches & 2 != 0).then_some(FirstFrame::Send);
    let agreed = NegotiatedMpa { crc: switches & 1 != 0, ord: 2, ird: 2, receives: (4, LEN), first };
    let mut engine = Engine::new(&agreed, Some(148), vec![]);
    let sink = engine.expose(MemoryRegion::Sink(Buf::zeroed(LEN))).expect("a memory region");
    let source = engine.expose(MemoryRegion::Source(Rc::new(Buf::zeroed(LEN)))).expect("a memory region");
    (0..3).for_each(|id| engine.read(id, source, Buf::zeroed(LEN), 0, LEN));
    engine.send(b"hello", Payload::Zeros(300), None);
    let said = engine.take_bytes();
    End { engine, sink, source, said }
}

/// The FPDUs that an input describes.
fn stream(mut input: &[u8], end: &End, crc: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    // The sink of the first RDMA Read.
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
    // The next message number, or a wrong one if the flag is set.
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

/// The result of a stream that arrives in pieces of `step` bytes: events, messages, answers, and memory.
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
    assert!(
        answers.len() <= end.said.len() + 1000 + 4 * bytes.len(),
        "answers are disproportionate to the input"
    );
    let memory = match end.engine.revoke(end.sink.stag) {
        Some(MemoryRegion::Sink(buf)) => buf.to_vec(),
        other => panic!("{other:?} instead of the memory region"),
    };
    (format!("{:?}", into.list), into.bytes, answers, memory)
}

/// Checks that each RDMA Read completes once, and that End occurs once, as the last event.
fn check(into: &EndpointEvents, sent: usize) {
    assert!(into.bytes.len() <= sent, "more bytes delivered than received");
    let mut reads = Vec::new();
    for (at, event) in into.list.iter().enumerate() {
        match event {
            EndpointEvent::Message(range, _) => assert!(range.len() <= LEN),
            EndpointEvent::Read(id, buf, _) => {
                assert_eq!(buf.len(), LEN);
                reads.push(*id);
            }
            EndpointEvent::End(_) => assert_eq!(at + 1, into.list.len(), "an event after the end"),
        }
    }
    assert!(matches!(into.list.last(), Some(EndpointEvent::End(_))));
    assert_eq!(reads, [0, 1, 2]);
}

pub fn run(input: &[u8]) {
    let [step, switches, rest @ ..] = input else { return };
    let whole = talk(rest, *switches, usize::MAX);
    assert_eq!(
        talk(rest, *switches, 1 + usize::from(*step)),
        whole,
        "the result depends on the segmentation"
    );
}
