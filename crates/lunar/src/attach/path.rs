//! A path of an attachment. It may be unreachable at first, and is opened later.

use super::attachment_record::PathRecord;
use lunar_block::{Backend, BackendInfo, LocalBoxFuture};
use lunar_initiator::multipath::{ExpectedUnit, LatePath, LunPath as _, PathOpener, PathState};
use lunar_initiator::{Error, ErrorCode, Event, Lun, SessionHooks, Url, with_retry};
use lunar_server::attached::AttachedPath;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// A path to a logical unit.
pub struct LunPath {
    url: Url,
    /// Records the session of the path.
    record: Option<PathRecord>,
    /// Attempts to open the path at the start.
    tries: u32,
    lun: OnceLock<Arc<Lun>>,
    expected: ExpectedUnit,
    was_tried: AtomicBool,
    /// An empty channel: a closed path has no events.
    no_events: (flume::Sender<Event>, flume::Receiver<Event>),
}

impl LunPath {
    /// A closed path.
    pub fn new(mut url: Url, record: Option<PathRecord>) -> Arc<LatePath<LunPath>> {
        let tries = std::mem::replace(&mut url.timeouts_mut().login_tries, 1);
        let (lun, expected) = (OnceLock::new(), ExpectedUnit::default());
        LatePath::new(LunPath {
            url,
            record,
            tries,
            lun,
            expected,
            was_tried: false.into(),
            no_events: flume::bounded(1),
        })
    }

    /// Opens the path, inside an event loop.
    ///
    /// # Errors
    /// As [`lunar_initiator::open`]; [`ErrorCode::IdentityMismatch`] if the path leads to another logical unit.
    pub async fn open(&self) -> Result<(), Error> {
        let mut options = self.url.options()?;
        let recorder = self.record.as_ref().map(|record| record.recorder(&options));
        options.hooks = recorder.clone().map(|recorder| recorder as Arc<dyn SessionHooks>);
        let lun = lunar_initiator::open_with(&self.url, &options).await?;
        // Only the identity must match: the capacity may have changed.
        if !self.expected.allows(&lun.identity()) {
            return Err(Error::new(
                ErrorCode::IdentityMismatch,
                format!("{} leads to another logical unit than the attached disk", self.url),
            ));
        }
        if let Some(recorder) = recorder {
            recorder.begin(lun.session()).await?;
        }
        // Cannot fail: one task at a time opens a path.
        _ = self.lun.set(lun);
        Ok(())
    }

    /// Opens the path, with as many attempts as the URL says while the target cannot be reached. `missing` receives each
    /// error.
    ///
    /// # Errors
    /// As [`LunPath::open`].
    pub async fn open_with_retry(&self, missing: impl Fn(&Error)) -> Result<(), Error> {
        with_retry(self.tries, missing, async || self.open().await).await
    }

    /// URL of the path.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Sets identity and properties that the logical unit must have when the path is opened later.
    pub fn set_expected(&self, identity: Vec<u8>, info: BackendInfo) {
        self.expected.set(identity, info);
    }

    /// The state of the path for `lunar attach list`; `state` comes from multipath.
    pub fn state(&self, state: Option<PathState>) -> AttachedPath {
        let Some(lun) = self.opened() else {
            return AttachedPath {
                url: self.name(),
                state: "missing".into(),
                connected: false,
                recoveries: 0,
            };
        };
        let info = lun.session().info();
        let alone = if info.connected { "connected" } else { "lost" };
        let state = state.map_or(alone.to_owned(), |state| state.to_string());
        AttachedPath { url: self.name(), state, connected: info.connected, recoveries: info.recoveries }
    }

    async fn try_again(&self) -> PathState {
        // The start has just tried this path: the first check would only repeat that.
        if !self.was_tried.swap(true, Ordering::Relaxed) {
            return PathState::Down;
        }
        match self.open().await {
            Ok(()) => PathState::Optimized,
            Err(e) if e.code == ErrorCode::IdentityMismatch => {
                tracing::error!("{e}");
                PathState::Changed
            }
            Err(e) => {
                tracing::debug!("{} is still missing: {e}", self.url);
                PathState::Down
            }
        }
    }
}

impl PathOpener for LunPath {
    type Path = Lun;

    fn opened(&self) -> Option<&Arc<Lun>> {
        self.lun.get()
    }

    fn name(&self) -> String {
        self.opened().map_or_else(|| self.url.to_string(), |lun| lun.name())
    }

    fn identity(&self) -> Vec<u8> {
        self.opened().map_or_else(|| self.expected.identity(), |lun| lun.identity())
    }

    fn info(&self) -> BackendInfo {
        self.opened().map_or_else(|| self.expected.info(), |lun| lun.info())
    }

    fn refresh(&self) -> bool {
        self.opened().is_some_and(|lun| lun.refresh())
    }

    fn check_closed(&self) -> LocalBoxFuture<'_, PathState> {
        Box::pin(async move {
            match (self.try_again().await, self.opened()) {
                (PathState::Optimized, Some(lun)) => lun.check().await,
                (PathState::Optimized, None) => PathState::Down,
                (state, _) => state,
            }
        })
    }

    fn closed(&self) -> Error {
        Error::new(ErrorCode::Unreachable, "the session of this path is not open")
    }

    fn events(&self) -> flume::Receiver<Event> {
        self.opened().map_or_else(|| self.no_events.1.clone(), |lun| lun.events())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use interop::script::Script;
    use lunar_runtime::Cores;

    #[test]
    fn late_path_reaches_the_same_lun_after_growth() {
        let target = Script::new().listen();
        let url = Url::parse(&target.url("")).expect("a URL");
        let open = move || async move {
            let first = LunPath::new(url.clone(), None);
            first.open().await.expect("the target is reachable");
            let lun = first.opened().expect("the path is open");
            let smaller = BackendInfo { capacity: lun.info().capacity / 2, ..lun.info() };
            let (same, other) = (LunPath::new(url.clone(), None), LunPath::new(url, None));
            same.set_expected(lun.identity(), smaller);
            other.set_expected(vec![1, 2, 3], lun.info());
            (same.open().await, other.open().await)
        };
        let (same, other) = Cores::one().expect("an event loop").wait(0, open).expect("an event loop");
        assert_eq!((same, other.map_err(|e| e.code)), (Ok(()), Err(ErrorCode::IdentityMismatch)));
    }
}
