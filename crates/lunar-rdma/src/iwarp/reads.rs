//! Local RDMA Reads: as many in flight as the peer allows, each answered in order into its buffer.

use super::fault::IwarpError;
use crate::{EndpointEvent, RemoteAddress, RemoteRange, total};
use lunar_runtime::Buf;
use lunar_wire::iwarp::{ReadRequest, TaggedHeader, Terminate};
use std::collections::VecDeque;
use std::io;

/// The slot in the steering tags of reads. [`SteeringTags`](crate::keys::SteeringTags) never uses it, so an RDMA
/// Write to such a tag fails.
const SLOT: u32 = 0xffff;
/// The tagged offset of each read.
const BASE: u64 = 1 << 32;

/// A gather: its id, its buffer, and its missing pieces.
struct GatherJob {
    id: u64,
    buf: Buf,
    left: usize,
}

impl GatherJob {
    fn ended(self, how: io::Result<()>) -> EndpointEvent {
        EndpointEvent::Read(self.id, self.buf, how)
    }
}

/// An RDMA Read. The oldest one belongs to the oldest unfinished gather.
struct PendingRead {
    from: RemoteAddress,
    /// The offset in the buffer of its gather, and the length.
    at: usize,
    len: usize,
    /// The number of received bytes.
    come: usize,
    /// The steering tag, once the read is in flight.
    stag: u32,
}

/// The queue of local RDMA Reads.
pub(super) struct ReadQueue {
    ord: usize,
    jobs: VecDeque<GatherJob>,
    in_flight: VecDeque<PendingRead>,
    waiting: VecDeque<PendingRead>,
    /// The number of started reads, from which the next steering tag is derived.
    begun: u16,
}

impl ReadQueue {
    /// At most `ord` reads are in flight.
    pub(super) fn new(ord: u16) -> ReadQueue {
        ReadQueue {
            ord: ord.into(),
            jobs: VecDeque::new(),
            in_flight: VecDeque::new(),
            waiting: VecDeque::new(),
            begun: 0,
        }
    }

    /// Queues a gather: the pieces go to `at` in the buffer, one after the other. An empty or invalid gather
    /// completes at once.
    pub(super) fn post(
        &mut self,
        id: u64,
        from: &[RemoteRange],
        buf: Buf,
        mut at: usize,
    ) -> Option<EndpointEvent> {
        let end = total(from).and_then(|len| at.checked_add(len));
        let fits = end.is_some_and(|end| end <= buf.len())
            && from.iter().all(|(_, len)| u32::try_from(*len).is_ok());
        let job = GatherJob { id, buf, left: from.len() };
        match (fits, from.len(), self.ord) {
            (false, ..) => {
                let what = "the RDMA Read exceeds its local buffer";
                return Some(job.ended(Err(io::Error::new(io::ErrorKind::InvalidInput, what))));
            }
            (_, 0, _) => return Some(job.ended(Ok(()))),
            (.., 0) => {
                let what = "the peer accepts no RDMA Reads (IRD 0)";
                return Some(job.ended(Err(io::Error::new(io::ErrorKind::Unsupported, what))));
            }
            _ => self.jobs.push_back(job),
        }
        for &(from, len) in from {
            self.waiting.push_back(PendingRead { from, at, len, come: 0, stag: 0 });
            at += len;
        }
        None
    }

    /// The request of the next read, if it may start.
    pub(super) fn next(&mut self) -> Option<ReadRequest> {
        if self.in_flight.len() >= self.ord {
            return None;
        }
        let mut read = self.waiting.pop_front()?;
        self.begun = self.begun.wrapping_add(1);
        read.stag = u32::from(self.begun) << 16 | SLOT;
        let source = (read.from.stag, read.from.offset);
        let request = ReadRequest { sink: (read.stag, BASE), len: read.len as u32, source };
        self.in_flight.push_back(read);
        Some(request)
    }

    /// Takes a segment of a Read Response, which must continue the oldest read. Returns the gather if this completes
    /// it.
    pub(super) fn take(
        &mut self,
        header: &TaggedHeader,
        payload: &[u8],
    ) -> Result<Option<EndpointEvent>, IwarpError> {
        let Some(read) = self.in_flight.front_mut().filter(|read| read.stag == header.stag) else {
            let what = format!(
                "a Read Response for the steering tag {:#x}, which no pending RDMA Read has",
                header.stag
            );
            return Err(IwarpError::new(Terminate::STAG, what));
        };
        let end = read.come + payload.len();
        if header.offset != BASE + read.come as u64 || end > read.len || header.last != (end == read.len) {
            let what = format!(
                "a Read Response whose offset or length does not continue the RDMA Read of {} bytes",
                read.len
            );
            return Err(IwarpError::new(Terminate::BOUNDS, what));
        }
        let Some(job) = self.jobs.front_mut() else { return Ok(None) };
        job.buf[read.at + read.come..read.at + end].copy_from_slice(payload);
        read.come = end;
        if !header.last {
            return Ok(None);
        }
        self.in_flight.pop_front();
        job.left -= 1;
        let ended = if job.left == 0 { self.jobs.pop_front() } else { None };
        Ok(ended.map(|job| job.ended(Ok(()))))
    }

    /// Ends all reads, because the connection has ended.
    pub(super) fn end(&mut self) -> impl Iterator<Item = EndpointEvent> {
        self.in_flight.clear();
        self.waiting.clear();
        let gone = || io::Error::new(io::ErrorKind::ConnectionAborted, "the RDMA connection has ended");
        self.jobs.drain(..).map(move |job| job.ended(Err(gone())))
    }
}
