//! The transport seam: how the PDUs of a session travel, and how the memory of its commands is filled and read. Over TCP
//! both are bytes of a stream; other data movers let the target use the memory itself.

use super::task::Task;
use crate::Error;
#[cfg(feature = "rdma")]
use crate::ErrorCode;
use lunar_block::LocalBoxFuture;
use lunar_proto::parameters::Parameters;
use lunar_runtime::iscsi::pdu_queue::{self, Digests, Payload};
use lunar_runtime::iscsi::receive::{PduHandler, PduReceiver, ReceiveError, ReceiveStatus, ReceivedPdu};
use lunar_runtime::{Buf, Stream};
use lunar_wire::iscsi::Bhs;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
#[cfg(feature = "rdma")]
use {
    lunar_rdma::{Endpoint, EndpointEvent, EndpointEvents},
    lunar_wire::scsi::{Sense, Status},
};

/// What a data mover hands over to its session.
pub trait DatamoverEvents {
    /// Takes a PDU; false: nothing more is taken.
    fn take_pdu(&mut self, pdu: ReceivedPdu<'_>) -> bool;

    /// The memory of a read comes back. The target has filled all of it but the last `short` bytes.
    fn filled(&mut self, tag: u32, memory: Buf, short: u32);

    /// The target broke a rule: the connection ends with this error, unless it has another one already.
    fn fail(&mut self, error: Error);
}

/// A data mover that is no stream of bytes.
pub trait Datamover {
    /// Takes a PDU that is to go, with the length of its data not filled in.
    fn push(&self, header: Bhs, payload: Payload);

    /// Takes a command, and lends its memory to the target for as long as it is under way.
    ///
    /// # Errors
    /// When that memory cannot be lent. Then nothing was taken.
    fn command(&self, header: Bhs, task: &mut Task, parameters: &Parameters) -> Result<(), Error>;

    /// A command is over without an answer of its own: the target may not use its memory any more.
    fn ended(&self, itt: u32);

    /// Bytes that wait, and what holds them.
    fn waiting(&self) -> usize;

    /// Whether anything has left since the last call.
    fn has_moved(&self) -> bool;

    /// Sends what waits. False: some of it waits until [`Datamover::writable`].
    fn flush(&self) -> io::Result<bool>;

    /// Takes what is there, and hands every PDU over.
    fn receive(&self, session: &mut dyn DatamoverEvents) -> Result<ReceiveStatus, ReceiveError>;

    /// Waits until there may be something to take.
    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Waits until more can be sent.
    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Ends the connection.
    fn close(&self);

    /// Ends the connection, and throws away what was not delivered.
    fn reset(&self);

    /// Whether every end of it is a reset, also that by the death of the process.
    fn reset_on_close(&self, reset: bool) -> io::Result<()>;
}

/// Why a command that could not lend its memory has ended.
#[cfg(feature = "rdma")]
pub fn cannot_lend(e: &io::Error) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("memory registration failed: {e}"))
}

/// Bytes of a read that the target has not filled, where only its answer shows that: by the residual, if there is
/// one. A command that failed without it may have filled none.
#[cfg(feature = "rdma")]
pub fn unfilled(residual: Option<u32>, status: u8, sense: &[u8]) -> u32 {
    // NO SENSE, RECOVERED ERROR and COMPLETED come with data.
    let is_done = |sense: Sense| matches!(sense.key, 0x0 | 0x1 | 0xf);
    let is_good = status == Status::Good as u8
        || status == Status::CheckCondition as u8 && Sense::decode(sense).is_some_and(is_done);
    residual.unwrap_or(if is_good { 0 } else { u32::MAX })
}

/// The connection itself.
pub enum TransportHandle {
    /// A stream of bytes.
    Tcp(Stream),
    /// Another data mover.
    Datamover(Rc<dyn Datamover>),
}

/// Its sending side.
pub enum TransportSender {
    /// PDUs one behind the other.
    Tcp(pdu_queue::PduQueue),
    /// Another data mover.
    Datamover(Rc<dyn Datamover>),
}

impl Default for TransportSender {
    fn default() -> TransportSender {
        TransportSender::Tcp(pdu_queue::PduQueue::default())
    }
}

/// Its receiving side.
pub enum TransportReceiver {
    /// PDUs one behind the other.
    Tcp(PduReceiver),
    /// Another data mover.
    Datamover(Rc<dyn Datamover>),
}

impl TransportHandle {
    /// Its sending side, for a connection that begins.
    pub fn out(&self) -> TransportSender {
        match self {
            TransportHandle::Tcp(_) => TransportSender::default(),
            TransportHandle::Datamover(mover) => TransportSender::Datamover(mover.clone()),
        }
    }

    /// Its receiving side; `begun` are bytes that came with the login.
    pub fn incoming(&self, digests: Digests, max_data: usize, begun: Vec<u8>) -> TransportReceiver {
        match self {
            TransportHandle::Tcp(_) => TransportReceiver::Tcp(PduReceiver::new(digests, max_data, begun)),
            TransportHandle::Datamover(mover) => TransportReceiver::Datamover(mover.clone()),
        }
    }

