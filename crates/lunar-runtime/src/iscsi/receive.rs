//! Framing: one receive, many PDUs. Small PDUs are parsed in place in the core's scratch buffer. The rest of a large
//! data segment is received directly into a new buffer, or into that of its task.

mod piped;
mod prediction;

pub use crate::received::{ReceiveStatus, ReceivedData};
pub use prediction::{PredictedPdu, ReceivePrediction};

use super::digest::crc32c;
use super::pdu_queue::Digests;
use crate::{Buf, PipedBytes, Stream, with_scratch};
use lunar_wire::iscsi::{BHS_LEN, Bhs, padded};
use piped::PipedSegment;
use std::io::{self, IoSliceMut};

/// Bytes after which a receive loop yields to other connections.
const TURN: usize = 128 << 10;
/// After a large segment, another is expected. Then a receive reads only this many bytes with its header, because
/// they must be copied.
const PEEK: usize = 4 * BHS_LEN;
/// An incomplete data segment above this size is received into a separate buffer.
const LARGE: usize = 16 << 10;
/// BHS, AHS of 255 words, header digest.
const MAX_HEADER: usize = BHS_LEN + 255 * 4 + 4;

/// A received PDU.
pub struct ReceivedPdu<'a> {
    /// The basic header segment.
    pub header: Bhs,
    /// The additional header segments.
    pub ahs: &'a [u8],
    /// The data segment.
    pub data: ReceivedData<'a>,
    /// Whether the data digest matches, or there is none.
    pub intact: bool,
    /// The received bytes behind this PDU.
    pub behind: &'a [u8],
}

/// The consumer of PDUs.
pub trait PduHandler {
    /// The task's buffer for a large data segment and the segment's offset in it; None to use [`PduHandler::buffer`].
    fn place(&mut self, header: &Bhs) -> Option<(Buf, usize)>;
    /// A buffer for a large data segment without a task's buffer.
    fn buffer(&mut self, len: usize) -> Buf;
    /// Predicts the next PDUs.
    fn predict(&mut self, _sight: &mut ReceivePrediction) {}
    /// Returns the buffer of a PDU that did not arrive; its content is undefined.
    fn give_back(&mut self, _answer: PredictedPdu) {}
    /// Takes data of a large segment before the rest arrives. The first `filled` bytes of its placed buffer have
    /// arrived. The handler may split off the front of the buffer. Returns the number of filled bytes at which it is
    /// called again. It is not called for segments with a data digest, which covers the whole segment.
    fn take_early(&mut self, _header: &Bhs, _buf: &mut Buf, _filled: usize) -> usize {
        usize::MAX
    }
    /// Whether the task of a large data segment prefers a pipe to memory.
    fn takes_pipe(&self, _header: &Bhs) -> bool {
        false
    }
    /// The pipe for a large data segment, with the earlier bytes of its task; None to use memory. It takes at least
    /// `room` bytes in all, as far as known. When it is full, [`PduHandler::place`] is called: all bytes in the pipe
    /// are moved to the buffer, up to the place of the segment's next byte.
    fn pipe(&mut self, _header: &Bhs, _room: usize) -> Option<PipedBytes> {
        None
    }
    /// Whether there is no room for more responses now.
    fn is_full(&self) -> bool;
    /// Takes a PDU. Returns false when it wants no more.
    fn take(&mut self, pdu: ReceivedPdu<'_>) -> bool;
}

/// The reason why a connection cannot continue.
#[derive(Debug)]
pub enum ReceiveError {
    /// The socket failed.
    Io(io::Error),
    /// A header digest mismatch: PDU boundaries are unknown from here on (RFC 7143 section 7.8).
    HeaderDigest,
    /// A data segment is longer than the declared MaxRecvDataSegmentLength.
    TooLong(usize),
}

impl From<io::Error> for ReceiveError {
    fn from(e: io::Error) -> Self {
        ReceiveError::Io(e)
    }
}

impl std::fmt::Display for ReceiveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ReceiveError::Io(e) => write!(f, "{e}"),
            ReceiveError::HeaderDigest => write!(f, "the header digest of a PDU does not match its header"),
            ReceiveError::TooLong(n) => {
                write!(f, "a data segment of {n} bytes exceeds the declared MaxRecvDataSegmentLength")
            }
        }
    }
}

/// A data segment that is being received into a buffer.
struct SegmentReceive {
    header: Bhs,
    ahs: Vec<u8>,
    buf: Buf,
    /// The segment's place in the buffer.
    start: usize,
    end: usize,
    filled: usize,
    /// The value of `filled` at which the handler may take data early.
    stop: usize,
    landing: bool,
}

