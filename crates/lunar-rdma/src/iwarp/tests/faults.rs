//! Protocol errors of the peer. Each ends the connection, and a Terminate reports it to the peer.

use super::*;
use lunar_runtime::iscsi::digest::crc32c;
use lunar_runtime::send_queue::Payload;

/// Feeds bytes that end a connection. Returns its Terminate. The local end event must have a reason too.
fn terminated(called: &mut Engine, bytes: &[u8]) -> Terminate {
    let mut into = EndpointEvents::default();
    called.feed(bytes, &mut into);
    called.take_news(&mut into);
    let why = end(&into).expect("the stream has ended").expect("a reason for the end");
    assert!(why.starts_with("the peer sent "), "{why}");
    assert!(messages(&into).is_empty());
    let (mut caller, mut heard) = (engine(false, None, None), EndpointEvents::default());
    let said = called.take_bytes();
    caller.feed(&said, &mut heard);
    caller.take_news(&mut heard);
    let why = end(&heard).expect("the stream has ended").expect("a reason for the end");
    assert!(why.starts_with("the peer terminated the RDMA connection: "), "{why}");
    called.feed(&send(SEND, b"more"), &mut into);
    called.take_news(&mut into);
    assert!(matches!(into.list.last(), Some(EndpointEvent::End(_))) && called.take_bytes().is_empty());
    let terminate = Terminate::decode(&said[20..]).expect("a Terminate");
    assert!(why.contains(&terminate.to_string()));
    terminate
}

fn called() -> Engine {
    let [_, called] = pair(false, None);
    called
}

#[test]
fn write_outside_its_window_ends_the_connection() {
    for (at, len) in [(0, 9), (8, 1), (7, 2), (u64::MAX, 1), (1 << 40, 1)] {
        let mut called = called();
        let sink = called.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
        assert_eq!(
            terminated(&mut called, &write(sink.beyond(at), &vec![1; len])),
            Terminate::BOUNDS,
            "{at} {len}"
        );
        assert_eq!(&sunk(called.revoke(sink.stag))[..], [0; 8]);
    }
    let mut called = called();
    let end = RemoteAddress { stag: 1, offset: u64::MAX };
    assert_eq!(terminated(&mut called, &write(end, b"xx")), Terminate::WRAP);
}

#[test]
fn steering_tag_of_another_connection_names_nothing() {
    let (mut other, mut a, mut b) = (called(), called(), called());
    let (sink, source) = (MemoryRegion::Sink(Buf::zeroed(8)), MemoryRegion::Source(Rc::new(Buf::zeroed(8))));
    let (sink, source) = (other.expose(sink).unwrap(), other.expose(source).unwrap());
    assert_eq!(terminated(&mut a, &write(sink, b"x")), Terminate::STAG);
    assert_eq!(terminated(&mut b, &asking(1, source, 1)), Terminate::READ_STAG);
}

#[test]
fn revoked_access_ends_at_once() {
    let (mut writable, mut readable) = (called(), called());
    let sink = writable.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
    let mut into = EndpointEvents::default();
    writable.feed(&tagged(opcode::WRITE, false, sink, b"ab"), &mut into);
    assert_eq!(&sunk(writable.revoke(sink.stag))[..2], b"ab");
    assert_eq!(
        terminated(&mut writable, &tagged(opcode::WRITE, true, sink.beyond(2), b"cd")),
        Terminate::STAG
    );
    let source = readable.expose(MemoryRegion::Source(Rc::new(Buf::zeroed(8)))).unwrap();
    assert!(readable.revoke(source.stag).is_some());
    assert_eq!(terminated(&mut readable, &asking(1, source, 1)), Terminate::READ_STAG);
}

#[test]
fn memory_is_for_one_direction() {
    let (mut a, mut b) = (called(), called());
    let source = a.expose(MemoryRegion::Source(Rc::new(Buf::zeroed(8)))).unwrap();
    assert_eq!(terminated(&mut a, &write(source, b"x")), Terminate::ACCESS);
    let sink = b.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
    assert_eq!(terminated(&mut b, &asking(1, sink, 1)), Terminate::ACCESS);
}

