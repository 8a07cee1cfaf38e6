//! The transport seam: how the PDUs of a session travel. A session queues PDUs and takes those that come, and knows no
//! more. Over TCP they are bytes of a stream; other data movers make of them what their transport has (RFC 7145
//! section 3): Data-In becomes RDMA Writes, R2T an RDMA Read that comes back as Data-Out.

use super::connection::Session;
use super::inlet::Inlet;
use super::out::{self, Digests, MAX_SEGMENT, Payload};
use super::receive::{Broken, Received, Receiver};
use crate::registry::Which;
use lunar_rdma::Wait;
use lunar_runtime::{PeerState, Stream};
use lunar_wire::iscsi::Bhs;
use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::rc::Rc;

/// Messages and ends of RDMA Reads that are taken at once at most. There are fewer: without an answer an initiator has no
/// more credits.
const MOST_EVENTS: u64 = 1 << 16;

/// A data mover that is no stream of bytes.
pub trait Mover {
    /// Its receiving side.
    fn inlet(&self) -> &Inlet;

    /// Takes a PDU that is to go, with the length of its data not filled in.
    fn push(&self, header: Bhs, payload: Payload);

    /// Bytes that wait, and what holds them.
    fn waiting(&self) -> usize {
        self.inlet().endpoint().waiting()
    }

    /// Whether anything has left since the last call.
    fn has_moved(&self) -> bool {
        self.inlet().endpoint().has_moved()
    }

    /// Whether it may say something before it is asked.
    fn may_speak(&self) -> bool {
        true
    }

    /// Whether it has room for an event that nobody asked for.
    fn takes_event(&self) -> bool {
        true
    }

    /// Sends what waits; it may ask the session for the places of data. False: some of it waits until
    /// [`Mover::writable`].
    fn flush(&self, session: &mut Session) -> io::Result<bool>;

    /// Takes what is there, and hands every PDU over.
    fn receive(&self, session: &mut Session) -> Result<Received, Broken>;

    /// Waits until there may be something to take.
    fn readable(&self) -> Wait<'_, io::Result<()>> {
        self.inlet().readable()
    }

    /// Waits until more can be sent.
    fn writable(&self) -> Wait<'_, io::Result<()>> {
        self.inlet().endpoint().writable()
    }

    /// The connection has ended, whatever it has brought before and was not taken yet.
    fn has_ended(&self) -> bool {
        self.inlet().ends()
    }

    /// What [`Mover::has_ended`] has found holds no longer.
    fn look_anew(&self) {
        self.inlet().endpoint().look_anew();
    }

    /// Messages and ends of RDMA Reads that were taken so far.
    fn taken(&self) -> u64 {
        self.inlet().taken()
    }

    /// Nothing more is taken; what is queued still goes.
    fn stop_receiving(&self) {
        self.inlet().stop();
    }

    /// Commands that it has taken and keeps do not begin after a function of another session about these.
    fn recall(&self, _session: &mut Session, _which: &Which) {}

    /// RDMA Reads, and what waits for their end, as of now.
    fn coming(&self) -> Coming;

    /// Whether these have ended, and nothing waits for them any more.
    fn has_come(&self, coming: Coming) -> bool;

    /// A mark behind what was sent and written so far.
    fn mark(&self) -> u64 {
        self.inlet().endpoint().mark()
    }

    /// Nothing from before this mark is on its way any more.
    fn is_delivered(&self, mark: u64) -> bool {
        self.inlet().endpoint().is_delivered(mark)
    }

    /// Waits until nothing is held back any more that is to go behind something else; to be flushed after that.
    fn settled<'a>(&'a self, _session: &'a RefCell<Session>) -> Wait<'a, ()> {
        Box::pin(async {})
    }

    /// The initiator can be asked to log out.
    fn notifies(&self) -> bool {
        true
    }

    /// The session ends: of this reason, or of what the initiator did. Tells the initiator, where there are words for it
    /// beside the PDUs.
    fn farewell(&self, _why: Option<&'static str>) {}

    /// Ends the connection.
    fn close(&self) {
        self.inlet().close();
    }

    /// Ends the connection, and throws away what is on its way.
    fn reset(&self) {
        self.inlet().reset();
    }
}

