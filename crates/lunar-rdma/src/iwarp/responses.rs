//! The other side's RDMA Reads: what they get waits here until it is cut into FPDUs.

use super::fault::IwarpError;
use super::memory::TaggedMemory;
use crate::RemoteAddress;
use lunar_runtime::out::Payload;
use lunar_wire::iwarp::{ReadRequest, Terminate, UntaggedHeader};
use std::collections::VecDeque;

/// Where an answer goes, and what it is.
type ReadResponse = (RemoteAddress, Payload);

/// Answers to Read Requests.
pub(super) struct ReadResponses {
    /// So many at most.
    ird: usize,
    /// Sequence number of the next Read Request.
    msn: u32,
    queue: VecDeque<ReadResponse>,
}

impl ReadResponses {
    /// The first word of a connection may be a read even if none are granted.
    pub(super) fn new(ird: u16) -> ReadResponses {
        ReadResponses { ird: usize::from(ird).max(1), msn: 1, queue: VecDeque::new() }
    }

    /// Takes a Read Request. Its answer is what the memory holds when it leaves.
    pub(super) fn take(
        &mut self,
        u: &UntaggedHeader,
        payload: &[u8],
        memory: &TaggedMemory,
    ) -> Result<(), IwarpError> {
        if u.msn != self.msn {
            let what = format!("Read Request {} where {} was due", u.msn, self.msn);
            return Err(IwarpError::new(Terminate::MSN, what));
        }
        if !u.last || u.offset != 0 {
            return Err(IwarpError::new(Terminate::OFFSET, "a Read Request in parts"));
        }
        let Some(request) = ReadRequest::decode(payload) else {
            return Err(IwarpError::new(
                Terminate::LENGTH,
                format!("a Read Request of {} bytes", payload.len()),
            ));
        };
        if self.queue.len() >= self.ird {
            return Err(IwarpError::new(
                Terminate::NO_BUFFER,
                format!("more than {} RDMA Reads at a time", self.ird),
            ));
        }
        self.msn = self.msn.wrapping_add(1);
        let to = RemoteAddress { stag: request.sink.0, offset: request.sink.1 };
        self.queue.push_back((to, memory.source(&request)?));
        Ok(())
    }

    /// The next answer.
    pub(super) fn next(&mut self) -> Option<ReadResponse> {
        self.queue.pop_front()
    }

    /// Bytes that wait, with what holds them.
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
