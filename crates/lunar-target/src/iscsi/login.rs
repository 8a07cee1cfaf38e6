//! The login phase of a connection: passes PDUs between the transport and the login state machine, and registers the
//! session.

use super::connection::{OpenedConnection, OpenedSession};
use super::login_status::{IscsiPolicy, error_of};
use super::pdu_queue::Digests;
use super::receive::PduReceiver;
use super::tcp_transport::TcpTransport;
use super::transport::IscsiTransport;
use crate::access::LoginContext;
use crate::config::RdmaProvider;
use crate::foreign_protocol;
use crate::open_portal::OpenPortal;
use crate::registry::Replaced;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_entry::{self, RegisteredSession};
use crate::session_info::{Addresses, IscsiSessionInfo, SessionInfo, SessionProtocol, SessionTransport};
use crate::session_key::SessionKey;
use lunar_proto::Pdu;
use lunar_proto::login::{Login, LoginStep, SEGMENT_LEN, SessionType};
use lunar_proto::parameters::{Offer, Parameters};
use lunar_runtime::{PeerState, Stream, either};
use lunar_wire::iscsi::{BHS_LEN, Bhs, padded};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A connection before the end of its login: sends and receives login PDUs.
pub trait LoginTransport {
    /// The next PDU. None: the peer closed the connection without sending anything.
    async fn next(&mut self) -> io::Result<Option<(Bhs, Vec<u8>)>>;

    /// Sends a PDU that does not complete the login.
    async fn send(&mut self, pdu: &Pdu) -> io::Result<()>;

    /// Resolves when the peer has closed the connection, if the transport can detect that.
    async fn gone(&self) {
        std::future::pending().await
    }

    /// The transport type of the session; `provider` applies to RDMA.
    fn transport(&self, provider: RdmaProvider) -> SessionTransport;

    /// Adjusts the target's offer to this transport.
    fn offer(&self, offer: Offer) -> Offer;

    /// Adjusts the negotiated parameters of a session of this type to this transport.
    fn parameters(&self, parameters: Parameters, session_type: SessionType) -> Parameters;

    /// Sends the final Login Response, after which these parameters apply. `depth`: maximum number of commands in
    /// flight.
    async fn accept(self, pdu: &Pdu, parameters: &Parameters, depth: u32) -> io::Result<IscsiTransport>;
}

/// Performs the login of a connection. None: it failed.
pub async fn login(
    shared: &Arc<ServerState>,
    fresh: impl LoginTransport,
    addresses: Addresses,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) -> Option<OpenedSession> {
    let limit = shared.config().limits.login_timeout;
    let login = count.evicted().or(limit, negotiate(shared, fresh, addresses, portal, count)).await;
    login.unwrap_or_else(|e| {
        shared.log_closed_before_login(addresses.peer, &e.to_string());
        None
    })
}

async fn negotiate(
    shared: &Arc<ServerState>,
    mut fresh: impl LoginTransport,
    addresses: Addresses,
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) -> io::Result<Option<OpenedSession>> {
    let (config, bound) = (shared.config(), portal.open()?);
    let login_context = LoginContext::new(&config, bound.tag, addresses);
    let mut machine = Login::new(fresh.offer(config.session.offer()), bound.tag, config.limits.text_bytes);
    loop {
        // The peer sent nothing: it may only have probed the port.
        let Some((header, data)) = fresh.next().await? else { return Ok(None) };
        match machine.request(&header, &data, &IscsiPolicy(&login_context)) {
            LoginStep::Reply(pdu) => fresh.send(&pdu).await?,
            LoginStep::Drop => {
                return Err(io::Error::other("the first PDU of the initiator is no Login Request"));
            }
            LoginStep::Refuse(pdu) => {
                refused(shared, &login_context, addresses, &machine, &pdu);
                fresh.send(&pdu).await?;
                return Ok(None);
            }
            LoginStep::Ready => break,
        }
    }
    let parameters = fresh.parameters(machine.parameters().clone(), machine.session_type());
    let transport = fresh.transport(bound.transports.provider);
    let parameters = joined(parameters, shared.registry.find(machine.tsih()).as_deref());
    let info = info(&machine, addresses, transport, bound.tag, parameters.clone());
    let key = SessionKey::new(&info, bound.address);
    let replaced = Replaced::Session(machine.tsih());
    let entering = RegisteredSession::register(shared, &config, info, key, replaced, count);
    // This may wait for the end of the session that it replaces.
    let Some(entered) = either(async { Some(entering.await) }, async {
        fresh.gone().await;
        None
    })
    .await
    else {
        return Err(io::Error::other(CLOSED));
    };
    portal.open()?;
    let entered = match entered {
        Ok(entered) => entered,
        Err(error) => {
            let pdu = machine.refuse(error.into());
            refused(shared, &login_context, addresses, &machine, &pdu);
            fresh.send(&pdu).await?;
            return Ok(None);
        }
    };
    let pdu = machine.accept(entered.guard.session_handle, entered.depth);
    let transport = fresh.accept(&pdu, &parameters, entered.depth).await?;
    session_entry::log_begin(shared, &entered.info, &entered.guard);
    let connection = connection(&machine, transport, addresses, &parameters);
    let (shared, RegisteredSession { info, guard, depth, messages, count }) = (shared.clone(), entered);
    Ok(Some(OpenedSession {
        shared,
        connection,
        login_context,
        info,
        parameters,
        guard,
        messages,
        count,
        depth,
        cmd_sn: machine.cmd_sn(),
    }))
}

/// The connection, whose login is complete.
fn connection(
    machine: &Login,
    transport: IscsiTransport,
    addresses: Addresses,
    p: &Parameters,
) -> OpenedConnection {
    OpenedConnection {
        transport,
        cid: machine.cid(),
        local: addresses.local,
        stat_sn: machine.next_stat_sn(),
        digests: Digests { header: p.header_digest, data: p.data_digest },
        max_xmit: p.max_xmit_data_segment_length,
    }
}

