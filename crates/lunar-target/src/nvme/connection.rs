//! A connection, which is one queue pair: framing, digests, completions and data PDUs, flow control of the queue.

use crate::core::data_in::DataIn;
use crate::core::{MAX_QUEUED_BYTES, SendPosition};
use crate::end_reason::EndReason;
use crate::turns::{TURN, Turns};
use lunar_runtime::iscsi::digest::crc32c;
use lunar_runtime::nvme::receive::{NvmePduHandler, NvmeReceiveError, NvmeReceiver};
use lunar_runtime::send_queue::{Body, MAX_ZEROS, Payload, SendQueue};
use lunar_runtime::{PeerState, ReceiveStatus, SendPump, SendSide, Stream};
use lunar_wire::nvme::{
    Cqe, DataPdu, Digests, NvmePduError, NvmePduKind, NvmeStatus, PduHeader, TermRequest, pdu_flag,
};
use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::Shutdown;
use std::rc::{Rc, Weak};
use std::time::Duration;

/// Bytes in the send queue outside of all pools, above which the target stops receiving.
const MAX_UNPOOLED_BYTES: usize = 1 << 20;
/// How long the peer may take to close a connection after a termination request.
const LINGER: Duration = Duration::from_secs(1);
/// The head of a queue without flow control.
const NO_HEAD: u16 = u16::MAX;
/// Bytes of a digest.
const DIGEST_LEN: usize = 4;
/// The longest header with its digest.
const MAX_HEADER: usize = DataPdu::LEN + DIGEST_LEN;
/// Bytes of a completion.
const RESPONSE_LEN: usize = PduHeader::LEN + Cqe::LEN;

/// Bytes behind the data of a PDU: their digest, and the completion that follows.
#[derive(Default)]
struct DataTail {
    bytes: [u8; 2 * DIGEST_LEN + RESPONSE_LEN],
    len: usize,
}

impl DataTail {
    #[inline]
    fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The owner of a connection, which learns what becomes of the queued completions.
pub trait ConnectionOwner {
    /// Records that queued bytes were sent, and whether the queue is empty.
    fn flushed(&self, is_empty: bool, position: SendPosition);

    /// Records that the connection was lost.
    fn lost(&self);
}

/// A connection that is initialized. It lives on one core.
pub struct NvmeConnection {
    stream: Stream,
    digests: Digests,
    queue: RefCell<SendQueue>,
    receiver: RefCell<NvmeReceiver>,
    turns: Turns,
    pump: SendPump,
    /// The nexus of an I/O queue.
    owner: OnceCell<Weak<dyn ConnectionOwner>>,
    /// Entries of the submission queue, and the number of those that were taken, modulo that. None: the host does not
    /// want to know it.
    flow: Cell<Option<(u32, u32)>>,
    /// A termination request was sent.
    is_terminated: Cell<bool>,
}

impl NvmeConnection {
    /// A connection that is initialized, with the bytes that were received behind the initialization.
    pub fn new(stream: Stream, digests: Digests, receiver: NvmeReceiver) -> NvmeConnection {
        NvmeConnection {
            stream,
            digests,
            queue: RefCell::default(),
            receiver: RefCell::new(receiver),
            turns: Turns::default(),
            pump: SendPump::default(),
            owner: OnceCell::new(),
            flow: Cell::new(None),
            is_terminated: Cell::default(),
        }
    }

    /// Sets the size of the submission queue, or switches its flow control off. Connect was its first entry.
    pub fn set_queue(&self, len: u32, has_flow_control: bool) {
        self.flow.set(has_flow_control.then_some((len, 1 % len.max(1))));
    }

    /// Makes it the connection of an I/O queue.
    pub fn set_owner(&self, owner: Weak<dyn ConnectionOwner>) {
        let _ = self.owner.set(owner);
    }

    fn owner(&self) -> Option<Rc<dyn ConnectionOwner>> {
        self.owner.get().and_then(Weak::upgrade)
    }

    /// The pump.
    pub fn send_pump(&self) -> &SendPump {
        &self.pump
    }

