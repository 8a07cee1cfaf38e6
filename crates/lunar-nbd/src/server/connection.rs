//! A connection in the transmission phase: its state, its loops, and how it ends.

use super::ServerLimits;
use super::fairness::FairnessTicket;
use super::receive::{
    Admission, ReceivedRequest, RequestHandler, RequestReceive, RequestReceiver, RequestStreamError,
    ends_with_leave,
};
use super::reply::ReplyQueue;
use event_listener::Event;
use lunar_block::Backend;
use lunar_proto::nbd::NegotiatedOptions;
use lunar_runtime::send_queue::SendQueue;
use lunar_runtime::{Buf, PeerState, Pool, SendPump, SendSide, Stream, either};
use std::cell::{OnceCell, RefCell};
use std::io;
use std::net::Shutdown;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// While more reply bytes than this are queued, nothing is received.
const MAX_WAITING: usize = 4 << 20;
/// If at least this number of reply bytes is queued, they are sent before further requests are parsed. The data just
/// read is then still in the CPU caches.
const WARM: usize = 256 << 10;
/// The maximum number of unreceived bytes that are searched for NBD_CMD_DISC when a client has closed.
const MAX_UNREAD: usize = 8 << 20;
/// How long the last replies may take to be sent.
const FAREWELL: Duration = Duration::from_secs(5);

/// A connection. It belongs to one core.
pub(super) struct ServerConnection {
    stream: Stream,
    pub(super) backend: Arc<dyn Backend>,
    /// Whether reads always return zeros, so that no buffer needs to be filled.
    pub(super) null: bool,
    /// The minimum block size in bytes.
    pub(super) block: u64,
    pub(super) pool: Pool,
    limits: ServerLimits,
    pub(super) state: RefCell<ServerConnectionState>,
    /// Notified when a request ends, bytes are sent, or the connection ends.
    changed: Event,
    /// Notified when the client has gone.
    gone: Event,
    /// Sends the queued replies.
    pump: SendPump,
    /// Whether the last request of a client that has closed is NBD_CMD_DISC. Set when first needed.
    leave: OnceCell<bool>,
}

/// The mutable state of a connection.
pub(super) struct ServerConnectionState {
    pub(super) replies: ReplyQueue,
    /// The number of requests that run as tasks.
    in_flight: usize,
    /// How many of them change data.
    changing: usize,
    /// The buffer that the receiver waited for.
    spare: Option<Buf>,
    /// Whether new requests are rejected because the server is stopping.
    pub(super) stopping: bool,
    /// Whether the client has gone.
    lost: bool,
}

/// Counts a request as in flight until it is dropped.
pub(super) struct InFlightGuard {
    pub(super) conn: Rc<ServerConnection>,
    changes: bool,
}

impl InFlightGuard {
    pub(super) fn new(conn: &Rc<ServerConnection>, changes: bool) -> InFlightGuard {
        let mut state = conn.state.borrow_mut();
        state.in_flight += 1;
        state.changing += usize::from(changes);
        InFlightGuard { conn: conn.clone(), changes }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut state = self.conn.state.borrow_mut();
        state.in_flight -= 1;
        state.changing -= usize::from(self.changes);
        drop(state);
        self.conn.changed.notify(usize::MAX);
        SendPump::flush_soon(&self.conn);
    }
}

impl ServerConnection {
    pub(super) fn new(
        stream: Stream,
        backend: Arc<dyn Backend>,
        terms: &NegotiatedOptions,
        pool: Pool,
        limits: ServerLimits,
    ) -> Rc<ServerConnection> {
        let state = ServerConnectionState {
            replies: ReplyQueue::new(terms.structured),
            in_flight: 0,
            changing: 0,
            spare: None,
            stopping: false,
            lost: false,
        };
        Rc::new(ServerConnection {
            stream,
            null: backend.info().null,
            backend,
            block: terms.block_size.into(),
            pool,
            limits,
            state: RefCell::new(state),
            changed: Event::new(),
            gone: Event::new(),
            pump: SendPump::default(),
            leave: OnceCell::new(),
        })
    }

    /// Serves requests until the client disconnects. After `stopping` completes, requests in flight are finished and
    /// new ones are rejected.
    pub(super) async fn serve(
        self: &Rc<Self>,
        receiver: RequestReceiver,
        ticket: &FairnessTicket<'_>,
        stopping: impl Future<Output = ()>,
    ) -> Result<(), RequestStreamError> {
        either(self.receive(receiver, ticket), self.wind_down(stopping)).await
    }

    /// Waits until no request that changes data is in flight.
    pub(super) async fn settle(&self) {
        self.wait_until(|conn| conn.state.borrow().changing == 0).await;
    }

    /// Waits for requests in flight, sends the last replies, and closes.
    pub(super) async fn leave(self: &Rc<Self>) {
        self.wait_until(|conn| conn.state.borrow().in_flight == 0).await;
        let _ = compio::time::timeout(FAREWELL, SendPump::flushed(self)).await;
        self.stream.shutdown(Shutdown::Both);
    }

