//! Login: checks the private data of a connection against the configuration, and registers the session (SRP r16a
//! sections 5.4 and 6.2 to 6.4).

use crate::LoginError;
use crate::access::LoginContext;
use crate::open_portal::BoundPortal;
use crate::open_portal::OpenPortal;
use crate::registry::Replaced;
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_entry::RegisteredSession;
use crate::session_info::{Addresses, SessionInfo, SessionProtocol, SessionTransport, SrpSessionInfo};
use crate::session_key::SessionKey;
use lunar_wire::srp::{
    LINUX_IU_LEN, LoginFormat, LoginReject, LoginRejectReason, LoginRequest, LoginResponse, PortId,
    PreviousChannels, SrpError,
};
use lunar_wire::srp::{SrpResponse, format};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

/// Maximum length of an accepted information unit in bytes. Linux sends no longer ones.
pub const IU_LEN: usize = LINUX_IU_LEN;
/// Minimum information unit length that an initiator may request.
const MIN_IU_LEN: u32 = 64;
/// Maximum number of bytes of sense data in a response.
pub const SENSE_LEN: usize = 256;
/// Maximum length of a sent information unit in bytes.
const RESPONSE_LEN: u32 = (SrpResponse::LEN + 4 + SENSE_LEN) as u32;
/// The supported data buffer formats.
const FORMATS: u16 = format::DIRECT | format::INDIRECT;
/// Maximum number of credits. Each needs a receive buffer.
const MAX_CREDITS: u32 = 128;
/// Maximum number of bytes of one request for data: a 24-bit length in whole pages.
pub const MAX_BURST: u32 = (1 << 24) - 4096;

/// The port ID of a target: `id_ext` and `ioc_guid` of a login string.
pub fn port_id(target: &str) -> PortId {
    // Never zero, which `form` relies on.
    PortId::of_name(target)
}

/// An accepted login.
pub struct AcceptedLogin {
    /// The registered session.
    pub entered: RegisteredSession,
    /// The context of the login.
    pub login_context: LoginContext,
    /// The response to the initiator.
    pub response: LoginResponse,
    /// Offset of immediate data in a command, if they were negotiated.
    pub immediate_offset: Option<u16>,
    /// Solicited notifications that the initiator requests for requests of the target.
    pub notifications: u8,
}

