//! Replies, simple or structured as negotiated.

use lunar_block::Extent;
use lunar_proto::nbd::NegotiatedOptions;
use lunar_runtime::send_queue::{Body, MAX_ZEROS, Payload, SendQueue};
use lunar_runtime::{Buf, PipedBytes};
use lunar_wire::nbd::{
    CHUNK_LEN, ChunkHeader, Errno, ErrorBody, OffsetData, OffsetHole, Request, SIMPLE_REPLY_LEN, SimpleReply,
    StatusDescriptor, chunk, command, state,
};
use std::io;
use std::ops::Range;
use std::rc::Rc;

/// The granularity in bytes at which zeros are reported as holes.
const GRAIN: usize = 32 << 10;
/// The maximum length of an error text in characters. At four bytes per character it fits the protocol's maximum.
const MAX_WORDS: usize = 200;
/// The minimum length in bytes of a read that is searched for zeros.
const WORTHWHILE: usize = 4096;

/// The error of a failed request.
pub(super) struct ReplyError {
    errno: Errno,
    why: String,
}

impl ReplyError {
    pub(super) fn new(errno: Errno, why: impl Into<String>) -> ReplyError {
        ReplyError { errno, why: why.into() }
    }
}

impl From<io::Error> for ReplyError {
    fn from(e: io::Error) -> Self {
        use io::ErrorKind;
        let errno = match e.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Errno::NoSpc,
            ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => Errno::Perm,
            ErrorKind::OutOfMemory => Errno::NoMem,
            ErrorKind::InvalidInput | ErrorKind::Unsupported => Errno::Inval,
            _ => Errno::Io,
        };
        ReplyError { errno, why: e.to_string() }
    }
}

/// The queue of replies.
pub(super) struct ReplyQueue {
    pub out: SendQueue,
    structured: bool,
}

impl ReplyQueue {
    pub(super) fn new(structured: bool) -> ReplyQueue {
        ReplyQueue { out: SendQueue::default(), structured }
    }

    /// Queues the reply to a successful request without data.
    pub(super) fn done(&mut self, request: &Request) {
        if self.structured && request.command == command::READ {
            return self.chunk(request, chunk::NONE, true, &[], Payload::Empty);
        }
        self.simple(request, 0, Payload::Empty);
    }

    /// Queues an error reply.
    pub(super) fn failed(&mut self, request: &Request, failure: &ReplyError) {
        if !self.structured {
            return self.simple(request, failure.errno as u32, Payload::Empty);
        }
        let why = failure.why.chars().take(MAX_WORDS).collect::<String>().into_bytes();
        let head = ErrorBody::encode_head(failure.errno as u32, why.len() as u16);
        self.chunk(request, chunk::ERROR, true, &head, Payload::Bytes(why));
    }

    /// Queues the data of a read. `whole` requests a single chunk.
    pub(super) fn data(&mut self, request: &Request, buf: Buf, whole: bool) {
        let len = buf.len();
        if !self.structured {
            return self.simple(request, 0, Payload::Buf(buf, len));
        }
        let mut pieces = pieces(&buf);
        if whole && pieces.len() > 1 {
            pieces = vec![(0..len, false)];
        }
        if let [(_, zero)] = pieces[..] {
            let payload = if zero { Payload::Empty } else { Payload::Buf(buf, len) };
            return self.content(request, 0..len, zero, true, payload);
        }
        let (buf, last) = (Rc::new(buf), pieces.len() - 1);
        for (i, (range, zero)) in pieces.into_iter().enumerate() {
            let payload = match zero {
                true => Payload::Empty,
                false => Payload::Part(buf.clone(), range.start, range.len()),
            };
            self.content(request, range, zero, i == last, payload);
        }
    }

    /// Queues the data of a read that are in a pipe, in a single chunk: a search for zeros would copy them.
    pub(super) fn piped(&mut self, request: &Request, piped: PipedBytes) {
        let (len, data) = (piped.len(), Body::Piped(piped.into()));
        match self.structured {
            true => self.content(request, 0..len, false, true, data),
            false => self.simple(request, 0, data),
        }
    }

