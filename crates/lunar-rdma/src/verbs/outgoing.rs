//! The send side of a connection: messages and RDMA Writes in order, and RDMA Reads, which may overtake them.
//!
//! Work is queued until the device has free slots. Messages are copied into a bounce buffer. Writes and reads use the
//! memory of their buffer in place if it is registered. A read that waits because of ORD delays only other reads.

use super::bounce::{BounceBuffer, BouncePool};
use super::queues::{Verb, WorkRequest};
use crate::{EndpointEvent, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// The length in bytes of the pieces of writes and reads.
pub const PIECE: usize = 256 << 10;
/// The maximum number of bytes in flight for each direction. At least one piece may always be in flight.
const BUDGET: usize = 8 << 20;

/// A message or a write that is not staged completely.
struct QueuedSend {
    verb: Verb,
    head: Vec<u8>,
    payload: Payload,
    /// The number of bytes of a write that are staged already.
    done: usize,
}

impl QueuedSend {
    fn len(&self) -> usize {
        self.head.len() + self.payload.bytes().len() - self.done
    }
}

/// A gather that is not complete.
struct ReadJob {
    /// The id that the caller chose.
    id: u64,
    buf: Buf,
    /// The number of missing bytes.
    left: usize,
}

/// A piece of a gather: its job, its source, and the offset in the buffer.
#[derive(Clone, Copy)]
struct ReadPiece {
    job: u64,
    from: RemoteAddress,
    at: usize,
    len: usize,
}

/// Returns the local key of a buffer, if it is registered.
pub type KeyLookup = Box<dyn Fn(&Buf) -> Option<u32>>;

/// Returns the address and the key of [`PIECE`] zeros.
pub type ZeroLookup = Box<dyn Fn() -> Option<(u64, u32)>>;

/// The memory of a connection.
pub struct SendMemory {
    /// Bounce buffers of messages and writes, and of reads.
    pub pool: Arc<BouncePool>,
    pub sinks: Arc<BouncePool>,
    pub key: KeyLookup,
    /// The registered zeros.
    pub zeros: ZeroLookup,
    /// Whether a read may use the memory of its buffer in place.
    pub reads_in_place: bool,
}

impl SendMemory {
    /// The address and the key of byte `at` of a payload, if it is registered.
    fn of_payload(&self, payload: &Payload, at: usize) -> Option<(u64, u32)> {
        let (buf, start) = match payload {
            Payload::Buf(buf, _) => (buf, 0),
            Payload::Part(buf, start, _) => (&**buf, *start),
            // All pieces share the same zeros.
            Payload::Zeros(_) => return (self.zeros)(),
            Payload::Empty | Payload::Bytes(_) => return None,
        };
        Some((buf[start + at..].as_ptr() as u64, (self.key)(buf)?))
    }

    /// The same for the destination of a read.
    fn of_buffer(&self, buf: &mut Buf, at: usize) -> Option<(u64, u32)> {
        let key = if self.reads_in_place { (self.key)(buf)? } else { return None };
        Some((buf[at..].as_mut_ptr() as u64, key))
    }
}

/// The memory of an operation.
enum WorkMemory {
    Chunk(BounceBuffer),
    /// Buffer memory: its address and key. The last piece of a payload owns the payload. The job of a read owns its
    /// buffer.
    InPlace((u64, u32), Option<Payload>),
}

impl WorkMemory {
    fn place(&self) -> (u64, u32) {
        match self {
            WorkMemory::Chunk(chunk) => chunk.place(),
            WorkMemory::InPlace(place, _) => *place,
        }
    }
}

/// An operation that is at the device or will be posted next.
struct StagedWork {
    seq: u64,
    verb: Verb,
    body: WorkMemory,
    len: usize,
    /// Whether success generates a completion.
    is_signalled: bool,
    /// The piece, if it is a read.
    piece: Option<ReadPiece>,
}

/// The queues of a connection.
pub struct Outgoing {
    waiting: VecDeque<QueuedSend>,
    pieces: VecDeque<ReadPiece>,
    jobs: HashMap<u64, ReadJob>,
    staged: Vec<StagedWork>,
    /// Messages and writes at the device, oldest first. They complete in order.
    posted: VecDeque<StagedWork>,
    /// Reads at the device, by sequence number. They may complete in any order.
    reading: HashMap<u64, StagedWork>,
    /// Failed operations. Some drivers still use their memory, so it is kept until the end of the connection.
    ended: Vec<StagedWork>,
    /// After the end of the connection: a payload whose first pieces may still be at the device.
    kept: Option<QueuedSend>,
    seq: u64,
    slots: usize,
    ord: usize,
    /// Whether writes are signalled too.
    signals_all: bool,
    /// The total number of bytes of messages and writes queued so far.
    pushed: u64,
    /// The number of queued bytes, and of bytes in flight in both directions.
    queued: usize,
    out: usize,
    inward: usize,
    moved: bool,
}

impl Outgoing {
    /// Creates the queues for a device with `slots` slots. At most `ord` operations are reads.
    pub fn new(slots: usize, ord: usize) -> Outgoing {
        Outgoing {
            waiting: VecDeque::new(),
            pieces: VecDeque::new(),
            jobs: HashMap::new(),
            staged: Vec::new(),
            posted: VecDeque::new(),
            reading: HashMap::new(),
            ended: Vec::new(),
            kept: None,
            seq: 0,
            slots,
            ord: ord.min(slots / 2),
            signals_all: false,
            pushed: 0,
            queued: 0,
            out: 0,
            inward: 0,
            moved: false,
        }
    }

    /// Sets whether writes are signalled. Soft iWARP needs this: it passes the memory of a write to TCP, and waits
    /// for TCP only if the write is signalled. Without it, the completion of a later message would not release that
    /// memory.
    pub fn with_all_signalled(self, signals_all: bool) -> Outgoing {
        Outgoing { signals_all, ..self }
    }

    /// Queues a message or a write.
    pub fn push(&mut self, verb: Verb, head: &[u8], payload: Payload) {
        let one = QueuedSend { verb, head: head.to_vec(), payload, done: 0 };
        // An empty write has no effect.
        if one.len() > 0 || matches!(verb, Verb::Send(_)) {
            self.queued += one.len();
            self.pushed += one.len() as u64;
            self.waiting.push_back(one);
        }
    }

    /// Queues a gather: the pieces go to `at` in the buffer, one after the other. An empty or invalid gather
    /// completes at once.
    pub fn read(
        &mut self,
        id: u64,
        from: &[crate::RemoteRange],
        buf: Buf,
        at: usize,
    ) -> Option<EndpointEvent> {
        let len = crate::total(from);
        let is_inside = len.and_then(|len| at.checked_add(len)).is_some_and(|end| end <= buf.len());
        let refused = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let at_once = match (len, self.ord) {
            _ if !is_inside => refused("the RDMA Read exceeds its local buffer"),
            (Some(0), _) => Ok(()),
            (_, 0) => refused("the peer accepts no RDMA Reads (IRD 0)"),
            _ => {
                self.cut(id, from, buf, at);
                return None;
            }
        };
        Some(EndpointEvent::Read(id, buf, at_once))
    }

    fn cut(&mut self, id: u64, from: &[crate::RemoteRange], buf: Buf, mut at: usize) {
        self.seq += 1;
        let (job, begin) = (self.seq, at);
        for &(from, len) in from {
            for done in (0..len).step_by(PIECE) {
                let from = from.beyond(done as u64);
                self.pieces.push_back(ReadPiece { job, from, at: at + done, len: PIECE.min(len - done) });
            }
            at += len;
        }
        self.jobs.insert(job, ReadJob { id, buf, left: at - begin });
    }

    /// Queued bytes, including overhead.
    pub fn waiting(&self) -> usize {
        self.queued
            + self.waiting.len() * size_of::<QueuedSend>()
            + self.pieces.len() * size_of::<ReadPiece>()
    }

    /// The total number of bytes of messages and writes queued so far.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The number of those bytes that have completed.
    pub fn delivered(&self) -> u64 {
        self.pushed - (self.queued + self.out) as u64
    }

    /// Whether messages or writes are queued.
    pub fn is_blocked(&self) -> bool {
        !self.waiting.is_empty() || !self.staged.is_empty()
    }

    /// Whether anything is queued, including reads.
    pub fn has_more(&self) -> bool {
        self.is_blocked() || !self.pieces.is_empty()
    }

    /// Whether anything was sent since the last call.
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn has_slot(&self) -> bool {
        self.staged.len() + self.posted.len() + self.reading.len() < self.slots
    }

    /// Stages queued work while the device has free slots. Copies data in unregistered memory.
    ///
    /// # Errors
    /// When there is no memory, and no outstanding completion that would free some.
    pub fn stage(&mut self, memory: &SendMemory) -> io::Result<()> {
        let staged = self.stage_reads(memory).and_then(|()| self.stage_waiting(memory));
        if self.staged.is_empty() && self.is_idle() { staged } else { Ok(()) }
    }

    /// Whether no completion is outstanding.
    pub fn is_idle(&self) -> bool {
        self.reading.is_empty() && !self.is_sending()
    }

    fn stage_reads(&mut self, memory: &SendMemory) -> io::Result<()> {
        let staged = self.staged.iter().filter(|one| one.piece.is_some()).count();
        for _ in staged + self.reading.len()..self.ord {
            let Some(piece) = self.pieces.front().copied() else { break };
            if !self.has_slot() || (self.inward > 0 && self.inward + piece.len > BUDGET) {
                break;
            }
            let job = self.jobs.get_mut(&piece.job);
            let body = match job.and_then(|job| memory.of_buffer(&mut job.buf, piece.at)) {
                Some(place) => WorkMemory::InPlace(place, None),
                None => WorkMemory::Chunk(memory.sinks.chunk(piece.len)?),
            };
            self.pieces.pop_front();
            self.inward += piece.len;
            self.put(Verb::Read(piece.from), body, piece.len, Some(piece));
        }
        Ok(())
    }

    fn stage_waiting(&mut self, memory: &SendMemory) -> io::Result<()> {
        while self.has_slot()
            && let Some(first) = self.waiting.front_mut()
        {
            let (verb, len) = match first.verb {
                Verb::Write(to) => (Verb::Write(to.beyond(first.done as u64)), first.len().min(PIECE)),
                verb => (verb, first.len()),
            };
            if self.out > 0 && self.out + len > BUDGET {
                break;
            }
            let there = match verb {
                Verb::Write(_) => memory.of_payload(&first.payload, first.done),
                _ => None,
            };
            let mut body = match there {
                Some(place) => WorkMemory::InPlace(place, None),
                None => {
                    let part = first.done..first.done + len - first.head.len();
                    WorkMemory::Chunk(memory.pool.filled(&first.head, &first.payload.bytes()[part])?)
                }
            };
            first.done += len;
            if first.done == first.head.len() + first.payload.bytes().len()
                && let Some(whole) = self.waiting.pop_front()
                && let WorkMemory::InPlace(_, holds) = &mut body
            {
                *holds = Some(whole.payload);
            }
            self.queued -= len;
            self.out += len;
            self.put(verb, body, len, None);
        }
        Ok(())
    }

    fn put(&mut self, verb: Verb, body: WorkMemory, len: usize, piece: Option<ReadPiece>) {
        self.seq += 1;
        self.staged.push(StagedWork { seq: self.seq, verb, body, len, is_signalled: false, piece });
    }

    /// The operations to post now. An unsignalled write is released by the completion of a later operation. The last
    /// message or write is therefore always signalled: otherwise its memory and slot would never be released.
    pub fn work(&mut self) -> impl ExactSizeIterator<Item = WorkRequest> {
        let last = self.staged.iter().rposition(|one| one.piece.is_none());
        for (n, one) in self.staged.iter_mut().enumerate() {
            // Messages and reads are always signalled.
            one.is_signalled = self.signals_all || Some(n) == last || !matches!(one.verb, Verb::Write(_));
        }
        self.staged.iter().map(to_work)
    }

    /// Records that the device has accepted the first `count` of them.
    pub fn taken(&mut self, count: usize) {
        for one in self.staged.drain(..count) {
            match one.piece {
                Some(_) => drop(self.reading.insert(one.seq, one)),
                None => self.posted.push_back(one),
            }
        }
    }

    /// Processes a successful completion. Returns the gather that it completes, if any.
    pub fn completed(&mut self, seq: u64) -> Option<EndpointEvent> {
        self.moved = true;
        if let Some(read) = self.reading.remove(&seq) {
            return self.arrived(read);
        }
        while let Some(first) = self.posted.front()
            && first.seq <= seq
        {
            self.out -= first.len;
            self.posted.pop_front();
        }
        None
    }

    fn arrived(&mut self, read: StagedWork) -> Option<EndpointEvent> {
        self.inward -= read.len;
        let piece = read.piece?;
        let job = self.jobs.get_mut(&piece.job)?;
        if let WorkMemory::Chunk(chunk) = &read.body {
            job.buf[piece.at..piece.at + piece.len].copy_from_slice(&chunk.bytes()[..piece.len]);
        }
        job.left -= piece.len;
        if job.left > 0 {
            return None;
        }
        let job = self.jobs.remove(&piece.job)?;
        Some(EndpointEvent::Read(job.id, job.buf, Ok(())))
    }

    /// Processes a failed completion. The completion of a message or write covers all earlier ones too.
    pub fn failed(&mut self, seq: u64) {
        if let Some(read) = self.reading.remove(&seq) {
            return self.ended.push(read);
        }
        let count = self.posted.iter().take_while(|one| one.seq <= seq).count();
        self.ended.extend(self.posted.drain(..count));
    }

    /// Whether the completion of a message or write is outstanding.
    pub fn is_sending(&self) -> bool {
        self.posted.iter().any(|one| one.is_signalled)
    }

    /// Whether the device has no operation.
    pub fn is_at_rest(&self) -> bool {
        self.posted.is_empty() && self.reading.is_empty()
    }

    /// Whether the device may write into the buffers of reads.
    pub fn has_reads_in_place(&self) -> bool {
        let mut reads = self.staged.iter().filter(|one| one.piece.is_some()).chain(self.reading.values());
        reads.any(|one| matches!(one.body, WorkMemory::InPlace(..)))
    }

    /// Ends all work: drops queued work, and returns the buffers of reads as failed. The device must no longer write
    /// into them. Staged and posted work keeps its memory, because a failed driver may have accepted more than it
    /// reported.
    pub fn fail(&mut self) -> Vec<EndpointEvent> {
        self.kept = self.waiting.pop_front().filter(|first| first.done > 0);
        self.waiting.clear();
        self.pieces.clear();
        self.ended.append(&mut self.staged);
        self.queued = 0;
        let mut jobs: Vec<_> = self.jobs.drain().collect();
        jobs.sort_unstable_by_key(|(number, _)| *number);
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        jobs.into_iter().map(|(_, job)| EndpointEvent::Read(job.id, job.buf, Err(gone()))).collect()
    }
}

fn to_work(one: &StagedWork) -> WorkRequest {
    WorkRequest {
        id: one.seq,
        verb: one.verb,
        at: one.body.place(),
        len: one.len,
        is_signalled: one.is_signalled,
    }
}

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
