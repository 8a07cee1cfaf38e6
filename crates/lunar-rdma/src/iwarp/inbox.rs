//! Receives the peer's Sends: in order, one at a time, each into a posted receive.

use super::fault::IwarpError;
use crate::EndpointEvents;
use lunar_wire::iwarp::{Terminate, UntaggedHeader};
use std::collections::VecDeque;

/// An incomplete message.
struct PartialMessage {
    opcode: u8,
    stag: u32,
    bytes: Vec<u8>,
    /// The maximum length in bytes.
    max: usize,
}

/// The posted receives and the incomplete message.
pub(super) struct Inbox {
    /// The unused receives, in order: their number, and the length of each.
    receives: VecDeque<(usize, usize)>,
    partial: Option<PartialMessage>,
    /// The sequence number (MSN) of the current or next message.
    msn: u32,
}

impl Inbox {
    pub(super) fn new((count, len): (usize, usize)) -> Inbox {
        let mut inbox = Inbox { receives: VecDeque::new(), partial: None, msn: 1 };
        inbox.receives(count, len);
        inbox
    }

    /// Posts this many receives of at most this many bytes.
    pub(super) fn receives(&mut self, count: usize, len: usize) {
        match self.receives.back_mut() {
            Some((there, of)) if *of == len => *there = there.saturating_add(count),
            _ if count == 0 => {}
            _ => self.receives.push_back((count, len)),
        }
    }

    /// Whether a message is incomplete.
    pub(super) fn has_begun(&self) -> bool {
        self.partial.is_some()
    }

    /// Skips an empty first message, which needs no receive (RFC 6581 section 5.1).
    pub(super) fn skip(&mut self) {
        self.msn = self.msn.wrapping_add(1);
    }

    /// Takes a segment of a Send. The last segment completes the message: its steering tag is passed to `invalidate`,
    /// then the message becomes an event.
    pub(super) fn take(
        &mut self,
        header: &UntaggedHeader,
        payload: &[u8],
        invalidate: impl FnOnce(u32) -> Result<(), IwarpError>,
        into: &mut EndpointEvents,
    ) -> Result<(), IwarpError> {
        if header.msn != self.msn {
            let what = format!("a message with sequence number {}, expected {}", header.msn, self.msn);
            return Err(IwarpError::new(Terminate::MSN, what));
        }
        let mut partial = match self.partial.take() {
            Some(partial) => partial,
            None => self.begin(header)?,
        };
        if (header.opcode, header.stag) != (partial.opcode, partial.stag) {
            return Err(IwarpError::new(
                Terminate::OPCODE,
                "the peer sent a segment of another message type in the middle of a message",
            ));
        }
        if header.offset as usize != partial.bytes.len() {
            let what =
                format!("a message segment at offset {}, expected {}", header.offset, partial.bytes.len());
            return Err(IwarpError::new(Terminate::OFFSET, what));
        }
        if partial.bytes.len() + payload.len() > partial.max {
            let what = format!("a message longer than its receive buffer of {} bytes", partial.max);
            return Err(IwarpError::new(Terminate::TOO_LONG, what));
        }
        if !header.last {
            partial.bytes.extend_from_slice(payload);
            self.partial = Some(partial);
            return Ok(());
        }
        self.msn = self.msn.wrapping_add(1);
        let invalidated = header.invalidates().then_some(header.stag);
        invalidated.map_or(Ok(()), invalidate)?;
        match partial.bytes.is_empty() {
            // A message of a single segment is copied only once.
            true => into.message(payload, invalidated),
            false => {
                partial.bytes.extend_from_slice(payload);
                into.message(&partial.bytes, invalidated);
            }
        }
        Ok(())
    }

    /// Takes a receive for the message that starts with this segment.
    fn begin(&mut self, header: &UntaggedHeader) -> Result<PartialMessage, IwarpError> {
        let Some((count, len)) = self.receives.front_mut() else {
            return Err(IwarpError::new(
                Terminate::NO_BUFFER,
                "a message for which no receive buffer was posted",
            ));
        };
        let max = *len;
        *count -= 1;
        if *count == 0 {
            self.receives.pop_front();
        }
        Ok(PartialMessage { opcode: header.opcode, stag: header.stag, bytes: Vec::new(), max })
    }
}