#[test]
fn invalid_read_request_ends_the_connection() {
    let source = |called: &mut Engine| called.expose(MemoryRegion::Source(Rc::new(Buf::zeroed(8)))).unwrap();
    let mut a = called();
    let from = source(&mut a);
    let five: Vec<u8> = (1..=5).flat_map(|msn| asking(msn, from, 8)).collect();
    assert_eq!(terminated(&mut a, &five), Terminate::NO_BUFFER);
    let mut b = called();
    let from = source(&mut b);
    assert_eq!(terminated(&mut b, &asking(1, from.beyond(1), 8)), Terminate::READ_BOUNDS);
    let mut c = called();
    let from = source(&mut c);
    assert_eq!(terminated(&mut c, &asking(2, from, 8)), Terminate::MSN);
    let mut d = called();
    let header = UntaggedHeader { opcode: opcode::READ_REQUEST, queue: queue::READ, ..SEND };
    assert_eq!(terminated(&mut d, &send(header, &[0; 27])), Terminate::LENGTH);
    let mut e = called();
    assert_eq!(
        terminated(&mut e, &send(UntaggedHeader { last: false, ..header }, &[0; 28])),
        Terminate::OFFSET
    );
}

#[test]
fn message_needs_a_receive_that_is_long_enough() {
    let mut a = called();
    let nine: Vec<u8> = (1..=8).flat_map(|msn| send(UntaggedHeader { msn, ..SEND }, b"")).collect();
    a.feed(&nine, &mut EndpointEvents::default());
    assert_eq!(terminated(&mut a, &send(UntaggedHeader { msn: 9, ..SEND }, b"")), Terminate::NO_BUFFER);
    assert_eq!(terminated(&mut called(), &send(SEND, &[1; 257])), Terminate::TOO_LONG);
    let parts = [
        send(UntaggedHeader { last: false, ..SEND }, &[1; 256]),
        send(UntaggedHeader { offset: 256, ..SEND }, &[1; 1]),
    ];
    assert_eq!(terminated(&mut called(), &parts.concat()), Terminate::TOO_LONG);
}

#[test]
fn messages_come_in_sequence_each_in_one_row_and_of_one_kind() {
    let first = send(UntaggedHeader { last: false, ..SEND }, b"ab");
    let then = |header: UntaggedHeader| [first.clone(), send(header, b"cd")].concat();
    for (bytes, reason) in [
        (send(UntaggedHeader { msn: 2, ..SEND }, b""), Terminate::MSN),
        (send(UntaggedHeader { msn: 0, ..SEND }, b""), Terminate::MSN),
        (send(UntaggedHeader { offset: 1, ..SEND }, b""), Terminate::OFFSET),
        (then(UntaggedHeader { offset: 1, ..SEND }), Terminate::OFFSET),
        (then(UntaggedHeader { offset: 3, ..SEND }), Terminate::OFFSET),
        (then(UntaggedHeader { offset: 2, msn: 2, ..SEND }), Terminate::MSN),
        (then(UntaggedHeader { offset: 2, opcode: opcode::SEND_SOLICITED, ..SEND }), Terminate::OPCODE),
        (
            send(UntaggedHeader { opcode: opcode::SEND_INVALIDATE, stag: 7, ..SEND }, b""),
            Terminate::INVALIDATE,
        ),
    ] {
        assert_eq!(terminated(&mut called(), &bytes), reason, "{bytes:?}");
    }
}

#[test]
fn write_is_in_one_row() {
    let mut called = called();
    let sink = called.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
    let parts =
        [tagged(opcode::WRITE, false, sink, b"ab"), tagged(opcode::WRITE, true, sink.beyond(3), b"cd")];
    assert_eq!(terminated(&mut called, &parts.concat()), Terminate::BOUNDS);
}

/// An initiator with an outstanding read of ten bytes, and the destination of the response.
fn reading() -> (Engine, RemoteAddress) {
    let mut caller = engine(false, None, None);
    caller.read(1, RemoteAddress { stag: 3, offset: 0 }, Buf::zeroed(10), 0, 10);
    let asked = caller.take_bytes();
    let request = ReadRequest::decode(&asked[20..48]).expect("a Read Request");
    (caller, RemoteAddress { stag: request.sink.0, offset: request.sink.1 })
}

