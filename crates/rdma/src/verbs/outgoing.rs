//! What is to go out, and what of it the device has: messages and RDMA Writes in order, and RDMA Reads beside them.
//!
//! A message or a write waits here until the device has room for it, and then is copied into a chunk. A read that
//! waits for an earlier one (ORD) holds up nothing but reads.

use super::bounce::{Chunk, Pool};
use super::queues::{Verb, Work};
use crate::{Event, Remote};
use net::Buf;
use net::out::Payload;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

/// Writes and reads are cut into pieces of so many bytes.
const PIECE: usize = 256 << 10;
/// Bytes of chunks that a connection may have at the device, for each direction; one chunk may always be there.
const BUDGET: usize = 8 << 20;

/// A message or a write that waits.
struct Waiting {
    verb: Verb,
    head: Vec<u8>,
    payload: Payload,
    /// Bytes of a write that are at the device already.
    done: usize,
}

impl Waiting {
    fn len(&self) -> usize {
        self.head.len() + self.payload.bytes().len() - self.done
    }
}

/// A read that has not ended.
struct Job {
    /// The number of who wants it.
    id: u64,
    buf: Buf,
    /// Bytes that are not there yet.
    left: usize,
}

/// A piece of a read: which one, from where, and to which place in its buffer.
#[derive(Clone, Copy)]
struct Piece {
    job: u64,
    from: Remote,
    at: usize,
    len: usize,
}

/// What is in a chunk that the device has, or is about to have.
struct Staged {
    seq: u64,
    verb: Verb,
    chunk: Chunk,
    len: usize,
    /// Of a read.
    piece: Option<Piece>,
}

