//! Several paths to one namespace: a controller each.

use super::namespace::NvmeNamespace;
use super::open::open_with;
use super::options::NvmeOptions;
use crate::multipath::{ExpectedUnit, LatePath, LunPath, Multipath, MultipathOptions, PathOpener, PathState};
use crate::url::nvme::NvmeUrl;
use crate::{Error, ErrorCode, Event, time_limit, with_retry};
use lunar_block::{Backend, BackendInfo, LocalBoxFuture};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long the other paths may still open after the first one.
const OTHERS: Duration = Duration::from_secs(1);

/// A path to a namespace. It may be unreachable at first, and is opened later.
pub struct NvmePath {
    url: NvmeUrl,
    options: NvmeOptions,
    /// Attempts to open the path at the start.
    tries: u32,
    namespace: OnceLock<Arc<NvmeNamespace>>,
    expected: ExpectedUnit,
    /// Whether an attempt to open the path runs.
    is_opening: AtomicBool,
    /// An empty channel: a closed path has no events.
    no_events: (flume::Sender<Event>, flume::Receiver<Event>),
}

impl fmt::Debug for NvmePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmePath").field("url", &self.url.plain()).finish_non_exhaustive()
    }
}

/// An attempt to open a path, which ends when this is dropped.
struct OpeningGuard<'a>(&'a AtomicBool);

impl Drop for OpeningGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl NvmePath {
    /// A closed path. A lost connection fails its commands at once, and so does a status of the path: the other paths take
    /// them. `options` name the host.
    pub fn new(url: NvmeUrl, mut options: NvmeOptions) -> Arc<LatePath<NvmePath>> {
        (options.timeouts.recovery, options.timeouts.transition) = (Duration::ZERO, Some(Duration::ZERO));
        let tries = std::mem::replace(&mut options.timeouts.login_tries, 1);
        LatePath::new(NvmePath {
            url,
            options,
            tries,
            namespace: OnceLock::new(),
            expected: ExpectedUnit::default(),
            is_opening: false.into(),
            no_events: flume::bounded(1),
        })
    }

    /// The URL.
    pub fn url(&self) -> &NvmeUrl {
        &self.url
    }

    /// Sets identity and properties that the namespace must have when the path is opened later.
    pub fn set_expected(&self, identity: Vec<u8>, info: BackendInfo) {
        self.expected.set(identity, info);
    }

    /// Makes one attempt to open the path. None: another attempt runs. Call it inside an event loop.
    ///
    /// # Errors
    /// Those of [`open`](super::open()); [`ErrorCode::IdentityMismatch`] when the path leads to another namespace.
    pub async fn open(&self) -> Option<Result<(), Error>> {
        let _guard =
            (!self.is_opening.swap(true, Ordering::Relaxed)).then(|| OpeningGuard(&self.is_opening))?;
        if self.namespace.get().is_some() {
            return Some(Ok(()));
        }
        Some(Box::pin(self.connect()).await)
    }

    async fn connect(&self) -> Result<(), Error> {
        let namespace = open_with(&self.url, self.options.clone()).await?;
        // Only the identity must match: the capacity may have changed.
        if !self.expected.allows(&namespace.identity()) {
            namespace.controller().close().await;
            let what = format!("{} leads to another namespace than the other paths", self.url.plain());
            return Err(Error::new(ErrorCode::IdentityMismatch, what));
        }
        // No other attempt runs.
        _ = self.namespace.set(namespace);
        Ok(())
    }

    async fn try_again(&self) -> PathState {
        match self.open().await {
            None => PathState::Down,
            Some(Ok(())) => PathState::Optimized,
            Some(Err(e)) if e.code == ErrorCode::IdentityMismatch => {
                tracing::error!("{e}");
                PathState::Changed
            }
            Some(Err(e)) => {
                tracing::debug!("the path {} is still missing: {e}", self.url.plain());
                PathState::Down
            }
        }
    }
}

