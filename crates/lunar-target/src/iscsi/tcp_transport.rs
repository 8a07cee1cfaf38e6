//! PDUs in a byte stream.

use super::pdu_queue::{Digests, Payload, PduQueue};
use super::receive::{PduHandler, PduReceiver, ReceiveError, ReceiveStatus};
use crate::core::SendPosition;
use crate::turns::{TURN, Turns};
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
    turns: Turns,
}

impl TcpTransport {
    /// A transport with an empty send queue.
    pub fn new(stream: Stream, receiver: PduReceiver) -> TcpTransport {
        let (queue, turns) = Default::default();
        TcpTransport { stream, queue, receiver: RefCell::new(receiver), turns }
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

    /// Sends queued PDUs, beside other connections of the core at most one turn of them. False: the stream must become
    /// writable first. Even if it is, the core polls for I/O of the others before.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline]
    pub fn flush(&self) -> io::Result<bool> {
        let mut queue = self.queue.borrow_mut();
        // No short rest is left over.
        if queue.waiting() < 2 * TURN {
            return queue.flush(&self.stream);
        }
        queue.flush_part(&self.stream, self.turns.next_len())
    }

    /// Bytes in the send queue, including the buffers that it holds, and how many of them count in no pool.
    #[inline]
    pub fn queued(&self) -> (usize, usize) {
        let queue = self.queue.borrow();
        (queue.waiting(), queue.own())
    }

    /// The place in the send queue.
    pub fn send_position(&self) -> SendPosition {
        let queue = self.queue.borrow();
        SendPosition { sent: queue.left(), end: queue.end() }
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
        self.turns.received();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_target::on_core;
    use std::net::{TcpListener, TcpStream};

    /// More than a turn, and less than a socket takes.
    const WAITING: usize = 5 * TURN / 2;
    const NONE: Digests = Digests { header: false, data: false };

    /// A transport with much to send, and its peer.
    fn transport() -> (TcpTransport, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = TcpStream::connect(listener.local_addr().expect("a port")).expect("a connection");
        let (accepted, _) = listener.accept().expect("a connection");
        let stream = Stream::new(accepted).expect("a stream");
        let transport = TcpTransport::new(stream, PduReceiver::new(NONE, 0, Vec::new()));
        transport.push(&mut Bhs::new(0), Payload::Zeros(WAITING), NONE);
        (transport, peer)
    }

    #[test]
    fn lone_connection_sends_all_at_once() {
        on_core(|| async {
            let (transport, _peer) = transport();
            transport.turns.received();
            assert!(transport.flush().expect("a peer"));
        });
    }

    #[test]
    fn connection_beside_another_sends_one_turn() {
        on_core(|| async {
            let ((transport, _peer), (other, _other_peer)) = (transport(), transport());
            other.turns.received();
            assert!(!transport.flush().expect("a peer"));
            assert!(transport.queued().0 > TURN / 2);
            // The rest is less than two turns.
            transport.stream.writable().await.expect("a peer");
            assert!(transport.flush().expect("a peer"));
        });
    }
}
