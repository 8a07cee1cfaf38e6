//! A connection in full feature phase: its transport, StatSN, its loop, and the end of its session.

use super::dispatch::Ingress;
use super::keepalive::Keepalive;
use super::late;
use super::out::{Digests, Payload};
use super::receive::{Broken, Received};
use super::session::Session;
use super::transport::{Datamover, Incoming, Out, Transport, TransportHandle};
use crate::access::Door;
use crate::core::{FrontEnd, ItNexus, Life, Opening, keepalive, messages};
use crate::entry;
use crate::fence;
use crate::registry::{LOGGED_IN_AGAIN, Letter, Seat};
use crate::server::{Counted, Shared};
use crate::session::Info;
use lunar_proto::login::SessionType;
use lunar_proto::text::Exchange;
use lunar_runtime::{SendPump, SendSide};
use lunar_wire::iscsi::Bhs;
use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

/// While this much waits to be sent, nothing is received.
const MAX_WAITING: usize = 16 << 20;

/// The same of data that is in no buffer of the pool.
const MAX_OWN: usize = 1 << 20;

/// How long the last answers may take to leave.
const FAREWELL: Duration = Duration::from_secs(3);

/// A connection that has just logged in.
pub struct Begun {
    /// What all connections share.
    pub shared: Arc<Shared>,
    /// The connection.
    pub transport: Transport,
    /// Its view of the configuration.
    pub door: Door,
    /// What was found out.
    pub info: Arc<Info>,
    /// Its place among the sessions.
    pub seat: Seat,
    /// Its messages.
    pub letters: flume::Receiver<Letter>,
    /// Its place in the counts.
    pub count: Counted,
    /// Commands that may be in flight.
    pub depth: u32,
    /// The first ExpCmdSN.
    pub cmd_sn: u32,
    /// The next StatSN.
    pub stat_sn: u32,
}

/// A connection of a session. Lives on the core of its session.
pub struct Connection {
    nexus: Weak<ItNexus<Session>>,
    /// Its place among the connections of the session.
    place: u16,
    /// Connection ID.
    cid: u16,
    /// Our address.
    local: SocketAddr,
    handle: TransportHandle,
    /// What waits to be sent.
    out: RefCell<Out>,
    incoming: RefCell<Incoming>,
    digests: Digests,
    /// StatSN of the next response.
    stat_sn: Cell<u32>,
    /// Bytes of a data segment that the initiator takes.
    max_xmit: Cell<u32>,
    /// Text requests.
    text: RefCell<Exchange>,
    keepalive: RefCell<Keepalive>,
    /// A closed connection ends with a Logout; None: not looked at yet.
    logs_out: Cell<Option<bool>>,
    /// The answer to a logout: it goes when no task is left.
    last_word: Cell<Option<Bhs>>,
    pump: SendPump,
}

/// Serves a session from the end of its login to its end.
pub async fn run(begun: Begun) {
    let session = Session::new(&begun);
    let Begun { shared, transport, door, info, seat, letters, count, stat_sn, .. } = begun;
    let opening = Opening { shared: shared.clone(), door, info: info.clone(), tsih: seat.tsih };
    let nexus = ItNexus::new(opening, session);
    let conn = Connection::open(&nexus, transport, info.cid, stat_sn);
    lunar_runtime::spawn(messages::serve(Rc::downgrade(&nexus), letters));
    lunar_runtime::spawn(keepalive::run(Rc::downgrade(&nexus), Rc::downgrade(&conn)));
    let received = conn.receive(&nexus).await;
    let end = nexus.state().end();
    entry::log_end(&shared, &info, seat.tsih, end, received.err().map(|broken| broken.to_string()));
    finish(&nexus).await;
    let waiting = nexus.state().take_waiting_for_end();
    // In this order: those who wait for the end find the session's place free and its nexuses gone.
    drop((conn, nexus));
    drop((seat, count));
    drop(waiting);
}

/// Ends all tasks and waits for those that run, ends every I_T_L nexus, sends what is left, closes.
async fn finish(nexus: &Rc<ItNexus<Session>>) {
    nexus.state().front_mut().held.clear();
    nexus.end_tasks().await;
    let connections = nexus.state().front().connections().to_vec();
    for connection in &connections {
        connection.say_last_word(nexus);
        let farewell = async {
            if let Some(mover) = connection.handle.datamover() {
                mover.drain(nexus, connection).await;
            }
            SendPump::flushed(connection).await;
        };
        let _ = compio::time::timeout(FAREWELL, farewell).await;
        connection.close();
    }
}

