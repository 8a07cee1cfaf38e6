//! Registration of a session after a successful login, and its log lines.

use crate::InstanceSession;
use crate::config::{TargetConfig, TargetNode};
use crate::end_reason::EndReason;
use crate::registry::{RegisterRequest, SessionGuard, SessionKey, SessionMessage};
use crate::server_state::{ConnectionGuard, ServerState, luns_update};
use crate::session_info::SessionInfo;
use lunar_wire::iscsi::status::LoginStatus;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// The addresses of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// The local address.
    pub local: SocketAddr,
    /// The address of the initiator.
    pub peer: SocketAddr,
}

/// A registered session.
pub struct RegisteredSession {
    /// The facts about it.
    pub info: Arc<SessionInfo>,
    /// Its entry in the registry.
    pub guard: SessionGuard,
    /// Commands that may be in flight.
    pub depth: u32,
    /// Messages from other cores.
    pub messages: flume::Receiver<SessionMessage>,
    /// Its slot among the connections.
    pub count: ConnectionGuard,
}

impl RegisteredSession {
    /// Registers a session with this identity, which replaces one with the same identity.
    ///
    /// # Errors
    /// The status with which the login fails.
    pub async fn register(
        shared: &Arc<ServerState>,
        config: &Arc<TargetConfig>,
        info: Arc<SessionInfo>,
        key: SessionKey,
        tsih: u16,
        mut count: ConnectionGuard,
    ) -> Result<RegisteredSession, LoginStatus> {
        let (mailbox, messages) = flume::unbounded();
        let request = RegisterRequest { key, tsih, cid: info.cid, mailbox, info: info.clone() };
        let target = info.target.as_ref().and_then(|name| config.targets.get(name));
        let guard = shared.registry.register(&request, &config.limits).await?;
        // A stop ends the sessions that were registered before, and flushes after them.
        if shared.stopping.load(SeqCst) {
            return Err(LoginStatus::SERVICE_UNAVAILABLE);
        }
        instance_session(target, &info)?;
        let most = config.limits.commands_per_session;
        let depth = target.and_then(|t| t.depth).map_or(most, |depth| depth.clamp(1, most));
        if !count.logged_in() {
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        let now = shared.config();
        if !Arc::ptr_eq(&now, config) {
            // The configuration was replaced before this session could get the message.
            luns_update(&now, &info).into_iter().for_each(|message| drop(request.mailbox.send(message)));
        }
        Ok(RegisteredSession { info, guard, depth, messages, count })
    }
}

/// Counts the session in the SCSI routing instance of its target, if there is one.
fn instance_session(target: Option<&TargetNode>, info: &SessionInfo) -> Result<(), LoginStatus> {
    let Some(instance) = target.and_then(|target| target.instance.as_ref()) else { return Ok(()) };
    let instance_session = InstanceSession::enter(instance)?;
    // The session is not known to others yet.
    let _ = info.instance_session.set(instance_session);
    Ok(())
}

/// Logs the begin of a session.
pub fn log_begin(shared: &ServerState, info: &SessionInfo, guard: &SessionGuard) {
    let SessionInfo { initiator, address, .. } = info;
    let (tsih, user) = (guard.tsih, info.user.as_deref());
    let Some(target) = &info.target else {
        return tracing::debug!(%initiator, %address, user, tsih, "discovery");
    };
    if let Some(left_out) = shared.began.may_of(address.ip(), Instant::now()) {
        tracing::info!(%initiator, %address, %target, user, tsih, left_out, "logged in");
    }
}

/// Logs the end of a session: with its reason, or else the error of its connection, or else that the initiator closed
/// it.
pub fn log_end(
    shared: &ServerState,
    info: &SessionInfo,
    tsih: u16,
    end: Option<EndReason>,
    broken: Option<String>,
) {
    let closed = || EndReason::ConnectionClosed.to_string();
    let reason = end.map(|reason| reason.to_string()).or(broken).unwrap_or_else(closed);
    let SessionInfo { initiator, address, .. } = info;
    let Some(target) = &info.target else {
        return tracing::debug!(%initiator, %address, tsih, reason, "discovery ended");
    };
    if let Some(left_out) = shared.ended.may_of(address.ip(), Instant::now()) {
        tracing::info!(%initiator, %address, %target, tsih, reason, left_out, "session ended");
    }
}
