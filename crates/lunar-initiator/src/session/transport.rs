//! The transport of a session: it moves PDUs and the data of commands. Over TCP, both are part of one byte stream.
//! With other Datamovers, the target accesses the memory of commands by RDMA.

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

/// The callbacks of a Datamover to its session.
pub trait DatamoverEvents {
    /// Handles a PDU. Returns false if the session accepts no more.
    fn take_pdu(&mut self, pdu: ReceivedPdu<'_>) -> bool;

    /// Returns the buffer of a read. The target has filled all but the last `short` bytes.
    fn filled(&mut self, tag: u32, memory: Buf, short: u32);

    /// Ends the connection with this error after a protocol violation. An earlier error is kept.
    fn fail(&mut self, error: Error);
}

/// A Datamover other than a byte stream (RFC 5047).
pub trait Datamover {
    /// Queues a PDU. Sets its DataSegmentLength.
    fn push(&self, header: Bhs, payload: Payload);

    /// Queues a command, and registers its memory for the target until it ends.
    ///
    /// # Errors
    /// When the memory cannot be registered. Nothing is queued then.
    fn command(&self, header: Bhs, task: &mut Task, parameters: &Parameters) -> Result<(), Error>;

    /// Revokes the memory of a command that has ended without a response.
    fn ended(&self, itt: u32);

    /// The number of queued bytes, including the buffers that hold them.
    fn waiting(&self) -> usize;

    /// Whether anything was sent since the last call.
    fn take_moved(&self) -> bool;

    /// Sends queued PDUs. Returns false if some must wait for [`Datamover::writable`].
    fn flush(&self) -> io::Result<bool>;

    /// Receives everything available, and delivers each PDU.
    fn receive(&self, session: &mut dyn DatamoverEvents) -> Result<ReceiveStatus, ReceiveError>;

    /// Waits until something may be available to receive.
    fn readable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Waits until more can be sent.
    fn writable(&self) -> LocalBoxFuture<'_, io::Result<()>>;

    /// Ends the connection.
    fn close(&self);

    /// Ends the connection, and discards undelivered data.
    fn reset(&self);

    /// Sets whether any end of the connection discards undelivered data, even the exit of the process.
    fn reset_on_close(&self, reset: bool) -> io::Result<()>;
}

/// The error of a command whose memory could not be registered.
#[cfg(feature = "rdma")]
pub fn cannot_lend(e: &io::Error) -> Error {
    Error::new(ErrorCode::InvalidArgument, format!("cannot register the buffer of the command for RDMA: {e}"))
}

/// The number of bytes of a read that the target has not filled, from the residual count of the response. A failed
/// command without a residual count may have filled none.
#[cfg(feature = "rdma")]
pub fn unfilled(residual: Option<u32>, status: u8, sense: &[u8]) -> u32 {
    // These sense keys mean that data were transferred: NO SENSE, RECOVERED ERROR, COMPLETED.
    let is_done = |sense: Sense| matches!(sense.key, 0x0 | 0x1 | 0xf);
    let is_good = status == Status::Good as u8
        || status == Status::CheckCondition as u8 && Sense::decode(sense).is_some_and(is_done);
    residual.unwrap_or(if is_good { 0 } else { u32::MAX })
}

/// A connection.
#[expect(clippy::large_enum_variant, reason = "a connection has one, and each command reads it")]
pub enum TransportHandle {
    /// A byte stream.
    Tcp(Stream),
    /// Another Datamover.
    Datamover(Rc<dyn Datamover>),
}

/// The sending side of a connection.
pub enum TransportSender {
    /// A stream of PDUs.
    Tcp(pdu_queue::PduQueue),
    /// Another Datamover.
    Datamover(Rc<dyn Datamover>),
}

impl Default for TransportSender {
    fn default() -> TransportSender {
        TransportSender::Tcp(pdu_queue::PduQueue::default())
    }
}

/// The receiving side of a connection.
pub enum TransportReceiver {
    /// A stream of PDUs.
    Tcp(Box<PduReceiver>),
    /// Another Datamover.
    Datamover(Rc<dyn Datamover>),
}

impl TransportHandle {
    /// The sending side of a new connection.
    pub fn out(&self) -> TransportSender {
        match self {
            TransportHandle::Tcp(_) => TransportSender::default(),
            TransportHandle::Datamover(datamover) => TransportSender::Datamover(datamover.clone()),
        }
    }

    /// The receiving side. `begun` are the bytes received along with the login.
    pub fn incoming(&self, digests: Digests, max_data: usize, begun: Vec<u8>) -> TransportReceiver {
        match self {
            TransportHandle::Tcp(_) => {
                TransportReceiver::Tcp(PduReceiver::new(digests, max_data, begun).into())
            }
            TransportHandle::Datamover(datamover) => TransportReceiver::Datamover(datamover.clone()),
        }
    }