    async fn wind_down(&self, stopping: impl Future<Output = ()>) -> Result<(), RequestStreamError> {
        stopping.await;
        self.state.borrow_mut().stopping = true;
        self.wait_until(|conn| conn.state.borrow().in_flight == 0 && !conn.pump.is_blocked()).await;
        Ok(())
    }

    /// Receives until the connection ends.
    async fn receive(
        self: &Rc<Self>,
        mut receiver: RequestReceiver,
        ticket: &FairnessTicket<'_>,
    ) -> Result<(), RequestStreamError> {
        let mut next = receiver.resume(&mut ConnectionRequests(self))?;
        loop {
            SendPump::flush(self);
            next = match next {
                RequestReceive::End => return Ok(()),
                RequestReceive::More => {
                    self.stream.readable().await?;
                    receiver.receive(&self.stream, &mut ConnectionRequests(self))?
                }
                RequestReceive::Full | RequestReceive::Starved(_) => {
                    if !self.wait_for_room(next, ticket).await {
                        return Ok(());
                    }
                    receiver.resume(&mut ConnectionRequests(self))?
                }
            };
            if self.is_lost() {
                return Ok(());
            }
        }
    }

    /// Waits for room or for a buffer. Returns false if the connection must end first, because later ones wait for
    /// it.
    async fn wait_for_room(&self, missing: RequestReceive, ticket: &FairnessTicket<'_>) -> bool {
        let is_there = async {
            if let RequestReceive::Starved(len) = missing {
                let buf = self.pool.get(len).await;
                self.state.borrow_mut().spare = Some(buf);
            } else {
                self.wait_until(|conn| !conn.is_full() || conn.is_lost()).await;
            }
            true
        };
        let ends = async {
            ticket.ends().await;
            false
        };
        either(is_there, ends).await
    }

    fn is_full(&self) -> bool {
        let state = self.state.borrow();
        state.in_flight >= self.limits.requests || state.replies.out.waiting() > MAX_WAITING
    }

    /// Waits for the buffer of a reply. None if the client has gone.
    pub(super) async fn buffer_for_answer(&self, len: usize) -> Option<Buf> {
        let gone = self.gone.listen();
        if self.is_lost() {
            return None;
        }
        let lost = async {
            gone.await;
            None
        };
        either(lost, async { Some(self.pool.get(len).await) }).await
    }

    /// Whether a request must not start, because its client has reset the connection, or closed it without
    /// NBD_CMD_DISC. In the meantime the client may have written newer data over another connection. `behind` has the
    /// received bytes after the request.
    pub(super) fn is_late(&self, behind: &[u8]) -> bool {
        match self.stream.peer_state() {
            PeerState::Open => false,
            PeerState::Reset => true,
            PeerState::Closed => !self.leaves(behind),
        }
    }

    /// Whether NBD_CMD_DISC is the last request of a client that has closed. The result cannot change and is cached.
    fn leaves(&self, behind: &[u8]) -> bool {
        let look = || ends_with_leave(&[behind, &self.stream.peek(MAX_UNREAD)].concat());
        *self.leave.get_or_init(look)
    }

    /// Whether the client has reset the connection.
    pub(super) fn is_reset(&self) -> bool {
        self.stream.peer_state() == PeerState::Reset
    }

    fn is_lost(&self) -> bool {
        self.state.borrow().lost
    }

    /// Waits until `wanted` returns true, and checks it after every change.
    async fn wait_until(&self, wanted: impl Fn(&ServerConnection) -> bool) {
        loop {
            let changed = self.changed.listen();
            if wanted(self) {
                return;
            }
            changed.await;
        }
    }

    /// Returns a buffer of `len` bytes for a payload: the spare one, or one from the pool. None if the pool is
    /// exhausted.
    pub(super) fn buffer(&self, len: usize) -> Option<Buf> {
        let spare = self.state.borrow_mut().spare.take();
        match spare {
            Some(buf) if buf.len() == len => Some(buf),
            _ => self.pool.try_get(len),
        }
    }
}

impl SendSide for ServerConnection {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    fn try_flush(&self) -> io::Result<bool> {
        self.state.borrow_mut().replies.out.flush(&self.stream)
    }

    async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    /// Drops queued replies, so that they do not delay the end of the connection.
    fn lost(&self, _: io::Error) {
        let mut state = self.state.borrow_mut();
        state.replies.out = SendQueue::default();
        state.lost = true;
        drop(state);
        self.changed.notify(usize::MAX);
        self.gone.notify(usize::MAX);
        self.stream.shutdown(Shutdown::Both);
    }

    fn progressed(&self) {
        self.changed.notify(usize::MAX);
    }
}

/// Executes the requests that the receiver of a connection has parsed.
pub(super) struct ConnectionRequests<'a>(pub(super) &'a Rc<ServerConnection>);

impl RequestHandler for ConnectionRequests<'_> {
    fn is_full(&self) -> bool {
        self.0.is_full()
    }

    fn buffer(&mut self, len: usize) -> Option<Buf> {
        self.0.buffer(len)
    }

    fn take(&mut self, arrived: ReceivedRequest<'_>) -> Admission {
        let taken = super::execute::take(self.0, arrived);
        if self.0.state.borrow().replies.out.waiting() >= WARM {
            SendPump::flush(self.0);
        }
        taken
    }
}
