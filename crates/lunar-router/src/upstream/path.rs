//! One path of one core to an upstream logical unit. It is opened as soon as possible. Its session recovers by
//! itself.

use super::context::LuContext;
use super::path_progress::{FIRST_PAUSE, PathProgress, event_or_recheck, longer};
use super::routed_path::RoutedPath;
use crate::identity_change;
use crate::isids::{self, IsidLease, RouterIsids};
use lunar_block::{Backend, BackendInfo, LocalBoxFuture};
use lunar_initiator::multipath::{LatePath, PathOpener, PathState};
use lunar_initiator::reinstatement::{self, OldInitiatorPort};
use lunar_initiator::{Error, ErrorCode, Event, LateWrites, Lun, Options, Session, Url};
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::lun::encode;
use std::sync::{Arc, OnceLock, Weak};

/// The capacity of the event channel.
const EVENTS: usize = 64;

/// A path.
pub struct UpstreamPath {
    context: Arc<LuContext>,
    url: Url,
    lun: OnceLock<Arc<Lun>>,
    /// The lease of its ISID, if ISIDs are recorded.
    isid: OnceLock<IsidLease>,
    /// The recorded user of its sessions.
    user: OnceLock<Option<String>>,
    progress: PathProgress,
}

/// The names of the logical unit and of the path in the record.
struct RecordNames {
    unit: String,
    path: String,
    user: Option<String>,
}

impl RecordNames {
    fn key(&self) -> isids::PathKey<'_> {
        isids::PathKey { unit: &self.unit, path: &self.path, user: self.user.as_deref() }
    }
}

impl UpstreamPath {
    /// Starts to open a path. Call it inside an event loop.
    pub fn begin(context: Arc<LuContext>, url: Url) -> Arc<LatePath<UpstreamPath>> {
        let path = LatePath::new(UpstreamPath {
            context,
            url,
            lun: OnceLock::new(),
            isid: OnceLock::new(),
            user: OnceLock::new(),
            progress: PathProgress::new("LUN", EVENTS),
        });
        lunar_runtime::spawn(keep(Arc::downgrade(&path)));
        path
    }

    /// The URL, without secrets.
    pub fn location(&self) -> String {
        let context = &self.context;
        let target = self.url.target.as_deref().unwrap_or(&context.target);
        self.url.at(target, Some(self.number())).plain()
    }

    async fn open(&self) -> Result<(Arc<Lun>, flume::Receiver<Event>), Error> {
        let options = self.url.options()?;
        let mut last = Error::new(ErrorCode::NotFound, "the discovery returned no portal of the target");
        for url in self.found(&options).await? {
            match self.open_at(&url, options.clone()).await {
                Err(e) if e.is_away() => last = e,
                end => return end,
            }
        }
        Err(last)
    }

    /// Opens the path through one portal of its target.
    async fn open_at(
        &self,
        url: &Url,
        options: Options,
    ) -> Result<(Arc<Lun>, flume::Receiver<Event>), Error> {
        let target = url.target.as_deref().unwrap_or(&self.context.target);
        self.user.get_or_init(|| isids::user(&options));
        let is_recorded = options.isid.is_none();
        let owes =
            is_recorded && self.settle(&url.at(target, None), &options).await.map_err(|e| url.explain(e))?;
        let isids = self.context.isids.as_ref().filter(|_| is_recorded);
        let session = match isids {
            Some(isids) => self.log_in(isids, url, target, options).await,
            None => Session::open(url.portal.clone(), target, options).await,
        };
        let session = session.map_err(|e| url.explain(e))?;
        let events = session.events();
        // In a failover pair, an unregistered session carries no data, and may not even read the capacity.
        let Some(gate) = &self.context.gate else {
            return Ok((self.clean(&session, owes).await?, events));
        };
        let lun = encode(self.number());
        gate.admit(&session, lun).await?;
        match self.clean(&session, owes).await {
            Ok(lun) => Ok((lun, events)),
            Err(e) => {
                gate.dismiss(&session, lun).await;
                Err(e)
            }
        }
    }

