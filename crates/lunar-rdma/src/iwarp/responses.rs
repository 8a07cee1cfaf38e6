//! Read Responses for the peer, queued until they are segmented.

use super::fault::IwarpError;
use super::memory::TaggedMemory;
use crate::RemoteAddress;
use lunar_runtime::send_queue::Payload;
use lunar_wire::iwarp::{ReadRequest, Terminate, UntaggedHeader};
use std::collections::VecDeque;

/// The destination and data of a Read Response.
type ReadResponse = (RemoteAddress, Payload);

/// The queue of Read Responses.
pub(super) struct ReadResponses {
    /// The maximum number of queued responses (IRD).
    ird: usize,
    /// The sequence number (MSN) of the next Read Request.
    msn: u32,
    queue: VecDeque<ReadResponse>,
}

impl ReadResponses {
    /// The first message of a connection may be a read even with an IRD of zero.
    pub(super) fn new(ird: u16) -> ReadResponses {
        ReadResponses { ird: usize::from(ird).max(1), msn: 1, queue: VecDeque::new() }
    }

    /// Takes a Read Request. The response contains the data at the time it is sent.
    pub(super) fn take(
        &mut self,
        u: &UntaggedHeader,
        payload: &[u8],
        memory: &TaggedMemory,
    ) -> Result<(), IwarpError> {
        if u.msn != self.msn {
            let what = format!("a Read Request with sequence number {}, expected {}", u.msn, self.msn);
            return Err(IwarpError::new(Terminate::MSN, what));
        }
        if !u.last || u.offset != 0 {
            return Err(IwarpError::new(
                Terminate::OFFSET,
                "the peer sent a Read Request in several segments",
            ));
        }
        let Some(request) = ReadRequest::decode(payload) else {
            return Err(IwarpError::new(
                Terminate::LENGTH,
                format!("the peer sent a Read Request with the invalid length of {} bytes", payload.len()),
            ));
        };
        if self.queue.len() >= self.ird {
            return Err(IwarpError::new(
                Terminate::NO_BUFFER,
                format!("the peer sent more than the negotiated {} concurrent RDMA Reads", self.ird),
            ));
        }
        self.msn = self.msn.wrapping_add(1);
        let to = RemoteAddress { stag: request.sink.0, offset: request.sink.1 };
        self.queue.push_back((to, memory.source(&request)?));
        Ok(())
    }

    /// The next response.
    pub(super) fn next(&mut self) -> Option<ReadResponse> {
        self.queue.pop_front()
    }

    /// Queued bytes, including overhead.
    pub(super) fn waiting(&self) -> usize {
        self.queue.iter().map(|(_, payload)| payload.bytes().len() + size_of::<ReadResponse>()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}
