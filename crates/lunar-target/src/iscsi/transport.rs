//! The interface between iSCSI connections and transports. A connection queues PDUs, and processes received PDUs.
//!
//! Over TCP, PDUs are bytes of a stream. A datamover converts them (RFC 5047, RFC 7145 section 3): Data-In becomes an
//! RDMA Write. R2T becomes an RDMA Read, whose data are passed on as Data-Out.

use super::pdu_queue::{Body, Digests, MAX_SEGMENT, Payload};
use super::receive::{PduHandler, ReceiveError, ReceiveStatus};
use super::tcp_transport::TcpTransport;
use crate::core::{InFlightData, SendPosition};
use lunar_runtime::{LocalBoxFuture, PeerState};
use lunar_wire::iscsi::Bhs;
use std::io;
use std::rc::Rc;

/// The handler of a connection's PDUs, with access to its tasks.
pub trait ConnectionPduHandler: PduHandler {
    /// Whether a task waits for data with this Target Transfer Tag.
    fn is_awaiting(&self, itt: u32, ttt: u32) -> bool;

    /// Whether a task has this tag.
    fn has_task(&self, itt: u32) -> bool;

    /// Whether a held request has this tag.
    fn is_held(&self, itt: u32) -> bool;

    /// Maximum number of commands in flight.
    fn max_tasks(&self) -> usize;

    /// Sends the asynchronous messages that waited for room at the initiator.
    fn announce_unsent(&mut self);
}

/// A transport for PDUs that is not a byte stream (RFC 5047).
pub trait Datamover: InFlightData {
    /// Queues a PDU. Its DataSegmentLength is not set yet.
    fn push(&self, header: Bhs, payload: Payload);

    /// Whether the initiator has a receive buffer for an unsolicited message.
    fn can_send_event(&self) -> bool;

    /// Sends queued PDUs. It may take the buffers of tasks from `handler`. False: wait for [`Datamover::writable`]
    /// first.
    ///
    /// # Errors
    /// The connection has failed.
    fn flush(&self, handler: &mut dyn ConnectionPduHandler) -> io::Result<bool>;

    /// Waits until more can be sent.
    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Waits until there may be something to receive, or receiving is stopped.
    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Processes received PDUs, unless receiving was stopped.
    ///
    /// # Errors
    /// The connection has failed, or the received data are invalid.
    fn receive(&self, handler: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// Processes everything received, unless receiving was stopped.
    ///
    /// # Errors
    /// The same as for [`Datamover::receive`].
    fn receive_arrived(&self, handler: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// Waits until there is something to receive, even if receiving was stopped.
    ///
    /// # Errors
    /// Nothing can arrive anymore.
    fn readable_after_stop(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Processes received PDUs, even if receiving was stopped.
    ///
    /// # Errors
    /// The same as for [`Datamover::receive`].
    fn receive_after_stop(
        &self,
        handler: &mut dyn ConnectionPduHandler,
    ) -> Result<ReceiveStatus, ReceiveError>;

    /// Whether responses are deferred.
    fn has_deferred(&self) -> bool;

    /// Whether data were sent since the last call.
    fn take_moved(&self) -> bool;

    /// The state of the peer.
    fn peer_state(&self) -> PeerState;

    /// Makes the next [`Datamover::peer_state`] query the kernel.
    fn recheck_peer(&self);

    /// Stops receiving. Queued PDUs are still sent.
    fn stop_receiving(&self);

    /// Ends the connection.
    fn close(&self);
}

/// The transport of a connection after login.
#[expect(clippy::large_enum_variant, reason = "a box would add an indirection to every PDU over TCP")]
pub enum IscsiTransport {
    /// PDUs in a byte stream.
    Tcp(TcpTransport),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

impl IscsiTransport {
    /// The datamover, if there is one.
    pub fn datamover(&self) -> Option<&Rc<dyn Datamover>> {
        match self {
            IscsiTransport::Tcp(_) => None,
            IscsiTransport::Datamover(datamover) => Some(datamover),
        }
    }

    /// Waits until there may be data to receive, or the peer has closed the connection.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.stream.readable().await,
            IscsiTransport::Datamover(datamover) => datamover.readable().await,
        }
    }

    /// Waits until more data can be sent.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.stream.writable().await,
            IscsiTransport::Datamover(datamover) => datamover.writable().await,
        }
    }

