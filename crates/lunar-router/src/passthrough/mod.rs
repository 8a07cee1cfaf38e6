//! Passthrough to logical units of other targets. Each host nexus has its own I_T nexus upstream: reservations belong
//! to the right host, and each host gets its own unit attentions.
//!
//! An [`UpstreamNexus`] has one session at a time, over the first path that responds. Its ISID is derived from the
//! host nexus, so that it stays the same nexus after a restart of either side.

mod nexus;
mod queue;
mod reply;
mod stale;
mod status;

pub use status::HostPath;

use crate::Hops;
use crate::hops::HopCounters;
use crate::isids::RouterIsids;
use crate::upstream::PathStatus;
use event_listener::Event;
use lunar_block::describe_row;
use lunar_initiator::{Options, Url};
use lunar_scsi::NexusPorts;
use lunar_target::{PassthroughLu, PassthroughNexus};
use nexus::{Key, UpstreamNexus};
use status::HostLu;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A logical unit of another target.
pub struct PassthroughUpstream(Arc<PassthroughInner>);

/// The paths to a target, and the expected identity of its logical unit.
pub struct PassthroughSpec {
    /// The routing instance.
    pub router: String,
    /// The upstream. Both names are hashed into the ISIDs of the sessions.
    pub upstream: String,
    /// The paths to the target, primary first, with the options of their sessions.
    pub paths: Vec<(Url, Options)>,
    /// The LUN at the target.
    pub lun: u16,
    /// Whether it is a disk or a CD, so that most of its commands may be repeated.
    pub is_disk: bool,
    /// The expected designators (VPD page 83h). Empty: unknown, and not checked.
    pub identity: Vec<u8>,
    /// The time for which commands wait for a session.
    pub path_loss_timeout: Duration,
    /// Notified when a host gets a unit attention such as REPORTED LUNS DATA HAS CHANGED.
    pub rediscover: Arc<Event>,
    /// The record of the target ports of sessions. None: they are not recorded.
    pub isids: Option<Arc<RouterIsids>>,
}

struct PassthroughInner {
    spec: PassthroughSpec,
    hops: HopCounters,
    /// The state of each host, on all cores.
    host_lus: Mutex<Vec<std::sync::Weak<HostLu>>>,
}

impl PassthroughInner {
    /// The state of each connected host.
    fn host_lus(&self) -> Vec<Arc<HostLu>> {
        let host_lus = self.host_lus.lock().unwrap_or_else(PoisonError::into_inner);
        host_lus.iter().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// Adds the state of a host.
    fn add(&self, host_lu: &Arc<HostLu>) {
        let mut host_lus = self.host_lus.lock().unwrap_or_else(PoisonError::into_inner);
        host_lus.retain(|host_lu| host_lu.strong_count() > 0);
        host_lus.push(Arc::downgrade(host_lu));
    }

    /// The URLs of the paths, without secrets.
    fn locations(&self) -> Vec<String> {
        self.spec.paths.iter().map(|(url, _)| self.spec.location(url)).collect()
    }
}

impl PassthroughSpec {
    /// The URL of a path, without secrets.
    fn location(&self, url: &Url) -> String {
        url.at(url.target.as_deref().unwrap_or_default(), Some(self.lun)).plain()
    }
}

thread_local! {
    /// The upstream nexuses of this core. All LUNs of a host nexus on one target share one.
    static NEXUSES: RefCell<HashMap<Key, Weak<UpstreamNexus>>> = RefCell::default();
}

impl PassthroughUpstream {
    /// Creates the logical unit. Connects at the first [`PassthroughLu::enter`].
    pub fn new(spec: PassthroughSpec) -> PassthroughUpstream {
        PassthroughUpstream(Arc::new(PassthroughInner {
            spec,
            hops: HopCounters::default(),
            host_lus: Mutex::default(),
        }))
    }

    /// The latency of commands.
    pub fn hops(&self) -> Hops {
        self.0.hops.hops()
    }

    /// The paths of each host, or those of the configuration while there is no host.
    pub fn paths(&self) -> Vec<HostPath> {
        let (locations, host_lus) = (self.0.locations(), self.0.host_lus());
        if host_lus.is_empty() {
            return locations.iter().map(|location| (None, PathStatus::unused(location))).collect();
        }
        host_lus.iter().flat_map(|host_lu| host_lu.paths(&locations)).collect()
    }
}

impl PassthroughLu for PassthroughUpstream {
    fn enter(&self, port: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus> {
        let spec = &self.0.spec;
        let key = Key::of(spec, port);
        let nexus = NEXUSES.with_borrow_mut(|nexuses| {
            nexuses.retain(|_, nexus| nexus.strong_count() > 0);
            nexuses.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
                let nexus = UpstreamNexus::start(spec, &key);
                nexuses.insert(key, Rc::downgrade(&nexus));
                nexus
            })
        });
        Rc::new(nexus::LuNexus::new(self.0.clone(), nexus))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let spec = &self.0.spec;
        let mut rows = vec![describe_row("kind", "passthrough"), describe_row("lun", spec.lun)];
        rows.extend(spec.paths.iter().map(|(url, _)| describe_row("path", url.plain())));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_is_the_mode_of_the_configuration() {
        let unit = PassthroughUpstream::new(PassthroughSpec {
            router: "r1".into(),
            upstream: "array".into(),
            paths: Vec::new(),
            lun: 3,
            is_disk: true,
            identity: Vec::new(),
            path_loss_timeout: Duration::ZERO,
            rediscover: Arc::default(),
            isids: None,
        });
        assert_eq!(unit.describe(), [describe_row("kind", "passthrough"), describe_row("lun", 3)]);
    }
}
