use super::*;
use crate::Buf;
use crate::piped_bytes::{PipedBytes, PipedPart};
use std::rc::Rc;

#[test]
fn send_may_stop_at_any_byte() {
    let mut whole = SendQueue::default();
    let fill = |out: &mut SendQueue| {
        out.push(&[1; 48], Payload::Zeros(6), &[0; 2]);
        out.push(&[2; 52], Payload::Empty, &[]);
        out.push(&[3; 16], Payload::Bytes(vec![9; 9]), &[4; 7]);
    };
    fill(&mut whole);
    let all = whole.bytes();
    for (first, second) in (0..=all.len()).flat_map(|a| (a..=all.len()).map(move |b| (a, b))) {
        let mut out = SendQueue::default();
        fill(&mut out);
        out.advance(first);
        out.advance(second - first);
        assert_eq!(out.bytes(), all[second..], "after {first} and {second} bytes");
        assert_eq!(out.waiting, all.len() - second);
        assert_eq!((out.left(), out.end()), (second as u64, all.len() as u64));
        fill(&mut out);
        assert_eq!(
            out.bytes(),
            [&all[second..], &all].concat(),
            "the messages appended after {first} and {second} bytes"
        );
    }
}

#[test]
fn part_of_the_queue_keeps_payloads_aligned() {
    let mut out = SendQueue::default();
    for _ in 0..3 {
        out.push(&[1; 48], Payload::Zeros(8192), &[]);
    }
    let lengths = |out: &SendQueue, room| out.slices(room).0.iter().map(|s| s.len()).collect::<Vec<_>>();
    assert_eq!(lengths(&out, 4096), [48, 4096]);
    assert_eq!(lengths(&out, 8192), [48, 8192]);
    assert_eq!(lengths(&out, 9000), [48, 8192, 48, 8192]);
    out.advance(48 + 4096);
    assert_eq!(lengths(&out, 4096), [4096]);
    assert_eq!(lengths(&out, usize::MAX), [4096, 48, 8192, 48, 8192]);
}

#[test]
fn dropping_unsent_messages_keeps_the_begun_one_whole() {
    for sent in 0..=60 {
        let mut out = SendQueue::default();
        out.push(&[1; 16], Payload::Bytes(vec![9; 20]), &[2; 4]);
        out.push(&[3; 16], Payload::Bytes(vec![8; 20]), &[4; 4]);
        let all = out.bytes();
        out.advance(sent);
        out.drop_unbegun();
        let kept = [0, 40, 80][sent.div_ceil(40)].max(sent);
        assert_eq!(out.bytes(), all[sent..kept], "after {sent} bytes");
        assert_eq!((out.waiting, out.own()), (kept - sent, if kept > sent { 20 } else { 0 }));
        out.push(&[5; 8], Payload::Empty, &[]);
        assert_eq!(out.bytes(), [&all[sent..kept], &[5; 8]].concat());
    }
}

#[test]
fn messages_without_a_payload_leave_in_one_piece() {
    let mut out = SendQueue::default();
    for _ in 0..3 {
        out.push(&[1; 52], Payload::Empty, &[]);
    }
    assert_eq!(out.slices(usize::MAX).0.len(), 1);
    out.push(&[2; 48], Payload::Bytes(vec![7; 5]), &[0; 3]);
    out.push(&[3; 16], Payload::Empty, &[]);
    assert_eq!(
        out.slices(usize::MAX).0.iter().map(|s| s.len()).collect::<Vec<_>>(),
        [3 * 52 + 48, 5, 3 + 16]
    );
}

#[test]
fn memory_of_small_messages_is_let_go_while_others_still_wait() {
    let mut out = SendQueue::default();
    for _ in 0..1000 {
        out.push(&[1; 48], Payload::Empty, &[]);
        out.push(&[1; 48], Payload::Empty, &[]);
        out.advance(95);
    }
    assert_eq!(out.waiting, 1000);
    assert!(out.frames.len() < 2 * TOGETHER, "{} bytes of frames are kept", out.frames.len());
    assert!(out.queue.len() <= 2, "one entry for many");
}

