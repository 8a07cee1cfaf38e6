//! What is to go out, and what of it the device has: messages and RDMA Writes in order, and RDMA Reads beside them.
//!
//! A message or a write waits here until the device has room for it, and then is copied into a chunk; the payload of a
//! write goes from where it lies if the device knows that memory, and so does a read. A read that waits for an earlier one
//! (ORD) holds up nothing but reads.

use super::bounce::{BounceBuffer, BouncePool};
use super::queues::{Verb, WorkRequest};
use crate::{EndpointEvent, RemoteAddress};
use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// Writes and reads are cut into pieces of so many bytes.
pub const PIECE: usize = 256 << 10;
/// Bytes of chunks that a connection may have at the device, for each direction; one chunk may always be there.
const BUDGET: usize = 8 << 20;

/// A message or a write that waits.
struct QueuedSend {
    verb: Verb,
    head: Vec<u8>,
    payload: Payload,
    /// Bytes of a write that are at the device already.
    done: usize,
}

impl QueuedSend {
    fn len(&self) -> usize {
        self.head.len() + self.payload.bytes().len() - self.done
    }
}

/// A read that has not ended.
struct ReadJob {
    /// The number of who wants it.
    id: u64,
    buf: Buf,
    /// Bytes that are not there yet.
    left: usize,
}

/// A piece of a read: which one, from where, and to which place in its buffer.
#[derive(Clone, Copy)]
struct ReadPiece {
    job: u64,
    from: RemoteAddress,
    at: usize,
    len: usize,
}

/// Tells the key of the memory of a buffer, if the device knows it.
pub type KeyLookup = Box<dyn Fn(&Buf) -> Option<u32>>;

/// Tells the place and the key of [`PIECE`] zeros.
pub type ZeroLookup = Box<dyn Fn() -> Option<(u64, u32)>>;

/// Memory that a connection uses.
pub struct SendMemory {
    /// For what goes out, and for what is read.
    pub pool: Arc<BouncePool>,
    pub sinks: Arc<BouncePool>,
    pub key: KeyLookup,
    /// So many zeros as a piece has, which the device knows.
    pub zeros: ZeroLookup,
    /// What is read may land in memory with such a key.
    pub reads_in_place: bool,
}

impl SendMemory {
    /// The place of a byte of a payload, and its key, if the device knows it.
    fn of_payload(&self, payload: &Payload, at: usize) -> Option<(u64, u32)> {
        let (buf, start) = match payload {
            Payload::Buf(buf, _) => (buf, 0),
            Payload::Part(buf, start, _) => (&**buf, *start),
            // Each piece is the same.
            Payload::Zeros(_) => return (self.zeros)(),
            Payload::Empty | Payload::Bytes(_) => return None,
        };
        Some((buf[start + at..].as_ptr() as u64, (self.key)(buf)?))
    }

    /// The same of a buffer that is read into.
    fn of_buffer(&self, buf: &mut Buf, at: usize) -> Option<(u64, u32)> {
        let key = if self.reads_in_place { (self.key)(buf)? } else { return None };
        Some((buf[at..].as_mut_ptr() as u64, key))
    }
}

/// Where the bytes of an operation are.
enum WorkMemory {
    Chunk(BounceBuffer),
    /// In memory of a buffer: its address and key. The last piece of a payload holds it; the buffer of a read is that
    /// of its job.
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

/// What the device has, or is about to have.
struct StagedWork {
    seq: u64,
    verb: Verb,
    body: WorkMemory,
    len: usize,
    /// Its end will be told of.
    is_signalled: bool,
    /// Of a read.
    piece: Option<ReadPiece>,
}

/// The queues.
pub struct Outgoing {
    waiting: VecDeque<QueuedSend>,
    pieces: VecDeque<ReadPiece>,
    jobs: HashMap<u64, ReadJob>,
    staged: Vec<StagedWork>,
    /// Messages and writes at the device, oldest first; they end in order.
    posted: VecDeque<StagedWork>,
    /// Reads at the device, by number; they end in any order.
    reading: HashMap<u64, StagedWork>,
    /// Those that have failed: not every driver is done with their memory by then.
    ended: Vec<StagedWork>,
    /// Of a connection that is over: a payload of which the device may still have pieces.
    kept: Option<QueuedSend>,
    seq: u64,
    slots: usize,
    ord: usize,
    /// Every end is told of, that of writes as well.
    signals_all: bool,
    /// Bytes of messages and writes that were ever queued.
    pushed: u64,
    /// Bytes that wait, and bytes of chunks on their way out and in.
    queued: usize,
    out: usize,
    inward: usize,
    moved: bool,
}

impl Outgoing {
    /// For a device that takes `slots` operations, of which `ord` may be reads.
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