impl Connection {
    /// Adds a connection to a session: it has this Connection ID, and StatSN begins here.
    pub fn open(
        nexus: &Rc<ItNexus<Session>>,
        transport: Transport,
        cid: u16,
        stat_sn: u32,
    ) -> Rc<Connection> {
        let Transport { handle, out, incoming } = transport;
        let mut state = nexus.state();
        let (limits, info) = (state.door().setup.limits.clone(), state.info().clone());
        let session_type = if info.discovery { SessionType::Discovery } else { SessionType::Normal };
        let p = &info.parameters;
        let connection = |place| Connection {
            nexus: Rc::downgrade(nexus),
            place,
            cid,
            local: info.portal,
            handle,
            out: RefCell::new(out),
            incoming: RefCell::new(incoming),
            digests: Digests { header: p.header_digest, data: p.data_digest },
            stat_sn: Cell::new(stat_sn),
            max_xmit: Cell::new(p.max_xmit_data_segment_length),
            text: RefCell::new(Exchange::new(session_type, limits.text_bytes)),
            keepalive: RefCell::default(),
            logs_out: Cell::default(),
            last_word: Cell::default(),
            pump: SendPump::default(),
        };
        state.front_mut().add(|place| Rc::new(connection(place)))
    }

    /// Its place among the connections of the session.
    #[inline]
    pub fn place(&self) -> u16 {
        self.place
    }

    /// Connection ID.
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// Our address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Its text requests.
    pub fn text(&self) -> &RefCell<Exchange> {
        &self.text
    }

    /// Its keepalive.
    #[inline]
    pub fn keepalive(&self) -> &RefCell<Keepalive> {
        &self.keepalive
    }

    /// StatSN of the next response.
    #[inline]
    pub fn stat_sn(&self) -> u32 {
        self.stat_sn.get()
    }

    /// StatSN of a response, which uses it up.
    #[inline]
    pub fn take_stat_sn(&self) -> u32 {
        self.stat_sn.replace(self.stat_sn.get().wrapping_add(1))
    }

    /// Queues a PDU whose counters are filled in.
    #[inline]
    pub fn push(&self, header: Bhs, payload: Payload) {
        self.out.borrow_mut().push(header, payload, self.digests);
    }

    /// Bytes of a data segment that the initiator takes.
    pub fn max_xmit(&self) -> usize {
        self.max_xmit.get() as usize
    }

    /// The initiator declares that it takes data segments of so many bytes.
    pub fn set_max_xmit(&self, len: u32) {
        if self.out.borrow().heeds_declarations() {
            self.max_xmit.set(len);
        }
    }

    /// The longest Data-In in bytes.
    #[inline]
    pub fn longest_data_in(&self) -> usize {
        self.out.borrow().longest_data_in(self.max_xmit())
    }

    /// The initiator has room for an event.
    pub fn takes_event(&self) -> bool {
        self.out.borrow().takes_event()
    }

    /// Whether anything has left since the last call.
    pub fn has_moved(&self) -> bool {
        self.out.borrow_mut().has_moved()
    }

    /// The datamover, if there is one.
    pub fn datamover(&self) -> Option<Rc<dyn Datamover>> {
        self.handle.datamover().cloned()
    }

    /// So much waits to be sent that no more is taken.
    pub fn is_full(&self) -> bool {
        let out = self.out.borrow();
        out.waiting() > MAX_WAITING || out.own() > MAX_OWN
    }

    /// The answer to a logout, which goes when no task is left.
    pub fn set_last_word(&self, header: Bhs) {
        self.last_word.set(Some(header));
    }

    fn say_last_word(&self, nexus: &ItNexus<Session>) {
        if let Some(header) = self.last_word.take() {
            nexus.state().front().reply(self.place, header, Payload::Empty);
        }
    }

