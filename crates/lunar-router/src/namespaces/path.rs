//! One path of one core to a namespace. It is opened as soon as possible. Its controller recovers by itself.

use super::probe::unit;
use super::{options, url_of};
use crate::failover;
use crate::upstream::{
    FIRST_PAUSE, LuContext, PathProgress, PathState, RoutedPath, event_or_recheck, longer,
};
use lunar_block::{Backend, BackendInfo, LocalBoxFuture};
use lunar_initiator::multipath::{LatePath, LunPath, PathOpener};
use lunar_initiator::nvme::{self, NvmeNamespace, NvmeUrl};
use lunar_initiator::{Error, Event};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// A path.
pub struct NamespacePath {
    context: Arc<LuContext>,
    url: NvmeUrl,
    recovery: Duration,
    namespace: OnceLock<Arc<NvmeNamespace>>,
    progress: PathProgress,
    /// The reconnections that hosts know of.
    recoveries: AtomicU32,
}

impl NamespacePath {
    /// Starts to open a path whose lost controller may return within `recovery`. Call it inside an event loop.
    pub fn begin(context: Arc<LuContext>, url: NvmeUrl, recovery: Duration) -> Arc<LatePath<NamespacePath>> {
        let path = LatePath::new(NamespacePath {
            context,
            url,
            recovery,
            namespace: OnceLock::new(),
            progress: PathProgress::new("namespace", 1),
            recoveries: AtomicU32::new(0),
        });
        lunar_runtime::spawn(keep(Arc::downgrade(&path)));
        path
    }

    /// The URL, without secrets.
    fn location(&self) -> String {
        url_of(&self.url, self.context.lun).plain()
    }

    async fn open(&self) -> Result<Arc<NvmeNamespace>, Error> {
        let url = url_of(&self.url, self.context.lun);
        let options = options(&url, self.recovery, self.context.path_loss_timeout)?;
        let namespace = nvme::open_with(&url, options).await?;
        match self.admit(&namespace).await {
            Ok(()) => Ok(namespace),
            Err(e) => {
                namespace.controller().close().await;
                Err(e)
            }
        }
    }

    /// Checks the namespace. In a failover pair, registers the new host of its controller, which has no identifier in the
    /// URL.
    async fn admit(&self, namespace: &NvmeNamespace) -> Result<(), Error> {
        self.context.recognise(&unit(namespace))?;
        match &self.context.gate {
            Some(gate) => failover::admit(gate, namespace).await,
            None => Ok(()),
        }
    }

    /// Checks the open path.
    async fn state(&self, namespace: &NvmeNamespace) -> PathState {
        let info = namespace.controller().info();
        let lost_by = info.lost_by.unwrap_or_default();
        match (info.connected, info.replaced) {
            (false, true) => return self.changed(&lost_by),
            (false, false) => return PathState::Down,
            (true, _) => {}
        }
        let state = LunPath::check(namespace).await;
        if state == PathState::Changed {
            return self.changed("another namespace");
        }
        self.progress.recognise();
        // The storage may have lost writes of its cache.
        if state.is_usable() && self.recoveries.swap(info.recoveries, Relaxed) != info.recoveries {
            self.context.record_reset();
        }
        state
    }

    /// Records that the path leads to another namespace.
    fn changed(&self, now: &str) -> PathState {
        self.progress.change(&self.context, &self.location(), now);
        PathState::Changed
    }

    fn take(&self, namespace: Arc<NvmeNamespace>) {
        // No other task opens it.
        self.progress.succeed(|| _ = self.namespace.set(namespace));
    }

    /// Handles an event of the controller. It may have other namespaces now.
    fn heed(&self, event: Event) {
        if matches!(event, Event::NamespacesChanged | Event::Connected) {
            _ = self.context.rediscover.notify(usize::MAX);
        }
        self.progress.stir(event);
    }
}

impl RoutedPath for LatePath<NamespacePath> {
    fn obstacle(&self) -> Option<Error> {
        self.progress.obstacle()
    }

    fn learned(&self) -> Option<BackendInfo> {
        let namespace = self.opened()?;
        // Each of the two calls clears its own flag, so both are needed.
        let is_news = self.progress.take_new() | namespace.refresh();
        is_news.then(|| namespace.info())
    }

    fn recoveries(&self) -> u32 {
        self.opened().map_or(0, |namespace| namespace.controller().info().recoveries)
    }
}

impl PathOpener for NamespacePath {
    type Path = NvmeNamespace;

    fn opened(&self) -> Option<&Arc<NvmeNamespace>> {
        self.namespace.get()
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

    fn check_opened<'a>(&'a self, namespace: &'a NvmeNamespace) -> LocalBoxFuture<'a, PathState> {
        Box::pin(self.state(namespace))
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

/// Opens a path, however long it takes, and handles the events of its controller from then on.
async fn keep(path: Weak<LatePath<NamespacePath>>) {
    let mut pause = FIRST_PAUSE;
    let events = loop {
        let Some(open) = path.upgrade() else { return };
        match open.open().await {
            Ok(namespace) => {
                let events = namespace.controller().events();
                open.take(namespace);
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
            Ok(None) => path.progress.stir(Event::Connected),
            Err(_) => return,
        }
    }
}
