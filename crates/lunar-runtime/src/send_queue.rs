//! The send queue of a connection: many messages, one vectored send.

use crate::{Buf, Stream};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;

/// The longest payload of zeros in bytes.
pub const MAX_ZEROS: usize = 1 << 20;
static ZEROS: ZeroPage = ZeroPage([0; MAX_ZEROS]);

/// Page-aligned, because the kernel copies faster from there.
#[repr(align(4096))]
struct ZeroPage([u8; MAX_ZEROS]);

/// Messages that are sent without an allocation.
const FEW: usize = 4;

/// Slices in one send (IOV_MAX).
const MAX_SLICES: usize = 1024;

/// Limit of joined messages without a payload, in bytes: an entry is released only with its last byte.
const TOGETHER: usize = 4096;

/// Bytes of frame memory that an idle connection keeps.
const KEEP: usize = 64 << 10;

/// The data of a message to send.
pub enum Payload {
    /// None.
    Empty,
    /// This many zeros, at most [`MAX_ZEROS`].
    Zeros(usize),
    /// Owned bytes.
    Bytes(Vec<u8>),
    /// The first bytes of a buffer: buffer and length.
    Buf(Buf, usize),
    /// A part of a shared buffer: buffer, start and length.
    Part(Rc<Buf>, usize, usize),
}

impl Payload {
    /// The bytes to send.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Payload::Empty => &[],
            Payload::Zeros(n) => &ZEROS.0[..*n],
            Payload::Bytes(b) => b,
            Payload::Buf(b, n) => &b[..*n],
            Payload::Part(b, at, n) => &b[*at..at + n],
        }
    }
}

struct QueuedMessage {
    /// Bytes before and after the payload. Several messages without one may be the same entry.
    head_len: usize,
    tail_len: usize,
    payload: Payload,
}

impl QueuedMessage {
    fn frame_len(&self) -> usize {
        self.head_len + self.tail_len
    }

    fn own(&self) -> usize {
        if let Payload::Bytes(bytes) = &self.payload { bytes.len() } else { 0 }
    }

    fn len(&self) -> usize {
        self.frame_len() + self.payload.bytes().len()
    }
}

/// The queue of messages to send.
#[derive(Default)]
pub struct SendQueue {
    queue: VecDeque<QueuedMessage>,
    /// Heads and tails, message after message, in one vector: adjacent messages without a payload become one slice.
    frames: Vec<u8>,
    /// Bytes of payloads outside any pool.
    own: usize,
    /// Sent bytes of the first entry.
    sent: usize,
    /// Queued bytes, payloads included.
    waiting: usize,
    /// Bytes sent so far.
    left: u64,
    /// Whether bytes were sent since [`SendQueue::take_moved`].
    moved: bool,
}

impl SendQueue {
    /// Appends a message: its head, its payload, and what follows the payload.
    #[inline]
    pub fn push(&mut self, head: &[u8], payload: Payload, tail: &[u8]) {
        self.frames.extend_from_slice(head);
        if !tail.is_empty() {
            // An empty copy would still cost a call.
            self.frames.extend_from_slice(tail);
        }
        if let (Payload::Empty, Some(last)) = (&payload, self.queue.back_mut())
            && matches!(last.payload, Payload::Empty)
            && last.head_len < TOGETHER
        {
            last.head_len += head.len() + tail.len();
            self.waiting += head.len() + tail.len();
            return;
        }
        let entry = QueuedMessage { head_len: head.len(), tail_len: tail.len(), payload };
        self.waiting += entry.len();
        self.own += entry.own();
        self.queue.push_back(entry);
    }

    /// Queued bytes of payloads outside any pool.
    pub fn own(&self) -> usize {
        self.own
    }

    /// Queued bytes, with the overhead of the queue.
    pub fn waiting(&self) -> usize {
        self.waiting + self.queue.len() * size_of::<QueuedMessage>()
    }

