//! Large data segments that stay in a pipe until their owner sends them on.

use super::{
    PEEK, PduHandler, PduReceiver, ReceiveError, ReceiveStep, ReceivedData, ReceivedPdu, SegmentReceive,
};
use crate::iscsi::pdu_queue::Digests;
use crate::stream::PipeReceive;
use crate::{PipedBytes, ReceiveStatus, Stream};
use lunar_wire::iscsi::Bhs;
use std::io;

/// A data segment that is being received into a pipe.
pub(super) struct PipedSegment {
    header: Bhs,
    ahs: Vec<u8>,
    piped: PipedBytes,
    /// Missing bytes.
    left: usize,
}

impl PipedSegment {
    /// Bytes that are missing, with padding.
    pub(super) fn missing(&self, digests: Digests) -> usize {
        self.left + digests.tail_len(self.header.data_len())
    }
}

impl PduReceiver {
    /// Starts to receive a data segment into a pipe. `begun` is its received part. False: it must go to memory.
    pub(super) fn begin_pipe(
        &mut self,
        header: Bhs,
        ahs: &[u8],
        begun: &[u8],
        sink: &mut impl PduHandler,
    ) -> io::Result<bool> {
        self.peeks = !self.digests.data && sink.takes_pipe(&header);
        // The received part is copied. A segment that begins with zeros goes to memory, where its owner can search it
        // for zeros.
        if !self.peeks || begun.len() > PEEK || begun.iter().all(|byte| *byte == 0) {
            return Ok(false);
        }
        let room = self.pipe_room;
        // How much fills a pipe depends on the sizes of receives, which change: a full pipe counts for a while only.
        self.pipe_room = room.saturating_add(room / 16 + 1);
        let Some(mut piped) = sink.pipe(&header, room) else { return Ok(false) };
        let pushed = piped.push(begun);
        let left = header.data_len() - pushed;
        self.piped = Some(Box::new(PipedSegment { header, ahs: ahs.to_vec(), piped, left }));
        if pushed < begun.len() {
            self.leave_pipe(&begun[pushed..], sink)?;
        }
        Ok(true)
    }

    /// Whether more bytes of a segment in a pipe are missing.
    pub(super) fn is_piping(&self) -> bool {
        self.piped.as_ref().is_some_and(|segment| segment.left > 0)
    }

    /// Receives bytes of a segment in a pipe.
    pub(super) fn receive_piped(
        &mut self,
        stream: &Stream,
        sink: &mut impl PduHandler,
    ) -> Result<Option<ReceiveStep>, ReceiveError> {
        let Some(segment) = &mut self.piped else { return Ok(None) };
        let mut step = ReceiveStep { got: 0, room: 0, received: ReceiveStatus::More, ends_turn: false };
        match stream.receive_piped(&mut segment.piped, segment.left)? {
            PipeReceive::Nothing => return Ok(None),
            PipeReceive::Full => self.leave_pipe(&[], sink)?,
            PipeReceive::Received(0) => step.received = ReceiveStatus::End,
            PipeReceive::Received(got) => {
                segment.left -= got;
                step = ReceiveStep { got, room: got, ends_turn: segment.left == 0, ..step };
                step.received = self.parse(&[], sink)?;
            }
        }
        Ok(Some(step))
    }

    /// Continues in memory with a segment whose pipe is full; `next` are the bytes that the pipe did not take.
    fn leave_pipe(&mut self, next: &[u8], sink: &mut impl PduHandler) -> io::Result<()> {
        let Some(segment) = self.piped.take() else { return Ok(()) };
        let PipedSegment { header, ahs, piped, left } = *segment;
        let (mut buf, start) = sink.place(&header).ok_or(io::ErrorKind::InvalidData)?;
        let (end, stop, landing) = (start + header.data_len(), usize::MAX, true);
        let (in_pipe, filled) = (end - left, end - left + next.len());
        self.pipe_room = piped.len();
        piped.move_to(&mut buf[in_pipe - piped.len()..in_pipe])?;
        buf[in_pipe..filled].copy_from_slice(next);
        self.gather = Some(SegmentReceive { header, ahs, buf, start, end, filled, stop, landing });
        Ok(())
    }

    /// Ends a segment in a pipe: `bytes` starts with its padding. Returns the used bytes and whether the handler wants
    /// more; None if they are incomplete.
    pub(super) fn end_piped(&mut self, bytes: &[u8], sink: &mut impl PduHandler) -> Option<(usize, bool)> {
        let digests = self.digests;
        let segment = self.piped.take_if(|segment| segment.missing(digests) <= bytes.len())?;
        self.after_large = true;
        let (tail, data) = (segment.missing(digests), ReceivedData::Piped(segment.piped));
        let behind = &bytes[tail..];
        let pdu = ReceivedPdu { header: segment.header, ahs: &segment.ahs, data, intact: true, behind };
        Some((tail, sink.take(pdu)))
    }

    /// As [`PduReceiver::receive_piped`], with the given bytes. Returns the number of used bytes.
    pub(super) fn feed_piped(&mut self, chunk: &[u8], sink: &mut impl PduHandler) -> io::Result<usize> {
        let Some(segment) = self.piped.as_mut().filter(|segment| segment.left > 0) else { return Ok(0) };
        let direct = chunk.len().min(segment.left);
        let pushed = segment.piped.push(&chunk[..direct]);
        segment.left -= pushed;
        if pushed < direct {
            self.leave_pipe(&chunk[pushed..direct], sink)?;
        }
        Ok(direct)
    }
}

#[cfg(test)]
mod tests;