    /// Waits until something may be available to receive, or the connection is closed.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.readable().await,
            TransportHandle::Datamover(datamover) => datamover.readable().await,
        }
    }

    /// Whether received data are known to be available, without a system call.
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
            TransportHandle::Datamover(datamover) => datamover.writable().await,
        }
    }

    /// Sets whether any end of the connection discards undelivered data.
    pub fn reset_on_close(&self, reset: bool) -> io::Result<()> {
        match self {
            TransportHandle::Tcp(stream) => stream.reset_on_close(reset),
            TransportHandle::Datamover(datamover) => datamover.reset_on_close(reset),
        }
    }

    /// Ends the connection, and discards undelivered data.
    pub fn reset(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.reset(),
            TransportHandle::Datamover(datamover) => datamover.reset(),
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        match self {
            TransportHandle::Tcp(stream) => stream.shutdown(Shutdown::Both),
            TransportHandle::Datamover(datamover) => datamover.close(),
        }
    }
}

/// Delivers received messages up to the end of the connection, and posts a new receive of `len` bytes for each.
/// `take` returns whether the session accepts more.
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
    pub fn push(&mut self, mut header: Bhs, payload: Payload, digests: Digests) {
        match self {
            TransportSender::Tcp(out) => out.push(&mut header, payload, digests),
            TransportSender::Datamover(datamover) => datamover.push(header, payload),
        }
    }

    /// The number of queued bytes, including the buffers that hold them.
    pub fn waiting(&self) -> usize {
        match self {
            TransportSender::Tcp(out) => out.waiting(),
            TransportSender::Datamover(datamover) => datamover.waiting(),
        }
    }

    /// Sends until the queue is empty (true) or the socket is full (false).
    pub fn flush(&mut self, line: &TransportHandle) -> io::Result<bool> {
        match (self, line) {
            (TransportSender::Tcp(out), TransportHandle::Tcp(stream)) => out.flush(stream),
            (TransportSender::Datamover(datamover), _) => datamover.flush(),
            // The sender belongs to a connection that has ended.
            (TransportSender::Tcp(_), TransportHandle::Datamover(_)) => Ok(true),
        }
    }

    /// The number of bytes sent. A Datamover does not count them.
    pub fn left(&self) -> u64 {
        match self {
            TransportSender::Tcp(out) => out.left(),
            TransportSender::Datamover(_) => 0,
        }
    }

    /// The value of [`TransportSender::left`] once all queued bytes are sent.
    #[inline]
    pub fn end(&self) -> u64 {
        match self {
            TransportSender::Tcp(out) => out.end(),
            TransportSender::Datamover(_) => 0,
        }
    }

    /// Whether a Datamover has sent anything since the last call. A stream counts bytes instead.
    pub fn take_moved(&self) -> bool {
        match self {
            TransportSender::Tcp(_) => false,
            TransportSender::Datamover(datamover) => datamover.take_moved(),
        }
    }

    /// Revokes the memory of a command that has ended without a response.
    pub fn ended(&self, itt: u32) {
        if let TransportSender::Datamover(datamover) = self {
            datamover.ended(itt);
        }
    }

    /// Takes all queued bytes in their wire format. For tests and fuzz targets.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        match self {
            TransportSender::Tcp(out) => out.take_bytes(),
            TransportSender::Datamover(_) => Vec::new(),
        }
    }
}

impl TransportReceiver {
    /// Whether PDUs were received along with the login.
    pub fn has_begun(&self) -> bool {
        match self {
            TransportReceiver::Tcp(receiver) => receiver.has_begun(),
            TransportReceiver::Datamover(_) => true,
        }
    }

    /// Receives everything available, and delivers each complete PDU.
    pub fn receive<S: PduHandler + DatamoverEvents>(
        &mut self,
        line: &TransportHandle,
        session: &mut S,
    ) -> Result<ReceiveStatus, ReceiveError> {
        match (self, line) {
            (TransportReceiver::Tcp(receiver), TransportHandle::Tcp(stream)) => {
                receiver.receive(stream, session)
            }
            (TransportReceiver::Datamover(datamover), _) => datamover.receive(session),
            (TransportReceiver::Tcp(_), TransportHandle::Datamover(_)) => Ok(ReceiveStatus::End),
        }
    }

    /// Delivers PDUs that are already received.
    pub fn resume<S: PduHandler + DatamoverEvents>(
        &mut self,
        session: &mut S,
    ) -> Result<ReceiveStatus, ReceiveError> {
        match self {
            TransportReceiver::Tcp(receiver) => receiver.resume(session),
            TransportReceiver::Datamover(datamover) => datamover.receive(session),
        }
    }
}