/// The receiving side of a connection.
pub struct PduReceiver {
    digests: Digests,
    max_data: usize,
    /// The received start of an incomplete PDU.
    partial: Vec<u8>,
    gather: Option<SegmentReceive>,
    piped: Option<Box<PipedSegment>>,
    /// Bytes for which a pipe probably has room: those that filled the last full one, growing from then on.
    pipe_room: usize,
    /// Whether the last PDU was a large one.
    after_large: bool,
    /// Whether the last large one could have used a pipe. The next header is then received alone, however late.
    peeks: bool,
    /// Whether the handler has taken data early in this receive.
    took_early: bool,
    prediction: Box<ReceivePrediction>,
}

/// One receive: the received bytes, and the room for them.
struct ReceiveStep {
    got: usize,
    room: usize,
    received: ReceiveStatus,
    /// Whether a task waits for these bytes, so that it runs before more are received.
    ends_turn: bool,
}

impl PduReceiver {
    /// Creates a receiver that starts with `begun`, bytes that arrived with the login, and accepts data segments up
    /// to `max_data` bytes.
    pub fn new(digests: Digests, max_data: usize, begun: Vec<u8>) -> Self {
        PduReceiver {
            digests,
            max_data,
            partial: begun,
            gather: None,
            piped: None,
            pipe_room: usize::MAX,
            after_large: false,
            peeks: false,
            took_early: false,
            prediction: Box::default(),
        }
    }

