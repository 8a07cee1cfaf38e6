//! A path of an attachment. It may be unreachable at first, and is opened later.

use super::attachment_record::PathRecord;
use lunar_block::range_lock::RangeLocks;
use lunar_block::{Backend, BackendInfo, BufResult, Extent, LocalBoxFuture};
use lunar_initiator::multipath::{self, LunPath as _, State};
use lunar_initiator::{Error, ErrorCode, Event, Lun, SessionHooks, Url};
use lunar_runtime::Buf;
use lunar_server::attached::PathState;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Pause after the first attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Limit of the pause, which doubles with each attempt.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// A path to a logical unit.
pub struct LunPath {
    url: Url,
    /// Records the session of the path.
    record: Option<PathRecord>,
    /// Attempts to open the path at the start.
    tries: u32,
    lun: OnceLock<Arc<Lun>>,
    /// Identity and properties of the logical unit, from another path; used while this path is closed.
    expected: OnceLock<(Vec<u8>, BackendInfo)>,
    was_tried: AtomicBool,
    /// An empty channel: a closed path has no events.
    no_events: (flume::Sender<Event>, flume::Receiver<Event>),
}

impl LunPath {
    /// A closed path.
    pub fn new(mut url: Url, record: Option<PathRecord>) -> Arc<LunPath> {
        let tries = std::mem::replace(&mut url.timeouts_mut().login_tries, 1);
        let (lun, expected) = (OnceLock::new(), OnceLock::new());
        Arc::new(LunPath {
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
        if let Some((identity, _)) = self.expected.get()
            && lun.identity() != *identity
        {
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
        let mut pause = FIRST_PAUSE;
        for _ in 1..self.tries.max(1) {
            match self.open().await {
                Err(e)
                    if matches!(
                        e.code,
                        ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::ConnectionLost
                    ) =>
                {
                    tracing::warn!("{e}; trying again");
                    missing(&e);
                    compio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                end => return end,
            }
        }
        self.open().await
    }

    /// URL of the path.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Sets identity and properties that the logical unit must have when the path is opened later.
    pub fn set_expected(&self, identity: Vec<u8>, facts: BackendInfo) {
        _ = self.expected.set((identity, facts));
    }

    /// The logical unit, if the path is open.
    pub fn lun(&self) -> Option<&Arc<Lun>> {
        self.lun.get()
    }

    /// The state of the path for `lunar attached`; `state` comes from multipath.
    pub fn state(&self, state: Option<State>) -> PathState {
        let Some(lun) = self.lun() else {
            return PathState { url: self.name(), state: "missing".into(), connected: false, recoveries: 0 };
        };
        let facts = lun.session().facts();
        let alone = if facts.connected { "connected" } else { "lost" };
        let state = state.map_or(alone.to_owned(), |state| state.to_string());
        PathState { url: self.name(), state, connected: facts.connected, recoveries: facts.recoveries }
    }

    async fn try_again(&self) -> State {
        // The start has just tried this path: the first check would only repeat that.
        if !self.was_tried.swap(true, Ordering::Relaxed) {
            return State::Down;
        }
        match self.open().await {
            Ok(()) => State::Optimized,
            Err(e) if e.code == ErrorCode::IdentityMismatch => {
                tracing::error!("{e}");
                State::Changed
            }
            Err(e) => {
                tracing::debug!("{} is still missing: {e}", self.url);
                State::Down
            }
        }
    }
}

impl multipath::LunPath for LunPath {
    fn name(&self) -> String {
        self.lun().map_or_else(|| self.url.to_string(), |lun| lun.name())
    }

    fn identity(&self) -> Vec<u8> {
        match (self.lun(), self.expected.get()) {
            (Some(lun), _) => lun.identity(),
            (None, Some((identity, _))) => identity.clone(),
            (None, None) => Vec::new(),
        }
    }

    fn share(&self, ranges: &Arc<RangeLocks>) {
        if let Some(lun) = self.lun() {
            multipath::LunPath::share(&**lun, ranges);
        }
    }

    fn lun(&self) -> Option<&Lun> {
        self.lun.get().map(|lun| &**lun)
    }

    fn compare_and_write(&self, offset: u64, data: Buf) -> LocalBoxFuture<'_, (Result<bool, Error>, Buf)> {
        match self.lun() {
            Some(lun) => multipath::LunPath::compare_and_write(&**lun, offset, data),
            None => Box::pin(async { (Err(is_missing()), data) }),
        }
    }

    fn check(&self) -> LocalBoxFuture<'_, State> {
        Box::pin(async move {
            if self.lun().is_none() {
                let state = self.try_again().await;
                if state != State::Optimized {
                    return state;
                }
            }
            match self.lun() {
                Some(lun) => lun.check().await,
                None => State::Down,
            }
        })
    }

    fn reset_abandoned(&self) -> LocalBoxFuture<'_, ()> {
        match self.lun() {
            Some(lun) => lun.reset_abandoned(),
            None => Box::pin(async {}),
        }
    }

    fn take_deferred_error(&self) -> Option<Error> {
        self.lun().and_then(|lun| lun.take_deferred_error())
    }

    fn news(&self) -> flume::Receiver<Event> {
        self.lun().map_or_else(|| self.no_events.1.clone(), |lun| lun.news())
    }
}

/// The error of I/O on a closed path. Multipath sends I/O to open paths only.
fn missing() -> io::Error {
    is_missing().into()
}

fn is_missing() -> Error {
    Error::new(ErrorCode::Unreachable, "the path is not open")
}

/// Forwards an operation to the logical unit; an error if the path is closed.
macro_rules! pass {
    ($self:ident, $lun:ident => $operation:expr) => {
        match $self.lun() {
            Some($lun) => $operation,
            None => Box::pin(async { Err(missing()) }),
        }
    };
}

impl Backend for LunPath {
    fn facts(&self) -> BackendInfo {
        let nothing =
            BackendInfo { capacity: 0, read_only: true, unmap: false, null: false, write_through: false };
        let expected = || self.expected.get().map_or(nothing, |(_, facts)| *facts);
        self.lun().map_or_else(expected, |lun| lun.facts())
    }

