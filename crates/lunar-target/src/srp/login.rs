//! Login: the private data of a connection against the configuration, and a place among the sessions (SRP r16a
//! sections 5.4 and 6.2 to 6.4).

use crate::access::LoginContext;
use crate::end_reason::EndReason;
use crate::registry::SessionKey;
use crate::server_state::{BoundPortal, ConnectionGuard, ServerState};
use crate::session_entry::{Addresses, RegisteredSession};
use crate::session_info::{SessionInfo, SessionTransport};
use lunar_proto::login::LoginPolicy;
use lunar_proto::parameters::Parameters;
use lunar_wire::iscsi::status::LoginStatus;
use lunar_wire::srp::{
    LINUX_IU_LEN, LoginFormat, LoginReject, LoginRejectReason, LoginRequest, LoginResponse, PortId,
    PreviousChannels, SrpError,
};
use lunar_wire::srp::{SrpResponse, format};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Bytes of the longest information unit that is taken: Linux sends no longer ones.
pub const IU_LEN: usize = LINUX_IU_LEN;
/// The shortest that an initiator may say it needs.
const LEAST_IU_LEN: u32 = 64;
/// Bytes of sense data in a response, at most.
pub const SENSE_LEN: usize = 256;
/// Bytes of the longest information unit that is sent.
const ANSWER_LEN: u32 = (SrpResponse::LEN + 4 + SENSE_LEN) as u32;
/// What the data of a command may be described by.
const FORMATS: u16 = format::DIRECT | format::INDIRECT;
/// Credits at most. Each costs a message of memory.
const CREDITS: u32 = 128;
/// Bytes that are asked for at a time: as many as a length of 24 bits tells, in whole pages.
const MAX_BURST: u32 = (1 << 24) - 4096;

/// Tells the channels of a nexus apart.
static CHANNEL: AtomicU64 = AtomicU64::new(1);

/// The port of a target, which initiators log in to: `id_ext` and `ioc_guid` of a login string.
pub fn port_id(target: &str) -> PortId {
    // Never zero, which tells the forms of a login apart.
    PortId::of_name(target)
}

/// A login that succeeds.
pub struct AcceptedLogin {
    /// Its place among the sessions.
    pub entered: RegisteredSession,
    /// Its view of the configuration.
    pub login_context: LoginContext,
    /// What the initiator hears.
    pub response: LoginResponse,
    /// Where immediate data begins in a command, if there may be any.
    pub immediate_offset: Option<u16>,
    /// Solicited notifications of requests of the target that are wanted.
    pub notifications: u8,
}

