//! Messages and remote memory over reliable connections (RDMA): one seam, three providers.
//!
//! - [`mem`]: two ends in one process, with faults on demand. For tests.
//! - [`iwarp`]: MPA, DDP and RDMAP (RFC 5044, 5041, 5040) in software, over ordinary TCP.
//! - [`verbs`]: rdma-core, loaded at run time, where it is.
//!
//! What a provider promises: messages arrive once and in order; an RDMA Write is visible to the peer before a message
//! that is sent after it; an RDMA Read ends at any time after it was begun, and what is posted after it does not wait
//! for it. Memory that is handed over is the provider's until it comes back.

pub mod iwarp;
pub mod mem;
pub mod verbs;

mod events;
mod keys;
mod lacking;

pub use events::{Event, Events};
pub use lacking::{NO_DEVICE, explained};

use lunar_runtime::Buf;
use lunar_runtime::out::Payload;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;

/// What takes its time, on one core.
pub type Wait<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The most private data that connections may begin with, in bytes (RFC 5044 section 7.1.1).
pub const MAX_PRIVATE: usize = 512;

/// Names memory of the other side: a steering tag and an offset under it (RFC 5040 section 2.1; verbs: a key and an
/// address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Remote {
    /// Steering tag.
    pub stag: u32,
    /// Tagged offset in bytes.
    pub offset: u64,
}

impl Remote {
    /// So many bytes behind this place.
    pub fn beyond(self, bytes: u64) -> Remote {
        Remote { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

/// So many bytes of memory of the other side.
pub type Piece = (Remote, usize);

/// All bytes of some pieces; None if there are more than can be counted.
fn total(pieces: &[Piece]) -> Option<usize> {
    pieces.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len))
}

/// Memory of ours that the other side may use.
#[derive(Debug)]
pub enum Exposed {
    /// It may write there, and only there.
    Sink(Buf),
    /// It may read it.
    Source(Rc<Buf>),
}

/// What a connection is to be like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// RDMA Reads that we may have under way at the other side.
    pub ord: u16,
    /// RDMA Reads that the other side may have under way here.
    pub ird: u16,
    /// Messages that are taken at first: how many, and how long in bytes each may be.
    pub receives: (usize, usize),
}

/// What a connection came to be like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `mem`, `iwarp`, or `verbs` and the name of the device.
    pub provider: String,
    /// RDMA Reads that may be under way at the other side; more of them wait here.
    pub ord: u16,
    /// A message may take the other side's right to a steering tag with it.
    pub sends_invalidate: bool,
    /// A message of the other side may end a steering tag of ours, and do no harm. Who is asked for it before there is a
    /// connection looks at the provider: [`iwarp::TAKES_INVALIDATE`], [`verbs::TAKES_INVALIDATE`].
    pub takes_invalidate: bool,
    /// Our address and that of the other side.
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

/// One end of a reliable connection. It belongs to one core; dropping it breaks the connection.
pub trait Endpoint {
    /// What it is.
    fn facts(&self) -> &Facts;

    /// Takes so many more messages of at most so many bytes. A message that finds none of these, or is longer, breaks
    /// the connection.
    fn receives(&self, count: usize, len: usize);

    /// Queues a message: its head, then its payload. With `invalidate` the other side's steering tag of that name ends
    /// when the message arrives.
    fn send(&self, head: &[u8], payload: Payload, invalidate: Option<u32>);

    /// Queues an RDMA Write.
    fn write(&self, to: Remote, payload: Payload);

    /// Queues RDMA Reads of pieces of memory, of so many bytes each, that are to lie one behind the other from `at` on in
    /// a buffer. Once all are there, [`Event::Read`] brings it back under this number. After the end of the connection
    /// was told it is dropped.
    fn gather(&self, id: u64, from: &[Piece], buf: Buf, at: usize);

    /// The same of one piece of `len` bytes.
    fn read(&self, id: u64, from: Remote, buf: Buf, at: usize, len: usize) {
        self.gather(id, &[(from, len)], buf, at);
    }

