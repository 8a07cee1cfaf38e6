//! The full feature phase of a session: its receive loop and its end.

use super::connection::{IscsiConnection, OpenedConnection, OpenedSession};
use super::dispatch::PduDispatcher;
use super::pdu_queue::Payload;
use super::receive::{ReceiveError, ReceiveStatus};
use super::session::IscsiSession;
use super::transport::IscsiTransport;
use crate::core::keepalive::{self, KeepaliveConnection};
use crate::core::session_end::{self, SessionEnd};
use crate::core::{FrontEnd, ItNexus, NexusParams, NexusState, SessionPhase, messages};
use crate::end_reason::EndReason;
use crate::registry::SessionGuard;
use crate::server_state::ConnectionGuard;
use lunar_runtime::{SendPump, SendSide};
use lunar_wire::iscsi::{NONE, pdu};
use std::io;
use std::rc::Rc;

/// Runs a session from its login to its end.
pub async fn run(opened: OpenedSession) {
    RunningSession::start(opened).run().await;
}

/// A session in full feature phase, and its first connection.
pub struct RunningSession {
    nexus: Rc<ItNexus<IscsiSession>>,
    first: Rc<IscsiConnection>,
    guard: SessionGuard,
    count: ConnectionGuard,
}

impl RunningSession {
    /// Makes the I_T nexus of a session.
    pub fn start(opened: OpenedSession) -> RunningSession {
        let session = IscsiSession::new(&opened);
        let OpenedSession { shared, connection, login_context, info, guard, messages, count, .. } = opened;
        let nexus = ItNexus::new(
            NexusParams { shared, login_context, info, session_handle: guard.session_handle },
            session,
        );
        lunar_runtime::spawn(messages::serve(Rc::downgrade(&nexus), messages));
        let first = open(&nexus, connection);
        RunningSession { nexus, first, guard, count }
    }

    /// The I_T nexus.
    #[cfg(test)]
    pub fn nexus(&self) -> &Rc<ItNexus<IscsiSession>> {
        &self.nexus
    }

    /// Serves the first connection, and waits for the end of the session.
    pub async fn run(self) {
        let RunningSession { nexus, first, guard, count } = self;
        let received = serve(&nexus, &first).await;
        if first.is_closing() {
            let is_over = |s: &NexusState<IscsiSession>| {
                s.phase() == SessionPhase::Ended || s.front().connections().is_empty()
            };
            nexus.wait_until(is_over).await;
        }
        let broken = received.err().map(|broken| broken.to_string());
        session_end::end(nexus, first, (guard, count), broken).await;
    }
}

fn open(nexus: &Rc<ItNexus<IscsiSession>>, opened: OpenedConnection) -> Rc<IscsiConnection> {
    let connection = IscsiConnection::open(nexus, opened);
    lunar_runtime::spawn(keepalive::run(Rc::downgrade(nexus), Rc::downgrade(&connection)));
    connection
}

/// Adds a connection to a session, and serves it. If it is lost, the session ends: that is the only recovery at
/// ErrorRecoveryLevel 0 (RFC 7143 section 7.1.5).
#[cfg_attr(not(test), expect(dead_code, reason = "a login negotiates one connection"))]
pub fn join(nexus: &Rc<ItNexus<IscsiSession>>, opened: OpenedConnection) {
    let (nexus, connection) = (nexus.clone(), open(nexus, opened));
    nexus.state().front_mut().begin_serving();
    lunar_runtime::spawn(async move {
        let received = serve(&nexus, &connection).await;
        if !connection.is_closing() {
            nexus.end(received.map_or(EndReason::ConnectionLost, |()| EndReason::ConnectionClosed));
        }
        drop(connection);
        nexus.state().front_mut().end_serving();
        nexus.notify();
    });
}

/// Receives on a connection until it ends. Removes it if it has logged out and others remain.
///
/// # Errors
/// The reason why it cannot go on.
async fn serve(
    nexus: &Rc<ItNexus<IscsiSession>>,
    connection: &Rc<IscsiConnection>,
) -> Result<(), ReceiveError> {
    let received = connection.receive(nexus).await;
    if !connection.is_closing() {
        return received;
    }
    remove(nexus, connection).await;
    Ok(())
}

/// Removes a connection that logs out: its tasks end without a response (RFC 7143 section 11.14).
async fn remove(nexus: &Rc<ItNexus<IscsiSession>>, connection: &Rc<IscsiConnection>) {
    let cid = connection.cid();
    nexus.state().front_mut().order_mut().discard_of(cid);
    nexus.end_tasks_of(cid).await;
    connection.send_logout_response(nexus);
    IscsiSession::flush(nexus);
    session_end::close(nexus, connection).await;
    nexus.state().front_mut().remove(cid);
    if nexus.state().front().connections().is_empty() {
        nexus.state().set_end_reason(EndReason::Logout);
    }
    nexus.notify();
}

impl SessionEnd for IscsiSession {
    type Connection = IscsiConnection;

    fn open_connections(&self) -> Vec<Rc<IscsiConnection>> {
        self.connections().to_vec()
    }