/// Why a login fails, for the initiator and for the log.
struct LoginRefusal(LoginRejectReason, &'static str);

/// Answers the private data of a connection: a login request, with zeros behind it.
///
/// # Errors
/// What the initiator is to hear.
pub async fn log_in(
    shared: &Arc<ServerState>,
    private: &[u8],
    addresses: Addresses,
    portal: usize,
    count: ConnectionGuard,
) -> Result<AcceptedLogin, LoginReject> {
    let request = match LoginRequest::decode(private, form(private)) {
        Ok(request) => request,
        Err(e) => {
            shared.log_closed_before_login(addresses.peer, &e.to_string());
            let reason = if matches!(e, SrpError::Channels(_)) {
                LoginRejectReason::NO_MULTICHANNEL
            } else {
                LoginRejectReason::UNABLE
            };
            return Err(reject(reason, 0));
        }
    };
    enter(shared, &request, addresses, portal, count).await.map_err(|LoginRefusal(reason, why)| {
        let (initiator, target) = (request.initiator, request.target);
        shared.log_login_refused(addresses.peer, &initiator.to_string(), &target.to_string(), why);
        reject(reason, request.tag)
    })
}

/// A login took too long, or lost its place.
pub fn login_cut_off(shared: &ServerState, peer: SocketAddr, why: &io::Error) -> LoginReject {
    shared.log_closed_before_login(peer, &why.to_string());
    reject(LoginRejectReason::UNABLE, 0)
}

fn reject(reason: LoginRejectReason, tag: u64) -> LoginReject {
    LoginReject { reason, tag, formats: FORMATS }
}

/// The short form has nothing but zeros behind its 56 bytes, where the other has the end of a target port, which is
/// never zero here.
fn form(private: &[u8]) -> LoginFormat {
    match private.get(LoginFormat::RdmaCm.request_len()..LoginFormat::Ib.request_len()) {
        Some(end) if end.iter().any(|byte| *byte != 0) => LoginFormat::Ib,
        _ => LoginFormat::RdmaCm,
    }
}

async fn enter(
    shared: &Arc<ServerState>,
    request: &LoginRequest,
    addresses: Addresses,
    portal: usize,
    count: ConnectionGuard,
) -> Result<AcceptedLogin, LoginRefusal> {
    check(request)?;
    let (config, bound) = (shared.config(), &shared.portals[portal]);
    let login_context = LoginContext { config: config.clone(), group: bound.tag, peer: addresses.peer.ip() };
    let initiator = request.initiator.to_string();
    let name = target(&login_context, &initiator, request.target)?;
    let info = info(initiator, name.clone(), bound, addresses);
    let previous = previous(shared, &info, request.keep_channels).await;
    let key = key(&info);
    let entered = RegisteredSession::register(shared, &config, info, key, 0, count).await;
    let mut entered = entered.map_err(|status| {
        config.refused(bound.tag, &name, status);
        refusal(status, request.keep_channels)
    })?;
    // One more than commands, so that there is always one for task management.
    entered.depth = entered.depth.clamp(1, CREDITS - 1) + 1;
    let immediate_offset = request.immediate_offset.filter(|at| usize::from(*at) < IU_LEN);
    let response = LoginResponse {
        credits: entered.depth,
        tag: request.tag,
        it_iu_len: IU_LEN as u32,
        ti_iu_len: ANSWER_LEN,
        formats: FORMATS,
        previous,
        immediate: immediate_offset.is_some(),
    };
    Ok(AcceptedLogin {
        entered,
        login_context,
        response,
        immediate_offset,
        notifications: request.notifications,
    })
}

fn check(request: &LoginRequest) -> Result<(), LoginRefusal> {
    if request.it_iu_len as usize > IU_LEN {
        return Err(LoginRefusal(LoginRejectReason::IT_IU_TOO_LONG, "its information units are too long"));
    }
    if request.it_iu_len < LEAST_IU_LEN {
        return Err(LoginRefusal(
            LoginRejectReason::UNABLE,
            "its information units are too short for a command",
        ));
    }
    if request.formats & !FORMATS != 0 {
        return Err(LoginRefusal(
            LoginRejectReason::FORMATS,
            "it wants formats of data buffers that are not known",
        ));
    }
    Ok(())
}

/// The name of the target whose port is asked for, if this initiator may use it.
fn target(login_context: &LoginContext, initiator: &str, port: PortId) -> Result<String, LoginRefusal> {
    const NOBODY: LoginRefusal =
        LoginRefusal(LoginRejectReason::NOT_ASSOCIATED, "there is no such target port");
    let is_asked_for = |name: &&String| port_id(name) == port;
    let count = |name: &str, status| login_context.config.refused(login_context.group, name, status);
    let Some(name) = login_context.config.targets.keys().find(is_asked_for) else {
        count("", LoginStatus::NOT_FOUND);
        return Err(NOBODY);
    };
    let info = login_context.target(name, initiator).map_err(|status| {
        count(name, status);
        refusal(status, false)
    })?;
    if info.authentication.required {
        count(name, LoginStatus::AUTHENTICATION_FAILURE);
        return Err(LoginRefusal(
            LoginRejectReason::NOT_ASSOCIATED,
            "the target asks for CHAP, which there is none of in SRP",
        ));
    }
    match info.redirect {
        Some(_) => Err(LoginRefusal(LoginRejectReason::UNABLE, "the target is somewhere else")),
        None => Ok(name.clone()),
    }
}

fn refusal(status: LoginStatus, keeps_channels: bool) -> LoginRefusal {
    match status {
        LoginStatus::NOT_FOUND => {
            LoginRefusal(LoginRejectReason::NOT_ASSOCIATED, "the target is not in this portal group")
        }
        LoginStatus::AUTHORIZATION_FAILURE => {
            LoginRefusal(LoginRejectReason::NOT_ASSOCIATED, "no access list lets it in")
        }
        LoginStatus::OUT_OF_RESOURCES if keeps_channels => LoginRefusal(
            LoginRejectReason::TOO_MANY_CHANNELS,
            "there are as many sessions as [limits] allows",
        ),
        LoginStatus::OUT_OF_RESOURCES => {
            LoginRefusal(LoginRejectReason::NO_RESOURCES, "there are as many sessions as [limits] allows")
        }
        _ => LoginRefusal(LoginRejectReason::UNABLE, "the target takes no logins now"),
    }
}

/// What becomes of the channels that the nexus has: they stay, or are over before this goes on.
async fn previous(shared: &ServerState, info: &SessionInfo, keep: bool) -> PreviousChannels {
    let is_of_nexus = |other: &SessionInfo| other.is_beside(info);
    if keep {
        let any = shared.registry.list().iter().any(|(_, other)| is_of_nexus(other));
        return if any { PreviousChannels::Kept } else { PreviousChannels::None };
    }
    match shared.registry.end(is_of_nexus, EndReason::Reinstated).await {
        0 => PreviousChannels::None,
        _ => PreviousChannels::Ended,
    }
}

/// A channel is a session of its own.
fn key(info: &SessionInfo) -> SessionKey {
    let [_, _, channel @ ..] = CHANNEL.fetch_add(1, Relaxed).to_be_bytes();
    SessionKey {
        initiator: info.initiator.clone(),
        isid: channel,
        target: info.target.clone(),
        tag: info.tag,
        portal: None,
        user: None,
    }
}

/// What is known of the connection. All channels of a nexus have one ISID: they are one initiator port.
fn info(
    initiator: String,
    target: String,
    bound: &BoundPortal,
    Addresses { local, peer }: Addresses,
) -> Arc<SessionInfo> {
    Arc::new(SessionInfo {
        initiator,
        alias: None,
        address: peer,
        portal: local,
        target: Some(target),
        tag: bound.tag,
        isid: [0; 6],
        cid: 0,
        transport: SessionTransport::Srp(bound.transports.provider),
        discovery: false,
        user: None,
        parameters: parameters(),
        since: Instant::now(),
        counters: Default::default(),
        instance_session: Default::default(),
        fence: Default::default(),
        nexuses: Default::default(),
    })
}

/// As if it had been negotiated: data is asked for, but for what comes with its command.
fn parameters() -> Parameters {
    Parameters {
        initial_r2t: true,
        immediate_data: true,
        max_recv_data_segment_length: IU_LEN as u32,
        first_burst_length: IU_LEN as u32,
        max_burst_length: MAX_BURST,
        max_outstanding_r2t: 1,
        ..Parameters::default()
    }
}
