//! RDMA over reliable connections: one trait, [`Endpoint`], with three providers.
//!
//! - [`mem`]: two ends in one process, with fault injection. For tests.
//! - [`iwarp`]: MPA, DDP and RDMAP (RFC 5044, 5041, 5040) in software, over ordinary TCP.
//! - [`verbs`]: rdma-core, loaded at run time if it is installed.
//!
//! Every provider guarantees the following. Messages arrive once and in order. The peer sees an RDMA Write before any
//! message that is sent after it. An RDMA Read may complete at any time, and later work does not wait for it. The
//! provider owns the memory that it was given until it returns it.
//!
//! # Rules of the interface
//!
//! - A gather reads several pieces of remote memory into one buffer. A *fence* reports when everything sent before it
//!   has arrived, as far as the device knows. A target needs this before it responds to a reset: no data of aborted
//!   tasks may still be in flight to memory that the initiator then reuses.
//! - While an RDMA device is in use, pools cut their buffers from a few large regions, so that each region is
//!   registered only once.
//! - A connection briefly outlives its endpoint: the last messages are delivered, the device completes its work, and
//!   the queues are destroyed.
//! - One thread for each device waits for its asynchronous events.
#![deny(missing_docs)]

pub mod iwarp;
pub mod mem;
pub mod verbs;

mod diagnostics;
mod events;
mod keys;

pub use diagnostics::{NO_DEVICE, NO_DEVICE_HINT, explained};
pub use events::{EndpointEvent, EndpointEvents};
pub use lunar_runtime::LocalBoxFuture;

use lunar_runtime::Buf;
use lunar_runtime::send_queue::Payload;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

/// The maximum length of private data at connection setup, in bytes (RFC 5044 section 7.1.1).
pub const MAX_PRIVATE: usize = 512;

/// The address of the peer's memory: a steering tag and an offset under it (RFC 5040 section 2.1; verbs: a key and an
/// address).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteAddress {
    /// Steering tag.
    pub stag: u32,
    /// Tagged offset in bytes.
    pub offset: u64,
}

impl RemoteAddress {
    /// The address `bytes` bytes further on.
    pub fn beyond(self, bytes: u64) -> RemoteAddress {
        RemoteAddress { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

/// A range of the peer's memory: its address, and its length in bytes.
pub type RemoteRange = (RemoteAddress, usize);

/// The sum of the lengths of pieces; None if it overflows.
fn total(pieces: &[RemoteRange]) -> Option<usize> {
    pieces.iter().try_fold(0usize, |sum, (_, len)| sum.checked_add(*len))
}

/// Local memory that the peer may access.
#[derive(Debug)]
pub enum MemoryRegion {
    /// The peer may write it, but not read it.
    Sink(Buf),
    /// The peer may read it.
    Source(Rc<Buf>),
}

/// The requested parameters of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnParam {
    /// The maximum number of outstanding RDMA Reads of this end.
    pub ord: u16,
    /// The maximum number of outstanding RDMA Reads of the peer.
    pub ird: u16,
    /// The initially posted receives: their number, and the length of each in bytes.
    pub receives: (usize, usize),
}

/// The parameters of an established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointInfo {
    /// `mem`, `iwarp`, or `verbs` and the name of the device.
    pub provider: String,
    /// The maximum number of outstanding RDMA Reads of this end. Further reads are queued.
    pub ord: u16,
    /// Whether a message of this end may invalidate a steering tag of the peer.
    pub sends_invalidate: bool,
    /// Whether a message of the peer may safely invalidate a steering tag of this end. Before a connection exists,
    /// the provider has this information: [`iwarp::TAKES_INVALIDATE`], [`verbs::TAKES_INVALIDATE`].
    pub takes_invalidate: bool,
    /// The local address.
    pub local: SocketAddr,
    /// The address of the peer.
    pub peer: SocketAddr,
}

/// One end of a reliable connection. It belongs to one core. Dropping it ends the connection.
pub trait Endpoint {
    /// The parameters of the connection.
    fn info(&self) -> &EndpointInfo;

    /// Posts `count` more receives of `len` bytes each. A message that finds no receive, or is longer than its
    /// receive, ends the connection.
    fn receives(&self, count: usize, len: usize);

    /// Queues a message: its head, then its payload. With `invalidate`, its arrival invalidates this steering tag of
    /// the peer.
    fn send(&self, head: &[u8], payload: Payload, invalidate: Option<u32>);

    /// Queues an RDMA Write.
    fn write(&self, to: RemoteAddress, payload: Payload);

