//! The entry of sessions: a place among the others once a login has succeeded, and what is logged.

use crate::Visit;
use crate::registry::{CLOSED, Key, Letter, Request, Seat};
use crate::session::Info;
use crate::setup::{Setup, Target};
use crate::shared::{Counted, Shared, luns_now};
use lunar_wire::iscsi::status::LoginStatus;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// Between whom a connection is.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// Our address.
    pub local: SocketAddr,
    /// The initiator's.
    pub peer: SocketAddr,
}

/// A session that has its place among the others.
pub struct Entered {
    /// What is known of it.
    pub info: Arc<Info>,
    /// Its place.
    pub seat: Seat,
    /// Commands that may be in flight.
    pub depth: u32,
    /// Its messages.
    pub letters: flume::Receiver<Letter>,
    /// Its place in the counts.
    pub count: Counted,
}

impl Entered {
    /// Takes a place under this key; one of the same key is given up by whoever has it.
    ///
    /// # Errors
    /// The status with which the login is refused.
    pub async fn enter(
        shared: &Arc<Shared>,
        setup: &Arc<Setup>,
        info: Arc<Info>,
        key: Key,
        tsih: u16,
        mut count: Counted,
    ) -> Result<Entered, LoginStatus> {
        let (mailbox, letters) = flume::unbounded();
        let request = Request { key, tsih, cid: info.cid, mailbox, info: info.clone() };
        let target = info.target.as_ref().and_then(|name| setup.targets.get(name));
        let seat = shared.registry.enter(&request, &setup.limits).await?;
        // A stop says goodbye to those who were in before it, and flushes behind them.
        if shared.stopping.load(SeqCst) {
            return Err(LoginStatus::SERVICE_UNAVAILABLE);
        }
        visit(target, &info)?;
        let most = setup.limits.commands_per_session;
        let depth = target.and_then(|t| t.depth).map_or(most, |depth| depth.clamp(1, most));
        if !count.logged_in() {
            return Err(LoginStatus::OUT_OF_RESOURCES);
        }
        let now = shared.setup();
        if !Arc::ptr_eq(&now, setup) {
            // The configuration was read again meanwhile, when this session was not yet there to hear of it.
            luns_now(&now, &info).into_iter().for_each(|letter| drop(request.mailbox.send(letter)));
        }
        Ok(Entered { info, seat, depth, letters, count })
    }
}

/// Takes a place in the SCSI routing instance of a target, if it has one.
fn visit(target: Option<&Target>, info: &Info) -> Result<(), LoginStatus> {
    let Some(instance) = target.and_then(|target| target.instance.as_ref()) else { return Ok(()) };
    let visit = Visit::enter(instance)?;
    // Nobody else knows of this session yet.
    let _ = info.visit.set(visit);
    Ok(())
}

/// Logs that a session begins.
pub fn log_begin(shared: &Shared, info: &Info, seat: &Seat) {
    let Info { initiator, address, .. } = info;
    let (tsih, user) = (seat.tsih, info.user.as_deref());
    let Some(target) = &info.target else {
        return tracing::debug!(%initiator, %address, user, tsih, "discovery");
    };
    if let Some(left_out) = shared.began.may_of(address.ip(), Instant::now()) {
        tracing::info!(%initiator, %address, %target, user, tsih, left_out, "logged in");
    }
}

/// Logs that a session ends: for the reason `end`, or because its connection broke, or because its initiator closed it.
pub fn log_end(shared: &Shared, info: &Info, tsih: u16, end: Option<&'static str>, broken: Option<String>) {
    let closed = || CLOSED.to_owned();
    let reason = end.map(str::to_owned).or(broken).unwrap_or_else(closed);
    let Info { initiator, address, .. } = info;
    let Some(target) = &info.target else {
        return tracing::debug!(%initiator, %address, tsih, reason, "discovery ended");
    };
    if let Some(left_out) = shared.ended.may_of(address.ip(), Instant::now()) {
        tracing::info!(%initiator, %address, %target, tsih, reason, left_out, "session ended");
    }
}