    /// Receives until the connection ends.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub async fn receive(self: &Rc<Self>, nexus: &Rc<ItNexus<Session>>) -> Result<(), Broken> {
        let mut next = Received::More;
        let has_begun = self.incoming.borrow().has_begun();
        if has_begun {
            next = self.take(nexus, Incoming::resume)?;
        }
        loop {
            if next == Received::End {
                return Ok(());
            }
            self.flush_session(nexus);
            self.wait_for_room(nexus).await;
            next = if next == Received::Full {
                self.take(nexus, Incoming::resume)?
            } else {
                self.handle.readable().await?;
                lunar_block::next_turn();
                self.take(nexus, |incoming, ingress| incoming.receive(&self.handle, ingress))?
            };
        }
    }

    /// Sends what waits. What came here may have answered commands of other connections.
    #[inline]
    fn flush_session(self: &Rc<Self>, nexus: &Rc<ItNexus<Session>>) {
        let is_only_one = nexus.state().front().connections().len() == 1;
        if is_only_one {
            SendPump::flush(self);
        } else {
            Session::flush(nexus);
        }
    }

    /// Takes what has come, unless another core has ended the session meanwhile.
    #[inline]
    fn take(
        self: &Rc<Self>,
        nexus: &ItNexus<Session>,
        what: impl FnOnce(&mut Incoming, &mut Ingress<'_>) -> Result<Received, Broken>,
    ) -> Result<Received, Broken> {
        let Some(_under_way) = fence::enter(&**nexus.fence()) else {
            nexus.state().is_over(LOGGED_IN_AGAIN);
            return Ok(Received::End);
        };
        what(&mut self.incoming.borrow_mut(), &mut Ingress::new(&mut nexus.state(), self))
    }

    /// Takes all that has arrived by now.
    ///
    /// # Errors
    /// Why the connection cannot go on.
    pub fn take_arrived(&self, ingress: &mut Ingress<'_>) -> Result<Received, Broken> {
        self.incoming.borrow_mut().take_arrived(&self.handle, ingress)
    }

    async fn wait_for_room(&self, nexus: &ItNexus<Session>) {
        let is_full = || self.pump.is_blocked() && self.is_full() && nexus.state().life() != Life::Over;
        while is_full() {
            let drained = self.pump.drained().listen();
            if is_full() {
                drained.await;
            }
        }
    }

    /// Why nothing may begin any more. `behind` was received and is not taken yet; None: that is with the receiver.
    #[inline]
    pub fn why_late(&self, behind: Option<&[u8]>) -> Option<&'static str> {
        late::why(self.handle.peer_state(), || self.ends_with_logout(behind))
    }

    /// What [`Connection::why_late`] has found holds no longer.
    pub fn look_anew(&self) {
        self.handle.look_anew();
    }

    /// A closed connection ends with a Logout (RFC 7143 section 11.14): it did not fail, and its commands count. Its initiator
    /// sends no more, so there is one answer.
    #[cold]
    fn ends_with_logout(&self, behind: Option<&[u8]>) -> bool {
        if let Some(known) = self.logs_out.get() {
            return known;
        }
        let unread = self.handle.peek(late::MOST_UNREAD);
        let last_word = self.last_word.take();
        self.last_word.set(last_word);
        let logs_out = last_word.is_some()
            || match behind {
                Some(behind) => late::is_logout_last(self.digests, &[behind, &unread[..]].concat()),
                None => late::is_logout(self.incoming.borrow().last_opcode(&unread)),
            };
        self.logs_out.set(Some(logs_out));
        logs_out
    }

    /// Nothing more is received: the receiving loop finds the socket closed.
    pub fn stop_receiving(&self) {
        self.pump.wake();
        self.handle.stop_receiving();
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.handle.close();
    }
}

impl SendSide for Connection {
    fn pump(&self) -> &SendPump {
        &self.pump
    }

    #[inline]
    fn try_flush(&self) -> io::Result<bool> {
        match (&self.handle, &mut *self.out.borrow_mut()) {
            (TransportHandle::Tcp(stream), Out::Tcp(out)) => return out.flush(stream),
            (TransportHandle::Tcp(_), Out::Moved(_)) => return Ok(true),
            (TransportHandle::Moved(_), _) => {}
        }
        let (Some(nexus), Some(mover)) = (self.nexus.upgrade(), self.handle.datamover()) else {
            return Ok(true);
        };
        mover.flush(&mut nexus.state())
    }

    async fn writable(&self) -> io::Result<()> {
        self.handle.writable().await
    }

    /// What waits is dropped: it must not keep the receiving loop from its end.
    fn lost(&self, _: io::Error) {
        self.out.borrow_mut().give_up();
        if let Some(nexus) = self.nexus.upgrade() {
            nexus.state().is_over("the connection was lost");
            nexus.notify();
        }
        self.handle.close();
    }

    /// A datamover also begins to read, which does not wait for what goes out.
    fn flushes_while_blocked(&self) -> bool {
        self.handle.datamover().is_some()
    }
}