    fn discard_unsubmitted(state: &mut NexusState<IscsiSession>) {
        state.front_mut().order_mut().discard_all();
    }

    fn queue_last_message(nexus: &ItNexus<IscsiSession>, connection: &IscsiConnection) {
        connection.send_logout_response(nexus);
    }

    async fn drained(nexus: &ItNexus<IscsiSession>, connection: &Rc<IscsiConnection>) {
        connection.send_deferred(nexus).await;
        SendPump::flushed(connection).await;
    }

    fn is_in_use(&self) -> bool {
        self.is_serving()
    }
}

impl IscsiConnection {
    fn send_logout_response(&self, nexus: &ItNexus<IscsiSession>) {
        if let Some((cid, mut header)) = self.take_logout_response() {
            nexus.state().front().reply(cid, &mut header, Payload::Empty);
        }
    }

    /// Waits until its datamover defers no response any more.
    async fn send_deferred(&self, nexus: &ItNexus<IscsiSession>) {
        let Some(datamover) = self.datamover() else { return };
        while datamover.has_deferred() {
            if datamover.readable_after_stop().await.is_err() {
                return;
            }
            if datamover.receive_after_stop(&mut PduDispatcher::new(&mut nexus.state(), self)).is_err() {
                return;
            }
        }
    }

    /// Receives until the connection ends.
    ///
    /// # Errors
    /// The connection has failed, or its data are invalid.
    pub async fn receive(self: &Rc<Self>, nexus: &Rc<ItNexus<IscsiSession>>) -> Result<(), ReceiveError> {
        let mut next = ReceiveStatus::More;
        if self.transport().has_begun() {
            next = self.take(nexus, |transport, dispatcher| transport.resume(dispatcher))?;
        }
        loop {
            if next == ReceiveStatus::End {
                return Ok(());
            }
            self.flush_session(nexus);
            nexus.wait_for_room(self.send_pump(), || self.is_full()).await;
            next = if next == ReceiveStatus::Full {
                self.take(nexus, |transport, dispatcher| transport.resume(dispatcher))?
            } else {
                self.transport().readable().await?;
                self.take(nexus, |transport, dispatcher| transport.receive(dispatcher))?
            };
        }
    }

    /// Flushes the send queues, because the received PDUs may have completed commands of other connections.
    #[inline]
    fn flush_session(self: &Rc<Self>, nexus: &Rc<ItNexus<IscsiSession>>) {
        let is_only_one = nexus.state().front().connections().len() == 1;
        if is_only_one {
            SendPump::flush(self);
        } else {
            IscsiSession::flush(nexus);
        }
    }

    /// Processes received PDUs, unless another core has ended the session.
    #[inline]
    fn take(
        self: &Rc<Self>,
        nexus: &ItNexus<IscsiSession>,
        what: impl FnOnce(&IscsiTransport, &mut PduDispatcher<'_>) -> Result<ReceiveStatus, ReceiveError>,
    ) -> Result<ReceiveStatus, ReceiveError> {
        let Some(_in_flight) = nexus.begin_receive() else {
            return Ok(ReceiveStatus::End);
        };
        let received = what(self.transport(), &mut PduDispatcher::new(&mut nexus.state(), self));
        nexus.end_receive();
        received
    }
}

impl SendSide for IscsiConnection {
    fn pump(&self) -> &SendPump {
        self.send_pump()
    }

    #[inline]
    fn try_flush(&self) -> io::Result<bool> {
        let flushed = match self.transport() {
            IscsiTransport::Tcp(tcp) => tcp.flush(),
            IscsiTransport::Datamover(datamover) => self
                .nexus()
                .map_or(Ok(true), |nexus| datamover.flush(&mut PduDispatcher::new(&mut nexus.state(), self))),
        }?;
        self.responses().flushed(flushed, || self.transport().send_position());
        Ok(flushed)
    }

    async fn writable(&self) -> io::Result<()> {
        self.transport().writable().await
    }

    /// Discards the send queue, which must not keep the receive loop running.
    fn lost(&self, _: io::Error) {
        self.responses().lost();
        self.transport().discard_queue();
        if let Some(nexus) = self.nexus() {
            nexus.lost();
        }
        self.close();
    }

    /// Flushing a datamover also begins reads, which do not wait for sends.
    fn flushes_while_blocked(&self) -> bool {
        self.datamover().is_some()
    }
}

/// Pings are NOP-In (RFC 7143 section 11.19).
impl KeepaliveConnection<IscsiSession> for IscsiConnection {
    fn take_heard(&self, _: &mut NexusState<IscsiSession>) -> bool {
        self.keepalive().take_heard() | self.take_moved()
    }

    fn ping(&self, state: &mut NexusState<IscsiSession>) -> bool {
        let tag = self.keepalive().begin();
        if let Some(tag) = tag {
            state.front().notice(self.cid(), pdu::nop_in(0, NONE, tag));
        }
        true
    }

    fn ping_sent(&self) {
        self.take_moved();
    }

    fn forget_ping(&self) {
        self.keepalive().forget();
    }

    fn close(&self) {
        IscsiConnection::close(self);
    }
}