#[test]
fn unsolicited_read_response_ends_the_connection() {
    let response = |last, to, payload: &[u8]| tagged(opcode::READ_RESPONSE, last, to, payload);
    let (mut caller, sink) = reading();
    let mut into = EndpointEvents::default();
    caller.feed(&response(false, sink, b"0123"), &mut into);
    caller.feed(&response(true, sink.beyond(4), b"456789"), &mut into);
    assert!(matches!(&into.list[..], [EndpointEvent::Read(1, buf, Ok(()))] if buf[..] == *b"0123456789"));
    assert_eq!(terminated_with_reads(&mut caller, &response(true, sink, b"0123456789")), Terminate::STAG);
    for (beyond, generations, payload, reason) in [
        (1, 0, &b"012345678"[..], Terminate::BOUNDS),
        (0, 0, b"012345678", Terminate::BOUNDS),
        (0, 0, b"0123456789a", Terminate::BOUNDS),
        (0, 1, b"0123456789", Terminate::STAG),
    ] {
        let (mut caller, sink) = reading();
        let to = RemoteAddress { stag: sink.stag + (generations << 16), ..sink.beyond(beyond) };
        assert_eq!(terminated_with_reads(&mut caller, &response(true, to, payload)), reason, "{payload:?}");
    }
    let (mut caller, sink) = reading();
    assert_eq!(terminated_with_reads(&mut caller, &write(sink, b"0123456789")), Terminate::STAG);
    assert_eq!(terminated(&mut called(), &response(true, sink, b"")), Terminate::STAG);
}

/// The same for a connection with reads in flight, which end with it.
fn terminated_with_reads(engine: &mut Engine, bytes: &[u8]) -> Terminate {
    let mut into = EndpointEvents::default();
    engine.feed(bytes, &mut into);
    engine.take_news(&mut into);
    assert!(matches!(end(&into), Some(Some(_))));
    assert!(into.list.iter().all(|event| !matches!(event, EndpointEvent::Read(_, _, Ok(())))));
    Terminate::decode(&engine.take_bytes()[20..]).expect("a Terminate")
}

#[test]
fn malformed_frame_ends_the_connection() {
    for len in 0..18u8 {
        let mut bytes = [&[0, len, 0x41, 0x43][..], &[0; 40]].concat();
        bytes.truncate(mpa::fpdu_len(len.into()));
        assert_eq!(terminated(&mut called(), &bytes), Terminate::LENGTH, "{len}");
    }
    let mut bytes = send(SEND, b"x");
    bytes[3] = 0x48;
    assert_eq!(terminated(&mut called(), &bytes), Terminate::OPCODE);
}

#[test]
fn crc_mismatch_ends_the_connection_and_drops_the_frame() {
    let mut ends = pair(true, None);
    let sink = ends[1].expose(MemoryRegion::Sink(Buf::zeroed(5))).unwrap();
    ends[0].write(sink, Payload::Bytes(b"hello".to_vec()));
    let good = ends[0].take_bytes();
    assert_eq!(good[24..28], crc32c(&[&good[..24]]).to_le_bytes());
    for at in 2..good.len() {
        let mut called = engine(true, None, Some(FirstFrame::Any));
        let sink = called.expose(MemoryRegion::Sink(Buf::zeroed(5))).unwrap();
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        let mut into = EndpointEvents::default();
        called.feed(&bad, &mut into);
        called.take_news(&mut into);
        assert_eq!(Terminate::decode(&called.take_bytes()[20..]), Some(Terminate::CRC), "byte {at}");
        assert_eq!(&sunk(called.revoke(sink.stag))[..], [0; 5]);
    }
}

/// Otherwise the Terminate would wait for the queued messages.
#[test]
fn terminate_overtakes_queued_messages() {
    let mut called = called();
    called.send(b"an answer", Payload::Zeros(9000), None);
    assert_eq!(terminated(&mut called, &write(RemoteAddress { stag: 7, offset: 0 }, b"x")), Terminate::STAG);
}

#[test]
fn terminate_contains_the_faulty_headers() {
    let mut a = called();
    let bad = write(RemoteAddress { stag: 7, offset: 0 }, b"data");
    a.feed(&bad, &mut EndpointEvents::default());
    let said = a.take_bytes();
    assert_eq!(said[..20], *b"\x00\x26\x41\x47\0\0\0\0\0\0\0\x02\0\0\0\x01\0\0\0\0");
    assert_eq!((&said[20..24], &said[24..40]), (&b"\x11\x00\xc0\x00"[..], &bad[..16]));
    let (mut b, bad) = (called(), asking(1, RemoteAddress { stag: 7, offset: 0 }, 4));
    b.feed(&bad, &mut EndpointEvents::default());
    let said = b.take_bytes();
    assert_eq!((&said[20..24], &said[24..72]), (&b"\x01\x00\xe0\x00"[..], &bad[..48]));
}
