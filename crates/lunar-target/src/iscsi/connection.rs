//! A connection in full feature phase: its transport, digests, StatSN and keepalive.

use super::keepalive::Keepalive;
use super::pdu_queue::{Body, Digests};
use super::receive::{ReceiveError, ReceiveStatus};
use super::session::IscsiSession;
use super::stale;
use super::transport::{ConnectionPduHandler, Datamover, IscsiTransport};
use crate::access::LoginContext;
use crate::core::{ItNexus, MAX_QUEUED_BYTES, ResponseLog};
use crate::end_reason::EndReason;
use crate::registry::{SessionGuard, SessionMessage};
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_info::SessionInfo;
use lunar_proto::login::SessionType;
use lunar_proto::parameters::Parameters;
use lunar_proto::text::TextServer;
use lunar_runtime::SendPump;
use lunar_wire::iscsi::Bhs;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

/// Bytes in the send queue outside of all pools, above which the target stops receiving.
const MAX_UNPOOLED_BYTES: usize = 1 << 20;

/// A session that has just logged in, with its first connection.
pub struct OpenedSession {
    /// The state that all connections share.
    pub shared: Arc<ServerState>,
    /// Its connection.
    pub connection: OpenedConnection,
    /// The context of its login.
    pub login_context: LoginContext,
    /// The facts that the login has established.
    pub info: Arc<SessionInfo>,
    /// The negotiated parameters.
    pub parameters: Parameters,
    /// Its entry in the registry.
    pub guard: SessionGuard,
    /// Messages from other cores.
    pub messages: flume::Receiver<SessionMessage>,
    /// Its slot among the connections.
    pub count: ConnectionGuard,
    /// Maximum number of commands in flight.
    pub depth: u32,
    /// The first ExpCmdSN.
    pub cmd_sn: u32,
}

/// A connection that has just logged in, and what its own login has established (RFC 7143 section 13).
pub struct OpenedConnection {
    /// The transport.
    pub transport: IscsiTransport,
    /// Connection ID. No other connection of the session has it.
    pub cid: u16,
    /// Our address.
    pub local: SocketAddr,
    /// The next StatSN.
    pub stat_sn: u32,
    /// Digests in both directions.
    pub digests: Digests,
    /// Longest data segment that the initiator accepts, in bytes.
    pub max_xmit: u32,
}

/// A connection of a session. It lives on the core of its session.
pub struct IscsiConnection {
    nexus: Weak<ItNexus<IscsiSession>>,
    /// Connection ID.
    cid: u16,
    /// The local address.
    local: SocketAddr,
    transport: IscsiTransport,
    digests: Digests,
    /// StatSN of the next response.
    stat_sn: Cell<u32>,
    /// Longest data segment that the initiator accepts, in bytes.
    max_xmit: Cell<u32>,
    /// The text negotiations of the connection.
    text: RefCell<TextServer>,
    keepalive: Keepalive,
    /// Whether the data of a closed connection end with a Logout. None: not checked yet.
    logs_out: Cell<Option<bool>>,
    /// It logs out, and the session goes on without it.
    is_closing: Cell<bool>,
    /// The Logout Response, which is sent when no task is left, and the CID of the connection that sends it.
    logout_response: Cell<Option<(u16, Bhs)>>,
    pump: SendPump,
    responses: Rc<ResponseLog>,
}

impl IscsiConnection {
    /// Adds a connection to a session.
    pub fn open(nexus: &Rc<ItNexus<IscsiSession>>, opened: OpenedConnection) -> Rc<IscsiConnection> {
        let OpenedConnection { transport, cid, local, stat_sn, digests, max_xmit } = opened;
        let mut state = nexus.state();
        let text_bytes = state.login_context().config.limits.text_bytes;
        let session_type =
            if state.info().is_discovery() { SessionType::Discovery } else { SessionType::Normal };
        let connection = Rc::new(IscsiConnection {
            nexus: Rc::downgrade(nexus),
            cid,
            local,
            transport,
            digests,
            stat_sn: Cell::new(stat_sn),
            max_xmit: Cell::new(max_xmit),
            text: RefCell::new(TextServer::new(session_type, text_bytes)),
            keepalive: Keepalive::default(),
            logs_out: Cell::default(),
            is_closing: Cell::default(),
            logout_response: Cell::default(),
            pump: SendPump::default(),
            responses: nexus.responses().clone(),
        });
        state.front_mut().add(connection.clone());
        connection
    }

    /// The nexus of its session, unless it is gone.
    pub(super) fn nexus(&self) -> Option<Rc<ItNexus<IscsiSession>>> {
        self.nexus.upgrade()
    }

    pub(super) fn transport(&self) -> &IscsiTransport {
        &self.transport
    }

    pub(super) fn responses(&self) -> &ResponseLog {
        &self.responses
    }

    pub(super) fn send_pump(&self) -> &SendPump {
        &self.pump
    }

