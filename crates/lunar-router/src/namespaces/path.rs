//! One path of one core to a namespace. It is opened as soon as possible. Its controller recovers by itself.

use super::nsid_of;
use super::probe::{connect, unit};
use crate::upstream::{LuContext, PAUSE, PathState, RoutedPath};
use lunar_block::{Backend, BackendInfo};
use lunar_initiator::multipath::LunPath;
use lunar_initiator::nvme::{NvmeNamespace, NvmeUrl};
use lunar_initiator::{Error, ErrorCode, Event};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

/// The pause after the first failed attempt to open it. It grows.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A path.
pub struct NamespacePath {
    pub(super) context: Arc<LuContext>,
    url: NvmeUrl,
    recovery: Duration,
    namespace: OnceLock<Arc<NvmeNamespace>>,
    /// The reason why it is not open.
    obstacle: Mutex<Option<Error>>,
    /// Whether it leads to another namespace.
    is_changed: AtomicBool,
    /// Whether the properties of the namespace are not reported yet.
    is_new: AtomicBool,
    /// The reconnections that hosts know of.
    recoveries: AtomicU32,
    sender: flume::Sender<Event>,
    pub(super) events: flume::Receiver<Event>,
}

impl NamespacePath {
    /// Starts to open a path whose lost controller may return within `recovery`. Call it inside an event loop.
    pub fn begin(context: Arc<LuContext>, url: NvmeUrl, recovery: Duration) -> Arc<NamespacePath> {
        let (sender, events) = flume::bounded(1);
        let path = Arc::new(NamespacePath {
            context,
            url,
            recovery,
            namespace: OnceLock::new(),
            obstacle: Mutex::default(),
            is_changed: AtomicBool::new(false),
            is_new: AtomicBool::new(false),
            recoveries: AtomicU32::new(0),
            sender,
            events,
        });
        lunar_runtime::spawn(keep(Arc::downgrade(&path)));
        path
    }

    /// The namespace, once the path is open.
    pub(super) fn opened(&self) -> Option<&Arc<NvmeNamespace>> {
        self.namespace.get()
    }

    /// The URL, without secrets.
    pub(super) fn location(&self) -> String {
        self.url.at(self.nsid()).plain()
    }

    fn nsid(&self) -> u32 {
        self.url.nsid().unwrap_or_else(|| nsid_of(self.context.lun))
    }

    /// The error of an operation on the closed path.
    pub(super) fn closed(&self) -> Error {
        let code =
            if self.is_changed.load(Relaxed) { ErrorCode::IdentityMismatch } else { ErrorCode::Unreachable };
        Error::new(code, "the path to the upstream namespace is not open")
    }

    async fn open(&self) -> Result<Arc<NvmeNamespace>, Error> {
        let controller = connect(&self.url, self.recovery, self.context.path_loss_timeout).await?;
        let opened = async {
            let namespace = NvmeNamespace::open(&controller, self.nsid()).await?;
            self.context.recognise(&unit(&namespace))?;
            Ok(namespace)
        };
        let opened = opened.await;
        if opened.is_err() {
            controller.close().await;
        }
        opened
    }

    /// Checks the path.
    pub(super) async fn state(&self) -> PathState {
        let Some(namespace) = self.opened() else {
            return if self.is_changed.load(Relaxed) { PathState::Changed } else { PathState::Down };
        };
        let info = namespace.controller().info();
        let lost_by = info.lost_by.unwrap_or_default();
        match (info.connected, info.replaced) {
            (false, true) => return self.changed(&lost_by),
            (false, false) => return PathState::Down,
            (true, _) => {}
        }
        let state = LunPath::check(&**namespace).await;
        if state == PathState::Changed {
            return self.changed("another namespace");
        }
        self.is_changed.store(false, Relaxed);
        // The storage may have lost writes of its cache.
        if state.is_usable() && self.recoveries.swap(info.recoveries, Relaxed) != info.recoveries {
            self.context.record_reset();
        }
        state
    }

    /// Records that the path leads to another namespace.
    fn changed(&self, now: &str) -> PathState {
        if !self.is_changed.swap(true, Relaxed) {
            self.context.log_change(&self.location(), now);
        }
        PathState::Changed
    }

    /// Records a failed attempt.
    fn fail(&self, e: Error) {
        if e.code == ErrorCode::IdentityMismatch {
            self.changed(&e.what);
        } else {
            self.is_changed.store(false, Relaxed);
        }
        let is_other = self.is_changed.load(Relaxed);
        let mut obstacle = self.obstacle.lock().unwrap_or_else(PoisonError::into_inner);
        if obstacle.as_ref() != Some(&e) && !is_other {
            tracing::warn!(name: "path.unusable", path = self.location(), "cannot open the path to the upstream namespace yet: {e}");
        }
        *obstacle = Some(e);
        drop(obstacle);
        self.stir(Event::Connected);
    }

    fn take(&self, namespace: Arc<NvmeNamespace>) {
        self.is_changed.store(false, Relaxed);
        self.is_new.store(true, Relaxed);
        *self.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // No other task opens it.
        _ = self.namespace.set(namespace);
        self.stir(Event::Connected);
    }

    /// Requests a check of the path.
    fn stir(&self, event: Event) {
        // Full: a check is already requested.
        _ = self.sender.try_send(event);
    }

    /// Handles an event of the controller. It may have other namespaces now.
    fn heed(&self, event: Event) {
        if matches!(event, Event::NamespacesChanged | Event::Connected) {
            _ = self.context.rediscover.notify(usize::MAX);
        }
        self.stir(event);
    }
}

impl RoutedPath for NamespacePath {
    fn obstacle(&self) -> Option<Error> {
        self.obstacle.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn learned(&self) -> Option<BackendInfo> {
        let namespace = self.opened()?;
        // Each of the two calls clears its own flag, so both are needed.
        let is_news = self.is_new.swap(false, Relaxed) | namespace.refresh();
        is_news.then(|| namespace.info())
    }

    fn recoveries(&self) -> u32 {
        self.opened().map_or(0, |namespace| namespace.controller().info().recoveries)
    }
}

/// Opens a path, however long it takes, and handles the events of its controller from then on.
async fn keep(path: Weak<NamespacePath>) {
    let mut pause = FIRST_PAUSE;
    let events = loop {
        let Some(open) = path.upgrade() else { return };
        match open.open().await {
            Ok(namespace) => {
                let events = namespace.controller().events();
                open.take(namespace);
                break events;
            }
            Err(e) => open.fail(e),
        }
        drop(open);
        compio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE);
    };
    loop {
        let Some(recheck) = path.upgrade().map(|path| path.context.recheck.listen()) else { return };
        let event = async { events.recv_async().await.map(Some) };
        let event = lunar_runtime::either(event, async {
            recheck.await;
            Ok(None)
        })
        .await;
        let Some(path) = path.upgrade() else { return };
        match event {
            Ok(Some(event)) => path.heed(event),
            Ok(None) => path.stir(Event::Connected),
            Err(_) => return,
        }
    }
}