/// The queues.
pub struct Outgoing {
    waiting: VecDeque<Waiting>,
    pieces: VecDeque<Piece>,
    jobs: HashMap<u64, Job>,
    staged: Vec<Staged>,
    /// Messages and writes at the device, oldest first; they end in order.
    posted: VecDeque<Staged>,
    /// Reads at the device, by number; they end in any order.
    reading: HashMap<u64, Staged>,
    seq: u64,
    slots: usize,
    ord: usize,
    /// Every end is told of, that of writes as well.
    tells_all: bool,
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
            seq: 0,
            slots,
            ord: ord.min(slots / 2),
            tells_all: false,
            queued: 0,
            out: 0,
            inward: 0,
            moved: false,
        }
    }

    /// For a device that goes on sending of a write's memory after the message behind it has ended, unless the write's
    /// own end is asked for: soft iWARP, which else lends the memory to TCP and does not wait until TCP is done.
    pub fn telling_all(self, tells_all: bool) -> Outgoing {
        Outgoing { tells_all, ..self }
    }

    /// Queues a message or a write.
    pub fn push(&mut self, verb: Verb, head: &[u8], payload: Payload) {
        let one = Waiting { verb, head: head.to_vec(), payload, done: 0 };
        // A write of nothing has no effect.
        if one.len() > 0 || matches!(verb, Verb::Send(_)) {
            self.queued += one.len();
            self.waiting.push_back(one);
        }
    }

    /// Queues a read of `len` bytes to `at` in a buffer. What can be told of it at once is returned.
    pub fn read(&mut self, id: u64, from: Remote, buf: Buf, at: usize, len: usize) -> Option<Event> {
        let is_inside = at.checked_add(len).is_some_and(|end| end <= buf.len());
        let refused = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let at_once = match (len, self.ord) {
            _ if !is_inside => refused("a read goes beyond its buffer"),
            (0, _) => Ok(()),
            (_, 0) => refused("the other side lets us read nothing"),
            _ => {
                self.cut(id, from, buf, at, len);
                return None;
            }
        };
        Some(Event::Read(id, buf, at_once))
    }

    fn cut(&mut self, id: u64, from: Remote, buf: Buf, at: usize, len: usize) {
        self.seq += 1;
        let job = self.seq;
        self.jobs.insert(job, Job { id, buf, left: len });
        for done in (0..len).step_by(PIECE) {
            let from = from.beyond(done as u64);
            self.pieces.push_back(Piece { job, from, at: at + done, len: PIECE.min(len - done) });
        }
    }

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        self.queued + self.waiting.len() * size_of::<Waiting>() + self.pieces.len() * size_of::<Piece>()
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

    /// Copies what there is room for into chunks: of `pool` what goes out, of `sinks` what is read.
    ///
    /// # Errors
    /// When there is no memory, and nothing at the device whose end would give some back.
    pub fn stage(&mut self, pool: &Arc<Pool>, sinks: &Arc<Pool>) -> io::Result<()> {
        let staged = self.stage_reads(sinks).and_then(|()| self.stage_waiting(pool));
        if self.staged.is_empty() && self.is_idle() { staged } else { Ok(()) }
    }

    /// The device has nothing whose end could be waited for.
    pub fn is_idle(&self) -> bool {
        self.posted.is_empty() && self.reading.is_empty()
    }

    fn stage_reads(&mut self, sinks: &Arc<Pool>) -> io::Result<()> {
        let staged = self.staged.iter().filter(|one| one.piece.is_some()).count();
        for _ in staged + self.reading.len()..self.ord {
            let Some(piece) = self.pieces.front().copied() else { break };
            if !self.has_slot() || (self.inward > 0 && self.inward + piece.len > BUDGET) {
                break;
            }
            let chunk = sinks.chunk(piece.len)?;
            self.pieces.pop_front();
            self.inward += piece.len;
            self.put(Verb::Read(piece.from), chunk, piece.len, Some(piece));
        }
        Ok(())
    }

    fn stage_waiting(&mut self, pool: &Arc<Pool>) -> io::Result<()> {
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
            let part = first.done..first.done + len - first.head.len();
            let chunk = pool.filled(&first.head, &first.payload.bytes()[part])?;
            first.done += len;
            if first.done == first.head.len() + first.payload.bytes().len() {
                self.waiting.pop_front();
            }
            self.queued -= len;
            self.out += len;
            self.put(verb, chunk, len, None);
        }
        Ok(())
    }

    fn put(&mut self, verb: Verb, chunk: Chunk, len: usize, piece: Option<Piece>) {
        self.seq += 1;
        self.staged.push(Staged { seq: self.seq, verb, chunk, len, piece });
    }

    /// What is to be handed to the device now. Writes end unseen, with the message behind them; so the last one that
    /// is no read is told of, else its chunk and its slot would never come back.
    pub fn work(&self) -> Vec<Work<'_>> {
        let last = self.staged.iter().rposition(|one| one.piece.is_none());
        self.staged
            .iter()
            .enumerate()
            .map(|(n, one)| to_work(one, self.tells_all || Some(n) == last))
            .collect()
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
    pub fn completed(&mut self, seq: u64) -> Option<Event> {
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

    fn arrived(&mut self, read: Staged) -> Option<Event> {
        self.inward -= read.len;
        let piece = read.piece?;
        let job = self.jobs.get_mut(&piece.job)?;
        job.buf[piece.at..piece.at + piece.len].copy_from_slice(&read.chunk.bytes()[..piece.len]);
        job.left -= piece.len;
        if job.left > 0 {
            return None;
        }
        let job = self.jobs.remove(&piece.job)?;
        Some(Event::Read(job.id, job.buf, Ok(())))
    }

    /// The connection is over: what waits is dropped, and the reads have failed. Chunks that the device has stay, and
    /// those that it has not taken as well: a driver that has failed may have taken more than it says.
    pub fn fail(&mut self) -> Vec<Event> {
        self.waiting.clear();
        self.pieces.clear();
        self.posted.extend(self.staged.drain(..));
        self.queued = 0;
        let mut jobs: Vec<_> = self.jobs.drain().collect();
        jobs.sort_unstable_by_key(|(number, _)| *number);
        let gone = || io::Error::from(io::ErrorKind::ConnectionAborted);
        jobs.into_iter().map(|(_, job)| Event::Read(job.id, job.buf, Err(gone()))).collect()
    }
}

/// Messages and reads are told of, each.
fn to_work(one: &Staged, is_told: bool) -> Work<'_> {
    let is_signalled = is_told || !matches!(one.verb, Verb::Write(_));
    Work { id: one.seq, verb: one.verb, chunk: &one.chunk, len: one.len, is_signalled }
}

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