/// RDMA Reads, and what waits for their end, at some time.
#[derive(Clone, Copy, Debug)]
pub struct Coming {
    /// The number of the latest RDMA Read.
    pub latest_read: u64,
    /// A mark behind what is held back ([`Held::mark`](super::held::Held::mark)).
    pub held: u64,
}

/// The connection itself.
pub enum Line {
    /// A stream of bytes.
    Tcp(Stream),
    /// Another data mover.
    Moved(Rc<dyn Mover>),
}

/// Its sending side.
pub enum Out {
    /// PDUs one behind the other.
    Tcp(out::Out),
    /// Another data mover.
    Moved(Rc<dyn Mover>),
}

/// Its receiving side.
pub enum Incoming {
    /// PDUs one behind the other.
    Tcp(Receiver),
    /// Another data mover.
    Moved(Rc<dyn Mover>),
}

/// A connection as its login leaves it.
pub struct Carrier {
    /// The connection.
    pub line: Line,
    /// Its sending side.
    pub out: Out,
    /// Its receiving side.
    pub incoming: Incoming,
}

impl Carrier {
    /// Over a stream of bytes.
    pub fn tcp(stream: Stream, receiver: Receiver) -> Carrier {
        Carrier {
            line: Line::Tcp(stream),
            out: Out::Tcp(out::Out::default()),
            incoming: Incoming::Tcp(receiver),
        }
    }

    /// Over another data mover.
    pub fn moved(mover: Rc<dyn Mover>) -> Carrier {
        Carrier {
            line: Line::Moved(mover.clone()),
            out: Out::Moved(mover.clone()),
            incoming: Incoming::Moved(mover),
        }
    }
}

impl Line {
    /// Waits until there may be something to take, or the peer is gone.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Line::Tcp(stream) => stream.readable().await,
            Line::Moved(mover) => mover.readable().await,
        }
    }

    /// Waits until more can be sent.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Line::Tcp(stream) => stream.writable().await,
            Line::Moved(mover) => mover.writable().await,
        }
    }

    /// The state of the initiator's side. RDMA knows no half of a connection.
    #[inline]
    pub fn peer_state(&self) -> PeerState {
        match self {
            Line::Tcp(stream) => stream.peer_state(),
            Line::Moved(mover) if mover.has_ended() => PeerState::Reset,
            Line::Moved(_) => PeerState::Open,
        }
    }

    /// What [`Line::peer_state`] has found holds no longer.
    pub fn look_anew(&self) {
        match self {
            Line::Tcp(stream) => stream.look_anew(),
            Line::Moved(mover) => mover.look_anew(),
        }
    }

    /// What was received so far: bytes of a stream, or events.
    fn taken(&self) -> u64 {
        match self {
            Line::Tcp(stream) => stream.received(),
            Line::Moved(mover) => mover.taken(),
        }
    }

    /// What is sent may be a read of the initiator's memory.
    pub fn reads_by_itself(&self) -> bool {
        matches!(self, Line::Moved(_))
    }

    /// Sends what the session has queued. False: some of it waits until [`Line::writable`].
    pub fn flush(&self, session: &mut Session) -> io::Result<bool> {
        match (self, &mut session.out) {
            (Line::Tcp(stream), Out::Tcp(out)) => out.flush(stream),
            (Line::Moved(mover), _) => mover.flush(session),
            (Line::Tcp(_), Out::Moved(_)) => Ok(true),
        }
    }

    /// Waits until nothing is held back any more.
    pub async fn settled(&self, session: &RefCell<Session>) {
        if let Line::Moved(mover) = self {
            mover.settled(session).await;
        }
    }

    /// The session ends.
    pub fn farewell(&self, why: Option<&'static str>) {
        if let Line::Moved(mover) = self {
            mover.farewell(why);
        }
    }

    /// Nothing more is received; what is queued still goes.
    pub fn stop_receiving(&self) {
        match self {
            Line::Tcp(stream) => stream.shutdown(Shutdown::Read),
            Line::Moved(mover) => mover.stop_receiving(),
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        match self {
            Line::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Line::Moved(mover) => mover.close(),
        }
    }
}

impl Out {
    /// Queues a PDU.
    #[inline]
    pub fn push(&mut self, header: Bhs, payload: Payload, digests: Digests) {
        match self {
            Out::Tcp(out) => out.push(header, payload, digests),
            Out::Moved(mover) => mover.push(header, payload),
        }
    }

