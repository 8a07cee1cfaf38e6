//! The full feature phase of a session: its receive loop and its end.

use super::connection::{IscsiConnection, OpenedConnection};
use super::dispatch::PduDispatcher;
use super::pdu_queue::Payload;
use super::receive::{ReceiveError, ReceiveStatus};
use super::session::IscsiSession;
use super::transport::Inbound;
use crate::core::keepalive::{self, KeepaliveConnection};
use crate::core::{FINAL_FLUSH_TIMEOUT, FrontEnd, ItNexus, NexusParams, State, messages};
use crate::session_entry;
use lunar_runtime::{SendPump, SendSide};
use lunar_wire::iscsi::{NONE, pdu};
use std::io;
use std::rc::Rc;

/// Runs a session from its login to its end.
pub async fn run(opened: OpenedConnection) {
    let session = IscsiSession::new(&opened);
    let OpenedConnection { shared, transport, login_context, info, guard, messages, count, stat_sn, .. } =
        opened;
    let params = NexusParams { shared: shared.clone(), login_context, info: info.clone(), tsih: guard.tsih };
    let nexus = ItNexus::new(params, session);
    let conn = IscsiConnection::open(&nexus, transport, info.cid, stat_sn);
    lunar_runtime::spawn(messages::serve(Rc::downgrade(&nexus), messages));
    lunar_runtime::spawn(keepalive::run(Rc::downgrade(&nexus), Rc::downgrade(&conn)));
    let received = conn.receive(&nexus).await;
    let end = nexus.state().end_reason();
    session_entry::log_end(&shared, &info, guard.tsih, end, received.err().map(|broken| broken.to_string()));
    finish(&nexus).await;
    let waiting = nexus.state().take_waiting_for_end();
    // The order matters: those who wait for the end must find the registry entry free and the nexuses gone.
    drop((conn, nexus));
    drop((guard, count));
    drop(waiting);
}

/// Ends all tasks, closes every I_T_L nexus, sends what is queued, and closes the connections.
async fn finish(nexus: &Rc<ItNexus<IscsiSession>>) {
    nexus.state().front_mut().held.clear();
    nexus.end_tasks().await;
    let connections = nexus.state().front().connections().to_vec();
    for connection in &connections {
        connection.send_logout_response(nexus);
        let last_sends = async {
            connection.drain(nexus).await;
            SendPump::flushed(connection).await;
        };
        let _ = compio::time::timeout(FINAL_FLUSH_TIMEOUT, last_sends).await;
        connection.close();
    }
}

impl IscsiConnection {
    fn send_logout_response(&self, nexus: &ItNexus<IscsiSession>) {
        if let Some(header) = self.take_logout_response() {
            nexus.state().front().reply(self.index(), header, Payload::Empty);
        }
    }

    /// Waits until its datamover defers no response any more.
    async fn drain(&self, nexus: &ItNexus<IscsiSession>) {
        let Some(mover) = self.datamover() else { return };
        while mover.has_deferred() {
            if mover.receiver().wait_for_event().await.is_err() {
                return;
            }
            if mover.take(&mut PduDispatcher::new(&mut nexus.state(), self)).is_err() {
                return;
            }
        }
    }

    /// Receives until the connection ends.
    ///
    /// # Errors
    /// The reason why it cannot go on.
    pub async fn receive(self: &Rc<Self>, nexus: &Rc<ItNexus<IscsiSession>>) -> Result<(), ReceiveError> {
        let mut next = ReceiveStatus::More;
        let has_begun = self.inbound().borrow().has_begun();
        if has_begun {
            next = self.take(nexus, |inbound, dispatcher| inbound.resume(dispatcher))?;
        }
        loop {
            if next == ReceiveStatus::End {
                return Ok(());
            }
            self.flush_session(nexus);
            nexus.wait_for_room(self.send_pump(), || self.is_full()).await;
            next = if next == ReceiveStatus::Full {
                self.take(nexus, |inbound, dispatcher| inbound.resume(dispatcher))?
            } else {
                self.handle().readable().await?;
                lunar_block::next_turn();
                self.take(nexus, |inbound, dispatcher| inbound.receive(self.handle(), dispatcher))?
            };
        }
    }

    /// Flushes the send queues. The received PDUs may have completed commands of other connections.
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
        what: impl FnOnce(&mut Inbound, &mut PduDispatcher<'_>) -> Result<ReceiveStatus, ReceiveError>,
    ) -> Result<ReceiveStatus, ReceiveError> {
        let Some(_under_way) = nexus.begin_receive() else {
            return Ok(ReceiveStatus::End);
        };
        what(&mut self.inbound().borrow_mut(), &mut PduDispatcher::new(&mut nexus.state(), self))
    }
}

impl SendSide for IscsiConnection {
    fn pump(&self) -> &SendPump {
        self.send_pump()
    }

    #[inline]
    fn try_flush(&self) -> io::Result<bool> {
        if let Some(sent) = self.flush_stream() {
            return sent;
        }
        let (Some(nexus), Some(mover)) = (self.nexus(), self.datamover()) else { return Ok(true) };
        mover.flush(&mut PduDispatcher::new(&mut nexus.state(), self))
    }

    async fn writable(&self) -> io::Result<()> {
        self.handle().writable().await
    }

    /// Discards the send queue: it must not keep the receive loop from ending.
    fn lost(&self, _: io::Error) {
        self.discard_queue();
        if let Some(nexus) = self.nexus() {
            nexus.lost();
        }
        self.close();
    }

    /// A flush of a datamover also begins reads, which do not wait for sends.
    fn flushes_while_blocked(&self) -> bool {
        self.datamover().is_some()
    }
}

/// Pings are NOP-In (RFC 7143 section 11.19).
impl KeepaliveConnection<IscsiSession> for IscsiConnection {
    fn is_alive(&self, _: &mut State<IscsiSession>) -> bool {
        self.keepalive().borrow_mut().take_heard() | self.has_moved()
    }

    fn ping(&self, state: &mut State<IscsiSession>) -> bool {
        let tag = self.keepalive().borrow_mut().begin();
        if let Some(tag) = tag {
            state.front().notice(self.index(), pdu::nop_in(0, NONE, tag));
        }
        true
    }

    fn ping_sent(&self) {
        self.has_moved();
    }

    fn forget_ping(&self) {
        self.keepalive().borrow_mut().forget();
    }

    fn close(&self) {
        IscsiConnection::close(self);
    }
}
