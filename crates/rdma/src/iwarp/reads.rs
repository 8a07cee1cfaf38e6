//! Our RDMA Reads: as many under way as the other side takes, and each answered in order into its own buffer.

use super::fault::Fault;
use crate::{Event, Remote};
use net::Buf;
use std::collections::VecDeque;
use std::io;
use wire::iwarp::{ReadRequest, Tagged, Terminate};

/// The slot of the steering tags of reads. [`Keys`](crate::keys::Keys) has none of that number: so a tag of a read
/// cannot be written to.
const SLOT: u32 = 0xffff;
/// Where the memory of each read begins.
const BASE: u64 = 1 << 32;

struct Read {
    id: u64,
    from: Remote,
    buf: Buf,
    /// Where in the buffer the data go, and how many bytes.
    at: usize,
    len: usize,
    /// Bytes that have come.
    come: usize,
    /// Its own steering tag, once it is under way.
    stag: u32,
}

impl Read {
    fn ended(self, how: io::Result<()>) -> Event {
        Event::Read(self.id, self.buf, how)
    }
}

/// RDMA Reads of ours.
pub(super) struct Reads {
    ord: usize,
    under_way: VecDeque<Read>,
    waiting: VecDeque<Read>,
    /// Reads that were begun: names the steering tag of the next.
    begun: u16,
}

impl Reads {
    /// Up to `ord` are under way at a time.
    pub(super) fn new(ord: u16) -> Reads {
        Reads { ord: ord.into(), under_way: VecDeque::new(), waiting: VecDeque::new(), begun: 0 }
    }

    /// A new read of `len` bytes to `at` in the buffer. One that cannot be comes back with its error.
    pub(super) fn post(&mut self, id: u64, from: Remote, buf: Buf, at: usize, len: usize) -> Option<Event> {
        let fits = at.checked_add(len).is_some_and(|end| end <= buf.len()) && u32::try_from(len).is_ok();
        let read = Read { id, from, buf, at, len, come: 0, stag: 0 };
        let why = match (fits, self.ord) {
            (false, _) => {
                io::Error::new(io::ErrorKind::InvalidInput, "an RDMA Read beyond the end of its buffer")
            }
            (_, 0) => io::Error::new(io::ErrorKind::Unsupported, "the other side takes no RDMA Reads"),
            _ => {
                self.waiting.push_back(read);
                return None;
            }
        };
        Some(read.ended(Err(why)))
    }

    /// The request of the next read, if it may begin now.
    pub(super) fn next(&mut self) -> Option<ReadRequest> {
        if self.under_way.len() >= self.ord {
            return None;
        }
        let mut read = self.waiting.pop_front()?;
        self.begun = self.begun.wrapping_add(1);
        read.stag = u32::from(self.begun) << 16 | SLOT;
        let source = (read.from.stag, read.from.offset);
        let request = ReadRequest { sink: (read.stag, BASE), len: read.len as u32, source };
        self.under_way.push_back(read);
        Some(request)
    }

    /// Takes a segment of a Read Response: it must be the next of the oldest read. The read, if this was its end.
    pub(super) fn take(&mut self, header: &Tagged, payload: &[u8]) -> Result<Option<Event>, Fault> {
        let Some(read) = self.under_way.front_mut().filter(|read| read.stag == header.stag) else {
            let what =
                format!("a Read Response to the steering tag {:#x}, which no read waits for", header.stag);
            return Err(Fault::new(Terminate::STAG, what));
        };
        let end = read.come + payload.len();
        if header.offset != BASE + read.come as u64 || end > read.len || header.last != (end == read.len) {
            let what = format!("a Read Response that is not the rest of a read of {} bytes", read.len);
            return Err(Fault::new(Terminate::BOUNDS, what));
        }
        read.buf[read.at + read.come..read.at + end].copy_from_slice(payload);
        read.come = end;
        if !header.last {
            return Ok(None);
        }
        Ok(self.under_way.pop_front().map(|read| read.ended(Ok(()))))
    }

    /// All reads end, for the connection has.
    pub(super) fn end(&mut self) -> impl Iterator<Item = Event> {
        let all = self.under_way.drain(..).chain(self.waiting.drain(..));
        all.map(|read| {
            read.ended(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the connection has ended")))
        })
    }
}
