//! The state machine of a connection, without its socket.

use super::fault::IwarpError;
use super::inbox::Inbox;
use super::memory::TaggedMemory;
use super::reads::ReadQueue;
use super::responses::ReadResponses;
use super::transmit::FpduQueue;
use super::{FirstFrame, NegotiatedMpa, framing};
use crate::{EndpointEvent, EndpointEvents, MemoryRegion, RemoteAddress, RemoteRange};
use lunar_runtime::send_queue::Payload;
use lunar_runtime::{Buf, Stream};
use lunar_wire::iwarp::ddp::{READ_REQUEST_LEN, UNTAGGED_LEN, opcode};
use lunar_wire::iwarp::{DdpHeader, TaggedHeader, Terminate, UntaggedHeader};
use std::io;

/// Read Responses are segmented while fewer bytes than this are queued. The others stay whole.
const AHEAD: usize = 1 << 20;
/// The maximum length of a partial FPDU whose memory an idle connection keeps, in bytes.
const KEEP: usize = 4096;

enum State {
    Open,
    /// Ended; the next poll returns the reason.
    Ending(Option<io::Error>),
    /// Ended, and the end was returned.
    Ended,
}

/// A connection without I/O: an [`Endpoint`](crate::Endpoint) without its socket. [`Engine::feed`] takes received
/// bytes, [`Engine::take_bytes`] returns bytes to send.
pub struct Engine {
    crc: bool,
    transmit: FpduQueue,
    /// The expected first FPDU of the peer, until which this side must not send (RFC 5044 section 7.1.2).
    first: Option<FirstFrame>,
    /// The received start of an incomplete FPDU. Initially the bytes received along with the handshake.
    partial: Vec<u8>,
    has_begun: bool,
    memory: TaggedMemory,
    inbox: Inbox,
    reads: ReadQueue,
    responses: ReadResponses,
    /// The required continuation of a tagged message whose last segment has not arrived.
    due: Option<TaggedHeader>,
    /// Events generated locally.
    done: Vec<EndpointEvent>,
    /// The reason why nothing more can be sent. Bytes received earlier are still processed.
    lost: Option<io::Error>,
    /// Whether the socket failed or was reset, so that its unsent bytes are lost.
    has_failed: bool,
    /// Whether a Terminate is queued.
    has_terminate: bool,
    state: State,
}

impl Engine {
    /// Creates a connection that has already received `begun`. `mss` limits the FPDUs, in bytes.
    pub fn new(agreed: &NegotiatedMpa, mss: Option<usize>, begun: Vec<u8>) -> Engine {
        Engine {
            crc: agreed.crc,
            transmit: FpduQueue::new(agreed.crc, mss),
            first: agreed.first,
            has_begun: !begun.is_empty(),
            partial: begun,
            memory: TaggedMemory::default(),
            inbox: Inbox::new(agreed.receives),
            reads: ReadQueue::new(agreed.ord),
            responses: ReadResponses::new(agreed.ird),
            due: None,
            done: Vec::new(),
            lost: None,
            has_failed: false,
            has_terminate: false,
            state: State::Open,
        }
    }

    /// See [`Endpoint::receives`](crate::Endpoint::receives).
    pub fn receives(&mut self, count: usize, len: usize) {
        self.inbox.receives(count, len);
    }

    /// See [`Endpoint::send`](crate::Endpoint::send).
    pub fn send(&mut self, head: &[u8], payload: Payload, invalidate: Option<u32>) {
        if self.can_send() {
            self.transmit.send(head, payload, invalidate);
        }
    }

    /// See [`Endpoint::write`](crate::Endpoint::write).
    pub fn write(&mut self, to: RemoteAddress, payload: Payload) {
        if self.can_send() {
            self.transmit.write(to, payload);
        }
    }

    /// See [`Endpoint::gather`](crate::Endpoint::gather). Dropped if the connection has ended.
    pub fn gather(&mut self, id: u64, from: &[RemoteRange], buf: Buf, at: usize) {
        if matches!(self.state, State::Ended) {
            return;
        }
        self.done.extend(self.reads.post(id, from, buf, at));
        self.begin_reads();
    }

    /// See [`Endpoint::read`](crate::Endpoint::read).
    pub fn read(&mut self, id: u64, from: RemoteAddress, buf: Buf, at: usize, len: usize) {
        self.gather(id, &[(from, len)], buf, at);
    }

    /// See [`Endpoint::expose`](crate::Endpoint::expose).
    ///
    /// # Errors
    /// When there are too many.
    pub fn expose(&mut self, memory: MemoryRegion) -> io::Result<RemoteAddress> {
        self.memory.expose(memory)
    }

    /// See [`Endpoint::revoke`](crate::Endpoint::revoke).
    pub fn revoke(&mut self, stag: u32) -> Option<MemoryRegion> {
        self.memory.revoke(stag)
    }

    /// Queued bytes, including overhead.
    pub fn waiting(&self) -> usize {
        self.transmit.out.waiting() + self.responses.waiting()
    }