/// A rejected login: the reason for the initiator, and the text for the log.
struct LoginRefusal(LoginRejectReason, &'static str);

/// Processes the private data of a connection: a login request, padded with zeros.
///
/// # Errors
/// The login reject for the initiator.
pub async fn log_in(
    shared: &Arc<ServerState>,
    private: &[u8],
    addresses: Addresses,
    portal: Arc<OpenPortal>,
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

/// The login reject for a login that timed out or lost its slot.
pub fn login_cut_off(shared: &ServerState, peer: SocketAddr, why: &io::Error) -> LoginReject {
    shared.log_closed_before_login(peer, &why.to_string());
    reject(LoginRejectReason::UNABLE, 0)
}

fn reject(reason: LoginRejectReason, tag: u64) -> LoginReject {
    LoginReject { reason, tag, formats: FORMATS }
}

/// The form of a login request. The short form has only zeros after its 56 bytes. The long form has the end of a
/// target port ID there, which is never zero.
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
    portal: Arc<OpenPortal>,
    count: ConnectionGuard,
) -> Result<AcceptedLogin, LoginRefusal> {
    check(request)?;
    let (config, bound) = (shared.config(), portal.open().map_err(removed)?);
    let login_context = LoginContext::new(&config, bound.tag, addresses);
    let initiator = request.initiator.to_string();
    let name = target(shared, &login_context, &initiator, request.target)?;
    let info = info(request.initiator, name.clone(), &bound, addresses);
    let kept = request.keep_channels && has_channels(shared, &info);
    let replaced = if request.keep_channels { Replaced::Nothing } else { Replaced::Channels };
    let key = SessionKey::new(&info, bound.address);
    let entered = RegisteredSession::register(shared, &config, info, key, replaced, count).await;
    portal.open().map_err(removed)?;
    let mut entered = entered.map_err(|error| {
        config.refused(bound.tag, &name, error);
        shared.count_login(Some(&name), error.into());
        refusal(error, request.keep_channels)
    })?;
    // Grant one credit more than commands, so that one always remains for task management.
    entered.depth = entered.depth.clamp(1, MAX_CREDITS - 1) + 1;
    let immediate_offset = request.immediate_offset.filter(|at| usize::from(*at) < IU_LEN);
    let response = LoginResponse {
        credits: entered.depth,
        tag: request.tag,
        it_iu_len: IU_LEN as u32,
        ti_iu_len: RESPONSE_LEN,
        formats: FORMATS,
        previous: previous(kept, entered.guard.replaced),
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

fn removed(_: io::Error) -> LoginRefusal {
    LoginRefusal(LoginRejectReason::UNABLE, "the portal was removed")
}

fn check(request: &LoginRequest) -> Result<(), LoginRefusal> {
    if request.it_iu_len as usize > IU_LEN {
        return Err(LoginRefusal(
            LoginRejectReason::IT_IU_TOO_LONG,
            "the maximum information unit of the initiator is too long",
        ));
    }
    if request.it_iu_len < MIN_IU_LEN {
        return Err(LoginRefusal(
            LoginRejectReason::UNABLE,
            "the maximum information unit of the initiator is too short for a command",
        ));
    }
    if request.formats & !FORMATS != 0 {
        return Err(LoginRefusal(
            LoginRejectReason::FORMATS,
            "the initiator requires unsupported data buffer formats",
        ));
    }
    Ok(())
}

/// The name of the target with this port ID, if the initiator may use it.
fn target(
    shared: &ServerState,
    login_context: &LoginContext,
    initiator: &str,
    port: PortId,
) -> Result<String, LoginRefusal> {
    const UNKNOWN_PORT: LoginRefusal =
        LoginRefusal(LoginRejectReason::NOT_ASSOCIATED, "no target has the requested SRP target port");
    let is_asked_for = |name: &&String| port_id(name) == port;
    let count = |name: &str, error: LoginError| {
        login_context.config.refused(login_context.group, name, error);
        shared.count_login(Some(name), error.into());
    };
    let Some(name) = login_context.config.targets.keys().find(is_asked_for) else {
        count("", LoginError::TargetNotFound);
        return Err(UNKNOWN_PORT);
    };
    let info = login_context.target(name, initiator).map_err(|error| {
        count(name, error);
        refusal(error, false)
    })?;
    if info.authentication.required {
        count(name, LoginError::AuthenticationFailed);
        return Err(refusal(LoginError::AuthenticationFailed, false));
    }
    match info.redirect {
        Some(_) => Err(LoginRefusal(
            LoginRejectReason::UNABLE,
            "the target redirects logins, which SRP does not support",
        )),
        None => Ok(name.clone()),
    }
}

fn refusal(error: LoginError, keeps_channels: bool) -> LoginRefusal {
    match error {
        LoginError::TargetNotFound => {
            LoginRefusal(LoginRejectReason::NOT_ASSOCIATED, "the target is not in this portal group")
        }
        LoginError::NotAllowed => {
            LoginRefusal(LoginRejectReason::NOT_ASSOCIATED, "no access rule matches the initiator")
        }
        LoginError::AuthenticationFailed => LoginRefusal(
            LoginRejectReason::NOT_ASSOCIATED,
            "the target requires CHAP, which SRP does not support",
        ),
        LoginError::OutOfResources if keeps_channels => {
            LoginRefusal(LoginRejectReason::TOO_MANY_CHANNELS, "the session limits of [limits] are used up")
        }
        LoginError::OutOfResources => {
            LoginRefusal(LoginRejectReason::NO_RESOURCES, "the session limits of [limits] are used up")
        }
        LoginError::NotServing
        | LoginError::DiscoveryDisabled
        | LoginError::TooManyConnections
        | LoginError::NoSuchSession => {
            LoginRefusal(LoginRejectReason::UNABLE, "the target accepts no logins now")
        }
    }
}

/// Keeps or ends the other channels of the nexus. When this returns, the ended ones are over.
fn has_channels(shared: &ServerState, info: &SessionInfo) -> bool {
    shared.registry.list().iter().any(|(_, other)| other.has_same_ports(info))
}

fn previous(kept: bool, replaced: usize) -> PreviousChannels {
    match (kept, replaced) {
        (true, _) => PreviousChannels::Kept,
        (_, 0) => PreviousChannels::None,
        _ => PreviousChannels::Ended,
    }
}

/// The facts about the session.
fn info(
    initiator_port: PortId,
    target: String,
    bound: &BoundPortal,
    addresses: Addresses,
) -> Arc<SessionInfo> {
    let transport = SessionTransport::Rdma(bound.transports.provider);
    let protocol = SessionProtocol::Srp(SrpSessionInfo { initiator_port });
    let target = (Some(target), bound.tag);
    Arc::new(SessionInfo::new(initiator_port.to_string(), addresses, target, transport, protocol))
}
