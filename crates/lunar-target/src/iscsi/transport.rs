//! The interface between iSCSI connections and transports. A connection queues PDUs and processes received ones, and
//! knows no more.
//!
//! Over TCP, PDUs are bytes of a stream. A datamover converts them (RFC 5047, RFC 7145 section 3): Data-In becomes
//! RDMA Writes, and R2T an RDMA Read whose data come back as Data-Out.

use super::pdu_queue::{self, Digests, MAX_SEGMENT, Payload};
use super::receive::{PduHandler, PduReceiver, ReceiveError, ReceiveStatus};
use crate::core::InFlightData;
use crate::rdma_receiver::RdmaReceiver;
use lunar_runtime::{PeerState, Stream};
use lunar_wire::iscsi::Bhs;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

/// Most messages and completed RDMA Reads that are processed at a time. There are fewer: without responses an
/// initiator runs out of credits.
const MAX_EVENTS: u64 = 1 << 16;

/// The handler of the PDUs of a connection, with access to its tasks.
pub trait ConnectionPduHandler: PduHandler {
    /// A task waits for the data of this Target Transfer Tag.
    fn is_awaiting(&self, itt: u32, ttt: u32) -> bool;

    /// A task has this tag.
    fn has_task(&self, itt: u32) -> bool;

    /// A held request has this tag.
    fn is_held(&self, itt: u32) -> bool;

    /// Commands that the session may have.
    fn max_tasks(&self) -> usize;
}

/// A transport for PDUs that is no stream of bytes (RFC 5047).
pub trait Datamover: InFlightData {
    /// Its receiving side.
    fn receiver(&self) -> &RdmaReceiver;

    /// Queues a PDU. The length of its data is not filled in.
    fn push(&self, header: Bhs, payload: Payload);

    /// The initiator has room for an unsolicited message.
    fn can_send_event(&self) -> bool;

    /// Sends queued PDUs. It may request the buffers of tasks. False: the endpoint must become writable first.
    ///
    /// # Errors
    /// When the connection has failed.
    fn flush(&self, taker: &mut dyn ConnectionPduHandler) -> io::Result<bool>;

    /// Processes received PDUs, unless it was stopped.
    ///
    /// # Errors
    /// When the connection has failed, or the received data are invalid.
    fn receive(&self, taker: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// The same, even if it was stopped.
    ///
    /// # Errors
    /// As [`Datamover::receive`].
    fn take(&self, taker: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// A response waits for something before it.
    fn has_deferred(&self) -> bool;
}

/// The connection of a transport.
pub enum TransportHandle {
    /// A stream of bytes.
    Tcp(Stream),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// The sending side of a transport.
pub enum Outbound {
    /// PDUs in a stream.
    Tcp(pdu_queue::PduQueue),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// The receiving side of a transport.
pub enum Inbound {
    /// PDUs in a stream.
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
    /// A transport over a stream of bytes.
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
    /// Waits until there may be something to receive, or the peer has gone.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.readable().await,
            TransportHandle::Datamover(mover) => mover.receiver().readable().await,
        }
    }

    /// Waits until more can be sent.
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

    /// The next [`TransportHandle::peer_state`] must query the kernel again.
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

    /// Bytes that the kernel has received and that were not read, up to `most`.
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

    /// Bytes in the send queue, and bytes of the buffers that it holds.
    pub fn waiting(&self) -> usize {
        match self {
            Outbound::Tcp(out) => out.waiting(),
            Outbound::Datamover(mover) => mover.waiting(),
        }
    }

    /// Bytes in the send queue that no pool counts, where the transport can separate them.
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

    /// The initiator has room for an asynchronous message. Each also has a unit attention.
    pub fn can_send_event(&self) -> bool {
        match self {
            Outbound::Tcp(_) => true,
            Outbound::Datamover(mover) => mover.can_send_event(),
        }
    }

    /// Discards the send queue, which cannot be sent any more.
    pub fn discard_queue(&mut self) {
        if let Outbound::Tcp(out) = self {
            *out = pdu_queue::PduQueue::default();
        }
    }

    /// Whether the MaxRecvDataSegmentLength that the initiator declares applies. Over RDMA it has the buffers that it
    /// has posted.
    pub fn uses_declared_length(&self) -> bool {
        matches!(self, Outbound::Tcp(_))
    }

    /// Longest Data-In in bytes, for an initiator that accepts segments of `max_xmit` bytes.
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
    /// PDUs may have arrived already.
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

    /// The same for what was received before and not handled yet.
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

    /// Processes all that has arrived, and what one further receive brings.
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