    /// Sends until the queue is empty (true) or the socket takes no more (false).
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        while !self.queue.is_empty() {
            let sent = match self.queue.len() <= FEW {
                true => self.send_few(stream)?,
                false => stream.send(&self.slices())?,
            };
            let Some(sent) = sent else { return Ok(false) };
            self.advance(sent);
        }
        Ok(true)
    }

    /// As `slices`, without an allocation.
    fn send_few(&self, stream: &Stream) -> io::Result<Option<usize>> {
        let mut slices = [IoSlice::new(&[]); 2 * FEW + 1];
        let mut n = 0;
        self.each_part(|part| {
            slices[n] = IoSlice::new(part);
            n += 1;
            n < 2 * FEW + 1
        });
        stream.send(&slices[..n])
    }

    fn slices(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity((self.queue.len() * 2 + 2).min(MAX_SLICES));
        self.each_part(|part| {
            slices.push(IoSlice::new(part));
            slices.len() < MAX_SLICES
        });
        slices
    }

    /// Passes the queued bytes to `take`, slice by slice, until it returns false.
    #[inline]
    fn each_part<'a>(&'a self, mut take: impl FnMut(&'a [u8]) -> bool) {
        let mut skip = self.sent;
        let mut show = |part: &'a [u8]| {
            let cut = skip.min(part.len());
            skip -= cut;
            cut == part.len() || take(&part[cut..])
        };
        // Offsets in the frames: passed to `take`, and to pass next.
        let (mut shown, mut end) = (0, 0);
        for e in &self.queue {
            end += e.head_len;
            let data = e.payload.bytes();
            if !data.is_empty() {
                if !show(&self.frames[shown..end]) || !show(data) {
                    return;
                }
                shown = end;
            }
            end += e.tail_len;
        }
        show(&self.frames[shown..end]);
    }

    /// All queued bytes.
    fn bytes(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.waiting);
        self.each_part(|part| {
            all.extend_from_slice(part);
            true
        });
        all
    }

    /// Whether bytes were sent since the last call, which shows that the peer receives.
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Bytes sent since the queue was created.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The value of [`SendQueue::left`] once everything queued now is sent.
    #[inline]
    pub fn end(&self) -> u64 {
        self.left + self.waiting as u64
    }

    /// Drops the queue except a partly sent entry, so that the peer sees no truncated message. The entry may be a few
    /// messages without a payload.
    pub fn drop_unbegun(&mut self) {
        self.queue.truncate(usize::from(self.sent > 0));
        let (frames, own, len) = self.queue.front().map_or((0, 0, 0), |e| (e.frame_len(), e.own(), e.len()));
        self.frames.truncate(frames);
        (self.own, self.waiting) = (own, len - self.sent);
    }

    /// Takes all queued bytes: for other senders, tests and fuzzers.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let all = self.bytes();
        self.advance(all.len());
        all
    }

    fn advance(&mut self, sent: usize) {
        self.moved |= sent > 0;
        self.left += sent as u64;
        if sent == self.waiting {
            return self.emptied();
        }
        self.waiting -= sent;
        let (mut rest, mut gone) = (self.sent + sent, 0);
        while let Some(first) = self.queue.front()
            && first.len() <= rest
        {
            rest -= first.len();
            gone += first.frame_len();
            self.own -= first.own();
            self.queue.pop_front();
        }
        self.frames.drain(..gone);
        self.sent = rest;
    }

    /// The queue is empty. Large memory is freed: the connection may be idle from now on.
    fn emptied(&mut self) {
        if self.frames.capacity() > KEEP {
            *self = SendQueue { moved: self.moved, left: self.left, ..SendQueue::default() };
        }
        self.own = 0;
        self.queue.clear();
        self.frames.clear();
        (self.sent, self.waiting) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(out.slices().len(), 1);
        out.push(&[2; 48], Payload::Bytes(vec![7; 5]), &[0; 3]);
        out.push(&[3; 16], Payload::Empty, &[]);
        assert_eq!(out.slices().iter().map(|s| s.len()).collect::<Vec<_>>(), [3 * 52 + 48, 5, 3 + 16]);
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
}
