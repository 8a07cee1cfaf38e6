use super::*;
use crate::verbs::bounce::{LARGEST, RegisteredMemory};
use std::rc::Rc;

/// The key of bounce buffers, and the key of registered buffers.
const CHUNKS: u32 = 1;
const BUFFERS: u32 = 2;

/// The memory of a device without registered buffers.
fn pool() -> SendMemory {
    let pool = BouncePool::new(Box::new(|_, _| Ok(RegisteredMemory { lkey: CHUNKS, _keep: Box::new(()) })));
    SendMemory {
        sinks: pool.clone(),
        pool,
        key: Box::new(|_| None),
        zeros: Box::new(|| None),
        reads_in_place: true,
    }
}

/// The memory of a device that has registered every buffer of at least `least` bytes.
fn known(least: usize, reads_in_place: bool) -> SendMemory {
    SendMemory { key: Box::new(move |buf| (buf.len() >= least).then_some(BUFFERS)), reads_in_place, ..pool() }
}

fn remote(offset: u64) -> RemoteAddress {
    RemoteAddress { stag: 7, offset }
}

fn work(out: &mut Outgoing) -> Vec<WorkRequest> {
    out.work().collect()
}

/// Posts all work for which there are slots. Returns the id, the verb and the bytes of each, and whether it is
/// signalled.
fn post(out: &mut Outgoing, pool: &SendMemory) -> Vec<(u64, Verb, Vec<u8>, bool)> {
    out.stage(pool).unwrap();
    let work = work(out).into_iter().enumerate();
    let bytes = |n: usize| match &out.staged[n].body {
        WorkMemory::Chunk(chunk) => chunk.bytes()[..out.staged[n].len].to_vec(),
        WorkMemory::InPlace(..) => Vec::new(),
    };
    let posted: Vec<_> = work.map(|(n, w)| (w.id, w.verb, bytes(n), w.is_signalled)).collect();
    out.taken(posted.len());
    posted
}

#[test]
fn write_is_signalled_only_if_no_message_follows() {
    let (mut out, pool) = (Outgoing::new(16, 4), pool());
    out.push(Verb::Write(remote(0)), &[], Payload::Zeros(3));
    out.push(Verb::Send(None), b"head", Payload::Bytes(b"body".to_vec()));
    out.push(Verb::Write(remote(8)), &[], Payload::Bytes(vec![1]));
    let posted = post(&mut out, &pool);
    let signals: Vec<_> =
        posted.iter().map(|(_, verb, bytes, is_signalled)| (*verb, &bytes[..], *is_signalled)).collect();
    let want = [
        (Verb::Write(remote(0)), &[0, 0, 0][..], false),
        (Verb::Send(None), b"headbody", true),
        (Verb::Write(remote(8)), &[1], true),
    ];
    assert_eq!(signals, want);
    assert!(!out.take_moved());
    out.completed(posted[1].0);
    assert_eq!((out.posted.len(), out.out, out.take_moved(), out.take_moved()), (1, 1, true, false));
}

#[test]
fn every_write_is_signalled_with_all_signalled() {
    let (mut out, pool) = (Outgoing::new(16, 4).with_all_signalled(true), pool());
    out.push(Verb::Write(remote(0)), &[], Payload::Zeros(2 * PIECE));
    out.push(Verb::Send(None), b"head", Payload::Empty);
    assert_eq!(
        post(&mut out, &pool).iter().map(|(.., is_signalled)| *is_signalled).collect::<Vec<_>>(),
        [true; 3]
    );
}

#[test]
fn fence_is_done_when_the_device_completes() {
    let (mut out, pool) = (Outgoing::new(1, 1), pool());
    out.push(Verb::Write(remote(0)), &[], Payload::Zeros(PIECE + 5));
    let mark = out.pushed();
    out.push(Verb::Send(None), b"behind", Payload::Empty);
    let mut ended = Vec::new();
    for _ in 0..3 {
        let posted = post(&mut out, &pool);
        ended.push(out.delivered() >= mark);
        posted.iter().for_each(|(id, ..)| _ = out.completed(*id));
    }
    assert_eq!(ended, [false, false, true]);
    assert_eq!(out.delivered(), out.pushed());
}

