//! Sessions that an earlier process of this router left at the storage. They are ended before a logical unit accepts
//! commands that may change it. A host may already be back with the same ISID, but at another portal group, which is
//! another nexus.

use super::PassthroughInner;
use super::nexus::UpstreamNexus;
use crate::isids::{self, OldSession, PathKey, Reinstatement, RouterIsids};
use lunar_initiator::reinstatement::{self, OldInitiatorPort};
use lunar_initiator::{Error, ErrorCode, LateWrites, Session, Url};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The interval of attempts.
const PAUSE: Duration = Duration::from_millis(500);

/// The stale sessions with a logical unit.
pub struct StaleSessions {
    shared: Arc<PassthroughInner>,
    nexus: Rc<UpstreamNexus>,
    lun: u64,
    /// Whether no stale session is left.
    is_over: Cell<bool>,
    /// The number of the connection whose target port is recorded.
    recorded: Cell<u64>,
    is_being_ended: Cell<bool>,
    /// The time since which commands wait, or of the last failed reset.
    started_at: Cell<Option<Instant>>,
    /// Whether a reset has failed.
    has_failed: Cell<bool>,
}

impl StaleSessions {
    pub fn new(shared: Arc<PassthroughInner>, nexus: Rc<UpstreamNexus>, lun: u64) -> Rc<StaleSessions> {
        let (is_over, is_being_ended) = (Cell::new(false), Cell::new(false));
        let (recorded, started_at, has_failed) = (Cell::new(0), Cell::new(None), Cell::new(false));
        Rc::new(StaleSessions {
            shared,
            nexus,
            lun,
            is_over,
            recorded,
            is_being_ended,
            started_at,
            has_failed,
        })
    }

    /// The time for which commands wait.
    pub fn path_loss_timeout(&self) -> Duration {
        self.shared.spec.path_loss_timeout
    }

    /// Whether no stale session is left and this connection may carry commands.
    pub fn is_over(&self) -> bool {
        self.is_over.get() && self.recorded.get() == self.nexus.connection()
    }

    /// Starts to end stale sessions over this session, unless that is in progress. Notifies the nexus afterwards.
    pub fn end(self: &Rc<Self>, session: &Session) {
        if self.is_being_ended.replace(true) {
            return;
        }
        let (stale, session) = (self.clone(), session.clone());
        lunar_runtime::spawn(async move {
            if let Err(e) = stale.try_to_end(&session).await {
                tracing::info!("commands of hosts wait: {e}");
                compio::time::sleep(PAUSE).await;
            }
            stale.is_being_ended.set(false);
            stale.nexus.ring();
        });
    }

    async fn try_to_end(&self, session: &Session) -> Result<(), Error> {
        let connection = self.nexus.connection();
        if let Some(isids) = &self.shared.spec.isids {
            let (unit, path) = self.record_names(self.nexus.path());
            let user = isids::user(session.options());
            let key = PathKey { unit: &unit, path: &path, user: user.as_deref() };
            if !self.is_over.get() {
                self.end_stale(isids, key, session).await?;
            }
            isids.uses(key, session).await;
        }
        self.is_over.set(true);
        self.recorded.set(connection);
        Ok(())
    }

    /// The names of the logical unit and of a path in the record.
    fn record_names(&self, path: usize) -> (String, String) {
        let spec = &self.shared.spec;
        let (url, _) = &spec.paths[path];
        let target = url.target.as_deref().unwrap_or_default();
        let unit = format!("{}/{} pass {target} {} ", spec.router, spec.upstream, spec.lun);
        let path = format!("{unit}{}", spec.location(url));
        (unit, path)
    }