    /// Queues RDMA Reads of pieces of the peer's memory. The pieces go into a buffer, one after the other from `at`
    /// on. When all have arrived, [`EndpointEvent::Read`] returns the buffer with this `id`. After the end event of
    /// the connection, the buffer is dropped.
    fn gather(&self, id: u64, from: &[RemoteRange], buf: Buf, at: usize);

    /// Queues an RDMA Read of one piece of `len` bytes.
    fn read(&self, id: u64, from: RemoteAddress, buf: Buf, at: usize, len: usize) {
        self.gather(id, &[(from, len)], buf, at);
    }

    /// Registers memory for access by the peer.
    ///
    /// # Errors
    /// When there are too many regions, or the device accepts no more memory. The memory is dropped, and the
    /// connection continues.
    fn expose(&self, memory: MemoryRegion) -> io::Result<RemoteAddress>;

    /// Deregisters memory at once and returns it. None if the steering tag is unknown, or the provider still uses the
    /// memory.
    fn revoke(&self, stag: u32) -> Option<MemoryRegion>;

    /// Submits all queued work at once. Returns false if some of it must wait for [`Endpoint::writable`].
    ///
    /// # Errors
    /// When the connection has failed.
    fn flush(&self) -> io::Result<bool>;

    /// The number of queued bytes that are not submitted yet, including overhead.
    fn waiting(&self) -> usize;

    /// Whether anything was sent since the last call, which shows that the peer is receiving.
    fn take_moved(&self) -> bool;

    /// A fence after all messages and RDMA Writes queued so far.
    fn fence(&self) -> u64;

    /// Whether nothing before this fence is in flight any more: it has arrived, as far as this end knows, or never
    /// will. With verbs this means completed, with iwarp acknowledged by the peer's TCP.
    fn fence_done(&self, fence: u64) -> bool;

    /// Takes the available events without waiting. The end of the connection is the last event. Handling an event may
    /// queue a reply: call [`Endpoint::flush`] afterwards. This begins a batch of work
    /// ([`lunar_runtime::begin_batch`]).
    fn poll(&self, into: &mut EndpointEvents);

    /// Whether the connection has ended, as far as is known without waiting, even if events are left. The call is
    /// cheap: callers make it before each command.
    fn has_ended(&self) -> bool;

    /// Discards a cached result of [`Endpoint::has_ended`].
    fn recheck_peer(&self) {}

    /// Waits until events may be available.
    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Waits until more work can be submitted.
    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Ends the connection. Queued work is dropped, and outstanding RDMA Reads fail.
    fn close(&self);

    /// Ends the connection and discards submitted work that was not delivered, as far as the provider can: an iWARP
    /// device still sends data that are in its own TCP stack.
    fn reset(&self) {
        self.close();
    }

    /// Sets whether any end of the connection is a reset, even the exit of the process.
    ///
    /// # Errors
    /// When the provider does not support the setting.
    fn reset_on_close(&self, _reset: bool) -> io::Result<()> {
        Ok(())
    }
}

/// A connection request of a peer. Dropping it rejects the request.
pub trait ConnectRequest {
    /// The private data of the request. It may be padded with zeros (InfiniBand), or empty.
    fn private(&self) -> &[u8];

    /// The local address, and that of the peer.
    fn addresses(&self) -> (SocketAddr, SocketAddr);

    /// Whether the connection would have [`EndpointInfo::sends_invalidate`].
    fn sends_invalidate(&self) -> bool;

    /// Accepts the request, with private data.
    fn accept(
        self: Box<Self>,
        private: Vec<u8>,
        terms: ConnParam,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Endpoint>>>;

    /// Rejects the request, with private data.
    fn reject(self: Box<Self>, private: Vec<u8>) -> LocalBoxFuture<'static, ()>;
}

/// The reason why a connection was not established.
#[derive(Debug)]
pub enum ConnectError {
    /// The connection failed or was lost.
    Io(io::Error),
    /// The peer rejected the connection, with this private data.
    Rejected(Vec<u8>),
}

impl From<io::Error> for ConnectError {
    fn from(e: io::Error) -> ConnectError {
        ConnectError::Io(e)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Io(e) => write!(f, "{e}"),
            ConnectError::Rejected(_) => write!(f, "the peer rejected the connection"),
        }
    }
}

/// An established connection and the private data of the peer (padded with zeros on InfiniBand).
pub type ConnectedEndpoint = (Rc<dyn Endpoint>, Vec<u8>);
