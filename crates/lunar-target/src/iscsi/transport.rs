//! The interface between iSCSI connections and transports. A connection queues PDUs, and processes received PDUs.
//!
//! Over TCP, PDUs are bytes of a stream. A datamover converts them (RFC 5047, RFC 7145 section 3): Data-In becomes an
//! RDMA Write. R2T becomes an RDMA Read, whose data are passed on as Data-Out.

use super::pdu_queue::{self, Digests, MAX_SEGMENT, Payload};
use super::receive::{PduHandler, PduReceiver, ReceiveError, ReceiveStatus};
use crate::core::InFlightData;
use crate::rdma_receiver::RdmaReceiver;
use lunar_runtime::{PeerState, Stream};
use lunar_wire::iscsi::Bhs;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

/// Maximum number of messages and completed RDMA Reads that are processed at once. It is never reached, because an
/// initiator without responses runs out of credits.
const MAX_EVENTS: u64 = 1 << 16;

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

    /// The initiator has room for more asynchronous messages.
    fn has_event_room(&mut self);
}

/// A transport for PDUs that is not a byte stream (RFC 5047).
pub trait Datamover: InFlightData {
    /// The receiving side.
    fn receiver(&self) -> &RdmaReceiver;

    /// Queues a PDU. Its DataSegmentLength is not set yet.
    fn push(&self, header: Bhs, payload: Payload);

    /// Whether the initiator has a receive buffer for an unsolicited message.
    fn can_send_event(&self) -> bool;

    /// Sends queued PDUs. It may take the buffers of tasks from `taker`. False: the endpoint must become writable
    /// first.
    ///
    /// # Errors
    /// The connection has failed.
    fn flush(&self, taker: &mut dyn ConnectionPduHandler) -> io::Result<bool>;

    /// Processes received PDUs, unless receiving was stopped.
    ///
    /// # Errors
    /// The connection has failed, or the received data are invalid.
    fn receive(&self, taker: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// Processes received PDUs, even if receiving was stopped.
    ///
    /// # Errors
    /// The same as for [`Datamover::receive`].
    fn take(&self, taker: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// Whether responses are deferred.
    fn has_deferred(&self) -> bool;
}

/// The connection of a transport.
pub enum TransportHandle {
    /// A byte stream.
    Tcp(Stream),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// The sending side of a transport.
pub enum Outbound {
    /// PDUs in a byte stream.
    Tcp(pdu_queue::PduQueue),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// The receiving side of a transport.
pub enum Inbound {
    /// PDUs in a byte stream.
    Tcp(PduReceiver),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// A transport after login.
pub struct IscsiTransport {
    /// The connection.
    pub handle: TransportHandle,
    /// Its sending side.
    pub out: Outbound,
    /// Its receiving side.
    pub inbound: Inbound,
}

impl IscsiTransport {
    /// A transport over a byte stream.
    pub fn tcp(stream: Stream, receiver: PduReceiver) -> IscsiTransport {
        IscsiTransport {
            handle: TransportHandle::Tcp(stream),
            out: Outbound::Tcp(pdu_queue::PduQueue::default()),
            inbound: Inbound::Tcp(receiver),
        }
    }

    /// A transport over a datamover.
    pub fn datamover(mover: Rc<dyn Datamover>) -> IscsiTransport {
        IscsiTransport {
            handle: TransportHandle::Datamover(mover.clone()),
            out: Outbound::Datamover(mover.clone()),
            inbound: Inbound::Datamover(mover),
        }
    }
}

impl TransportHandle {
    /// Waits until there may be data to receive, or the peer has closed the connection.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.readable().await,
            TransportHandle::Datamover(mover) => mover.receiver().readable().await,
        }
    }

    /// Waits until more data can be sent.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.writable().await,
            TransportHandle::Datamover(mover) => mover.receiver().endpoint().writable().await,
        }
    }

    /// The state of the peer. RDMA has no half-closed connections.
    #[inline]
    pub fn peer_state(&self) -> PeerState {
        match self {
            TransportHandle::Tcp(stream) => stream.peer_state(),
            TransportHandle::Datamover(mover) if mover.receiver().ends() => PeerState::Reset,
            TransportHandle::Datamover(_) => PeerState::Open,
        }
    }

    /// Makes the next [`TransportHandle::peer_state`] query the kernel.
    pub fn recheck_peer(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.recheck_peer(),
            TransportHandle::Datamover(mover) => mover.receiver().endpoint().recheck_peer(),
        }
    }

    /// The amount received so far: bytes of a stream, or events.
    fn taken(&self) -> u64 {
        match self {
            TransportHandle::Tcp(stream) => stream.received(),
            TransportHandle::Datamover(mover) => mover.receiver().taken(),
        }
    }

    /// Up to `most` bytes that the kernel has received and that were not read.
    pub fn peek(&self, most: usize) -> Vec<u8> {
        match self {
            TransportHandle::Tcp(stream) => stream.peek(most),
            TransportHandle::Datamover(_) => Vec::new(),
        }
    }

