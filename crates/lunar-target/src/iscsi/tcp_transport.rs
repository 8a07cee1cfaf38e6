//! PDUs in a byte stream.

use super::pdu_queue::{Digests, Payload, PduQueue};
use super::receive::{PduHandler, PduReceiver, ReceiveError, ReceiveStatus};
use lunar_runtime::Stream;
use lunar_runtime::piped_bytes::PipedPart;
use lunar_wire::iscsi::Bhs;
use std::cell::RefCell;
use std::io;
use std::net::Shutdown;

/// A TCP connection with its send queue and its receiver. PDUs are queued while received PDUs are handled, so each
/// has a cell of its own.
pub struct TcpTransport {
    /// The connection.
    pub stream: Stream,
    queue: RefCell<PduQueue>,
    receiver: RefCell<PduReceiver>,
}

impl TcpTransport {
    /// A transport with an empty send queue.
    pub fn new(stream: Stream, receiver: PduReceiver) -> TcpTransport {
        TcpTransport { stream, queue: RefCell::default(), receiver: RefCell::new(receiver) }
    }

    /// Queues a PDU.
    #[inline]
    pub fn push(&self, header: &mut Bhs, payload: Payload, digests: Digests) {
        self.queue.borrow_mut().push(header, payload, digests);
    }

    /// Queues a PDU with pages of a file. There must be no data digest.
    pub fn push_pages(&self, header: &mut Bhs, part: PipedPart, digests: Digests) {
        self.queue.borrow_mut().push_pages(header, part, digests);
    }

    /// Sends queued PDUs. False: the stream must become writable first.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline]
    pub fn flush(&self) -> io::Result<bool> {
        self.queue.borrow_mut().flush(&self.stream)
    }

    /// Bytes in the send queue, including the buffers that it holds, and how many of them count in no pool.
    #[inline]
    pub fn queued(&self) -> (usize, usize) {
        let queue = self.queue.borrow();
        (queue.waiting(), queue.own())
    }

    /// Whether data were sent since the last call.
    pub fn take_moved(&self) -> bool {
        self.queue.borrow_mut().take_moved()
    }

    /// Discards the send queue, which cannot be sent anymore.
    pub fn discard_queue(&self) {
        self.queue.take();
    }

    /// Whether PDUs may already have arrived.
    pub fn has_begun(&self) -> bool {
        self.receiver.borrow().has_begun()
    }

    /// Receives, and passes every complete PDU to the handler.
    #[inline]
    pub fn receive(&self, handler: &mut impl PduHandler) -> Result<ReceiveStatus, ReceiveError> {
        self.receiver.borrow_mut().receive(&self.stream, handler)
    }

    /// Processes data that were received before and not handled yet.
    pub fn resume(&self, handler: &mut impl PduHandler) -> Result<ReceiveStatus, ReceiveError> {
        self.receiver.borrow_mut().resume(handler)
    }

    /// Processes everything received, including the result of one further receive.
    pub fn receive_arrived(&self, handler: &mut impl PduHandler) -> Result<ReceiveStatus, ReceiveError> {
        let max = self.stream.received() + self.stream.unread();
        let mut received = self.resume(handler)?;
        while received == ReceiveStatus::More && self.stream.received() < max {
            let before = self.stream.received();
            received = self.receive(handler)?;
            if self.stream.received() == before {
                break;
            }
        }
        Ok(received)
    }

    /// The opcode of the last PDU in the received bytes and in `behind`, which follow them.
    pub fn last_opcode(&self, behind: &[u8]) -> Option<u8> {
        self.receiver.borrow().last_opcode(behind)
    }

    /// Stops receiving. Queued PDUs are still sent.
    pub fn stop_receiving(&self) {
        self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.stream.shutdown(Shutdown::Both);
    }
}
