//! The transport seam: how the PDUs of a connection travel. A connection queues PDUs and takes those that come, and knows no
//! more. Over TCP they are bytes of a stream; a datamover makes of them what its transport has (RFC 5047, RFC 7145
//! section 3): Data-In becomes RDMA Writes, R2T an RDMA Read that comes back as Data-Out.

use super::out::{self, Digests, MAX_SEGMENT, Payload};
use super::receive::{PduHandler, PduReceiver, ReceiveError, ReceiveStatus};
use crate::core::InFlightData;
use crate::rdma_receiver::RdmaReceiver;
use lunar_runtime::{PeerState, Stream};
use lunar_wire::iscsi::Bhs;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

/// Messages and ends of RDMA Reads that are taken at once at most. There are fewer: without an answer an initiator has no
/// more credits.
const MAX_EVENTS: u64 = 1 << 16;

/// What takes the PDUs of a connection, and knows its tasks.
pub trait ConnectionPduHandler: PduHandler {
    /// A task waits for the data of this Target Transfer Tag.
    fn awaits(&self, itt: u32, ttt: u32) -> bool;

    /// There is a task with this tag.
    fn has_task(&self, itt: u32) -> bool;

    /// A request with this tag waits for its turn to become a task.
    fn is_held(&self, itt: u32) -> bool;

    /// Commands that may be known at a time.
    fn max_tasks(&self) -> usize;
}

/// What carries PDUs and is no stream of bytes.
pub trait Datamover: InFlightData {
    /// Its receiving side.
    fn receiver(&self) -> &RdmaReceiver;

    /// Takes a PDU that is to go, with the length of its data not filled in.
    fn push(&self, header: Bhs, payload: Payload);

    /// Whether it has room for an event that nobody asked for.
    fn takes_event(&self) -> bool;

    /// Sends what waits; it may ask for the places of data. False: some of it waits until the endpoint is writable.
    ///
    /// # Errors
    /// When the connection has broken.
    fn flush(&self, taker: &mut dyn ConnectionPduHandler) -> io::Result<bool>;

    /// Takes what is there, unless it was stopped, and hands every PDU over.
    ///
    /// # Errors
    /// When the connection has broken, or what came breaks it.
    fn receive(&self, taker: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// The same, stopped or not.
    ///
    /// # Errors
    /// As [`Datamover::receive`].
    fn take(&self, taker: &mut dyn ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError>;

    /// Something is held back that is to go behind something else.
    fn has_deferred(&self) -> bool;
}

/// The connection itself.
pub enum TransportHandle {
    /// A stream of bytes.
    Tcp(Stream),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// Its sending side.
pub enum Outbound {
    /// PDUs one behind the other.
    Tcp(out::PduQueue),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// Its receiving side.
pub enum Inbound {
    /// PDUs one behind the other.
    Tcp(PduReceiver),
    /// A datamover.
    Datamover(Rc<dyn Datamover>),
}

/// A connection as its login leaves it.
pub struct Transport {
    /// The connection.
    pub handle: TransportHandle,
    /// Its sending side.
    pub out: Outbound,
    /// Its receiving side.
    pub inbound: Inbound,
}

impl Transport {
    /// Over a stream of bytes.
    pub fn tcp(stream: Stream, receiver: PduReceiver) -> Transport {
        Transport {
            handle: TransportHandle::Tcp(stream),
            out: Outbound::Tcp(out::PduQueue::default()),
            inbound: Inbound::Tcp(receiver),
        }
    }

    /// Over a datamover.
    pub fn datamover(mover: Rc<dyn Datamover>) -> Transport {
        Transport {
            handle: TransportHandle::Datamover(mover.clone()),
            out: Outbound::Datamover(mover.clone()),
            inbound: Inbound::Datamover(mover),
        }
    }
}

impl TransportHandle {
    /// Waits until there may be something to take, or the peer is gone.
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

    /// The state of the initiator's side. RDMA knows no half of a connection.
    #[inline]
    pub fn peer_state(&self) -> PeerState {
        match self {
            TransportHandle::Tcp(stream) => stream.peer_state(),
            TransportHandle::Datamover(mover) if mover.receiver().ends() => PeerState::Reset,
            TransportHandle::Datamover(_) => PeerState::Open,
        }
    }

    /// What [`TransportHandle::peer_state`] has found holds no longer.
    pub fn look_anew(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.look_anew(),
            TransportHandle::Datamover(mover) => mover.receiver().endpoint().look_anew(),
        }
    }

    /// What was received so far: bytes of a stream, or events.
    fn taken(&self) -> u64 {
        match self {
            TransportHandle::Tcp(stream) => stream.received(),
            TransportHandle::Datamover(mover) => mover.receiver().taken(),
        }
    }

    /// Bytes that were received by the kernel and not taken yet, up to so many.
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

    /// Nothing more is received; what is queued still goes.
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

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        match self {
            Outbound::Tcp(out) => out.waiting(),
            Outbound::Datamover(mover) => mover.waiting(),
        }
    }

    /// Bytes that wait and that no pool counts, where they are told apart.
    pub fn own(&self) -> usize {
        match self {
            Outbound::Tcp(out) => out.own(),
            Outbound::Datamover(_) => 0,
        }
    }

    /// Whether anything has left since the last call.
    pub fn has_moved(&mut self) -> bool {
        match self {
            Outbound::Tcp(out) => out.has_moved(),
            Outbound::Datamover(mover) => mover.receiver().endpoint().has_moved(),
        }
    }

    /// Whether the initiator has room for an event; there is a unit attention for each, too.
    pub fn takes_event(&self) -> bool {
        match self {
            Outbound::Tcp(_) => true,
            Outbound::Datamover(mover) => mover.takes_event(),
        }
    }

    /// Forgets what waits: nothing can be sent any more.
    pub fn discard_queue(&mut self) {
        if let Outbound::Tcp(out) = self {
            *out = out::PduQueue::default();
        }
    }

    /// Whether what the initiator declares of its data segments is so; over RDMA it has the room that it has.
    pub fn uses_declared_length(&self) -> bool {
        matches!(self, Outbound::Tcp(_))
    }

    /// The longest Data-In in bytes, where the initiator takes segments of so many.
    #[inline]
    pub fn longest_data_in(&self, max_xmit: usize) -> usize {
        match self {
            Outbound::Tcp(_) => MAX_SEGMENT.min(max_xmit),
            // It goes where the initiator has said, and not into a segment.
            Outbound::Datamover(_) => MAX_SEGMENT,
        }
    }
}

impl Inbound {
    /// There may be PDUs already.
    pub fn has_begun(&self) -> bool {
        match self {
            Inbound::Tcp(receiver) => receiver.has_begun(),
            Inbound::Datamover(_) => true,
        }
    }

    /// Takes what is there, and hands every whole PDU over.
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

    /// The same of what has come already and was not handed over yet.
    pub fn resume(&mut self, taker: &mut impl ConnectionPduHandler) -> Result<ReceiveStatus, ReceiveError> {
        match self {
            Inbound::Tcp(receiver) => receiver.resume(taker),
            Inbound::Datamover(mover) => mover.receive(taker),
        }
    }

    /// The opcode of the last PDU of what was received and not taken yet, and of these bytes behind it.
    pub fn last_opcode(&self, behind: &[u8]) -> Option<u8> {
        match self {
            Inbound::Tcp(receiver) => receiver.last_opcode(behind),
            Inbound::Datamover(_) => None,
        }
    }

    /// Takes all that has arrived by now, and whatever else one receive brings.
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