    fn number(&self) -> u16 {
        self.url.lun.unwrap_or(self.context.lun)
    }

    /// Opens a session that is recorded before it sends anything.
    async fn log_in(
        &self,
        isids: &Arc<RouterIsids>,
        url: &Url,
        target: &str,
        mut options: Options,
    ) -> Result<Session, Error> {
        let names = self.names();
        let key = names.key();
        let isid = match self.isid.get() {
            Some(lease) => lease.isid(),
            None => {
                let lease = isids.isid(key, &options.initiator).await;
                self.isid.get_or_init(|| lease).isid()
            }
        };
        let nexus = isids.nexus(isid);
        options.isid = Some(isid);
        options.hooks = Some(nexus.clone());
        let session = Session::open(url.portal.clone(), target, options).await;
        match &session {
            Ok(session) => {
                nexus.is(session);
                isids.record_login(key, isid, session).await;
            }
            Err(_) => isids.record_failed_login(key, isid).await,
        }
        session
    }

    /// The names in the record.
    fn names(&self) -> RecordNames {
        let LuContext { router, upstream, target, lun, .. } = &*self.context;
        let unit = format!("{router}/{upstream} {target} {lun} ");
        let path = format!("{unit}{}", self.location());
        RecordNames { unit, path, user: self.user.get().cloned().flatten() }
    }

    /// Ends sessions that an earlier router process left behind. Returns true if the logical unit must be reset over
    /// this path.
    async fn settle(&self, url: &Url, options: &Options) -> Result<bool, Error> {
        let Some(isids) = &self.context.isids else { return Ok(false) };
        let names = self.names();
        let key = names.key();
        if options.late_writes == LateWrites::Risk {
            return isids.forget(key).await.map(|()| false);
        }
        let log_in = async |old: &isids::OldSession| {
            let port = OldInitiatorPort { initiator: old.initiator.as_deref(), isid: old.isid };
            reinstatement::replace(url, port).await
        };
        isids.settle(key, options.timeouts.fast_io_fail, log_in).await
    }

    /// Opens the logical unit in this session, once no commands of old sessions are left.
    async fn clean(&self, session: &Session, owes: bool) -> Result<Arc<Lun>, Error> {
        let lun = self.recognised(session).await?;
        if owes {
            self.reset(&lun).await?;
        }
        Ok(lun)
    }

    /// Resets the logical unit, because old sessions with it could not be replaced.
    async fn reset(&self, lun: &Lun) -> Result<(), Error> {
        let Some(isids) = &self.context.isids else { return Ok(()) };
        let names = self.names();
        let Some(guard) = isids.acquire_reset(names.key()).await else { return Ok(()) };
        let why = "an earlier process of this router may have left writes at another portal group";
        if reinstatement::reset(lun.session(), lun.address(), why).await.is_some() {
            guard.record_reset().await;
            return Ok(());
        }
        guard.record_failure();
        let what =
            "the storage rejected LOGICAL UNIT RESET, and may execute writes of an earlier router process";
        let hint = "restore the other paths, or set late_writes = \"risk\" at the upstream";
        Err(Error::new(ErrorCode::ConnectionLost, what).with_hint(hint))
    }

    async fn recognised(&self, session: &Session) -> Result<Arc<Lun>, Error> {
        let lun = Lun::open(session, self.number()).await?;
        self.context.recognise(&lun.properties().into())?;
        Ok(lun)
    }

    /// The URLs of the target, one for each of its portals, from a discovery.
    async fn found(&self, options: &Options) -> Result<Vec<Url>, Error> {
        if self.url.target.is_some() {
            return Ok(vec![self.url.clone()]);
        }
        let found = lunar_initiator::discover(self.url.portal.clone(), options).await?;
        let target = &self.context.target;
        let here = found.into_iter().find(|f| f.name == *target);
        let missing = || {
            Error::new(
                ErrorCode::NotFound,
                format!("portal {} does not report the target {target}", self.url.portal),
            )
        };
        Ok(lunar_initiator::portal_urls(&self.url, here.ok_or_else(missing)?))
    }