#[test]
fn shared_buffer_is_let_go_with_the_message_that_held_it() {
    let (mut out, shared) = (SendQueue::default(), Rc::new(Buf::zeroed(8)));
    for at in [0, 4] {
        out.push(&[1; 16], Payload::Part(shared.clone(), at, 4), &[2; 4]);
    }
    let mut holders = |sent| {
        out.advance(sent);
        Rc::strong_count(&shared) - 1
    };
    assert_eq!([23, 1, 23, 1].map(&mut holders), [2, 1, 1, 0]);
}

/// A file of `len` bytes, each page with its number, and its pages.
fn pages(len: usize) -> (Vec<u8>, Rc<PipedBytes>) {
    let content: Vec<u8> = (0..len).map(|at| (at / 4096) as u8 ^ at as u8).collect();
    let file = rustix::fs::memfd_create("pages", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
    rustix::io::write(&file, &content).expect("written");
    (content, Rc::new(PipedBytes::take(&file, 0, len).expect("a pipe")))
}

/// Three messages: pages in two parts between bytes in memory. Returns all of their bytes.
fn push_pages(out: &mut SendQueue) -> Vec<u8> {
    let (content, pages) = pages(10_000);
    out.push(&[1; 48], Payload::Empty, &[]);
    for (start, len, tail) in [(0, 4097, &[0; 3][..]), (4097, 5903, &[0; 1])] {
        out.push(&[2; 48], Body::Piped(PipedPart { piped: pages.clone(), start, len }), tail);
    }
    out.push(&[3; 48], Payload::Bytes(vec![9; 16]), &[]);
    let [first, second] = [&content[..4097], &content[4097..]];
    [&[1; 48][..], &[2; 48], first, &[0; 3], &[2; 48], second, &[0; 1], &[3; 48], &[9; 16]].concat()
}

#[test]
fn pages_leave_in_order_with_the_bytes_around_them() {
    let mut out = SendQueue::default();
    let all = push_pages(&mut out);
    assert_eq!(out.waiting, all.len());
    assert_eq!(out.take_bytes(), all);
    assert_eq!((out.waiting, out.left()), (0, all.len() as u64));
}

/// A sender and a receiver with small buffers, so that sends end at all kinds of places.
async fn send_through_socket(fill: impl FnOnce(&mut SendQueue) -> Vec<u8>) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
    let stream = Stream::new(ours).expect("a stream");
    let mut out = SendQueue::default();
    let all = fill(&mut out);
    let wanted = all.len();
    let receiver = std::thread::spawn(move || {
        let mut received = vec![0; wanted];
        // Short receives of many lengths.
        let mut at = 0;
        while at < wanted {
            let end = wanted.min(at + 1 + at % 1777);
            at += std::io::Read::read(&mut &theirs, &mut received[at..end]).expect("received");
        }
        received
    });
    while !out.flush(&stream).expect("sent") {
        stream.writable().await.expect("open");
    }
    assert!(receiver.join().expect("a receiver") == all);
    assert_eq!((out.waiting, out.left()), (0, wanted as u64));
}

#[test]
fn pages_pass_a_socket_that_takes_little() {
    compio::runtime::Runtime::new().expect("a runtime").block_on(async {
        send_through_socket(push_pages).await;
    });
}

#[test]
fn dropped_pages_leave_the_begun_message_whole() {
    compio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let stream = Stream::new(ours).expect("a stream");
        let mut out = SendQueue::default();
        let mut all = Vec::new();
        for number in 0..16 {
            let (content, pages) = pages(1 << 20);
            out.push(&[number; 48], Body::Piped(PipedPart { piped: pages, start: 0, len: 1 << 20 }), &[]);
            all.extend([&[number; 48][..], &content].concat());
        }
        assert!(!out.flush(&stream).expect("sent"), "the socket does not take 16 MiB");
        out.drop_unbegun();
        assert!(out.queue.len() <= 1);
        let receiver = std::thread::spawn(move || {
            let mut received = Vec::new();
            std::io::Read::read_to_end(&mut &theirs, &mut received).expect("received");
            received
        });
        while !out.flush(&stream).expect("sent") {
            stream.writable().await.expect("open");
        }
        drop(stream);
        let received = receiver.join().expect("a receiver");
        assert_eq!(received.len() % ((1 << 20) + 48), 0, "no message is cut");
        assert!(!received.is_empty() && received == all[..received.len()]);
    });
}