    /// Gives the other side a right to memory.
    ///
    /// # Errors
    /// When there are too many such rights, or the device takes no more memory. Then the memory is dropped, and the
    /// connection goes on.
    fn expose(&self, memory: Exposed) -> io::Result<Remote>;

    /// Takes the right back at once, and gives the memory back; None if there is none of that name, or if the provider
    /// still needs it.
    fn revoke(&self, stag: u32) -> Option<Exposed>;

    /// Hands over what is queued, all at once. False: some of it waits until [`Endpoint::writable`].
    ///
    /// # Errors
    /// When the connection is broken.
    fn flush(&self) -> io::Result<bool>;

    /// Bytes that are queued and were not taken yet, with what holds them.
    fn waiting(&self) -> usize;

    /// Whether anything has left since the last call: the other side takes what it gets.
    fn has_moved(&self) -> bool;

    /// A mark behind all messages and RDMA Writes that were queued so far.
    fn mark(&self) -> u64;

    /// Whether nothing from before this mark is on its way any more: it has arrived, as far as this end is told (verbs:
    /// it has completed; iwarp: the other side's TCP has it), or never will.
    fn is_delivered(&self, mark: u64) -> bool;

    /// Takes what has come, without waiting. The end of the connection is an event, and the last one. What has come may
    /// have asked for something: who polls flushes after it.
    fn poll(&self, into: &mut Events);

    /// The connection has ended, as far as can be seen without waiting, whatever is still to be taken. Cheap: it is asked
    /// before commands begin.
    fn has_ended(&self) -> bool;

    /// What [`Endpoint::has_ended`] has found holds no longer, where it is kept for a while.
    fn look_anew(&self) {}

    /// Waits until there may be something to take.
    fn readable(&self) -> Wait<'_, io::Result<()>>;

    /// Waits until more can be handed over.
    fn writable(&self) -> Wait<'_, io::Result<()>>;

    /// Breaks the connection. What waits is dropped, and RDMA Reads that are under way end with errors.
    fn close(&self);

    /// Breaks the connection, and throws away what was handed over and not delivered, as far as the provider can: what an
    /// iWARP device has given to its own TCP still leaves.
    fn reset(&self) {
        self.close();
    }

    /// Whether every end of it is a reset, also that by the death of the process.
    ///
    /// # Errors
    /// When the provider cannot be told.
    fn reset_on_close(&self, _reset: bool) -> io::Result<()> {
        Ok(())
    }
}

/// A connection that the other side wants. Dropping it turns it down.
pub trait Request {
    /// What the other side says with it. May be longer than what was said, with zeros (InfiniBand), or empty.
    fn private(&self) -> &[u8];

    /// Our address, and the one it came from.
    fn addresses(&self) -> (SocketAddr, SocketAddr);

    /// The connection would have [`Facts::sends_invalidate`].
    fn sends_invalidate(&self) -> bool;

    /// Takes it, with a word of our own.
    fn accept(self: Box<Self>, private: Vec<u8>, terms: Terms)
    -> Wait<'static, io::Result<Rc<dyn Endpoint>>>;

    /// Turns it down, with a word of our own.
    fn reject(self: Box<Self>, private: Vec<u8>) -> Wait<'static, ()>;
}

/// Why a connection could not be made.
#[derive(Debug)]
pub enum Refused {
    /// It could not be tried, or was lost.
    Io(io::Error),
    /// The other side turned it down, and said this.
    Rejected(Vec<u8>),
}

impl From<io::Error> for Refused {
    fn from(e: io::Error) -> Refused {
        Refused::Io(e)
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Io(e) => write!(f, "{e}"),
            Refused::Rejected(_) => write!(f, "the other side turned the connection down"),
        }
    }
}

/// A connection that was made, and what the other side said with it (with zeros behind it, on InfiniBand).
pub type Connected = (Rc<dyn Endpoint>, Vec<u8>);