    fn take(&self, lun: Arc<Lun>) {
        // No other task opens it.
        self.progress.succeed(|| _ = self.lun.set(lun));
    }

    fn heed(&self, event: Event) {
        let own = self.lun.get().map(|lun| lun.address());
        match &event {
            Event::Changed { lun, identity } if Some(*lun) == own => {
                self.context.log_change(&self.location(), &identity_change::name(identity));
            }
            Event::UnitAttention { sense, .. } if is_about_luns(sense) => {
                _ = self.context.rediscover.notify(usize::MAX)
            }
            Event::UnitAttention { lun, sense } if Some(*lun) == own && is_reset(sense) => {
                self.context.record_reset()
            }
            _ => {}
        }
        self.progress.stir(event);
    }

    /// Checks the identity of the logical unit. The session reports a change as an event.
    async fn recheck(&self) {
        if let Some(lun) = self.lun.get()
            && let Err(e) = lun.reload().await
        {
            tracing::debug!(path = self.location(), "cannot check the identity of the LUN: {e}");
        }
        self.progress.stir(Event::Connected);
    }
}

pub fn is_about_luns(sense: &Sense) -> bool {
    (sense.asc, sense.ascq) == (Sense::LUNS_CHANGED.asc, Sense::LUNS_CHANGED.ascq)
}

/// Whether unflushed data may be lost.
fn is_reset(sense: &Sense) -> bool {
    sense.asc == Sense::POWER_ON.asc
}

/// Opens a path, however long it takes, and handles its events from then on.
async fn keep(path: Weak<LatePath<UpstreamPath>>) {
    let mut pause = FIRST_PAUSE;
    let events = loop {
        let Some(open) = path.upgrade() else { return };
        match open.open().await {
            Ok((lun, events)) => {
                open.take(lun);
                // A new nexus gets the unit attention of the last reset, which is not news.
                let is_last_reset =
                    |event: &Event| matches!(event, Event::UnitAttention { sense, .. } if is_reset(sense));
                events.try_iter().filter(|event| !is_last_reset(event)).for_each(|event| open.heed(event));
                break events;
            }
            Err(e) => open.progress.fail(&open.context, &open.location(), e),
        }
        drop(open);
        compio::time::sleep(pause).await;
        pause = longer(pause);
    };
    loop {
        let Some(recheck) = path.upgrade().map(|path| path.context.recheck.listen()) else { return };
        let event = event_or_recheck(recheck, &events).await;
        let Some(path) = path.upgrade() else { return };
        match event {
            Ok(Some(event)) => path.heed(event),
            Ok(None) => path.recheck().await,
            Err(_) => return,
        }
    }
}

impl RoutedPath for LatePath<UpstreamPath> {
    fn obstacle(&self) -> Option<Error> {
        self.progress.obstacle()
    }

    fn learned(&self) -> Option<BackendInfo> {
        let lun = self.opened()?;
        // Each of the two calls clears its own flag, so both are needed.
        let is_news = self.progress.take_new() | lun.refresh();
        is_news.then(|| lun.info())
    }

    fn recoveries(&self) -> u32 {
        self.opened().map_or(0, |lun| lun.session().info().recoveries)
    }

    fn opened_lun(&self) -> Option<Arc<Lun>> {
        self.opened().cloned()
    }
}

impl PathOpener for UpstreamPath {
    type Path = Lun;

    fn opened(&self) -> Option<&Arc<Lun>> {
        self.lun.get()
    }

    fn name(&self) -> String {
        self.location()
    }

    fn identity(&self) -> Vec<u8> {
        self.context.found.designators.clone()
    }

    fn info(&self) -> BackendInfo {
        self.context.info()
    }

    fn check_closed(&self) -> LocalBoxFuture<'_, PathState> {
        Box::pin(async { self.progress.closed_state() })
    }

    fn closed(&self) -> Error {
        self.progress.closed()
    }

    fn events(&self) -> flume::Receiver<Event> {
        self.progress.events()
    }
}