    /// The stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Whether a completion may be left out behind the last data: only if the host needs no head of the queue.
    #[inline]
    fn may_leave_out_completion(&self) -> bool {
        self.flow.get().is_none()
    }

    /// Counts an entry that was taken from the submission queue.
    #[inline]
    pub fn take_entry(&self) {
        if let Some((len, head)) = self.flow.get() {
            self.flow.set(Some((len, if head + 1 == len { 0 } else { head + 1 })));
        }
    }

    #[inline]
    fn head(&self) -> u16 {
        self.flow.get().map_or(NO_HEAD, |(_, head)| head as u16)
    }

    #[inline(always)]
    fn push(&self, header: &[u8], body: impl Into<Body>, tail: &[u8]) {
        if !self.digests.header {
            return self.queue.borrow_mut().push(header, body, tail);
        }
        let mut with_digest = [0; MAX_HEADER];
        let head = &mut with_digest[..header.len() + DIGEST_LEN];
        head[..header.len()].copy_from_slice(header);
        head[header.len()..].copy_from_slice(&crc32c(&[header]).to_le_bytes());
        self.queue.borrow_mut().push(head, body, tail);
    }

    /// Queues the completion of a command.
    #[inline]
    pub fn complete(&self, id: u16, status: NvmeStatus, result: u64) {
        self.push(&self.response(id, status, result), Payload::Empty, &[]);
    }

    /// The PDU with the completion of a command, without digest.
    #[inline]
    fn response(&self, id: u16, status: NvmeStatus, result: u64) -> [u8; RESPONSE_LEN] {
        let mut pdu = [0; RESPONSE_LEN];
        let header = PduHeader::of(NvmePduKind::Response, 0, self.digests, 0);
        pdu[..PduHeader::LEN].copy_from_slice(&header.encode());
        pdu[PduHeader::LEN..].copy_from_slice(&Cqe { result, head: self.head(), id, status }.encode());
        pdu
    }

    /// Queues a request for data of a command. The tag of the transfer is the identifier of the command, because a command
    /// has one request at a time.
    pub fn request(&self, id: u16, offset: u32, len: u32) {
        let request = DataPdu { command: id, tag: id, offset, len };
        self.push(&request.encode(NvmePduKind::ReadyToTransfer, 0, self.digests), Payload::Empty, &[]);
    }

