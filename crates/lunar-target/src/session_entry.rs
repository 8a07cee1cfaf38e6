//! Registration of a session after a successful login, and its log lines.

use crate::config::{TargetConfig, TargetNode};
use crate::end_reason::EndReason;
use crate::registry::{ChosenSession, RegisterRequest, Replaced, SessionGuard, SessionMessage};
use crate::server_state::{ConnectionGuard, ServerState};
use crate::session_info::SessionInfo;
use crate::session_key::SessionKey;
use crate::{InstanceSession, LoginError};
use lunar_wire::iscsi::status::LoginStatus;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// A registered session.
pub struct RegisteredSession {
    /// The facts about it.
    pub info: Arc<SessionInfo>,
    /// Its entry in the registry.
    pub guard: SessionGuard,
    /// Maximum number of commands in flight.
    pub depth: u32,
    /// Messages from other cores.
    pub messages: flume::Receiver<SessionMessage>,
    /// Its slot among the connections.
    pub count: ConnectionGuard,
}

impl RegisteredSession {
    /// Registers a session with this key, after the end of the sessions that it replaces. A login that fails
    /// leaves those working.
    ///
    /// # Errors
    /// The reason for which the login fails.
    pub async fn register(
        shared: &Arc<ServerState>,
        config: &Arc<TargetConfig>,
        info: Arc<SessionInfo>,
        key: SessionKey,
        replaces: Replaced,
        mut count: ConnectionGuard,
    ) -> Result<RegisteredSession, LoginError> {
        let (sender, messages) = flume::unbounded();
        let request = RegisterRequest { key, replaces, sender, info: info.clone() };
        let target = info.target.as_ref().and_then(|name| config.targets.get(name));
        let may_replace =
            |replaced: &[ChosenSession]| check_replacement(shared, target, replaced, &mut count);
        let guard = shared.registry.register(&request, &config.limits, may_replace).await?;
        // A stop ends the sessions that were registered before, and flushes after them.
        // The same holds when a logical unit is lost, or a router drains.
        let is_refused = |target: &TargetNode| !target.may_serve() || target.is_draining();
        if shared.stopping.load(SeqCst) || target.is_some_and(is_refused) {
            return Err(LoginError::NotServing);
        }
        instance_session(target, &info)?;
        let max = config.limits.commands_per_session;
        let depth = target.and_then(|t| t.depth).map_or(max, |depth| depth.clamp(1, max));
        if !count.logged_in() {
            return Err(LoginError::OutOfResources);
        }
        let now = shared.config();
        if !Arc::ptr_eq(&now, config) {
            // The configuration was replaced before this session could get the message. The caller checks the portal.
            let missed = shared.luns_update(&now, &info).into_iter();
            let missed = missed.chain(shared.end_of_stranded((config, &[]), &now, &info));
            missed.for_each(|message| drop(request.sender.send(message)));
        }
        Ok(RegisteredSession { info, guard, depth, messages, count })
    }
}

/// Refuses a login before sessions end for it. The checks after their end are for changes in the meantime.
fn check_replacement(
    shared: &ServerState,
    target: Option<&TargetNode>,
    replaced: &[ChosenSession],
    count: &mut ConnectionGuard,
) -> Result<(), LoginError> {
    if shared.stopping.load(SeqCst) {
        return Err(LoginError::NotServing);
    }
    if let Some(instance) = target.and_then(|target| target.instance.as_ref()) {
        let is_of = |session: &&InstanceSession| Arc::ptr_eq(session.instance(), instance);
        let places = replaced.iter().filter_map(|(_, _, info)| info.instance_session.get()).filter(is_of);
        instance.admits(places.count())?;
    }
    // From now on no other connection can take the slot of this one.
    if count.logged_in() { Ok(()) } else { Err(LoginError::OutOfResources) }
}

/// Counts the session in the SCSI routing instance of its target, if there is one.
fn instance_session(target: Option<&TargetNode>, info: &SessionInfo) -> Result<(), LoginError> {
    let Some(instance) = target.and_then(|target| target.instance.as_ref()) else { return Ok(()) };
    let instance_session = InstanceSession::enter(instance)?;
    // Other cores do not know the session yet, so this cannot be set already.
    let _ = info.instance_session.set(instance_session);
    Ok(())
}