#[test]
fn pieces_are_read_at_once_and_come_back_together() {
    let (mut out, pool) = (Outgoing::new(16, 8), pool());
    let pieces = [(remote(100), 3), (remote(200), 0), (remote(300), PIECE + 1)];
    assert!(out.read(9, &pieces, Buf::zeroed(PIECE + 10), 2).is_none());
    let posted = post(&mut out, &pool);
    let from = [100, 300, 300 + PIECE as u64].map(|offset| Verb::Read(remote(offset)));
    assert_eq!(posted.iter().map(|(_, verb, ..)| *verb).collect::<Vec<_>>(), from);
    let ids: Vec<_> = posted.iter().map(|(id, ..)| *id).collect();
    assert!(out.completed(ids[2]).is_none() && out.completed(ids[0]).is_none());
    assert!(matches!(out.completed(ids[1]), Some(EndpointEvent::Read(9, _, Ok(())))));
}

#[test]
fn work_without_a_slot_waits_for_one() {
    let (mut out, pool) = (Outgoing::new(2, 1), pool());
    for n in 0..5 {
        out.push(Verb::Send(None), &[n], Payload::Empty);
    }
    let first = post(&mut out, &pool);
    assert_eq!((first.len(), out.is_blocked(), out.queued), (2, true, 3));
    assert!(post(&mut out, &pool).is_empty());
    out.completed(first[0].0);
    let second = post(&mut out, &pool);
    assert_eq!(second.iter().map(|(_, _, bytes, _)| bytes[0]).collect::<Vec<_>>(), [2]);
    out.completed(second[0].0);
    assert_eq!(post(&mut out, &pool).len(), 2);
    assert_eq!((out.is_blocked(), out.waiting()), (false, 0));
}

#[test]
fn rejected_work_is_posted_again() {
    let (mut out, pool) = (Outgoing::new(8, 1), pool());
    for n in 0..3 {
        out.push(Verb::Send(None), &[n], Payload::Empty);
    }
    out.stage(&pool).unwrap();
    out.taken(1);
    assert!(out.is_blocked());
    let again = post(&mut out, &pool);
    assert_eq!(again.iter().map(|(_, _, bytes, _)| bytes[0]).collect::<Vec<_>>(), [1, 2]);
}

/// Otherwise work that the device rejects would wait for a completion forever.
#[test]
fn device_with_only_unsignaled_work_is_idle() {
    let (mut out, pool) = (Outgoing::new(8, 1), pool());
    out.push(Verb::Write(remote(0)), &[], Payload::Zeros(PIECE + 1));
    out.stage(&pool).unwrap();
    assert_eq!(work(&mut out).iter().map(|work| work.is_signalled).collect::<Vec<_>>(), [false, true]);
    out.taken(1);
    assert!(out.is_idle());
    post(&mut out, &pool);
    assert!(!out.is_idle());
}

#[test]
fn long_write_is_split_into_adjacent_pieces() {
    let (mut out, pool) = (Outgoing::new(64, 1), pool());
    let bytes: Vec<u8> = (0..2 * PIECE + 5).map(|n| (n / 7) as u8).collect();
    out.push(Verb::Write(remote(100)), &[], Payload::Bytes(bytes.clone()));
    let posted = post(&mut out, &pool);
    let places: Vec<_> = posted.iter().map(|(_, verb, _, _)| *verb).collect();
    assert_eq!(places, [0, PIECE, 2 * PIECE].map(|at| Verb::Write(remote(100 + at as u64))));
    assert_eq!(posted.iter().flat_map(|one| one.2.clone()).collect::<Vec<_>>(), bytes);
}