    /// Queues data of a command from `offset` on; `None` if they were all sent, and the completion follows. `ends`: they are
    /// the last ones, and the command has succeeded.
    ///
    /// # Errors
    /// Pages of a file could not be read.
    #[inline(always)]
    pub fn send_data(&self, id: u16, data: DataIn, offset: usize, ends: bool) -> io::Result<()> {
        let len = data.len();
        let is_one = !matches!(data, DataIn::Zeros(len) if len > MAX_ZEROS);
        if is_one {
            return self.data_pdu(id, data.whole(), (offset, len), ends);
        }
        let data = data.shared();
        for at in (0..len).step_by(MAX_ZEROS) {
            let part = MAX_ZEROS.min(len - at);
            self.data_pdu(id, data.part(at, part), (offset + at, part), ends && at + part == len)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn data_pdu(&self, id: u16, body: Body, (offset, len): (usize, usize), ends: bool) -> io::Result<()> {
        let flags = match ends {
            false => 0,
            true if self.may_leave_out_completion() => pdu_flag::LAST | pdu_flag::SUCCESS,
            true => pdu_flag::LAST,
        };
        let data = DataPdu { command: id, tag: 0, offset: offset as u32, len: len as u32 };
        let header = data.encode(NvmePduKind::ControllerData, flags, self.digests);
        let mut tail = DataTail::default();
        let body = match self.digests.data {
            true => {
                let payload = body.in_memory()?;
                tail.add(&crc32c(&[payload.bytes()]).to_le_bytes());
                payload.into()
            }
            false => body,
        };
        // The completion goes with the data: an entry of its own in the send queue would take longer.
        if ends && !self.may_leave_out_completion() {
            let response = self.response(id, NvmeStatus::SUCCESS, 0);
            tail.add(&response);
            if self.digests.header {
                tail.add(&crc32c(&[&response]).to_le_bytes());
            }
        }
        self.push(&header, body, tail.bytes());
        Ok(())
    }

    /// Whether data of a PDU may be pages of a file without a copy.
    #[inline]
    pub fn takes_pages(&self) -> bool {
        !self.digests.data
    }

    /// Queues a termination request for a faulty PDU, of whose header these bytes were received.
    pub fn terminate(&self, error: NvmePduError, header: &[u8]) {
        self.is_terminated.set(true);
        let pdu = TermRequest { error, header }.encode(NvmePduKind::ControllerTermRequest);
        self.queue.borrow_mut().push(&pdu, Payload::Empty, &[]);
    }

    /// Whether the send queue is too long to receive more.
    #[inline]
    pub fn is_full(&self) -> bool {
        let queue = self.queue.borrow();
        queue.waiting() > MAX_QUEUED_BYTES || queue.own() > MAX_UNPOOLED_BYTES
    }

    /// The reason why commands are stale: the host has left them.
    #[inline]
    pub fn stale_reason(&self) -> Option<EndReason> {
        match self.stream.peer_state() {
            PeerState::Open => None,
            PeerState::Reset => Some(EndReason::ConnectionReset),
            PeerState::Closed => Some(EndReason::ConnectionClosed),
        }
    }

    /// Whether PDUs may have arrived already.
    pub fn has_begun(&self) -> bool {
        self.receiver.borrow().has_begun()
    }

    /// Receives, and passes every complete PDU to the handler.
    ///
    /// # Errors
    /// The connection cannot continue.
    #[inline]
    pub fn receive(&self, handler: &mut impl NvmePduHandler) -> Result<ReceiveStatus, NvmeReceiveError> {
        self.turns.received();
        self.receiver.borrow_mut().receive(&self.stream, handler)
    }

    /// Processes PDUs that were received before and not handled yet.
    ///
    /// # Errors
    /// The connection cannot continue.
    pub fn resume(&self, handler: &mut impl NvmePduHandler) -> Result<ReceiveStatus, NvmeReceiveError> {
        self.receiver.borrow_mut().resume(handler)
    }

    /// Processes everything received, including the result of one further receive.
    ///
    /// # Errors
    /// The connection cannot continue.
    pub fn receive_arrived(
        &self,
        handler: &mut impl NvmePduHandler,
    ) -> Result<ReceiveStatus, NvmeReceiveError> {
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

    /// Stops receiving. Queued PDUs are still sent.
    pub fn stop_receiving(&self) {
        self.pump.wake();
        self.stream.shutdown(Shutdown::Read);
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.stream.shutdown(Shutdown::Both);
    }

    /// See [`NvmeConnection::linger`], if a termination request was sent.
    pub async fn linger_if_terminated(self: &Rc<Self>) {
        if self.is_terminated.get() {
            self.linger().await;
        }
    }

    /// Sends what is queued, and waits until the peer has closed the connection, within a limit: unread bytes would reset
    /// it, and the peer would lose the last PDU.
    pub async fn linger(self: &Rc<Self>) {
        let drained = async {
            SendPump::flushed(self).await;
            self.stream.shutdown(Shutdown::Write);
            let mut discarded = [0; 4096];
            while self.stream.readable().await.is_ok() {
                if matches!(self.stream.receive(&mut discarded), Ok(Some(0)) | Err(_)) {
                    return;
                }
            }
        };
        let _ = compio::time::timeout(LINGER, drained).await;
        self.close();
    }
}

impl SendSide for NvmeConnection {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    #[inline]
    fn try_flush(&self) -> io::Result<bool> {
        let mut queue = self.queue.borrow_mut();
        // No short rest is left over.
        let flushed = match queue.waiting() < 2 * TURN {
            true => queue.flush(&self.stream),
            false => queue.flush_part(&self.stream, self.turns.next_len()),
        }?;
        if let Some(owner) = self.owner() {
            owner.flushed(flushed, SendPosition { sent: queue.left(), end: queue.end() });
        }
        Ok(flushed)
    }

    async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    fn lost(&self, _: io::Error) {
        self.queue.take();
        if let Some(owner) = self.owner() {
            owner.lost();
        }
        self.close();
    }
}