    async fn end_stale(
        &self,
        isids: &Arc<RouterIsids>,
        key: PathKey<'_>,
        session: &Session,
    ) -> Result<(), Error> {
        let options = session.options();
        if options.late_writes == LateWrites::Risk {
            return isids.forget(key).await;
        }
        if isids.old(key.unit).await?.is_empty() {
            return Ok(());
        }
        let started_at = self.started_at.get().unwrap_or_else(Instant::now);
        self.started_at.set(Some(started_at));
        // One caller at a time: all host nexuses have the same stale sessions.
        let Some(guard) = isids.acquire_reset(key).await else { return Ok(()) };
        let Err(StaleReason { what, is_final }) = self.replace(isids, key, session).await else {
            return Ok(());
        };
        let is_over = started_at.elapsed() >= options.timeouts.fast_io_fail;
        if !is_over && (!is_final || self.has_failed.get()) {
            return Err(what);
        }
        let why = "an earlier process of this router may have left writes at another portal group";
        if reinstatement::reset(session, self.lun, why).await.is_some() {
            guard.record_reset().await;
            return Ok(());
        }
        self.started_at.set(Some(Instant::now()));
        self.has_failed.set(true);
        Err(what)
    }

    /// Ends old sessions, each at its own target port.
    async fn replace(
        &self,
        isids: &Arc<RouterIsids>,
        key: PathKey<'_>,
        session: &Session,
    ) -> Result<(), StaleReason> {
        let (info, own) = (session.info(), session.options().initiator.as_str());
        let port = info.target_port();
        let mut leads = BTreeMap::new();
        for old in isids.old(key.unit).await? {
            let is_own = old.isid == info.isid && old.initiator.as_deref() == Some(own);
            match isids.meets(&old) {
                _ if is_own && old.is_ended_at(key, port.as_deref()) => {}
                Reinstatement::Successor => {}
                Reinstatement::Login => {
                    return Err(Error::new(
                        ErrorCode::ConnectionLost,
                        "another session of this router is logging in with the same ISID",
                    )
                    .into());
                }
                Reinstatement::Nobody => self.replace_at(&old, &mut leads).await?,
            }
            isids.record_replaced(&old);
        }
        Ok(())
    }

    /// Logs in as an old session at its target port. At the port of a live session with this ISID, the login would
    /// end that session. Therefore a login with an unused ISID first determines the port of the path.
    async fn replace_at(
        &self,
        old: &OldSession,
        leads: &mut BTreeMap<usize, Option<String>>,
    ) -> Result<(), StaleReason> {
        let (Some((number, url)), Some(_)) = (self.path_of(old), old.port()) else {
            return Err(StaleReason::at(old));
        };
        let log_in = async |isid| {
            let port = OldInitiatorPort { initiator: old.initiator.as_deref(), isid };
            reinstatement::replace(url, port).await
        };
        let is_asked = leads.contains_key(&number);
        let now = if is_asked { None } else { Some(log_in(lunar_initiator::new_isid()).await?) };
        let leads = leads.entry(number).or_insert_with(|| now.flatten());
        if leads.as_deref() != old.port() || log_in(old.isid).await?.as_deref() != old.port() {
            return Err(StaleReason::at(old));
        }
        Ok(())
    }

    /// The path of an old session, if it is still configured with the same user.
    fn path_of(&self, old: &OldSession) -> Option<(usize, &Url)> {
        let paths = &self.shared.spec.paths;
        let number = (0..paths.len()).find(|number| self.record_names(*number).1 == old.path)?;
        let (url, options) = &paths[number];
        old.is_of(isids::user(options).as_deref()).then_some((number, url))
    }
}

/// The reason why old sessions may still have writes.
struct StaleReason {
    what: Error,
    /// Whether no login can end them, so that the logical unit must be reset.
    is_final: bool,
}

impl StaleReason {
    fn at(old: &OldSession) -> StaleReason {
        let location = old.path.rsplit(' ').next().unwrap_or_default();
        let what = Error::new(
            ErrorCode::ConnectionLost,
            format!(
                "the storage at {location} may still execute writes of an earlier process of this router"
            ),
        );
        StaleReason { what, is_final: true }
    }
}

impl From<Error> for StaleReason {
    fn from(what: Error) -> StaleReason {
        StaleReason { what, is_final: false }
    }
}