#[test]
fn only_so_many_bytes_are_at_the_device_at_a_time() {
    let (mut out, pool) = (Outgoing::new(1000, 1), pool());
    for _ in 0..3 * BUDGET / LARGEST {
        out.push(Verb::Send(None), &[], Payload::Zeros(LARGEST));
    }
    let posted = post(&mut out, &pool);
    assert_eq!((posted.len(), out.out), (BUDGET / LARGEST, BUDGET));
    out.completed(posted[0].0);
    assert_eq!(post(&mut out, &pool).len(), 1);
}

#[test]
fn read_beyond_the_limit_waits_and_holds_up_no_message() {
    let (mut out, pool) = (Outgoing::new(16, 1), pool());
    for id in [1, 2] {
        assert!(out.read(id, &[(remote(id), 4)], Buf::zeroed(8), 2).is_none());
    }
    out.push(Verb::Send(Some(3)), b"m", Payload::Empty);
    let posted = post(&mut out, &pool);
    let verbs: Vec<_> = posted.iter().map(|one| one.1).collect();
    assert_eq!(verbs, [Verb::Read(remote(1)), Verb::Send(Some(3))]);
    assert!(!out.is_blocked() && out.has_more());
    // The message completes before the read.
    assert!(out.completed(posted[1].0).is_none() && post(&mut out, &pool).is_empty());
    assert!(
        matches!(out.completed(posted[0].0), Some(EndpointEvent::Read(1, buf, Ok(()))) if buf.len() == 8)
    );
    assert_eq!(post(&mut out, &pool)[0].1, Verb::Read(remote(2)));
    assert!(!out.has_more());
}

#[test]
fn long_read_is_whole_when_all_its_pieces_are() {
    let (mut out, pool) = (Outgoing::new(16, 4), pool());
    let len = 2 * PIECE + 5;
    assert!(out.read(9, &[(remote(0), len)], Buf::zeroed(len + 1), 1).is_none());
    let posted = post(&mut out, &pool);
    assert_eq!(posted.len(), 3);
    assert!(out.completed(posted[2].0).is_none() && out.completed(posted[0].0).is_none());
    assert!(matches!(out.completed(posted[1].0), Some(EndpointEvent::Read(9, _, Ok(())))));
    assert_eq!(out.inward, 0);
}

#[test]
fn impossible_read_fails_at_once() {
    let mut out = Outgoing::new(16, 0);
    let kind = |event| match event {
        Some(EndpointEvent::Read(_, _, result)) => result.err().map(|e| e.kind()),
        other => panic!("{other:?}"),
    };
    let refused = Some(io::ErrorKind::InvalidInput);
    assert_eq!(kind(out.read(1, &[(remote(0), 8)], Buf::zeroed(8), 0)), refused);
    assert_eq!(kind(out.read(1, &[(remote(0), 5)], Buf::zeroed(8), 4)), refused);
    assert_eq!(kind(out.read(1, &[(remote(0), 1)], Buf::zeroed(8), usize::MAX)), refused);
    assert_eq!(kind(out.read(1, &[(remote(0), 0)], Buf::zeroed(8), 8)), None);
}

#[test]
fn reads_of_a_broken_connection_come_back_in_order() {
    let (mut out, pool) = (Outgoing::new(16, 1), pool());
    for id in [5, 4, 6] {
        assert!(out.read(id, &[(remote(0), 8)], Buf::zeroed(8), 0).is_none());
    }
    out.push(Verb::Send(None), b"m", Payload::Empty);
    let posted = post(&mut out, &pool);
    out.push(Verb::Send(None), b"m", Payload::Empty);
    let ids: Vec<_> =
        out.fail().iter().map(|e| if let EndpointEvent::Read(id, _, Err(_)) = e { *id } else { 0 }).collect();
    assert_eq!((ids, out.waiting(), out.reading.len()), (vec![5, 4, 6], 0, 1));
    assert!(out.completed(posted[0].0).is_none(), "the failure was already reported");
}