    /// Waits until there may be something to take, or the target is gone.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.readable().await,
            TransportHandle::Datamover(mover) => mover.readable().await,
        }
    }

    /// It is known without asking that there is something to take.
    pub fn is_readable(&self) -> bool {
        match self {
            TransportHandle::Tcp(stream) => stream.is_readable(),
            TransportHandle::Datamover(_) => false,
        }
    }

    /// Waits until more can be sent.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.writable().await,
            TransportHandle::Datamover(mover) => mover.writable().await,
        }
    }

    /// Whether what was sent and not delivered is thrown away when it ends.
    pub fn reset_on_close(&self, reset: bool) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.reset_on_close(reset),
            TransportHandle::Datamover(mover) => mover.reset_on_close(reset),
        }
    }

    /// Ends it, and throws away what was not delivered.
    pub fn reset(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.reset(),
            TransportHandle::Datamover(mover) => mover.reset(),
        }
    }

    /// Ends it.
    pub fn close(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.shutdown(Shutdown::Both),
            TransportHandle::Datamover(mover) => mover.close(),
        }
    }
}

/// Hands over the messages that have come, up to the end of the connection, and has as many received as were taken: of at
/// most `len` bytes. `take` returns whether more is wanted.
#[cfg(feature = "rdma")]
pub fn messages(
    endpoint: &dyn Endpoint,
    events: &mut EndpointEvents,
    len: usize,
    mut take: impl FnMut(&[u8]) -> Result<bool, ReceiveError>,
) -> Result<ReceiveStatus, ReceiveError> {
    let (mut taken, mut result) = (0, Ok(ReceiveStatus::More));
    for event in events.list.drain(..) {
        let more = match event {
            EndpointEvent::Message(range, _) => {
                taken += 1;
                take(&events.bytes[range])
            }
            EndpointEvent::Read(..) => Ok(true),
            EndpointEvent::End(None) => Ok(false),
            EndpointEvent::End(Some(e)) => Err(ReceiveError::Io(e)),
        };
        match more {
            Ok(true) => continue,
            Ok(false) => result = Ok(ReceiveStatus::End),
            Err(e) => result = Err(e),
        }
        break;
    }
    if taken > 0 {
        endpoint.receives(taken, len);
    }
    events.clear();
    result
}

impl TransportSender {
    /// Queues a PDU.
    #[inline]
    pub fn push(&mut self, header: Bhs, payload: Payload, digests: Digests) {
        match self {
            TransportSender::Tcp(out) => out.push(header, payload, digests),
            TransportSender::Datamover(mover) => mover.push(header, payload),
        }
    }

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        match self {
            TransportSender::Tcp(out) => out.waiting(),
            TransportSender::Datamover(mover) => mover.waiting(),
        }
    }

    /// Sends until all has left (true) or no more is taken (false).
    pub fn flush(&mut self, line: &TransportHandle) -> io::Result<bool> {
        match (self, line) {
            (TransportSender::Tcp(out), TransportHandle::Tcp(stream)) => out.flush(stream),
            (TransportSender::Datamover(mover), _) => mover.flush(),
            // The one of a connection that is over.
            (TransportSender::Tcp(_), TransportHandle::Datamover(_)) => Ok(true),
        }
    }

    /// Bytes that have left. A data mover does not count them.
    pub fn left(&self) -> u64 {
        match self {
            TransportSender::Tcp(out) => out.left(),
            TransportSender::Datamover(_) => 0,
        }
    }

    /// What [`TransportSender::left`] will be when all that waits now has left.
    #[inline]
    pub fn end(&self) -> u64 {
        match self {
            TransportSender::Tcp(out) => out.end(),
            TransportSender::Datamover(_) => 0,
        }
    }

    /// Whether a data mover has moved anything since the last call. A stream counts.
    pub fn has_moved(&self) -> bool {
        match self {
            TransportSender::Tcp(_) => false,
            TransportSender::Datamover(mover) => mover.has_moved(),
        }
    }

    /// A command is over without an answer of its own.
    pub fn ended(&self, itt: u32) {
        if let TransportSender::Datamover(mover) = self {
            mover.ended(itt);
        }
    }

    /// Takes all that waits, as it would have been sent. For tests and fuzzers.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        match self {
            TransportSender::Tcp(out) => out.take_bytes(),
            TransportSender::Datamover(_) => Vec::new(),
        }
    }
}

impl TransportReceiver {
    /// PDUs that came with the login may be there already.
    pub fn has_begun(&self) -> bool {
        match self {
            TransportReceiver::Tcp(receiver) => receiver.has_begun(),
            TransportReceiver::Datamover(_) => true,
        }
    }

    /// Takes what is there, and hands every whole PDU over.
    pub fn receive<S: PduHandler + DatamoverEvents>(
        &mut self,
        line: &TransportHandle,
        session: &mut S,
    ) -> Result<ReceiveStatus, ReceiveError> {
        match (self, line) {
            (TransportReceiver::Tcp(receiver), TransportHandle::Tcp(stream)) => {
                receiver.receive(stream, session)
            }
            (TransportReceiver::Datamover(mover), _) => mover.receive(session),
            (TransportReceiver::Tcp(_), TransportHandle::Datamover(_)) => Ok(ReceiveStatus::End),
        }
    }

    /// The same of what has come already and was not handed over yet.
    pub fn resume<S: PduHandler + DatamoverEvents>(
        &mut self,
        session: &mut S,
    ) -> Result<ReceiveStatus, ReceiveError> {
        match self {
            TransportReceiver::Tcp(receiver) => receiver.resume(session),
            TransportReceiver::Datamover(mover) => mover.receive(session),
        }
    }
}