    /// Bytes that wait, and what holds them.
    pub fn waiting(&self) -> usize {
        match self {
            Out::Tcp(out) => out.waiting(),
            Out::Moved(mover) => mover.waiting(),
        }
    }

    /// Bytes that wait and that no pool counts, where they are told apart.
    pub fn own(&self) -> usize {
        match self {
            Out::Tcp(out) => out.own(),
            Out::Moved(_) => 0,
        }
    }

    /// Whether anything has left since the last call.
    pub fn has_moved(&mut self) -> bool {
        match self {
            Out::Tcp(out) => out.has_moved(),
            Out::Moved(mover) => mover.has_moved(),
        }
    }

    /// Whether it may say something before it is asked.
    pub fn may_speak(&self) -> bool {
        match self {
            Out::Tcp(_) => true,
            Out::Moved(mover) => mover.may_speak(),
        }
    }

    /// Whether the initiator has room for an event; there is a unit attention for each, too.
    pub fn takes_event(&self) -> bool {
        match self {
            Out::Tcp(_) => true,
            Out::Moved(mover) => mover.takes_event(),
        }
    }

    /// Whether the initiator can be asked to log out.
    pub fn notifies(&self) -> bool {
        match self {
            Out::Tcp(_) => true,
            Out::Moved(mover) => mover.notifies(),
        }
    }

    /// The data mover, if it is no stream: data of tasks that have ended could still change memory of the initiator. Over
    /// a stream it is told from that of other tasks by its tags.
    pub fn mover(&self) -> Option<Rc<dyn Mover>> {
        match self {
            Out::Tcp(_) => None,
            Out::Moved(mover) => Some(mover.clone()),
        }
    }

    /// Forgets what waits: nothing can be sent any more.
    pub fn give_up(&mut self) {
        if let Out::Tcp(out) = self {
            *out = out::Out::default();
        }
    }

    /// Whether what the initiator declares of its data segments is so; over RDMA it has the room that it has.
    pub fn heeds_declarations(&self) -> bool {
        matches!(self, Out::Tcp(_))
    }

    /// The longest Data-In in bytes, where the initiator takes segments of so many.
    #[inline]
    pub fn longest_data_in(&self, max_xmit: u32) -> usize {
        match self {
            Out::Tcp(_) => MAX_SEGMENT.min(max_xmit as usize),
            // It goes where the initiator has said, and not into a segment.
            Out::Moved(_) => MAX_SEGMENT,
        }
    }
}

impl Incoming {
    /// There may be PDUs already.
    pub fn has_begun(&self) -> bool {
        match self {
            Incoming::Tcp(receiver) => receiver.has_begun(),
            Incoming::Moved(_) => true,
        }
    }

    /// Takes what is there, and hands every whole PDU over.
    pub fn receive(&mut self, line: &Line, session: &mut Session) -> Result<Received, Broken> {
        match (self, line) {
            (Incoming::Tcp(receiver), Line::Tcp(stream)) => receiver.receive(stream, session),
            (Incoming::Moved(mover), _) => mover.receive(session),
            (Incoming::Tcp(_), Line::Moved(_)) => Ok(Received::End),
        }
    }

    /// The same of what has come already and was not handed over yet.
    pub fn resume(&mut self, session: &mut Session) -> Result<Received, Broken> {
        match self {
            Incoming::Tcp(receiver) => receiver.resume(session),
            Incoming::Moved(mover) => mover.receive(session),
        }
    }

    /// The opcode of the last PDU of what was received and not taken yet, and of these bytes behind it.
    pub fn last_opcode(&self, behind: &[u8]) -> Option<u8> {
        match self {
            Incoming::Tcp(receiver) => receiver.last_opcode(behind),
            Incoming::Moved(_) => None,
        }
    }

    /// Takes all that has arrived by now, and whatever else one receive brings.
    pub fn take_arrived(&mut self, line: &Line, session: &mut Session) -> Result<Received, Broken> {
        let most = match line {
            Line::Tcp(stream) => stream.received() + stream.unread(),
            Line::Moved(mover) => mover.taken() + MOST_EVENTS,
        };
        let mut received = self.resume(session)?;
        while received == Received::More && line.taken() < most {
            let before = line.taken();
            received = self.receive(line, session)?;
            if line.taken() == before {
                break;
            }
        }
        Ok(received)
    }
}