    /// The position in the send stream after everything that is queued now.
    pub(super) fn transmit_end(&self) -> u64 {
        self.transmit.out.end()
    }

    /// Whether everything before this position has been sent and acknowledged, or never will be. `unacknowledged` is
    /// the number of unacknowledged bytes.
    pub(super) fn has_left(&self, mark: u64, unacknowledged: usize) -> bool {
        match self.can_send() {
            true => self.transmit.out.left() >= mark.saturating_add(unacknowledged as u64),
            // For a failed or reset socket, the kernel still counts bytes that will never be acknowledged.
            false => self.has_failed || unacknowledged == 0,
        }
    }

    /// Whether bytes were sent since the last call.
    pub fn take_moved(&mut self) -> bool {
        self.transmit.out.take_moved()
    }

    /// Whether this side may send: the responder waits for the initiator's first FPDU.
    pub fn may_send(&self) -> bool {
        self.first.is_none()
    }

    /// Whether the connection has ended.
    pub fn is_over(&self) -> bool {
        !matches!(self.state, State::Open)
    }

    /// Whether [`Engine::take_news`] has local events.
    pub fn has_news(&self) -> bool {
        self.has_begun || !self.done.is_empty() || matches!(self.state, State::Ending(_))
    }

    /// Sends queued bytes. Returns false if the socket is full, or the peer's first FPDU is missing.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn flush(&mut self, stream: &Stream) -> io::Result<bool> {
        if !self.may_send() {
            return Ok(self.waiting() == 0);
        }
        loop {
            self.respond();
            if !self.transmit.out.flush(stream)? {
                return Ok(false);
            }
            if self.responses.is_empty() {
                return Ok(true);
            }
        }
    }

    /// The rest of the queued Terminate, if any. It references no other memory.
    pub(super) fn take_terminate(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.has_terminate).then(|| self.transmit.out.take_bytes())
    }

    /// All bytes that may be sent. For tests and fuzz targets.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while self.may_send() && self.waiting() > 0 {
            self.respond();
            all.extend(self.transmit.out.take_bytes());
        }
        all
    }

    /// Processes received bytes.
    pub fn feed(&mut self, bytes: &[u8], into: &mut EndpointEvents) {
        self.take_begun(into);
        let mut rest = bytes;
        if !self.partial.is_empty() {
            rest = self.complete(rest, into);
        }
        while !self.is_over()
            && let Some(whole) = self.take_first(rest, into)
        {
            rest = &rest[whole..];
        }
        if !self.is_over() {
            self.partial.extend_from_slice(rest);
        }
    }

    /// Completes the partial FPDU. Copies only its missing bytes, and returns the bytes after it.
    fn complete<'a>(&mut self, mut bytes: &'a [u8], into: &mut EndpointEvents) -> &'a [u8] {
        let mut partial = std::mem::take(&mut self.partial);
        // Twice if the length field itself is incomplete.
        loop {
            let missing = framing::missing(&partial).min(bytes.len());
            if missing == 0 {
                break;
            }
            partial.extend_from_slice(&bytes[..missing]);
            bytes = &bytes[missing..];
        }
        let is_taken = self.take_first(&partial, into).is_some();
        if !is_taken {
            self.partial = partial;
        } else if !self.is_over() && partial.capacity() <= KEEP {
            partial.clear();
            self.partial = partial;
        }
        bytes
    }

    /// Takes the FPDU at the start of `bytes` if it is complete. Returns its length.
    fn take_first(&mut self, bytes: &[u8], into: &mut EndpointEvents) -> Option<usize> {
        match framing::first(bytes, self.crc) {
            Ok(None) => None,
            Ok(Some((fpdu, whole))) => {
                self.take_fpdu(fpdu, into);
                Some(whole)
            }
            Err(terminate) => {
                self.fail(terminate.into(), &[]);
                Some(bytes.len())
            }
        }
    }

    /// Processes the bytes received along with the handshake.
    pub fn take_begun(&mut self, into: &mut EndpointEvents) {
        if std::mem::take(&mut self.has_begun) {
            let begun = std::mem::take(&mut self.partial);
            self.feed(&begun, into);
        }
    }

    /// Takes the local events. The last one is the end of the connection.
    pub fn take_news(&mut self, into: &mut EndpointEvents) {
        into.list.append(&mut self.done);
        if let State::Ending(why) = &mut self.state {
            let why = why.take();
            into.list.extend(self.reads.end());
            into.list.push(EndpointEvent::End(why));
            self.state = State::Ended;
        }
    }

    /// Records that the peer closed or the socket failed.
    pub fn hang_up(&mut self, failed: Option<io::Error>) {
        self.has_failed |= failed.is_some();
        let is_amid = !self.partial.is_empty() || self.inbox.has_begun() || self.due.is_some();
        let amid = || {
            io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the peer closed the RDMA connection in the middle of a message",
            )
        };
        let why = self.lost.take().or(failed).or_else(|| is_amid.then(amid));
        self.end(why);
    }

    /// Records that nothing can be sent any more.
    pub fn lose(&mut self, why: io::Error) {
        self.has_failed = true;
        self.drop_unsent();
        self.lost.get_or_insert(why);
    }

    /// Ends the connection locally and drops queued work.
    pub fn close(&mut self) {
        self.drop_unsent();
        self.end(None);
    }

    /// As [`Engine::close`], but the socket is reset.
    pub(super) fn reset(&mut self) {
        self.close();
        self.has_failed = true;
    }

    fn can_send(&self) -> bool {
        !self.is_over() && self.lost.is_none()
    }

    fn drop_unsent(&mut self) {
        self.responses.clear();
        self.transmit.out = Default::default();
    }

    fn end(&mut self, why: Option<io::Error>) {
        if !self.is_over() {
            self.state = State::Ending(why);
            self.first = None;
            self.partial = Vec::new();
            self.responses.clear();
        }
    }

    /// Queues a Terminate. `fpdu` is the faulty FPDU, if known.
    fn fail(&mut self, fault: IwarpError, fpdu: &[u8]) {
        let wrong = match DdpHeader::decode(fpdu) {
            Ok(DdpHeader::Untagged(UntaggedHeader { opcode: opcode::READ_REQUEST, .. })) => {
                fpdu.get(..UNTAGGED_LEN + READ_REQUEST_LEN).unwrap_or(&fpdu[..UNTAGGED_LEN])
            }
            Ok(header) => &fpdu[..header.len()],
            Err(_) => &[],
        };
        if self.can_send() {
            // The peer may not read for a long time: queued data would delay the Terminate.
            self.transmit.out.drop_unbegun();
            self.transmit.terminate(fault.terminate, wrong);
            self.has_terminate = true;
        }
        self.end(Some(fault.into()));
    }

    /// Starts queued reads, up to ORD.
    fn begin_reads(&mut self) {
        while self.can_send()
            && let Some(request) = self.reads.next()
        {
            self.transmit.request(&request);
        }
    }

    /// Segments Read Responses while the send queue is short.
    fn respond(&mut self) {
        while self.transmit.out.waiting() < AHEAD
            && let Some((to, payload)) = self.responses.next()
        {
            self.transmit.respond(to, payload);
        }
    }

    fn take_fpdu(&mut self, fpdu: &[u8], into: &mut EndpointEvents) {
        let first = self.first.take();
        let taken = DdpHeader::decode(fpdu).map_err(IwarpError::from).and_then(|header| {
            let payload = &fpdu[header.len()..];
            match header {
                DdpHeader::Tagged(t) => self.take_tagged(&t, payload, into),
                DdpHeader::Untagged(u) => self.take_untagged(&u, payload, first, into),
            }
        });
        if let Err(fault) = taken {
            self.fail(fault, fpdu);
        }
    }

    fn take_tagged(
        &mut self,
        t: &TaggedHeader,
        payload: &[u8],
        into: &mut EndpointEvents,
    ) -> Result<(), IwarpError> {
        let has_place =
            |due: TaggedHeader| (due.opcode, due.stag, due.offset) == (t.opcode, t.stag, t.offset);
        if !self.due.is_none_or(has_place) {
            return Err(IwarpError::new(
                Terminate::BOUNDS,
                "the peer sent a segment of an RDMA Write or Read Response in the middle of another message",
            ));
        }
        let end = t.offset.checked_add(payload.len() as u64);
        let end = end.ok_or_else(|| {
            IwarpError::new(
                Terminate::WRAP,
                "the peer sent a tagged segment that ends above the largest offset",
            )
        })?;
        self.due = (!t.last).then_some(TaggedHeader { offset: end, ..*t });
        if t.opcode == opcode::READ_RESPONSE {
            into.list.extend(self.reads.take(t, payload)?);
            self.begin_reads();
        } else if !payload.is_empty() {
            // An empty Write needs no access right (RFC 5040 section 5.2).
            self.memory.write(t, payload)?;
        }
        Ok(())
    }

    fn take_untagged(
        &mut self,
        u: &UntaggedHeader,
        payload: &[u8],
        first: Option<FirstFrame>,
        into: &mut EndpointEvents,
    ) -> Result<(), IwarpError> {
        match u.opcode {
            opcode::READ_REQUEST => self.responses.take(u, payload, &self.memory),
            opcode::TERMINATE => {
                self.end(Some(ended_by(payload)));
                Ok(())
            }
            opcode::SEND if first == Some(FirstFrame::Send) && u.last && u.msn == 1 && payload.is_empty() => {
                self.inbox.skip();
                Ok(())
            }
            _ => {
                let Engine { inbox, memory, .. } = self;
                inbox.take(u, payload, |stag| memory.invalidate(stag), into)
            }
        }
    }
}

fn ended_by(terminate: &[u8]) -> io::Error {
    let why = Terminate::decode(terminate)
        .map_or("its Terminate message is malformed".into(), |why| why.to_string());
    io::Error::new(
        io::ErrorKind::ConnectionAborted,
        format!("the peer terminated the RDMA connection: {why}"),
    )
}