#[test]
fn memory_shortage_waits_only_while_memory_may_return() {
    let (mut out, pool) = (Outgoing::new(16, 1), pool());
    let none = BouncePool::new(Box::new(|_, _| Err(io::ErrorKind::OutOfMemory.into())));
    let none = SendMemory { sinks: none.clone(), pool: none, ..super::tests::pool() };
    out.push(Verb::Send(None), b"first", Payload::Empty);
    let posted = post(&mut out, &pool);
    out.push(Verb::Send(None), b"second", Payload::Empty);
    assert!(out.stage(&none).is_ok() && out.is_blocked());
    out.completed(posted[0].0);
    assert!(out.stage(&none).is_err());
}

#[test]
fn write_from_registered_memory_is_not_copied() {
    let (mut out, memory) = (Outgoing::new(16, 1), known(100, true));
    let shared = Rc::new(Buf::zeroed(2 * PIECE));
    out.push(Verb::Write(remote(0)), &[], Payload::Part(shared.clone(), 5, PIECE + 7));
    out.push(Verb::Write(remote(0)), &[], Payload::Buf(Buf::zeroed(99), 99));
    out.push(Verb::Write(remote(0)), &[], Payload::Bytes(vec![1; 200]));
    out.push(Verb::Send(None), &[], Payload::Part(shared.clone(), 0, 200));
    out.stage(&memory).unwrap();
    let work = work(&mut out);
    let at = shared.as_ptr() as u64;
    assert_eq!((work[0].at, work[0].len), ((at + 5, BUFFERS), PIECE));
    assert_eq!((work[1].at, work[1].len), ((at + 5 + PIECE as u64, BUFFERS), 7));
    // The others are copied: an unregistered buffer, bytes, and a message.
    assert!(work[2..].iter().all(|one| one.at.1 == CHUNKS) && work.len() == 5);
    out.taken(work.len());
    assert_eq!(Rc::strong_count(&shared), 2, "the payload is kept until the device completes it");
    out.completed(work[0].id);
    assert_eq!(Rc::strong_count(&shared), 2);
    out.completed(work[1].id);
    assert_eq!(Rc::strong_count(&shared), 1);
}

#[test]
fn partly_posted_payload_outlives_the_connection() {
    let (mut out, memory) = (Outgoing::new(1, 1), known(100, true));
    let shared = Rc::new(Buf::zeroed(2 * PIECE));
    for _ in 0..2 {
        out.push(Verb::Write(remote(0)), &[], Payload::Part(shared.clone(), 0, 2 * PIECE));
    }
    assert_eq!(post(&mut out, &memory).len(), 1);
    assert!(out.fail().is_empty());
    assert_eq!((Rc::strong_count(&shared), out.waiting()), (2, 0));
}

#[test]
fn read_goes_to_registered_memory_where_allowed() {
    for (least, in_place, want) in [(100, true, true), (100, false, false), (1 << 30, true, false)] {
        let (mut out, memory) = (Outgoing::new(16, 4), known(least, in_place));
        let buf = Buf::zeroed(2 * PIECE);
        let at = buf.as_ptr() as u64;
        assert!(out.read(1, &[(remote(0), PIECE + 1)], buf, 3).is_none());
        out.stage(&memory).unwrap();
        let work = work(&mut out);
        let places: Vec<_> = work.iter().map(|one| one.at).collect();
        let landing = [(at + 3, BUFFERS), (at + 3 + PIECE as u64, BUFFERS)];
        assert_eq!((places == landing, out.has_reads_in_place()), (want, want), "{least} {in_place}");
        out.taken(work.len());
        assert_eq!(out.has_reads_in_place(), want);
        assert!(out.completed(work[0].id).is_none());
        assert!(
            matches!(out.completed(work[1].id), Some(EndpointEvent::Read(1, _, Ok(()))))
                && !out.has_reads_in_place()
        );
    }
}