    /// Queues the reply to a read of zeros. Needs no buffer.
    pub(super) fn zeros(&mut self, request: &Request) {
        let len = request.len as usize;
        if self.structured {
            return self.content(request, 0..len, true, true, Payload::Empty);
        }
        let first = len.min(MAX_ZEROS);
        self.simple(request, 0, Payload::Zeros(first));
        for at in (first..len).step_by(MAX_ZEROS) {
            self.out.push(&[], Payload::Zeros((len - at).min(MAX_ZEROS)), &[]);
        }
    }

    /// Queues the extents of a BLOCK_STATUS request for `base:allocation`.
    pub(super) fn status(&mut self, request: &Request, extents: &[Extent]) {
        let mut descriptors = Vec::with_capacity(extents.len() * 8);
        for extent in extents {
            let flags = if extent.mapped { 0 } else { state::HOLE | state::ZERO };
            descriptors.extend(StatusDescriptor { len: extent.len as u32, flags }.encode());
        }
        let head = NegotiatedOptions::ALLOCATION_ID.to_be_bytes();
        self.chunk(request, chunk::BLOCK_STATUS, true, &head, Payload::Bytes(descriptors));
    }

    /// Queues a chunk with a piece of the data, or with a hole.
    fn content(
        &mut self,
        request: &Request,
        range: Range<usize>,
        zero: bool,
        done: bool,
        data: impl Into<Body>,
    ) {
        let (offset, len) = (request.offset + range.start as u64, range.len() as u32);
        match zero {
            true => {
                let head = OffsetHole { offset, len }.encode();
                self.chunk(request, chunk::OFFSET_HOLE, done, &head, data);
            }
            false => {
                let head = OffsetData { offset }.encode();
                self.chunk(request, chunk::OFFSET_DATA, done, &head, data);
            }
        }
    }

    fn simple(&mut self, request: &Request, error: u32, data: impl Into<Body>) {
        let head: [u8; SIMPLE_REPLY_LEN] = SimpleReply { error, cookie: request.cookie }.encode();
        self.out.push(&head, data, &[]);
    }

    fn chunk(&mut self, request: &Request, kind: u16, done: bool, fixed: &[u8], data: impl Into<Body>) {
        let data = data.into();
        let flags = if done { chunk::DONE } else { 0 };
        let len = (fixed.len() + data.len()) as u32;
        let mut head = [0; CHUNK_LEN + 12];
        head[..CHUNK_LEN].copy_from_slice(&ChunkHeader { flags, kind, cookie: request.cookie, len }.encode());
        head[CHUNK_LEN..CHUNK_LEN + fixed.len()].copy_from_slice(fixed);
        self.out.push(&head[..CHUNK_LEN + fixed.len()], data, &[]);
    }
}

/// Splits data into ranges, each with whether it is all zeros. Returns at least one range.
fn pieces(bytes: &[u8]) -> Vec<(Range<usize>, bool)> {
    let mut pieces: Vec<(Range<usize>, bool)> = Vec::new();
    if bytes.len() < WORTHWHILE {
        return vec![(0..bytes.len(), false)];
    }
    for (i, grain) in bytes.chunks(GRAIN).enumerate() {
        let (range, zero) = (i * GRAIN..i * GRAIN + grain.len(), is_zero(grain));
        match pieces.last_mut() {
            Some((last, same)) if *same == zero => last.end = range.end,
            _ => pieces.push((range, zero)),
        }
    }
    pieces
}

fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; 4096] = [0; 4096];
    bytes.chunks(ZEROS.len()).all(|piece| *piece == ZEROS[..piece.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_separate_zeros_from_data_in_grains() {
        let mut bytes = vec![0; 4 * GRAIN + 512];
        assert_eq!(pieces(&bytes), [(0..4 * GRAIN + 512, true)]);
        bytes[2 * GRAIN] = 1;
        let expected =
            [(0..2 * GRAIN, true), (2 * GRAIN..3 * GRAIN, false), (3 * GRAIN..4 * GRAIN + 512, true)];
        assert_eq!(pieces(&bytes), expected);
        bytes[4 * GRAIN + 511] = 1;
        assert_eq!(pieces(&bytes)[3], (4 * GRAIN..4 * GRAIN + 512, false));
        assert_eq!(pieces(&[0; 512]), [(0..512, false)]);
    }
}
