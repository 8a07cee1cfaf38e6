//! The send queue of a connection: many messages, one vectored send.

mod body;

use crate::Stream;
use crate::piped_bytes::PipedPart;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

pub use body::{Body, MAX_ZEROS, Payload};

/// Messages that are sent without an allocation.
const FEW: usize = 4;

/// Slices in one send (IOV_MAX).
const MAX_SLICES: usize = 1024;

/// Limit of joined messages without a payload, in bytes: an entry is released only with its last byte.
const TOGETHER: usize = 4096;

/// Bytes of frame memory that an idle connection keeps.
const KEEP: usize = 64 << 10;

struct QueuedMessage {
    /// Bytes before and after the payload. Several messages without one may be the same entry.
    head_len: usize,
    tail_len: usize,
    body: Body,
}

impl QueuedMessage {
    #[inline]
    fn frame_len(&self) -> usize {
        self.head_len + self.tail_len
    }

    #[inline]
    fn len(&self) -> usize {
        self.frame_len() + self.body.len()
    }

    /// The pipe with the next byte to send, and how many of its bytes are sent.
    #[inline]
    fn pipe_to_send(&self, sent: usize) -> Option<(&PipedPart, usize)> {
        let Body::Piped(part) = &self.body else { return None };
        let of_part = sent.checked_sub(self.head_len).filter(|of_part| *of_part < part.len)?;
        Some((part, of_part))
    }
}

/// The end of a walk through the queued bytes.
#[derive(Debug, PartialEq, Eq)]
enum WalkEnd {
    /// Bytes in a pipe follow, which need a call of their own.
    Piped,
    /// Everything was taken, or the taker is full.
    Taken,
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
    #[inline(always)]
    pub fn push(&mut self, head: &[u8], body: impl Into<Body>, tail: &[u8]) {
        let body = body.into();
        self.frames.extend_from_slice(head);
        if !tail.is_empty() {
            // An empty copy would still cost a call.
            self.frames.extend_from_slice(tail);
        }
        if let (true, Some(last)) = (body.is_none(), self.queue.back_mut())
            && last.body.is_none()
            && last.head_len < TOGETHER
        {
            last.head_len += head.len() + tail.len();
            self.waiting += head.len() + tail.len();
            return;
        }
        let entry = QueuedMessage { head_len: head.len(), tail_len: tail.len(), body };
        self.waiting += entry.len();
        self.own += entry.body.own();
        self.queue.push_back(entry);
    }

    /// Queued bytes of payloads outside any pool.
    #[inline]
    pub fn own(&self) -> usize {
        self.own
    }

    /// Whether no message is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Queued bytes, with the overhead of the queue.
    #[inline]
    pub fn waiting(&self) -> usize {
        self.waiting + self.queue.len() * size_of::<QueuedMessage>()
    }

    /// Sends until the queue is empty (true) or the socket takes no more (false).
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        self.flush_part(stream, usize::MAX)
    }

    /// As [`SendQueue::flush`], but also returns false when at least `part` bytes were sent. It sends less than twice as
    /// many, unless they are in a pipe, where sending copies nothing.
    pub fn flush_part(&mut self, stream: &Stream, part: usize) -> io::Result<bool> {
        let mut room = part;
        while let Some(first) = self.queue.front() {
            if room == 0 {
                return Ok(false);
            }
            let sent = match first.pipe_to_send(self.sent) {
                Some((part, sent)) => part.send(stream, sent)?,
                None if self.queue.len() <= FEW => self.send_few(stream, room)?,
                None => self.send_many(stream, room)?,
            };
            let Some(sent) = sent else { return Ok(false) };
            self.advance(sent);
            room = room.saturating_sub(sent);
        }
        Ok(true)
    }

    /// As `send_many`, without an allocation.
    fn send_few(&self, stream: &Stream, room: usize) -> io::Result<Option<usize>> {
        let mut slices = [IoSlice::new(&[]); 2 * FEW + 1];
        let (mut n, mut left) = (0, room);
        let end = self.each_part(|part| {
            slices[n] = cut(part, room, &mut left);
            n += 1;
            n < 2 * FEW + 1 && left > 0
        });
        stream.send(&slices[..n], end == WalkEnd::Piped)
    }

    /// Sends the bytes up to the first ones in a pipe, and less than twice `room` of them.
    fn send_many(&self, stream: &Stream, room: usize) -> io::Result<Option<usize>> {
        let (slices, end) = self.slices(room);
        stream.send(&slices, end == WalkEnd::Piped)
    }

    fn slices(&self, room: usize) -> (Vec<IoSlice<'_>>, WalkEnd) {
        let mut slices = Vec::with_capacity((self.queue.len() * 2 + 2).min(MAX_SLICES));
        let mut left = room;
        let end = self.each_part(|part| {
            slices.push(cut(part, room, &mut left));
            slices.len() < MAX_SLICES && left > 0
        });
        (slices, end)
    }

    /// Passes the queued bytes to `take`, slice by slice, until it returns false, or bytes in a pipe follow.
    #[inline]
    fn each_part<'a>(&'a self, mut take: impl FnMut(&'a [u8]) -> bool) -> WalkEnd {
        let mut skip = self.sent;
        let mut show = |skip: &mut usize, part: &'a [u8]| {
            let cut = (*skip).min(part.len());
            *skip -= cut;
            cut == part.len() || take(&part[cut..])
        };
        // Offsets in the frames: passed to `take`, and to pass next.
        let (mut shown, mut end) = (0, 0);
        for (index, e) in self.queue.iter().enumerate() {
            end += e.head_len;
            match e.body.bytes() {
                Some([]) => {}
                Some(data) => {
                    if !show(&mut skip, &self.frames[shown..end]) || !show(&mut skip, data) {
                        return WalkEnd::Taken;
                    }
                    shown = end;
                }
                // The data of the first message are sent: only its tail remains.
                None if index == 0 && self.sent > e.head_len => {
                    skip -= e.head_len + e.body.len();
                    shown = end;
                }
                None => {
                    let goes_on = show(&mut skip, &self.frames[shown..end]);
                    return if goes_on { WalkEnd::Piped } else { WalkEnd::Taken };
                }
            }
            end += e.tail_len;
        }
        show(&mut skip, &self.frames[shown..end]);
        WalkEnd::Taken
    }

    /// All queued bytes, if none are in a pipe.
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
        let (frames, own, len) =
            self.queue.front().map_or((0, 0, 0), |e| (e.frame_len(), e.body.own(), e.len()));
        self.frames.truncate(frames);
        (self.own, self.waiting) = (own, len - self.sent);
    }

    /// Takes all queued bytes: for other senders, tests and fuzzers.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let mut sent = self.sent;
        for e in &mut self.queue {
            e.body.load(sent.saturating_sub(e.head_len).min(e.body.len()));
            sent = 0;
        }
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
            self.own -= first.body.own();
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

/// The first `room` bytes of a part. `left` becomes what the parts behind it may have. Such a cut leaves an aligned
/// payload aligned, which the kernel copies faster.
#[inline]
fn cut<'a>(part: &'a [u8], room: usize, left: &mut usize) -> IoSlice<'a> {
    let part = &part[..part.len().min(room)];
    *left = left.saturating_sub(part.len());
    IoSlice::new(part)
}

#[cfg(test)]
mod tests;