    /// Whether bytes are left over that may contain whole PDUs.
    pub fn has_begun(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Receives what is available, up to a limit, and passes on every whole PDU.
    pub fn receive(
        &mut self,
        stream: &Stream,
        sink: &mut impl PduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        with_scratch(|buffer| {
            let mut left = TURN;
            loop {
                let step = if self.is_piping() {
                    self.receive_piped(stream, sink)?
                } else if self.gather.is_none() && self.piped.is_none() && self.prediction.look(sink) {
                    self.receive_predicted(buffer, sink, |into| stream.receive_vectored(into))?
                } else {
                    self.receive_next(stream, buffer, sink)?
                };
                let Some(step) = step else { return Ok(ReceiveStatus::More) };
                left = left.saturating_sub(step.got);
                if step.received != ReceiveStatus::More || step.got < step.room || left == 0 || step.ends_turn
                {
                    return Ok(step.received);
                }
            }
        })
    }

    fn receive_next(
        &mut self,
        stream: &Stream,
        buffer: &mut [u8],
        sink: &mut impl PduHandler,
    ) -> Result<Option<ReceiveStep>, ReceiveError> {
        let have = self.partial.len();
        let Some((got, room)) = self.receive_once(stream, buffer)? else { return Ok(None) };
        if got == 0 {
            return Ok(Some(ReceiveStep { got, room, received: ReceiveStatus::End, ends_turn: true }));
        }
        self.partial.clear();
        let direct = self.gather.as_mut().map_or(0, |g| g.fill(got));
        // The task of a large segment must run while the next segment arrives.
        let is_whole = self.gather.as_ref().is_some_and(|g| g.filled == g.end);
        self.pass_early(sink);
        let received = self.parse(&buffer[..have + got - direct], sink)?;
        let ends_turn = std::mem::take(&mut self.took_early) || is_whole;
        Ok(Some(ReceiveStep { got, room, received, ends_turn }))
    }

    /// One receive: into the buffer of a large segment up to the next header, or behind an incomplete PDU.
    fn receive_once(&mut self, stream: &Stream, buffer: &mut [u8]) -> io::Result<Option<(usize, usize)>> {
        let have = self.partial.len();
        if let Some(g) = self.gather.as_mut().filter(|g| g.filled < g.end) {
            let (filled, end) = (g.filled, g.end.min(g.stop));
            // A pipe for the next segment depends on its first bytes.
            let header_len = if self.peeks { PEEK } else { BHS_LEN + self.digests.header_len() };
            let behind = g.tail(self.digests) + header_len;
            let next = if end == g.end { behind } else { 0 };
            let mut into = [IoSliceMut::new(&mut g.buf[filled..end]), IoSliceMut::new(&mut buffer[..next])];
            let got = stream.receive_vectored(&mut into)?;
            return Ok(got.map(|got| (got, end - filled + next)));
        }
        buffer[..have].copy_from_slice(&self.partial);
        let peek = self.after_large && have < BHS_LEN;
        let room = if peek { PEEK } else { buffer.len() - have };
        let got = stream.receive(&mut buffer[have..have + room])?;
        self.after_large &= self.peeks && got.is_none();
        Ok(got.map(|got| (got, room)))
    }

    /// The opcode of the last PDU in the bytes not yet passed on, followed by `behind`. None if they do not end with
    /// a whole PDU.
    pub fn last_opcode(&self, behind: &[u8]) -> Option<u8> {
        let bytes = [&self.partial[..], behind].concat();
        let missing = self.gather.as_ref().map_or(0, |g| g.end - g.filled + g.tail(self.digests));
        let missing = missing + self.piped.as_ref().map_or(0, |segment| segment.missing(self.digests));
        last_opcode(self.digests, bytes.get(missing..)?)
    }

    /// Passes on the whole PDUs among the bytes that are left over.
    pub fn resume(&mut self, sink: &mut impl PduHandler) -> Result<ReceiveStatus, ReceiveError> {
        let begun = std::mem::take(&mut self.partial);
        self.parse(&begun, sink)
    }

    /// As [`PduReceiver::receive`], with the given bytes. For tests.
    pub fn feed(
        &mut self,
        mut chunk: &[u8],
        sink: &mut impl PduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        if let Some(g) = &mut self.gather {
            let direct = chunk.len().min(g.end - g.filled);
            g.buf[g.filled..g.filled + direct].copy_from_slice(&chunk[..direct]);
            g.fill(direct);
            self.pass_early(sink);
            chunk = &chunk[direct..];
        } else if self.piped.is_some() {
            chunk = &chunk[self.feed_piped(chunk, sink)?..];
        } else if self.prediction.look(sink) {
            let mut buffer = vec![0; crate::SCRATCH + chunk.len()];
            let source = |into: &mut [IoSliceMut<'_>]| {
                prediction::scatter(into, chunk);
                Ok(Some(chunk.len()))
            };
            let step = self.receive_predicted(&mut buffer, sink, source)?;
            return Ok(step.map_or(ReceiveStatus::More, |step| step.received));
        }
        let all = [&std::mem::take(&mut self.partial)[..], chunk].concat();
        self.parse(&all, sink)
    }

    fn parse(&mut self, mut bytes: &[u8], sink: &mut impl PduHandler) -> Result<ReceiveStatus, ReceiveError> {
        loop {
            if self.gather.is_some() || self.piped.is_some() {
                let Some((used, more)) = self.end_large(bytes, sink) else { break };
                bytes = &bytes[used..];
                if !more {
                    return Ok(ReceiveStatus::End);
                }
            }
            if sink.is_full() {
                self.partial.extend_from_slice(bytes);
                return Ok(ReceiveStatus::Full);
            }
            if bytes.len() < BHS_LEN {
                break;
            }
            let header = Bhs::from_bytes(bytes[..BHS_LEN].try_into().expect("48 bytes"));
            let (start, len) = (BHS_LEN + header.ahs_len() + self.digests.header_len(), header.data_len());
            if len > self.max_data {
                return Err(ReceiveError::TooLong(len));
            }
            if bytes.len() < start {
                break;
            }
            self.check_header(&bytes[..start])?;
            let ahs = &bytes[BHS_LEN..BHS_LEN + header.ahs_len()];
            let whole = start + len + self.digests.tail_len(len);
            if bytes.len() < whole {
                if len <= LARGE {
                    break;
                }
                let begun = &bytes[start..];
                if !self.begin_pipe(header, ahs, begun, sink)? {
                    self.begin_gather(header, ahs, begun, sink);
                }
                return Ok(ReceiveStatus::More);
            }
            let data = &bytes[start..start + len];
            let intact = self.is_intact(data, &bytes[start + len..whole]);
            let behind = &bytes[whole..];
            if !sink.take(ReceivedPdu { header, ahs, data: ReceivedData::Bytes(data), intact, behind }) {
                return Ok(ReceiveStatus::End);
            }
            bytes = behind;
        }
        self.partial.extend_from_slice(bytes);
        debug_assert!(self.partial.len() < MAX_HEADER + LARGE + 8);
        Ok(ReceiveStatus::More)
    }

    fn check_header(&self, header: &[u8]) -> Result<(), ReceiveError> {
        let Some((covered, digest)) = header.split_last_chunk::<4>().filter(|_| self.digests.header) else {
            return Ok(());
        };
        if crc32c(&[covered]).to_le_bytes() == *digest { Ok(()) } else { Err(ReceiveError::HeaderDigest) }
    }

    /// `tail`: padding and digest.
    fn is_intact(&self, data: &[u8], tail: &[u8]) -> bool {
        if !self.digests.data || data.is_empty() {
            return true;
        }
        let (padding, digest) = tail.split_at(tail.len() - 4);
        crc32c(&[data, padding]).to_le_bytes() == digest
    }

    /// Starts to receive a data segment into a buffer; `begun` is its received part, shorter than data, padding and
    /// digest together.
    fn begin_gather(&mut self, header: Bhs, ahs: &[u8], begun: &[u8], sink: &mut impl PduHandler) {
        let len = header.data_len();
        let placed = sink.place(&header);
        let landing = placed.is_some();
        let (mut buf, start) = placed.unwrap_or_else(|| (sink.buffer(len), 0));
        let (data, tail) = begun.split_at(begun.len().min(len));
        buf[start..start + data.len()].copy_from_slice(data);
        let filled = start + data.len();
        // A data digest covers the whole segment.
        let stop = if landing && !self.digests.data { 0 } else { usize::MAX };
        let (ahs, end) = (ahs.to_vec(), start + len);
        self.gather = Some(SegmentReceive { header, ahs, buf, start, end, filled, stop, landing });
        self.pass_early(sink);
        self.partial.extend_from_slice(tail);
    }

    /// Passes on data of an incomplete large segment that its task takes early.
    fn pass_early(&mut self, sink: &mut impl PduHandler) {
        let is_due = |g: &&mut SegmentReceive| (g.stop..g.end).contains(&g.filled);
        let Some(g) = self.gather.as_mut().filter(is_due) else { return };
        let before = g.buf.len();
        let stop = sink.take_early(&g.header, &mut g.buf, g.filled);
        let taken = before - g.buf.len();
        g.start = g.start.saturating_sub(taken);
        (g.filled, g.end) = (g.filled - taken, g.end - taken);
        g.stop = stop.max(g.filled + 1);
        self.took_early |= taken > 0;
    }

    /// Ends a large segment: `bytes` starts with its padding and digest. Returns the used bytes and whether the
    /// handler wants more; None if they are incomplete.
    fn end_large(&mut self, bytes: &[u8], sink: &mut impl PduHandler) -> Option<(usize, bool)> {
        if self.piped.is_some() { self.end_piped(bytes, sink) } else { self.end_gather(bytes, sink) }
    }

    fn end_gather(&mut self, bytes: &[u8], sink: &mut impl PduHandler) -> Option<(usize, bool)> {
        let g = self.gather.as_ref()?;
        let tail = g.tail(self.digests);
        if g.filled < g.end || bytes.len() < tail {
            return None;
        }
        let intact = self.is_intact(&g.buf[g.start..g.end], &bytes[..tail]);
        let g = self.gather.take()?;
        self.after_large = true;
        let data = if g.landing { ReceivedData::Placed(g.buf) } else { ReceivedData::Buf(g.buf) };
        let behind = &bytes[tail..];
        let more = sink.take(ReceivedPdu { header: g.header, ahs: &g.ahs, data, intact, behind });
        Some((tail, more))
    }
}

impl SegmentReceive {
    /// Bytes of padding and digest.
    fn tail(&self, digests: Digests) -> usize {
        digests.tail_len(self.header.data_len())
    }