/// The parameters of a session. `session`: the session that it reinstates.
fn joined(own: Parameters, session: Option<&SessionInfo>) -> Parameters {
    match session.map(|session| &session.protocol) {
        Some(SessionProtocol::Iscsi(iscsi)) => own.joining(&iscsi.parameters),
        Some(SessionProtocol::Srp(_) | SessionProtocol::Nvme(_)) | None => own,
    }
}

/// The facts about the session.
fn info(
    machine: &Login,
    addresses: Addresses,
    transport: SessionTransport,
    portal_group_tag: u16,
    parameters: Parameters,
) -> Arc<SessionInfo> {
    let protocol = SessionProtocol::Iscsi(IscsiSessionInfo {
        isid: machine.isid(),
        cid: machine.cid(),
        alias: machine.initiator_alias().map(str::to_owned),
        discovery: machine.session_type() == SessionType::Discovery,
        parameters,
    });
    let target = (machine.target_name().map(str::to_owned), portal_group_tag);
    let initiator = machine.initiator_name().to_owned();
    Arc::new(SessionInfo {
        user: machine.chap_user().map(str::to_owned),
        ..SessionInfo::new(initiator, addresses, target, transport, protocol)
    })
}

fn refused(
    shared: &ServerState,
    login_context: &LoginContext,
    addresses: Addresses,
    machine: &Login,
    pdu: &Pdu,
) {
    let status = pdu.header.login_status();
    shared.count_login(machine.target_name(), status);
    if let Some((target, error)) = machine.target_name().zip(error_of(status)) {
        login_context.config.refused(login_context.group, target, error);
    }
    let (initiator, target) = (machine.initiator_name(), machine.target_name().unwrap_or_default());
    // The reason contains only printable characters.
    let reason = machine.reason().map_or(String::new(), |reason| format!(": {reason}"));
    shared.log_login_refused(addresses.peer, initiator, target, &format!("{status}{reason}"));
}

/// Interval at which the connection of a waiting peer is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
const CLOSED: &str = "the initiator closed the connection during login";

/// A login over TCP.
pub struct TcpLogin {
    stream: Stream,
    /// Received bytes after the last PDU.
    pending: Vec<u8>,
    /// Whether a PDU was received.
    begun: bool,
}

impl TcpLogin {
    /// A connection from which `pending` was already received.
    pub fn new(stream: Stream, pending: Vec<u8>) -> TcpLogin {
        TcpLogin { stream, pending, begun: false }
    }

    /// The next PDU, if it has arrived completely.
    fn whole(&mut self) -> io::Result<Option<(Bhs, Vec<u8>)>> {
        // As a PDU of iSCSI, ICReq is incomplete: its host would wait for the end of the time limit.
        if let (false, Some(reason)) = (self.begun, foreign_protocol::at_iscsi_portal(&self.pending)) {
            return Err(io::Error::other(reason));
        }
        let Some(header) = self.pending.first_chunk::<BHS_LEN>().map(|b| Bhs::from_bytes(*b)) else {
            return Ok(None);
        };
        let len = header.data_len();
        if len > SEGMENT_LEN {
            return Err(io::Error::other(format!(
                "the Login Request has {len} bytes of data, above the maximum of {SEGMENT_LEN}"
            )));
        }
        let start = BHS_LEN + header.ahs_len();
        let whole = start + padded(len);
        if self.pending.len() < whole {
            return Ok(None);
        }
        let data = self.pending[start..start + len].to_vec();
        self.pending.drain(..whole);
        Ok(Some((header, data)))
    }
}

impl LoginTransport for TcpLogin {
    async fn gone(&self) {
        while self.stream.peer_state() == PeerState::Open {
            compio::time::sleep(CHECK_INTERVAL).await;
        }
    }

    async fn next(&mut self) -> io::Result<Option<(Bhs, Vec<u8>)>> {
        let mut chunk = [0; 4096];
        loop {
            if let Some(pdu) = self.whole()? {
                // A stale login could end the session that its initiator has meanwhile opened on another connection.
                if self.stream.peer_state() != PeerState::Open {
                    return Err(io::Error::other(CLOSED));
                }
                self.begun = true;
                return Ok(Some(pdu));
            }
            self.stream.readable().await?;
            match self.stream.receive(&mut chunk)? {
                Some(0) if !self.begun && self.pending.is_empty() => return Ok(None),
                Some(0) => return Err(io::Error::other(CLOSED)),
                Some(n) => self.pending.extend_from_slice(&chunk[..n]),
                None => {}
            }
        }
    }

    async fn send(&mut self, pdu: &Pdu) -> io::Result<()> {
        let mut bytes = [&pdu.header.as_bytes()[..], &pdu.data].concat();
        bytes.resize(BHS_LEN + padded(pdu.data.len()), 0);
        self.stream.send_all(&bytes).await
    }

    fn transport(&self, _: RdmaProvider) -> SessionTransport {
        SessionTransport::Tcp
    }

    fn offer(&self, offer: Offer) -> Offer {
        offer
    }

    fn parameters(&self, parameters: Parameters, _: SessionType) -> Parameters {
        parameters
    }

    async fn accept(mut self, pdu: &Pdu, p: &Parameters, _depth: u32) -> io::Result<IscsiTransport> {
        self.send(pdu).await?;
        let digests = Digests { header: p.header_digest, data: p.data_digest };
        let receiver = PduReceiver::new(digests, p.max_recv_data_segment_length as usize, self.pending);
        Ok(IscsiTransport::Tcp(TcpTransport::new(self.stream, receiver)))
    }
}