/// Logs the start of a session.
pub fn log_begin(shared: &ServerState, info: &SessionInfo, guard: &SessionGuard) {
    let SessionInfo { initiator, address, .. } = info;
    let (session_handle, user) = (guard.session_handle, info.user.as_deref());
    if info.is_io_queue() {
        return tracing::debug!(%initiator, %address, tsih = session_handle, "I/O queue connected");
    }
    shared.count_login(info.target.as_deref(), LoginStatus::SUCCESS);
    let Some(target) = &info.target else {
        return tracing::debug!(%initiator, %address, user, tsih = session_handle, "discovery");
    };
    if let Some(left_out) = shared.began.may_of(address.ip(), Instant::now()) {
        tracing::info!(name: "session.login", %initiator, %address, %target, user, tsih = session_handle, left_out, "logged in");
    }
}

/// Logs the end of a session, with its reason. Without a reason, it logs the error of the connection, or that the
/// initiator closed it.
pub fn log_end(
    shared: &ServerState,
    info: &SessionInfo,
    session_handle: u16,
    end: Option<EndReason>,
    broken: Option<String>,
) {
    if let Some(target) = info.target.as_ref().filter(|_| !info.is_discovery() && !info.is_io_queue()) {
        shared.events.ended(target, end, broken.is_some());
    }
    let closed = || EndReason::ConnectionClosed.to_string();
    let reason = end.map(|reason| reason.to_string()).or(broken).unwrap_or_else(closed);
    let SessionInfo { initiator, address, .. } = info;
    if info.is_io_queue() {
        return tracing::debug!(%initiator, %address, tsih = session_handle, reason, "I/O queue ended");
    }
    let Some(target) = &info.target else {
        return tracing::debug!(%initiator, %address, tsih = session_handle, reason, "discovery ended");
    };
    if let Some(left_out) = shared.ended.may_of(address.ip(), Instant::now()) {
        tracing::info!(name: "session.end", %initiator, %address, %target, tsih = session_handle, reason, left_out, "session ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Instance;
    use crate::session_info::{Addresses, IscsiSessionInfo, SessionProtocol, SessionTransport};
    use crate::test_target::{NAME, TestTarget, config, run_test_with};
    use std::net::SocketAddr;
    use std::sync::atomic::Ordering::Relaxed;

    fn info(peer: SocketAddr, cid: u16) -> Arc<SessionInfo> {
        let initiator = "iqn.2026-11.org.example:host".into();
        let protocol = SessionProtocol::Iscsi(IscsiSessionInfo { cid, ..IscsiSessionInfo::default() });
        let (addresses, target) = (Addresses { local: peer, peer }, (Some(NAME.into()), 1));
        Arc::new(SessionInfo::new(initiator, addresses, target, SessionTransport::Tcp, protocol))
    }

    /// A login of the only initiator port with this slot.
    async fn log_in(target: &TestTarget, count: ConnectionGuard) -> Result<RegisteredSession, LoginError> {
        log_in_again(target, count, 0, Replaced::Session(0)).await
    }

    async fn log_in_again(
        target: &TestTarget,
        count: ConnectionGuard,
        cid: u16,
        replaces: Replaced,
    ) -> Result<RegisteredSession, LoginError> {
        let (config, info) = (target.shared.config(), info(peer(1), cid));
        let key = SessionKey::new(&info, info.portal);
        RegisteredSession::register(&target.shared, &config, info, key, replaces, count).await
    }

    fn peer(host: u8) -> SocketAddr {
        ([10, 0, 0, host], 1).into()
    }

    /// Checks that a login is refused with `error` after `change`, and that the session before it goes on.
    fn refused_login_keeps_session(error: LoginError, change: fn(&TestTarget, &Instance)) {
        let instance = Arc::new(Instance::new("r1"));
        let of_target = instance.clone();
        let configure = |config: &mut TargetConfig| {
            config.limits.connections_before_login = 1;
            config.targets.values_mut().for_each(|target| target.instance = Some(of_target.clone()));
        };
        run_test_with(configure, async move |target| {
            let first = log_in(&target, target.count(peer(1))).await.expect("a session");
            let count = target.count(peer(1));
            change(&target, &instance);
            assert_eq!(log_in(&target, count).await.err(), Some(error));
            assert!(first.messages.is_empty(), "nothing ended the session");
            let listed = target.shared.registry.find(first.guard.session_handle).expect("the session");
            assert!(Arc::ptr_eq(&listed, &first.info));
        });
    }

    #[test]
    fn login_with_other_cid_joins_no_session() {
        run_test_with(
            |_| {},
            async |target| {
                let first = log_in(&target, target.count(peer(1))).await.expect("a session");
                let session_handle = first.guard.session_handle;
                for (wanted, error) in [
                    (session_handle, LoginError::TooManyConnections),
                    (session_handle + 1, LoginError::NoSuchSession),
                ] {
                    let joins = log_in_again(&target, target.count(peer(1)), 1, Replaced::Session(wanted));
                    assert_eq!(joins.await.err(), Some(error));
                }
                assert!(first.messages.is_empty(), "nothing ended the session");
            },
        );
    }

    #[test]
    fn login_that_replaces_nothing_adds_session_of_same_key() {
        run_test_with(
            |_| {},
            async |target| {
                let first = log_in(&target, target.count(peer(1))).await.expect("a session");
                let second = log_in_again(&target, target.count(peer(1)), 0, Replaced::Nothing).await;
                let second = second.expect("another session");
                assert_eq!((second.guard.replaced, target.sessions()), (0, 2));
                assert!(first.messages.is_empty(), "nothing ended the session");
            },
        );
    }

    #[test]
    fn login_during_stop_keeps_old_session() {
        let stop = |target: &TestTarget, _: &Instance| target.shared.stopping.store(true, SeqCst);
        refused_login_keeps_session(LoginError::NotServing, stop);
    }

    #[test]
    fn login_to_draining_instance_keeps_old_session() {
        let drain = |_: &TestTarget, instance: &Instance| instance.draining.store(true, Relaxed);
        refused_login_keeps_session(LoginError::NotServing, drain);
    }

    #[test]
    fn login_above_instance_limit_keeps_old_session() {
        let limit = |_: &TestTarget, instance: &Instance| instance.max_sessions.store(0, Relaxed);
        refused_login_keeps_session(LoginError::OutOfResources, limit);
    }

    #[test]
    fn login_above_session_limit_keeps_old_session() {
        refused_login_keeps_session(LoginError::OutOfResources, |target, _| {
            let mut reduced = config();
            reduced.limits.sessions = 0;
            target.shared.set_config(Arc::new(reduced));
        });
    }

    #[test]
    fn login_without_slot_keeps_old_session() {
        // The only slot before login goes to a connection from another address.
        let evict = |target: &TestTarget, _: &Instance| drop(target.count(peer(2)));
        refused_login_keeps_session(LoginError::OutOfResources, evict);
    }

    #[test]
    fn reinstatement_at_the_limits_is_accepted() {
        let instance = Arc::new(Instance::new("r1"));
        instance.max_sessions.store(1, Relaxed);
        let of_target = instance.clone();
        let configure = |config: &mut TargetConfig| {
            config.limits.sessions = 1;
            config.targets.values_mut().for_each(|target| target.instance = Some(of_target.clone()));
        };
        run_test_with(configure, async move |target| {
            let first = log_in(&target, target.count(peer(1))).await.expect("a session");
            lunar_runtime::spawn(async move {
                let ended = first.messages.recv_async().await;
                drop((first, ended));
            });
            let second = log_in(&target, target.count(peer(1))).await.expect("the same session");
            assert_eq!((second.guard.replaced, target.sessions()), (1, 1));
            assert_eq!(instance.logins_active.load(Relaxed), 1);
        });
    }
}