    /// For a device that goes on sending of a write's memory after the message behind it has ended, unless the write's
    /// own end is asked for: soft iWARP, which else lends the memory to TCP and does not wait until TCP is done.
    pub fn with_all_signalled(self, signals_all: bool) -> Outgoing {
        Outgoing { signals_all, ..self }
    }

    /// Queues a message or a write.
    pub fn push(&mut self, verb: Verb, head: &[u8], payload: Payload) {
        let one = QueuedSend { verb, head: head.to_vec(), payload, done: 0 };
        // A write of nothing has no effect.
        if one.len() > 0 || matches!(verb, Verb::Send(_)) {
            self.queued += one.len();
            self.pushed += one.len() as u64;
            self.waiting.push_back(one);
        }
    }

    /// Queues reads of pieces to `at` in a buffer. What can be told of it at once is returned.
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
            _ if !is_inside => refused("a read goes beyond its buffer"),
            (Some(0), _) => Ok(()),
            (_, 0) => refused("the other side lets us read nothing"),
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

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        self.queued
            + self.waiting.len() * size_of::<QueuedSend>()
            + self.pieces.len() * size_of::<ReadPiece>()
    }

    /// Bytes of messages and writes that were ever queued.
    pub fn pushed(&self) -> u64 {
        self.pushed
    }

    /// Those of them that have ended.
    pub fn delivered(&self) -> u64 {
        self.pushed - (self.queued + self.out) as u64
    }

    /// Messages and writes wait.
    pub fn is_blocked(&self) -> bool {
        !self.waiting.is_empty() || !self.staged.is_empty()
    }

    /// Anything waits, reads among it.
    pub fn has_more(&self) -> bool {
        self.is_blocked() || !self.pieces.is_empty()
    }

    /// Whether anything has left since the last call.
    pub fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    fn has_slot(&self) -> bool {
        self.staged.len() + self.posted.len() + self.reading.len() < self.slots
    }

    /// Gets what there is room for ready for the device, and copies what lies in memory that it does not know.
    ///
    /// # Errors
    /// When there is no memory, and nothing at the device whose end would give some back.
    pub fn stage(&mut self, memory: &SendMemory) -> io::Result<()> {
        let staged = self.stage_reads(memory).and_then(|()| self.stage_waiting(memory));
        if self.staged.is_empty() && self.is_idle() { staged } else { Ok(()) }
    }

    /// The device has nothing whose end could be waited for.
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

    /// What is to be handed to the device now. Writes end unseen, with the message behind them; so the last one that
    /// is no read is told of, else its chunk and its slot would never come back.
    pub fn work(&mut self) -> impl ExactSizeIterator<Item = WorkRequest> {
        let last = self.staged.iter().rposition(|one| one.piece.is_none());
        for (n, one) in self.staged.iter_mut().enumerate() {
            // Messages and reads are told of, each.
            one.is_signalled = self.signals_all || Some(n) == last || !matches!(one.verb, Verb::Write(_));
        }
        self.staged.iter().map(to_work)
    }

    /// The device has taken so many of them.
    pub fn taken(&mut self, count: usize) {
        for one in self.staged.drain(..count) {
            match one.piece {
                Some(_) => drop(self.reading.insert(one.seq, one)),
                None => self.posted.push_back(one),
            }
        }
    }

    /// An operation has succeeded. What is whole now is returned.
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

    /// An operation has failed: the device is done with it, and with the messages and writes before it.
    pub fn failed(&mut self, seq: u64) {
        if let Some(read) = self.reading.remove(&seq) {
            return self.ended.push(read);
        }
        let count = self.posted.iter().take_while(|one| one.seq <= seq).count();
        self.ended.extend(self.posted.drain(..count));
    }

    /// The device has messages or writes whose end it will tell.
    pub fn is_sending(&self) -> bool {
        self.posted.iter().any(|one| one.is_signalled)
    }

    /// The device has nothing at all.
    pub fn is_at_rest(&self) -> bool {
        self.posted.is_empty() && self.reading.is_empty()
    }

    /// The device may be writing into buffers of reads.
    pub fn has_reads_in_place(&self) -> bool {
        let mut reads = self.staged.iter().filter(|one| one.piece.is_some()).chain(self.reading.values());
        reads.any(|one| matches!(one.body, WorkMemory::InPlace(..)))
    }

    /// The connection is over: what waits is dropped, and the reads have failed, with their buffers, in which the device
    /// must write no more. What else the device has stays, and what it has not taken as well: a driver that has failed
    /// may have taken more than it says.
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