    /// Takes the Logout Response.
    pub(super) fn take_logout_response(&self) -> Option<(u16, Bhs)> {
        self.logout_response.take()
    }

    /// Processes all received data.
    ///
    /// # Errors
    /// The reason why the connection cannot go on.
    pub fn take_arrived(
        &self,
        handler: &mut impl ConnectionPduHandler,
    ) -> Result<ReceiveStatus, ReceiveError> {
        self.transport.receive_arrived(handler)
    }

    /// Connection ID.
    #[inline]
    pub fn cid(&self) -> u16 {
        self.cid
    }

    /// The local address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// The text negotiations of the connection.
    pub fn text(&self) -> &RefCell<TextServer> {
        &self.text
    }

    /// Its keepalive.
    #[inline]
    pub fn keepalive(&self) -> &Keepalive {
        &self.keepalive
    }

    /// StatSN of the next response.
    #[inline]
    pub fn stat_sn(&self) -> u32 {
        self.stat_sn.get()
    }

    /// Consumes the StatSN of a response.
    #[inline]
    pub fn take_stat_sn(&self) -> u32 {
        self.stat_sn.replace(self.stat_sn.get().wrapping_add(1))
    }

    /// Queues a PDU whose sequence numbers are set.
    #[inline]
    pub fn push(&self, header: &mut Bhs, body: impl Into<Body>) {
        self.transport.push(header, body.into(), self.digests);
    }

    /// Whether the data of a PDU may be pages of a file without a copy.
    #[inline]
    pub fn takes_pages(&self) -> bool {
        self.transport.takes_pages(self.digests)
    }

    /// Longest data segment that the initiator accepts, in bytes.
    #[inline]
    pub fn max_xmit(&self) -> usize {
        self.max_xmit.get() as usize
    }

    /// Records the MaxRecvDataSegmentLength that the initiator declares.
    pub fn set_max_xmit(&self, len: u32) {
        if self.transport.uses_declared_length() {
            self.max_xmit.set(len);
        }
    }

    /// Maximum length of a Data-In in bytes.
    #[inline]
    pub fn longest_data_in(&self) -> usize {
        self.transport.longest_data_in(self.max_xmit())
    }

    /// Whether the initiator has a receive buffer for an asynchronous message.
    pub fn can_send_event(&self) -> bool {
        self.transport.can_send_event()
    }

    /// Whether data were sent since the last call.
    pub fn take_moved(&self) -> bool {
        self.transport.take_moved()
    }

    /// The datamover, if there is one.
    pub fn datamover(&self) -> Option<Rc<dyn Datamover>> {
        self.transport.datamover().cloned()
    }

    /// Whether the send queue is too long to receive more.
    #[inline]
    pub fn is_full(&self) -> bool {
        let (queued, unpooled) = self.transport.queued();
        queued > MAX_QUEUED_BYTES || unpooled > MAX_UNPOOLED_BYTES
    }

    /// Sets the Logout Response, which is sent when no task is left, on the connection with this CID.
    pub fn set_logout_response(&self, cid: u16, header: Bhs) {
        self.logout_response.set(Some((cid, header)));
    }

    /// Takes no more requests: it logs out, and the session goes on without it.
    pub fn begin_close(&self) {
        self.is_closing.set(true);
    }

    /// It logs out, and the session goes on without it.
    #[inline]
    pub fn is_closing(&self) -> bool {
        self.is_closing.get()
    }

    /// The reason why requests are stale. `behind`: received bytes that are not parsed yet; None: the receiver has
    /// them.
    #[inline]
    pub fn stale_reason(&self, behind: Option<&[u8]>) -> Option<EndReason> {
        stale::why(self.transport.peer_state(), || self.ends_with_logout(behind))
    }

    /// Makes the next [`IscsiConnection::stale_reason`] query the kernel.
    pub fn recheck_peer(&self) {
        self.transport.recheck_peer();
    }

    /// Whether the data of a closed connection end with a Logout (RFC 7143 section 11.14). The connection then did
    /// not fail, and its commands are valid. The initiator sends no more, so the result never changes.
    #[cold]
    fn ends_with_logout(&self, behind: Option<&[u8]>) -> bool {
        if let Some(known) = self.logs_out.get() {
            return known;
        }
        let unread = self.transport.peek(stale::MAX_UNREAD);
        let logout_response = self.logout_response.take();
        self.logout_response.set(logout_response);
        let logs_out = logout_response.is_some()
            || match behind {
                Some(behind) => stale::is_logout_last(self.digests, &[behind, &unread[..]].concat()),
                None => stale::is_logout(self.transport.last_opcode(&unread)),
            };
        self.logs_out.set(Some(logs_out));
        logs_out
    }

    /// Stops receiving: the receive loop finds that the socket is shut down.
    pub fn stop_receiving(&self) {
        self.pump.wake();
        self.transport.stop_receiving();
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.transport.close();
    }
}