    /// The datamover, if there is one.
    pub fn datamover(&self) -> Option<&Rc<dyn Datamover>> {
        match self {
            TransportHandle::Tcp(_) => None,
            TransportHandle::Datamover(mover) => Some(mover),
        }
    }

    /// Stops receiving. Queued PDUs are still sent.
    pub fn stop_receiving(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.shutdown(Shutdown::Read),
            TransportHandle::Datamover(mover) => mover.receiver().stop(),
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.shutdown(Shutdown::Both),
            TransportHandle::Datamover(mover) => mover.receiver().close(),
        }
    }
}

impl Outbound {
    /// Queues a PDU.
    #[inline]
    pub fn push(&mut self, header: Bhs, payload: Payload, digests: Digests) {
        match self {
            Outbound::Tcp(out) => out.push(header, payload, digests),
            Outbound::Datamover(mover) => mover.push(header, payload),
        }
    }

    /// Bytes in the send queue, including the buffers that it holds.
    pub fn waiting(&self) -> usize {
        match self {
            Outbound::Tcp(out) => out.waiting(),
            Outbound::Datamover(mover) => mover.waiting(),
        }
    }

    /// Bytes in the send queue that count in no pool; 0 if the transport does not distinguish them.
    pub fn own(&self) -> usize {
        match self {
            Outbound::Tcp(out) => out.own(),
            Outbound::Datamover(_) => 0,
        }
    }

    /// Whether data were sent since the last call.
    pub fn has_moved(&mut self) -> bool {
        match self {
            Outbound::Tcp(out) => out.has_moved(),
            Outbound::Datamover(mover) => mover.receiver().endpoint().has_moved(),
        }
    }

    /// Whether the initiator has a receive buffer for an asynchronous message. Each event is also a unit attention.
    pub fn can_send_event(&self) -> bool {
        match self {
            Outbound::Tcp(_) => true,
            Outbound::Datamover(mover) => mover.can_send_event(),
        }
    }

    /// Discards the send queue, which cannot be sent anymore.
    pub fn discard_queue(&mut self) {
        if let Outbound::Tcp(out) = self {
            *out = pdu_queue::PduQueue::default();
        }
    }

    /// Whether the declared MaxRecvDataSegmentLength of the initiator applies. Over RDMA the size of its posted
    /// receive buffers applies instead.
    pub fn uses_declared_length(&self) -> bool {
        matches!(self, Outbound::Tcp(_))
    }

    /// Maximum length of a Data-In in bytes, for an initiator that accepts segments of `max_xmit` bytes.
    #[inline]
    pub fn longest_data_in(&self, max_xmit: usize) -> usize {
        match self {
            Outbound::Tcp(_) => MAX_SEGMENT.min(max_xmit),
            // RDMA Writes go to the advertised memory, not to a data segment.
            Outbound::Datamover(_) => MAX_SEGMENT,
        }
    }
}

impl Inbound {
    /// Whether PDUs may already have arrived.
    pub fn has_begun(&self) -> bool {
        match self {
            Inbound::Tcp(receiver) => receiver.has_begun(),
            Inbound::Datamover(_) => true,
        }
    }

    /// Receives, and passes every complete PDU to the handler.
    #[inline]
    pub fn receive(
        &mut self,
        handle: &TransportHandle,
        taker: &mut impl ConnectionPduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        match (self, handle) {
            (Inbound::Tcp(receiver), TransportHandle::Tcp(stream)) => receiver.receive(stream, taker),
            (Inbound::Datamover(mover), _) => mover.receive(taker),
            (Inbound::Tcp(_), TransportHandle::Datamover(_)) => Ok(ReceiveStatus::End),
        }
    }

    /// Processes data that were received before and not handled yet.
    pub fn resume(&mut self, taker: &mut impl ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError> {
        match self {
            Inbound::Tcp(receiver) => receiver.resume(taker),
            Inbound::Datamover(mover) => mover.receive(taker),
        }
    }

    /// The opcode of the last PDU in the received bytes and in `behind`, which follow them.
    pub fn last_opcode(&self, behind: &[u8]) -> Option<u8> {
        match self {
            Inbound::Tcp(receiver) => receiver.last_opcode(behind),
            Inbound::Datamover(_) => None,
        }
    }

    /// Processes everything received, including the result of one further receive.
    pub fn take_arrived(
        &mut self,
        handle: &TransportHandle,
        taker: &mut impl ConnectionPduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        let most = match handle {
            TransportHandle::Tcp(stream) => stream.received() + stream.unread(),
            TransportHandle::Datamover(mover) => mover.receiver().taken() + MAX_EVENTS,
        };
        let mut received = self.resume(taker)?;
        while received == ReceiveStatus::More && handle.taken() < most {
            let before = handle.taken();
            received = self.receive(handle, taker)?;
            if handle.taken() == before {
                break;
            }
        }
        Ok(received)
    }
}