    fn refresh(&self) -> bool {
        self.lun().is_some_and(|lun| lun.refresh())
    }

    fn read(&self, offset: u64, buf: Buf) -> LocalBoxFuture<'_, BufResult> {
        match self.lun() {
            Some(lun) => lun.read(offset, buf),
            None => Box::pin(async { (Err(missing()), buf) }),
        }
    }

    fn write(&self, offset: u64, buf: Buf, fua: bool) -> LocalBoxFuture<'_, BufResult> {
        match self.lun() {
            Some(lun) => lun.write(offset, buf, fua),
            None => Box::pin(async { (Err(missing()), buf) }),
        }
    }

    fn flush(&self) -> LocalBoxFuture<'_, io::Result<()>> {
        pass!(self, lun => lun.flush())
    }

    fn unmap(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<()>> {
        pass!(self, lun => lun.unmap(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64, unmap: bool) -> LocalBoxFuture<'_, io::Result<()>> {
        pass!(self, lun => lun.write_zeroes(offset, len, unmap))
    }

    fn extent(&self, offset: u64, len: u64) -> LocalBoxFuture<'_, io::Result<Extent>> {
        pass!(self, lun => lun.extent(offset, len))
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> LocalBoxFuture<'_, io::Result<Vec<Extent>>> {
        pass!(self, lun => lun.extents(offset, len, most))
    }

    fn describe(&self) -> Vec<(String, String)> {
        self.lun().map(|lun| lun.describe()).unwrap_or_default()
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
            let lun = first.lun().expect("the path is open");
            let smaller = BackendInfo { capacity: lun.facts().capacity / 2, ..lun.facts() };
            let (same, other) = (LunPath::new(url.clone(), None), LunPath::new(url, None));
            same.set_expected(lun.identity(), smaller);
            other.set_expected(vec![1, 2, 3], lun.facts());
            (same.open().await, other.open().await)
        };
        let (same, other) = Cores::one().expect("an event loop").wait(0, open).expect("an event loop");
        assert_eq!((same, other.map_err(|e| e.code)), (Ok(()), Err(ErrorCode::IdentityMismatch)));
    }
}