    /// The state of the peer.
    #[inline]
    pub fn peer_state(&self) -> PeerState {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.stream.peer_state(),
            IscsiTransport::Datamover(datamover) => datamover.peer_state(),
        }
    }

    /// Makes the next [`IscsiTransport::peer_state`] query the kernel.
    pub fn recheck_peer(&self) {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.stream.recheck_peer(),
            IscsiTransport::Datamover(datamover) => datamover.recheck_peer(),
        }
    }

    /// Up to `max` bytes that the kernel has received and that were not read.
    pub fn peek(&self, max: usize) -> Vec<u8> {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.stream.peek(max),
            IscsiTransport::Datamover(_) => Vec::new(),
        }
    }

    /// The place in the send queue. A datamover has no bytes: its responses count as sent when its queue is empty.
    pub fn send_position(&self) -> SendPosition {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.send_position(),
            IscsiTransport::Datamover(_) => SendPosition { sent: 0, end: u64::MAX },
        }
    }

    /// Stops receiving. Queued PDUs are still sent.
    pub fn stop_receiving(&self) {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.stop_receiving(),
            IscsiTransport::Datamover(datamover) => datamover.stop_receiving(),
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.close(),
            IscsiTransport::Datamover(datamover) => datamover.close(),
        }
    }

    /// Whether the data of a PDU may be pages of a file. Otherwise they are copied.
    #[inline]
    pub fn takes_pages(&self, digests: Digests) -> bool {
        matches!(self, IscsiTransport::Tcp(_)) && !digests.data
    }

    /// Queues a PDU.
    #[inline]
    pub fn push(&self, header: &mut Bhs, body: Body, digests: Digests) {
        match (self, body) {
            (IscsiTransport::Tcp(tcp), Body::Memory(payload)) => tcp.push(header, payload, digests),
            (IscsiTransport::Tcp(tcp), Body::Piped(part)) if !digests.data => {
                tcp.push_pages(header, part, digests);
            }
            (_, body) => self.push_in_memory(header, body, digests),
        }
    }

    fn push_in_memory(&self, header: &mut Bhs, body: Body, digests: Digests) {
        match (self, body.in_memory()) {
            (_, Err(_)) => self.close(),
            (IscsiTransport::Tcp(tcp), Ok(payload)) => tcp.push(header, payload, digests),
            (IscsiTransport::Datamover(datamover), Ok(payload)) => datamover.push(*header, payload),
        }
    }

    /// Bytes in the send queue, including the buffers that it holds, and how many of them count in no pool (0 if the
    /// transport does not distinguish them).
    #[inline]
    pub fn queued(&self) -> (usize, usize) {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.queued(),
            IscsiTransport::Datamover(datamover) => (datamover.waiting(), 0),
        }
    }

    /// Whether data were sent since the last call.
    pub fn take_moved(&self) -> bool {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.take_moved(),
            IscsiTransport::Datamover(datamover) => datamover.take_moved(),
        }
    }

    /// Whether the initiator has a receive buffer for an asynchronous message. Each event is also a unit attention.
    pub fn can_send_event(&self) -> bool {
        match self {
            IscsiTransport::Tcp(_) => true,
            IscsiTransport::Datamover(datamover) => datamover.can_send_event(),
        }
    }

    /// Discards the send queue, which cannot be sent anymore.
    pub fn discard_queue(&self) {
        if let IscsiTransport::Tcp(tcp) = self {
            tcp.discard_queue();
        }
    }

    /// Whether the declared MaxRecvDataSegmentLength of the initiator applies. Over a datamover the size of its
    /// posted receive buffers applies instead.
    pub fn uses_declared_length(&self) -> bool {
        matches!(self, IscsiTransport::Tcp(_))
    }

    /// Maximum length of a Data-In in bytes, for an initiator that accepts segments of `max_xmit` bytes.
    #[inline]
    pub fn longest_data_in(&self, max_xmit: usize) -> usize {
        match self {
            IscsiTransport::Tcp(_) => MAX_SEGMENT.min(max_xmit),
            // The data go to the advertised memory, not to a data segment.
            IscsiTransport::Datamover(_) => MAX_SEGMENT,
        }
    }

    /// Whether PDUs may already have arrived.
    pub fn has_begun(&self) -> bool {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.has_begun(),
            IscsiTransport::Datamover(_) => true,
        }
    }

    /// Receives, and passes every complete PDU to the handler.
    #[inline]
    pub fn receive(&self, handler: &mut impl ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError> {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.receive(handler),
            IscsiTransport::Datamover(datamover) => datamover.receive(handler),
        }
    }

    /// Processes data that were received before and not handled yet.
    pub fn resume(&self, handler: &mut impl ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError> {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.resume(handler),
            IscsiTransport::Datamover(datamover) => datamover.receive(handler),
        }
    }

    /// Processes everything received, including the result of one further receive.
    pub fn receive_arrived(
        &self,
        handler: &mut impl ConnectionPduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.receive_arrived(handler),
            IscsiTransport::Datamover(datamover) => datamover.receive_arrived(handler),
        }
    }

    /// The opcode of the last PDU in the received bytes and in `behind`, which follow them.
    pub fn last_opcode(&self, behind: &[u8]) -> Option<u8> {
        match self {
            IscsiTransport::Tcp(tcp) => tcp.last_opcode(behind),
            IscsiTransport::Datamover(_) => None,
        }
    }
}