impl PathOpener for NvmePath {
    type Path = NvmeNamespace;

    fn opened(&self) -> Option<&Arc<NvmeNamespace>> {
        self.namespace.get()
    }

    fn name(&self) -> String {
        self.url.plain()
    }

    fn identity(&self) -> Vec<u8> {
        self.opened().map_or_else(|| self.expected.identity(), |namespace| namespace.identity())
    }

    fn info(&self) -> BackendInfo {
        self.opened().map_or_else(|| self.expected.info(), |namespace| namespace.info())
    }

    fn refresh(&self) -> bool {
        self.opened().is_some_and(|namespace| namespace.refresh())
    }

    fn check_closed(&self) -> LocalBoxFuture<'_, PathState> {
        Box::pin(async move {
            match (self.try_again().await, self.opened()) {
                (PathState::Optimized, Some(namespace)) => LunPath::check(&**namespace).await,
                (PathState::Optimized, None) => PathState::Down,
                (state, _) => state,
            }
        })
    }

    fn closed(&self) -> Error {
        Error::new(ErrorCode::Unreachable, format!("the path {} is not open", self.url.plain()))
    }

    fn events(&self) -> flume::Receiver<Event> {
        self.opened().map_or_else(|| self.no_events.1.clone(), |namespace| namespace.events())
    }
}

/// A namespace on several paths, each with a controller of its own.
pub struct NvmePaths {
    paths: Vec<Arc<LatePath<NvmePath>>>,
    joined: Arc<Multipath>,
}

impl NvmePaths {
    /// Opens a namespace on all paths, in order of preference where access states (ANA) do not rank them. One path that works
    /// is enough: the others are opened later. Call it inside an event loop, where the controllers then live.
    ///
    /// All controllers have one host name and one host identifier, because reservations belong to the host.
    ///
    /// # Errors
    /// The first error of a path, if none can be opened; [`ErrorCode::InvalidArgument`] for URLs that do not fit together;
    /// [`ErrorCode::IdentityMismatch`] when they lead to different namespaces.
    pub async fn open(urls: &[NvmeUrl], settings: MultipathOptions) -> Result<NvmePaths, Error> {
        NvmePaths::open_with(urls, settings, tries_again).await
    }

    /// [`NvmePaths::open`], where `missing` receives the error of each attempt to connect that another one follows.
    ///
    /// # Errors
    /// As [`NvmePaths::open`].
    pub async fn open_with(
        urls: &[NvmeUrl],
        settings: MultipathOptions,
        missing: impl Fn(&Error) + Clone + 'static,
    ) -> Result<NvmePaths, Error> {
        let paths = closed_paths(urls)?;
        let first = open_all(&paths, missing).await?;
        paths.iter().for_each(|path| path.set_expected(first.identity(), first.info()));
        let lun_paths = paths.iter().map(|path| path.clone() as Arc<dyn LunPath>).collect();
        Ok(NvmePaths { joined: Multipath::join(lun_paths, settings).await?, paths })
    }

    /// The namespace, on all paths.
    pub fn joined(&self) -> &Arc<Multipath> {
        &self.joined
    }

    /// The paths, in the order of their URLs.
    pub fn paths(&self) -> &[Arc<LatePath<NvmePath>>] {
        &self.paths
    }

    /// The namespace on each open path.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<NvmeNamespace>> {
        self.paths.iter().filter_map(|path| path.opened())
    }

    /// The namespace on the first of the paths with the best state. None: no path accepts commands now.
    pub fn best(&self) -> Option<&Arc<NvmeNamespace>> {
        let states = self.joined.paths().into_iter().map(|(_, state, _)| state);
        let usable = self.paths.iter().zip(states).filter(|(_, state)| state.is_usable());
        usable.min_by_key(|(_, state)| *state).and_then(|(path, _)| path.opened())
    }

    /// Begins the end of all controllers. Commands that wait for a path fail, and so do later ones while no path works.
    pub fn give_up(&self) {
        self.joined.give_up();
        self.namespaces().for_each(|namespace| namespace.controller().give_up());
    }

    /// Shuts all controllers down, after the commands in flight.
    pub async fn close(&self) {
        lunar_runtime::all(self.namespaces().map(|namespace| namespace.controller().close())).await;
    }
}

