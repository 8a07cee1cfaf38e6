//! Two engines connected to each other.

use super::*;
use lunar_runtime::send_queue::Payload;
use proptest::prelude::*;

/// A payload of each kind with these bytes.
fn payloads(bytes: &[u8]) -> Vec<Payload> {
    let around = [&[7; 5], bytes, &[8; 9]].concat();
    vec![
        Payload::Bytes(bytes.to_vec()),
        Payload::Buf(buf(&around[5..]), bytes.len()),
        Payload::Part(Rc::new(buf(&around)), 5, bytes.len()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn everything_arrives_whatever_it_is_cut_into(
        crc in any::<bool>(),
        mss in 0usize..3000,
        piece in 1usize..3000,
        head in 0usize..2000,
        len in 0usize..9000,
    ) {
        let mut ends = pair(crc, Some(mss));
        let (head, body) = (noise(head), noise(len));
        for end in &mut ends {
            end.receives(3, head.len() + len);
        }
        let sink = ends[1].expose(MemoryRegion::Sink(Buf::zeroed(len + 2))).unwrap();
        let source = ends[1].expose(MemoryRegion::Source(Rc::new(buf(&[&[1], &body[..], &[2]].concat())))).unwrap();
        // Uses up the initially posted receives.
        (0..8).for_each(|_| ends[0].send(&[], Payload::Empty, None));
        ends[0].read(5, source.beyond(1), Buf::zeroed(len + 3), 2, len);
        ends[0].write(sink.beyond(1), Payload::Bytes(body.clone()));
        payloads(&body).into_iter().for_each(|payload| ends[0].send(&head, payload, None));
        let mut into = [EndpointEvents::default(), EndpointEvents::default()];
        exchange_by(&mut ends, &mut into, piece);
        let sent = [head, body.clone()].concat();
        prop_assert_eq!(&messages(&into[1])[8..], [(&sent[..], None); 3]);
        prop_assert_eq!(&sunk(ends[1].revoke(sink.stag))[..], [&[0], &body[..], &[0]].concat());
        let [EndpointEvent::Read(5, read, Ok(()))] = &into[0].list[..] else { panic!("{:?}", into[0].list) };
        prop_assert_eq!(&read[..], [&[0, 0], &body[..], &[0]].concat());
    }
}

#[test]
fn gather_keeps_as_many_reads_in_flight_as_the_peer_allows() {
    for ird in [1, 2, 8] {
        let agreed = NegotiatedMpa { crc: false, ord: ird, ird, receives: TERMS.receives, first: None };
        let mut ends = [0, 1].map(|_| Engine::new(&agreed, None, vec![]));
        let bytes = noise(9000);
        let source = ends[1].expose(MemoryRegion::Source(Rc::new(buf(&bytes)))).unwrap();
        let pieces =
            [(source.beyond(100), 3), (source, 0), (source.beyond(7000), 2000), (source.beyond(5), 1)];
        ends[0].gather(8, &[], Buf::zeroed(1), 0);
        ends[0].gather(7, &pieces, Buf::zeroed(2010), 2);
        ends[0].gather(6, &pieces, Buf::zeroed(2005), 2);
        ends[0].read(5, source, Buf::zeroed(1), 0, 1);
        let mut into = [EndpointEvents::default(), EndpointEvents::default()];
        exchange_by(&mut ends, &mut into, 700);
        let whole = [&[0, 0], &bytes[100..103], &bytes[7000..9000], &bytes[5..6], &[0; 4]].concat();
        let [gathered, last, nothing, beyond] = &into[0].list[..] else { panic!("{:?}", into[0].list) };
        assert!(matches!(nothing, EndpointEvent::Read(8, _, Ok(()))));
        assert!(
            matches!(beyond, EndpointEvent::Read(6, _, Err(e)) if e.kind() == io::ErrorKind::InvalidInput)
        );
        assert!(matches!(gathered, EndpointEvent::Read(7, buf, Ok(())) if buf[..] == whole));
        assert!(matches!(last, EndpointEvent::Read(5, buf, Ok(())) if buf[0] == bytes[0]));
    }
}

#[test]
fn zeros_are_sent_as_such() {
    let mut ends = pair(true, None);
    let sink = ends[1].expose(MemoryRegion::Sink(buf(&[9; 5000]))).unwrap();
    ends[0].write(sink, Payload::Zeros(4999));
    exchange(&mut ends);
    let sunk = sunk(ends[1].revoke(sink.stag));
    assert!(sunk[..4999].iter().all(|b| *b == 0) && sunk[4999] == 9);
}

#[test]
fn reads_stay_within_ord_and_messages_overtake_them() {
    let mut ends = pair(false, None);
    let source = ends[1].expose(MemoryRegion::Source(Rc::new(buf(&noise(100))))).unwrap();
    (0..10).for_each(|id| ends[0].read(id, source.beyond(id), Buf::zeroed(10), 0, 10));
    ends[0].send(b"after", Payload::Empty, None);
    let first = ends[0].take_bytes();
    assert_eq!(first.len(), 4 * mpa::fpdu_len(18 + 28) + mpa::fpdu_len(18 + 5));
    let mut into = [EndpointEvents::default(), EndpointEvents::default()];
    ends[1].feed(&first, &mut into[1]);
    assert_eq!(messages(&into[1]), [(&b"after"[..], None)]);
    exchange_by(&mut ends, &mut into, usize::MAX);
    let read = |event: &EndpointEvent| match event {
        EndpointEvent::Read(id, buf, Ok(())) => (*id, buf.to_vec()),
        other => panic!("{other:?}"),
    };
    let expected = (0..10).map(|id| (id, noise(100)[id as usize..][..10].to_vec()));
    assert_eq!(into[0].list.iter().map(read).collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn impossible_read_returns_its_buffer() {
    let mut ends = pair(false, None);
    ends[0].read(1, RemoteAddress { stag: 1, offset: 0 }, Buf::zeroed(8), 4, 5);
    ends[0].read(2, RemoteAddress { stag: 1, offset: 0 }, Buf::zeroed(8), usize::MAX, 5);
    assert!(ends[0].has_news());
    let [into, _] = exchange(&mut ends);
    let [EndpointEvent::Read(1, buf, Err(_)), EndpointEvent::Read(2, _, Err(_))] = &into.list[..] else {
        panic!("{into:?}")
    };
    assert_eq!(buf.len(), 8);
}

#[test]
fn write_is_visible_before_the_next_message() {
    let mut ends = pair(false, None);
    let sink = ends[1].expose(MemoryRegion::Sink(Buf::zeroed(4))).unwrap();
    let parts = [
        tagged(opcode::WRITE, false, sink, b"ab"),
        send(UntaggedHeader { last: false, ..SEND }, b"he"),
        tagged(opcode::WRITE, true, sink.beyond(2), b"cd"),
        send(UntaggedHeader { offset: 2, ..SEND }, b"llo"),
    ];
    let mut into = EndpointEvents::default();
    ends[1].feed(&parts.concat(), &mut into);
    assert_eq!(messages(&into), [(&b"hello"[..], None)]);
    assert_eq!(&sunk(ends[1].revoke(sink.stag))[..], b"abcd");
}

#[test]
fn all_four_kinds_of_messages_are_taken() {
    let [_, mut called] = pair(false, None);
    let tags = [0, 1].map(|_| called.expose(MemoryRegion::Sink(Buf::zeroed(1))).unwrap().stag);
    let kinds = [(3, 0), (4, tags[0]), (5, 0), (6, tags[1])];
    let mut into = EndpointEvents::default();
    for (msn, (opcode, stag)) in (1..).zip(kinds) {
        called.feed(&send(UntaggedHeader { opcode, stag, msn, ..SEND }, b"x"), &mut into);
    }
    let ended = [None, Some(tags[0]), None, Some(tags[1])];
    assert_eq!(messages(&into), ended.map(|tag| (&b"x"[..], tag)));
}

#[test]
fn invalidated_memory_returns_to_its_owner() {
    let mut ends = pair(false, None);
    let sink = ends[1].expose(MemoryRegion::Sink(Buf::zeroed(4))).unwrap();
    ends[0].write(sink, Payload::Bytes(b"good".to_vec()));
    ends[0].send(b"done", Payload::Empty, Some(sink.stag));
    let [_, into] = exchange(&mut ends);
    assert_eq!(messages(&into), [(&b"done"[..], Some(sink.stag))]);
    ends[0].write(sink, Payload::Bytes(b"evil".to_vec()));
    let [_, into] = exchange(&mut ends);
    assert!(end(&into).is_some());
    assert_eq!(&sunk(ends[1].revoke(sink.stag))[..], b"good");
    assert!(ends[1].revoke(sink.stag).is_none());
}

#[test]
fn responder_does_not_send_first() {
    let mut ends = pair(false, None);
    ends[1].send(b"hello", Payload::Empty, None);
    assert!(ends[1].take_bytes().is_empty() && !ends[1].may_send());
    ends[0].write(RemoteAddress { stag: 0, offset: 0 }, Payload::Empty);
    let [into, _] = exchange(&mut ends);
    assert_eq!(messages(&into), [(&b"hello"[..], None)]);
}

#[test]
fn empty_first_frame_opens_and_delivers_no_message() {
    let nothing = RemoteAddress { stag: 0, offset: 0 };
    for (granted, word, answer) in [
        (FirstFrame::Any, write(nothing, b""), 0),
        (FirstFrame::Any, asking(1, nothing, 0), 20),
        (FirstFrame::Send, send(SEND, b""), 0),
    ] {
        let (mut called, mut into) = (engine(false, None, Some(granted)), EndpointEvents::default());
        called.feed(&word, &mut into);
        called.take_news(&mut into);
        assert_eq!((into.is_empty(), called.may_send(), called.take_bytes().len()), (true, true, answer));
        let msn = if granted == FirstFrame::Send { 2 } else { 1 };
        called.feed(&send(UntaggedHeader { msn, ..SEND }, b"one"), &mut into);
        assert_eq!(messages(&into), [(&b"one"[..], None)]);
    }
}

#[test]
fn closing_ends_reads_then_the_connection() {
    let mut ends = pair(false, None);
    (0..6).for_each(|id| ends[0].read(id, RemoteAddress { stag: 1, offset: 0 }, Buf::zeroed(1), 0, 1));
    ends[0].close();
    let mut into = EndpointEvents::default();
    ends[0].take_news(&mut into);
    let ids: Vec<_> = into.list[..6]
        .iter()
        .map(|e| if let EndpointEvent::Read(id, _, Err(_)) = e { *id } else { 99 })
        .collect();
    assert_eq!((ids, end(&into), into.list.len()), ((0..6).collect(), Some(None), 7));
    assert!(ends[0].take_bytes().is_empty());
}

#[test]
fn end_of_stream_is_orderly_only_between_messages() {
    let sink = |called: &mut Engine| called.expose(MemoryRegion::Sink(Buf::zeroed(9))).unwrap();
    let whole: fn(&mut Engine) -> Vec<u8> = |_| send(SEND, b"x");
    let amid: [fn(&mut Engine) -> Vec<u8>; 3] = [
        |_| send(SEND, b"x")[..3].to_vec(),
        |_| send(UntaggedHeader { last: false, ..SEND }, b"x"),
        |called| {
            tagged(opcode::WRITE, false, called.expose(MemoryRegion::Sink(Buf::zeroed(9))).unwrap(), b"x")
        },
    ];
    for (bytes, is_orderly) in [(whole, true), (amid[0], false), (amid[1], false), (amid[2], false)] {
        let [_, mut called] = pair(false, None);
        sink(&mut called);
        let (bytes, mut into) = (bytes(&mut called), EndpointEvents::default());
        called.feed(&bytes, &mut into);
        called.hang_up(None);
        called.take_news(&mut into);
        assert_eq!(end(&into).map(|why| why.is_none()), Some(is_orderly), "{bytes:?}");
    }
}
