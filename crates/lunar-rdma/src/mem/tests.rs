use super::*;
use crate::MAX_PRIVATE;
use crate::{EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Poll, Wake};

const TERMS: ConnParam = ConnParam { ord: 2, ird: 2, receives: (4, 64) };

struct Pair {
    a: Rc<dyn Endpoint>,
    b: Rc<dyn Endpoint>,
    /// Faults of `a` and of `b`.
    fa: Rc<Faults>,
    fb: Rc<Faults>,
}

fn pair_of(a: ConnParam, b: ConnParam) -> Pair {
    let [fa, fb] = [Rc::<Faults>::default(), Rc::default()];
    let (a, b) = pair(a, b, [fa.clone(), fb.clone()]);
    Pair { a, b, fa, fb }
}

fn ready() -> Pair {
    pair_of(TERMS, TERMS)
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

/// Polls a future once.
fn once<T>(future: &mut Pin<Box<dyn Future<Output = T> + '_>>, woken: &Arc<Woken>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(&woken.clone().into()))
}

/// The result of a future that must be ready.
fn now<T>(mut future: LocalBoxFuture<'_, T>) -> T {
    let Poll::Ready(value) = once(&mut future, &Arc::default()) else { panic!("the future is not ready") };
    value
}

/// The received events, as text.
fn came(end: &Rc<dyn Endpoint>) -> Vec<String> {
    let (mut events, batch) = (EndpointEvents::default(), lunar_runtime::current_batch());
    end.poll(&mut events);
    assert_ne!(lunar_runtime::current_batch(), batch, "a receive begins a batch");
    let bytes = &events.bytes;
    let words = events.list.iter().map(|event| match event {
        EndpointEvent::Message(range, None) => String::from_utf8_lossy(&bytes[range.clone()]).into_owned(),
        EndpointEvent::Message(range, Some(_)) => {
            format!("{} ended", String::from_utf8_lossy(&bytes[range.clone()]))
        }
        EndpointEvent::Read(id, buf, Ok(())) => format!("read {id} {}", String::from_utf8_lossy(buf)),
        EndpointEvent::Read(id, _, Err(_)) => format!("read {id} failed"),
        EndpointEvent::End(None) => "end".into(),
        EndpointEvent::End(Some(e)) => format!("end: {e}"),
    });
    words.collect()
}

fn say(end: &Rc<dyn Endpoint>, text: &str) {
    end.send(text.as_bytes(), Payload::Empty, None);
    assert!(end.flush().unwrap());
}

fn source(text: &str) -> MemoryRegion {
    let buf = Buf::copy_of(text.as_bytes());
    MemoryRegion::Source(Rc::new(buf))
}

fn read(end: &Rc<dyn Endpoint>, id: u64, from: RemoteAddress, len: usize) {
    end.read(id, from, Buf::zeroed(len), 0, len);
}

#[test]
fn messages_arrive_in_order_and_only_when_they_are_flushed() {
    let Pair { a, b, fa, .. } = ready();
    a.send(b"one ", Payload::Bytes(b"two".to_vec()), None);
    a.send(b"three", Payload::Empty, None);
    assert!(a.waiting() > 12 && !a.take_moved() && fa.outstanding() == 2);
    assert_eq!(came(&b), [""; 0]);
    assert!(a.flush().unwrap());
    assert!(a.waiting() == 0 && a.take_moved() && !a.take_moved() && fa.outstanding() == 0);
    say(&a, "four");
    assert_eq!(came(&b), ["one two", "three", "four"]);
    assert_eq!(came(&b), [""; 0]);
}

#[test]
fn waiter_wakes_when_the_peer_flushes() {
    let Pair { a, b, .. } = ready();
    let woken = Arc::<Woken>::default();
    let mut readable = b.readable();
    assert!(once(&mut readable, &woken).is_pending());
    a.send(b"hello", Payload::Empty, None);
    assert!(!woken.0.load(SeqCst));
    a.flush().unwrap();
    assert!(woken.0.load(SeqCst));
    assert!(matches!(once(&mut readable, &woken), Poll::Ready(Ok(()))));
    now(b.readable()).unwrap();
    now(a.writable()).unwrap();
}

#[test]
fn message_without_a_receive_ends_both_sides() {
    let Pair { a, b, .. } = ready();
    (0..4).for_each(|_| say(&a, "x"));
    b.receives(1, 64);
    say(&a, "x");
    a.send(b"too many", Payload::Empty, None);
    assert!(a.flush().is_err());
    assert_eq!(
        came(&b),
        ["x", "x", "x", "x", "x", "end: a message arrived, but no receive buffer was posted"]
    );
    assert_eq!(came(&a), ["end: a message arrived, but no receive buffer was posted"]);
    assert!(now(a.readable()).is_err() && now(b.writable()).is_err() && b.flush().is_err());
}

#[test]
fn receives_are_used_in_the_order_they_were_posted() {
    let Pair { a, b, .. } = pair_of(TERMS, ConnParam { receives: (1, 8), ..TERMS });
    b.receives(1, 2);
    say(&a, "12345678");
    a.send(b"123", Payload::Empty, None);
    assert!(a.flush().is_err());
    assert_eq!(
        came(&b),
        ["12345678", "end: a message of 3 bytes is longer than its receive buffer of 2 bytes"]
    );
}

#[test]
fn write_is_there_before_the_message_behind_it() {
    let Pair { a, b, fa, .. } = ready();
    let sink = b.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
    a.write(sink.beyond(2), Payload::Bytes(b"data".to_vec()));
    a.send(b"done", Payload::Empty, None);
    a.flush().unwrap();
    assert_eq!(came(&b), ["done"]);
    assert!(matches!(b.revoke(sink.stag), Some(MemoryRegion::Sink(buf)) if &buf[..] == b"\0\0data\0\0"));
    assert!(b.revoke(sink.stag).is_none());
    let log =
        [EndpointOp::Write { to: sink.beyond(2), len: 4 }, EndpointOp::Send { len: 4, invalidate: None }];
    assert_eq!(fa.log(), log);
    assert_eq!((fa.take_log().len(), fa.log().len()), (2, 0));
}

#[test]
fn write_outside_exposed_memory_ends_the_connection() {
    for (at, revoked) in [(1, false), (0, true)] {
        let Pair { a, b, .. } = ready();
        let sink = b.expose(MemoryRegion::Sink(Buf::zeroed(8))).unwrap();
        if revoked {
            b.revoke(sink.stag).unwrap();
        }
        a.write(sink.beyond(at), Payload::Zeros(8));
        a.send(b"never", Payload::Empty, None);
        assert!(a.flush().is_err());
        let came = came(&b);
        assert!(came.len() == 1 && came[0].starts_with("end: RDMA Write to 0x"), "{came:?}");
    }
}

#[test]
fn read_fills_its_place_in_the_buffer() {
    let Pair { a, b, fa, .. } = ready();
    let from = b.expose(source("0123456789")).unwrap();
    a.read(7, from.beyond(3), Buf::zeroed(6), 1, 4);
    assert_eq!(fa.outstanding(), 1);
    a.flush().unwrap();
    assert_eq!(came(&a), ["read 7 \x003456\0"]);
    assert_eq!(fa.outstanding(), 0);
    assert_eq!(
        fa.log(),
        [EndpointOp::Read { id: 7, from: from.beyond(3), len: 4 }, EndpointOp::ReadEnded { id: 7 }]
    );
}

#[test]
fn invalid_read_fails_and_ends_the_connection() {
    for (beyond, at) in [(3, 0), (0, 1)] {
        let Pair { a, b, .. } = ready();
        let from = b.expose(source("0123")).unwrap();
        a.read(7, from.beyond(beyond), Buf::zeroed(4), at, 4);
        assert!(a.flush().is_err());
        let came = came(&a);
        assert!(came.len() == 2 && came[0] == "read 7 failed" && came[1].starts_with("end: RDMA Read"));
    }
}

#[test]
fn reads_stay_within_the_depth_and_messages_pass_them() {
    let Pair { a, b, fa, .. } = pair_of(ConnParam { ord: 9, ..TERMS }, TERMS);
    assert_eq!((a.info().ord, b.info().ord), (2, 2));
    let from = b.expose(source("abc")).unwrap();
    fa.reads.hold();
    (0..3).for_each(|i| read(&a, i, from.beyond(i), 1));
    say(&a, "past them");
    assert_eq!(came(&b), ["past them"]);
    let begun = |id| EndpointOp::Read { id, from: from.beyond(id), len: 1 };
    assert_eq!(fa.take_log(), [begun(0), begun(1), EndpointOp::Send { len: 9, invalidate: None }]);
    assert_eq!(fa.outstanding(), 3);
    fa.reads.pass(1);
    assert_eq!(came(&a), ["read 0 a"]);
    assert_eq!(fa.take_log(), [EndpointOp::ReadEnded { id: 0 }, begun(2)]);
    fa.reads.release();
    assert_eq!(came(&a), ["read 1 b", "read 2 c"]);
    read(&a, 3, from, 1);
    a.flush().unwrap();
    assert_eq!(came(&a), ["read 3 a"]);
}

#[test]
fn released_read_wakes_the_waiter_with_current_bytes() {
    let Pair { a, b, fa, .. } = ready();
    let from = b.expose(source("abc")).unwrap();
    fa.reads.hold();
    read(&a, 0, from, 3);
    a.flush().unwrap();
    let woken = Arc::<Woken>::default();
    let mut readable = a.readable();
    assert!(once(&mut readable, &woken).is_pending());
    b.revoke(from.stag).unwrap();
    fa.reads.release();
    assert!(woken.0.load(SeqCst) && once(&mut readable, &woken).is_ready());
    assert_eq!(came(&a)[0], "read 0 failed", "the memory was revoked meanwhile");
}

#[test]
fn read_ends_the_connection_when_none_were_agreed_on() {
    let Pair { a, b, .. } = pair_of(TERMS, ConnParam { ird: 0, ..TERMS });
    let from = b.expose(source("abc")).unwrap();
    read(&a, 0, from, 3);
    assert!(a.flush().is_err());
    assert_eq!(came(&a), ["read 0 failed", "end: the peer sent an RDMA Read, but none were negotiated"]);
}

#[test]
fn invalidated_tag_is_reported_and_its_memory_returns() {
    let Pair { a, b, fa, .. } = ready();
    let sink = b.expose(MemoryRegion::Sink(Buf::zeroed(4))).unwrap();
    assert!(a.info().sends_invalidate);
    a.write(sink, Payload::Zeros(4));
    a.send(b"done", Payload::Empty, Some(sink.stag));
    a.flush().unwrap();
    assert_eq!(fa.log()[1], EndpointOp::Send { len: 4, invalidate: Some(sink.stag) });
    let mut events = EndpointEvents::default();
    b.poll(&mut events);
    assert!(matches!(&events.list[..], [EndpointEvent::Message(_, Some(stag))] if *stag == sink.stag));
    assert!(matches!(b.revoke(sink.stag), Some(MemoryRegion::Sink(_))) && b.revoke(sink.stag).is_none());
    a.write(sink, Payload::Zeros(1));
    assert!(a.flush().is_err());
}

#[test]
fn tag_is_ended_before_its_memory_is_taken_back() {
    let Pair { a, b, .. } = ready();
    let sink = b.expose(MemoryRegion::Sink(Buf::zeroed(4))).unwrap();
    a.send(b"done", Payload::Empty, Some(sink.stag));
    a.write(sink, Payload::Zeros(1));
    assert!(a.flush().is_err());
    assert!(b.revoke(sink.stag).is_some());
}

#[test]
fn ending_a_tag_that_names_nothing_ends_the_connection() {
    let Pair { a, b, .. } = ready();
    a.send(b"done", Payload::Empty, Some(0x1_0000));
    assert!(a.flush().is_err());
    assert_eq!(came(&b), ["end: a message invalidates the steering tag 0x00010000, which is not valid"]);
}

#[test]
fn endpoint_without_invalidate_reports_and_refuses_it() {
    let faults = [Rc::<Faults>::default(), Rc::default()];
    faults[0].invalidates.set(false);
    let (a, b) = pair(TERMS, TERMS, faults);
    assert!(!a.info().sends_invalidate && b.info().sends_invalidate);
    let sink = b.expose(MemoryRegion::Sink(Buf::zeroed(4))).unwrap();
    a.send(b"done", Payload::Empty, Some(sink.stag));
    assert!(a.flush().is_err());
}

#[test]
fn held_messages_arrive_when_they_are_let_through() {
    let Pair { a, b, fb, .. } = ready();
    fb.messages.hold();
    ["one", "two", "three"].iter().for_each(|text| say(&a, text));
    assert_eq!(came(&b), [""; 0]);
    fb.messages.pass(1);
    assert_eq!(came(&b), ["one"]);
    let woken = Arc::<Woken>::default();
    let mut readable = b.readable();
    assert!(once(&mut readable, &woken).is_pending());
    fb.messages.release();
    assert!(woken.0.load(SeqCst) && once(&mut readable, &woken).is_ready());
    assert_eq!(came(&b), ["two", "three"]);
}

#[test]
fn held_messages_are_lost_with_the_connection() {
    let Pair { a, b, fb, .. } = ready();
    say(&a, "there");
    fb.messages.hold();
    say(&a, "on its way");
    a.close();
    fb.messages.release();
    assert_eq!(came(&b), ["there", "end"]);
}

#[test]
fn read_fails_on_demand_and_only_that_one() {
    let Pair { a, b, fa, .. } = ready();
    let from = b.expose(source("abc")).unwrap();
    read(&a, 0, from, 3);
    a.flush().unwrap();
    fa.fail_next_read.set(true);
    read(&a, 1, from, 3);
    assert!(a.flush().is_err() && !fa.fail_next_read.get());
    let end = "end: an RDMA Read failed (injected fault)";
    assert_eq!(came(&a), ["read 0 abc", "read 1 failed", end]);
    assert_eq!(came(&b), [end]);
}

#[test]
fn connection_is_lost_after_the_requested_operations() {
    let Pair { a, b, fa, .. } = ready();
    let sink = b.expose(MemoryRegion::Sink(Buf::zeroed(4))).unwrap();
    fa.lose_after.set(Some(2));
    a.write(sink, Payload::Bytes(b"data".to_vec()));
    a.send(b"last", Payload::Empty, None);
    a.send(b"never", Payload::Empty, None);
    assert!(a.flush().is_err());
    assert_eq!(fa.log().len(), 2);
    assert_eq!(came(&b), ["last", "end: the connection was lost (injected fault)"]);
}

#[test]
fn close_returns_every_buffer_and_ends_the_peer() {
    let Pair { a, b, fa, .. } = ready();
    let from = b.expose(source("abc")).unwrap();
    fa.reads.hold();
    (0..3).for_each(|i| read(&a, i, from, 3));
    a.flush().unwrap();
    read(&a, 3, from, 3);
    a.send(b"never", Payload::Empty, None);
    a.close();
    let failed = ["read 0 failed", "read 1 failed", "read 2 failed", "read 3 failed", "end"];
    assert_eq!(came(&a), failed);
    assert_eq!(came(&b), ["end"]);
    assert_eq!((fa.outstanding(), a.waiting()), (0, 0));
    read(&a, 4, from, 3);
    a.send(b"never", Payload::Empty, None);
    assert!(a.flush().is_err());
    assert_eq!((came(&a), came(&b)), (vec!["read 4 failed".to_string()], vec![]));
}

#[test]
fn dropping_an_end_ends_the_connection() {
    let Pair { a, b, .. } = ready();
    say(&a, "bye");
    drop(a);
    assert_eq!(came(&b), ["bye", "end"]);
}

#[test]
fn too_many_regions_fail_and_the_connection_continues() {
    let Pair { a, b, .. } = ready();
    let shared = Rc::new(Buf::zeroed(1));
    for _ in 0..65535 {
        a.expose(MemoryRegion::Source(shared.clone())).unwrap();
    }
    let error = a.expose(MemoryRegion::Source(shared)).unwrap_err();
    assert_eq!(error.to_string(), "the RDMA connection has too many registered memory regions");
    b.receives(1, 100);
    say(&a, "still here");
    assert_eq!(came(&b), ["still here"]);
}

#[test]
fn connection_carries_private_data_in_both_directions() {
    let (asked, mut outcome) = request(b"please", ConnParam { ord: 5, ird: 1, ..TERMS });
    assert!(once(&mut outcome, &Arc::default()).is_pending());
    assert_eq!(asked.private(), b"please");
    let addresses = asked.addresses();
    let target = now(asked.accept(b"gladly".to_vec(), ConnParam { ord: 4, ird: 3, ..TERMS })).unwrap();
    let (initiator, private) = now(outcome).unwrap();
    assert_eq!(private, b"gladly");
    assert_eq!((initiator.info().ord, target.info().ord), (3, 1));
    assert_eq!((target.info().local, target.info().peer), addresses);
    assert_eq!((initiator.info().peer, initiator.info().local), addresses);
    say(&initiator, "hello");
    say(&target, "welcome");
    assert_eq!((came(&initiator), came(&target)), (vec!["welcome".into()], vec!["hello".into()]));
}

#[test]
fn request_is_rejected_explicitly_or_by_dropping_it() {
    let (asked, outcome) = request(b"please", TERMS);
    now(asked.reject(b"no".to_vec()));
    assert!(matches!(now(outcome), Err(ConnectError::Rejected(word)) if word == b"no"));
    let (asked, outcome) = request(b"please", TERMS);
    drop(asked);
    assert!(matches!(now(outcome), Err(ConnectError::Rejected(word)) if word.is_empty()));
}

#[test]
fn abandoned_request_is_not_accepted() {
    let (asked, outcome) = request(b"please", TERMS);
    drop(outcome);
    assert!(now(asked.accept(Vec::new(), TERMS)).is_err());
    let (asked, outcome) = request(b"please", TERMS);
    let target = now(asked.accept(Vec::new(), TERMS)).unwrap();
    drop(outcome);
    assert_eq!(came(&target), ["end"]);
}

#[test]
fn private_data_has_its_bounds_and_may_have_zeros_behind_it() {
    let (asked, outcome) = request(&[1; MAX_PRIVATE + 1], TERMS);
    assert!(matches!(now(outcome), Err(ConnectError::Io(_))));
    assert!(now(asked.accept(Vec::new(), TERMS)).is_err());
    let (asked, outcome) = request(&[1; MAX_PRIVATE], TERMS);
    assert!(now(asked.accept(vec![1; MAX_PRIVATE + 1], TERMS)).is_err());
    assert!(matches!(now(outcome), Err(ConnectError::Rejected(_))));

    let faults = [Rc::<Faults>::default(), Rc::default()];
    faults.iter().for_each(|faults| faults.pads.set(true));
    let (asked, outcome) = request_with(&[1; 4], TERMS, faults.clone());
    assert_eq!((asked.private().len(), &asked.private()[..5]), (56, &[1, 1, 1, 1, 0][..]));
    let _target = now(asked.accept(vec![2; 4], TERMS)).unwrap();
    assert_eq!(now(outcome).unwrap().1.len(), 196);
    let (asked, outcome) = request_with(&[1; 4], TERMS, faults);
    now(asked.reject(Vec::new()));
    assert!(matches!(now(outcome), Err(ConnectError::Rejected(word)) if word.len() == 148));
}