impl fmt::Debug for NvmePaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmePaths").field("joined", &self.joined).finish_non_exhaustive()
    }
}

/// The paths of these URLs, with the options of one host.
fn closed_paths(urls: &[NvmeUrl]) -> Result<Vec<Arc<LatePath<NvmePath>>>, Error> {
    let mut all = urls.iter().map(NvmeUrl::options).collect::<Result<Vec<NvmeOptions>, Error>>()?;
    check(urls, &all)?;
    let named = all.iter().find(|options| options.host_id.is_some()).or(all.first());
    let host_id = named.and_then(|options| options.clone().identified().host_id);
    all.iter_mut().for_each(|options| options.host_id = host_id);
    Ok(urls.iter().zip(all).map(|(url, options)| NvmePath::new(url.clone(), options)).collect())
}

/// Checks that the URLs name one host, and that no two are one path.
fn check(urls: &[NvmeUrl], all: &[NvmeOptions]) -> Result<(), Error> {
    let wrong = |at: usize, other: usize, what: &str, hint: &'static str| {
        let what = format!("paths {} and {} {what}", urls[at].plain(), urls[other].plain());
        Err(Error::new(ErrorCode::InvalidArgument, what).with_hint(hint))
    };
    for (at, options) in all.iter().enumerate() {
        for (other, before) in all[..at].iter().enumerate() {
            let differs = matches!((options.host_id, before.host_id), (Some(one), Some(two)) if one != two);
            if options.host != before.host || differs {
                let hint = "use one host_nqn= and one host_id= for all paths: reservations belong to a host";
                return wrong(other, at, "name different hosts", hint);
            }
            let is_same =
                urls[at].portal == urls[other].portal && urls[at].subsystem == urls[other].subsystem;
            if is_same {
                let hint =
                    "name each portal once: a target may end the earlier of two controllers of one host";
                return wrong(other, at, "have the same portal", hint);
            }
        }
    }
    Ok(())
}

/// Opens all paths concurrently, and returns the first namespace. The other paths have [`OTHERS`] to open; later they are
/// opened by their checks.
async fn open_all(
    paths: &[Arc<LatePath<NvmePath>>],
    missing: impl Fn(&Error) + Clone + 'static,
) -> Result<Arc<NvmeNamespace>, Error> {
    let (done, ended) = flume::unbounded();
    for path in paths {
        let (path, done, missing) = (path.clone(), done.clone(), missing.clone());
        lunar_runtime::spawn(async move {
            // Another attempt runs only after the first path has opened: its check then reports the result.
            let open = async || path.open().await.unwrap_or(Ok(()));
            let opened = with_retry(path.tries, missing, open).await;
            let name = path.name();
            // The receiver is gone if opening has ended already.
            _ = done.send(opened.inspect_err(|e| tracing::warn!("the path {name} is missing: {e}")));
        });
    }
    drop(done);
    let none = || Error::new(ErrorCode::InvalidArgument, "the list of paths to the namespace is empty");
    let mut failure = None;
    loop {
        match ended.recv_async().await {
            Ok(Ok(())) => break,
            Ok(Err(e)) => failure = failure.or(Some(e)),
            Err(_) => return Err(failure.unwrap_or_else(none)),
        }
    }
    let rest = async { while ended.recv_async().await.is_ok() {} };
    // The others may come later.
    _ = time_limit::within(OTHERS, rest).await;
    paths.iter().find_map(|path| path.opened().cloned()).ok_or_else(none)
}

/// Logs the error of an attempt to connect that another one follows.
pub fn tries_again(e: &Error) {
    tracing::warn!("{e}; the initiator tries again");
}