    /// Counts a receive and returns the bytes of it that went into this buffer.
    fn fill(&mut self, got: usize) -> usize {
        let direct = got.min(self.end - self.filled);
        self.filled += direct;
        direct
    }
}

/// The opcode of the last of these PDUs; None if there is none, or the last is incomplete.
pub fn last_opcode(digests: Digests, mut bytes: &[u8]) -> Option<u8> {
    let mut last = None;
    while !bytes.is_empty() {
        let header = Bhs::from_bytes(*bytes.first_chunk()?);
        let (start, len) = (BHS_LEN + header.ahs_len() + digests.header_len(), header.data_len());
        bytes = bytes.get(start + len + digests.tail_len(len)..)?;
        last = Some(header.opcode());
    }
    last
}

/// A PDU in wire format, with its lengths filled in. For tests.
pub fn encode(digests: Digests, mut header: Bhs, ahs: &[u8], data: &[u8]) -> Vec<u8> {
    header.set_ahs_len(ahs.len());
    header.set_data_len(data.len());
    let mut b = [&header.as_bytes()[..], ahs].concat();
    if digests.header {
        b.extend(crc32c(&[&b]).to_le_bytes());
    }
    let padding = vec![0; padded(data.len()) - data.len()];
    b.extend_from_slice(data);
    b.extend_from_slice(&padding);
    if digests.data && !data.is_empty() {
        b.extend(crc32c(&[data, &padding]).to_le_bytes());
    }
    b
}

#[cfg(test)]
mod tests;
