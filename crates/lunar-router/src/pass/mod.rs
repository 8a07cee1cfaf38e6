//! Pass-through to logical units of other targets: each I_T nexus of ours has one of its own there, so that
//! reservations hold against the right host, and each hears its own unit attentions.
//!
//! A [`Line`] is the nexus there: one session at a time, over the first path that answers. Its ISID is made of the
//! nexus here, so that it is the same nexus again after a restart of either side.

mod course;
mod line;
mod reply;
mod settle;

pub use course::HostPath;

use crate::Hops;
use crate::hops::Growing;
use crate::ports::Ports;
use crate::upstream::PathFacts;
use course::Track;
use event_listener::Event as Bell;
use line::{Key, Line};
use lunar_initiator::{Options, Url};
use lunar_scsi::Port;
use lunar_target::{Passage, Way};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A logical unit of another target, and how to get there.
pub struct Remote(Arc<Shared>);

/// How to reach a target, and what its logical unit has to be.
pub struct Spec {
    /// The SCSI routing instance.
    pub router: String,
    /// Its upstream. Both are part of what we are to the target.
    pub upstream: String,
    /// The paths to the target, primary first, each with how its sessions are opened.
    pub paths: Vec<(Url, Options)>,
    /// LUN there.
    pub lun: u16,
    /// It is a disk or a CD: most of its commands can be sent twice.
    pub is_disk: bool,
    /// What VPD page 83h tells of it; empty: not known, and not looked at.
    pub identity: Vec<u8>,
    /// So long commands wait for a session.
    pub hold: Duration,
    /// Rung when a host hears that there may be other logical units.
    pub again: Arc<Bell>,
    /// Where the ports of the target are recorded that sessions use; None: nowhere.
    pub ports: Option<Arc<Ports>>,
}

struct Shared {
    spec: Spec,
    hops: Growing,
    /// What hosts have of it, on all cores.
    tracks: Mutex<Vec<std::sync::Weak<Track>>>,
}

impl Shared {
    /// What the hosts have of it that are there.
    fn tracks(&self) -> Vec<Arc<Track>> {
        let tracks = self.tracks.lock().unwrap_or_else(PoisonError::into_inner);
        tracks.iter().filter_map(std::sync::Weak::upgrade).collect()
    }

    /// A host has this of it from here on.
    fn add(&self, track: &Arc<Track>) {
        let mut tracks = self.tracks.lock().unwrap_or_else(PoisonError::into_inner);
        tracks.retain(|track| track.strong_count() > 0);
        tracks.push(Arc::downgrade(track));
    }

    /// Where its paths lead, without secrets.
    fn places(&self) -> Vec<String> {
        self.spec.paths.iter().map(|(url, _)| self.spec.place(url)).collect()
    }
}

impl Spec {
    /// Where a path leads, without secrets.
    fn place(&self, url: &Url) -> String {
        url.at(url.target.as_deref().unwrap_or_default(), Some(self.lun)).plain()
    }
}

thread_local! {
    /// The lines of this core: LUNs of one nexus on one target share one.
    static LINES: RefCell<HashMap<Key, Weak<Line>>> = RefCell::default();
}

impl Remote {
    /// Nothing is connected before somebody enters.
    pub fn new(spec: Spec) -> Remote {
        Remote(Arc::new(Shared { spec, hops: Growing::default(), tracks: Mutex::default() }))
    }

    /// The times that commands take from here on.
    pub fn hops(&self) -> Hops {
        self.0.hops.hops()
    }

    /// The paths that each host has for itself; those of the configuration while there is no host.
    pub fn paths(&self) -> Vec<HostPath> {
        let (places, tracks) = (self.0.places(), self.0.tracks());
        if tracks.is_empty() {
            return places.iter().map(|place| (None, PathFacts::unused(place))).collect();
        }
        tracks.iter().flat_map(|track| track.paths(&places)).collect()
    }
}

impl Passage for Remote {
    fn enter(&self, port: &Arc<Port>) -> Rc<dyn Way> {
        let spec = &self.0.spec;
        let key = Key::of(spec, port);
        let line = LINES.with_borrow_mut(|lines| {
            lines.retain(|_, line| line.strong_count() > 0);
            lines.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
                let line = Line::start(spec, &key);
                lines.insert(key, Rc::downgrade(&line));
                line
            })
        });
        Rc::new(line::Lane::new(self.0.clone(), line))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let spec = &self.0.spec;
        let told = |name: &str, value: String| (name.to_owned(), value);
        let mut told = vec![told("kind", "pass".into()), told("lun", spec.lun.to_string())];
        told.extend(spec.paths.iter().map(|(url, _)| ("path".to_owned(), url.plain())));
        told
    }
}
