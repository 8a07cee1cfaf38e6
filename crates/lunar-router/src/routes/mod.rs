//! The open resources of a server's routers: probed upstreams, discoveries, and open logical units. They survive a
//! configuration change.

mod access;
mod open_lus;
mod spec;
mod trial;

pub use access::ServedLu;
pub use open_lus::{LuStatus, RoutedLu, UpstreamStatus};
pub use spec::{LuAddress, Mode, UpstreamSpec};

use crate::Found;
use crate::failover::{self, Pair};
use crate::isids;
use crate::loops::{LoopDetector, name};
use crate::upstream::Upstream;
use crate::watch::{HintWords, ProbeSchedule, watch};
use lunar_initiator::{Error, ErrorCode};
use lunar_runtime::{Cores, either};
use lunar_target::Instance;
use open_lus::OpenLus;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trial::PreviousRoutes;

/// The open resources of a server's routers.
pub struct Routes {
    cores: Cores,
    shared: Arc<RoutesInner>,
}

struct RoutesInner {
    loops: Arc<LoopDetector>,
    isids: isids::IsidStore,
    state: Mutex<State>,
    hint_words: HintWords,
    changed: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    instances: BTreeMap<String, Arc<Instance>>,
    specs: BTreeMap<Key, UpstreamSpec>,
    found: Found,
    open_lus: OpenLus,
    /// The failover pairs, by instance.
    pairs: BTreeMap<String, Arc<Pair>>,
    /// The end of the last pair of each instance.
    ends: BTreeMap<String, failover::PairEnd>,
    /// The logical units that hosts see.
    served: Vec<ServedLu>,
    /// The watch ends when this is dropped.
    watching: Option<flume::Sender<()>>,
    /// The routes that serve while another configuration is on trial.
    previous: Option<PreviousRoutes>,
}

/// Routing instance and upstream.
type Key = (String, String);

impl RoutesInner {
    /// Records a discovery, unless its watch has ended.
    fn learn(&self, found: Found, stop: &flume::Receiver<()>) {
        let mut state = self.state();
        if stop.is_disconnected() {
            return;
        }
        let State { specs, found: all, .. } = &mut *state;
        let remote = |key: &Key| specs.get(key).is_some_and(|spec| !matches!(spec.mode, Mode::Device(_)));
        all.0.extend(found.0.into_iter().filter(|(key, _)| remote(key)));
        drop(state);
        (self.changed)();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Routes {
    /// Starts without upstreams. `changed` is called after each discovery with a change. The log has hints in the words
    /// of `hint_words`.
    ///
    /// # Errors
    /// When its event loop cannot be started.
    pub fn start(
        loops: LoopDetector,
        isids: isids::IsidStore,
        hint_words: HintWords,
        changed: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Routes> {
        let (loops, state, changed) = (Arc::new(loops), Mutex::default(), Box::new(changed));
        let shared = Arc::new(RoutesInner { loops, isids, state, hint_words, changed });
        Ok(Routes { cores: Cores::one()?, shared })
    }

    /// Replaces the upstreams. Discoveries of retained upstreams are kept.
    pub fn set(&self, specs: Vec<UpstreamSpec>) {
        let with_ports = |mut spec: UpstreamSpec| {
            spec.upstream.isids = Some(self.shared.isids.of(&spec.upstream.router));
            (spec.key(), spec)
        };
        let specs: BTreeMap<_, _> = specs.into_iter().map(with_ports).collect();
        let mut state = self.shared.state();
        if spec::are_alike(&state.specs, &specs) {
            return;
        }
        let stays = |key: &Key, spec: &UpstreamSpec| specs.get(key).is_some_and(|new| new.is_same(spec));
        let gone: Vec<Key> =
            state.specs.iter().filter(|(key, spec)| !stays(key, spec)).map(|(key, _)| key.clone()).collect();
        for key in &gone {
            state.open_lus.forget(key);
            // If one of its URLs is retained, its discoveries are kept, so that its LUNs stay.
            let previous = state.specs.get(key);
            let leads_there = |new: &UpstreamSpec| previous.is_some_and(|previous| previous.overlaps(new));
            if !specs.get(key).is_some_and(leads_there) {
                state.found.0.remove(key);
                self.shared.loops.forget(&name(&key.0, &key.1));
            }
        }
        state.specs = specs;
        self.watch(&mut state);
    }

    /// Replaces the watch with one of the current upstreams.
    fn watch(&self, state: &mut State) {
        let remote = |spec: &&UpstreamSpec| !matches!(spec.mode, Mode::Device(_));
        let upstreams: Vec<Upstream> =
            state.specs.values().filter(remote).map(|spec| spec.upstream.clone()).collect();
        let devices: Vec<_> = state.specs.values().filter_map(UpstreamSpec::device).collect();
        let (watching, stop) = flume::bounded::<()>(0);
        // Dropping the sender ends the earlier watch.
        state.watching = Some(watching);
        let (known, shared) = (state.found.clone(), self.shared.clone());
        self.cores.run_on(0, move || {
            let (sender, found) = flume::unbounded();
            let pace = ProbeSchedule::default();
            let looks = watch(upstreams, pace, known, shared.loops.clone(), shared.hint_words, sender);
            lunar_runtime::spawn(async move {
                // The tasks end when this is dropped.
                let mut looks = vec![compio::runtime::spawn(looks)];
                for (key, path) in devices {
                    let shared = shared.clone();
                    looks.push(compio::runtime::spawn(spec::attend_device(key, path, shared)));
                }
                let over = async { _ = stop.recv_async().await };
                let listen = async {
                    while let Ok(found) = found.recv_async().await {
                        shared.learn(found, &stop);
                    }
                    // Without remote upstreams there is no watch. The devices of this host stay.
                    std::future::pending().await
                };
                either(over, listen).await;
            });
        });
    }

    /// The discoveries so far.
    pub fn found(&self) -> Found {
        self.shared.state().found.clone()
    }

    /// The routing instance of this name. The first call creates it.
    pub fn instance(&self, name: &str) -> Arc<Instance> {
        let mut state = self.shared.state();
        let instance = || Arc::new(Instance::new(name));
        state.instances.entry(name.to_owned()).or_insert_with(instance).clone()
    }

    /// Sets the maximum number of sessions of an instance. None: only the server's limit applies.
    pub fn limit(&self, name: &str, sessions: Option<usize>) {
        self.instance(name).max_sessions.store(sessions.unwrap_or(usize::MAX), Relaxed);
    }

    /// Sets the failover pairs; call it before their upstreams are set. Unchanged pairs keep running.
    pub fn pairs(&self, specs: Vec<failover::PairSpec>) {
        let mut previous = std::mem::take(&mut self.shared.state().pairs);
        let mut pairs = BTreeMap::new();
        for spec in specs {
            let name = spec.router.clone();
            let pair = match previous.remove(&name) {
                Some(pair) if *pair.spec() == spec => pair,
                previous => {
                    // A request of the administrator stays in effect.
                    let eligible = previous.is_none_or(|pair| pair.status().eligible);
                    let pair = self.begin(spec, eligible);
                    self.shared.state().open_lus.of(&name).for_each(|remote| pair.add_lu(remote));
                    pair
                }
            };
            pairs.insert(name, pair);
        }
        self.shared.state().pairs = pairs;
    }

    fn begin(&self, spec: failover::PairSpec, eligible: bool) -> Arc<Pair> {
        let shared = Arc::downgrade(&self.shared);
        let changed = move || {
            if let Some(shared) = shared.upgrade() {
                shared.state().settle();
            }
        };
        let (name, instance) = (spec.router.clone(), self.instance(&spec.router));
        let previous = self.shared.state().ends.remove(&name);
        let pair = Pair::start(spec, eligible, instance, previous, changed, |job| self.cores.run_on(0, job));
        self.shared.state().ends.insert(name, pair.end());
        pair
    }

    /// The failover pair of an instance.
    pub fn pair(&self, name: &str) -> Option<Arc<Pair>> {
        self.shared.state().serving().1.get(name).cloned()
    }

    /// Yields the active role in all failover pairs, and waits for it.
    pub fn leave(&self) {
        let pairs: Vec<Arc<Pair>> = self.shared.state().pairs.values().cloned().collect();
        failover::leave(&pairs);
    }

    /// Logs out of the sessions with upstreams, so that they leave no commands behind. The cores of the target must
    /// still be running.
    pub fn part(&self) {
        self.shared.isids.part(&self.cores);
    }

    /// The response to a text key in a session with this target, or in discovery.
    pub fn answer(&self, target: Option<&str>, key: &str, value: &str) -> Option<String> {
        match target {
            None if key == failover::KEY => Some(self.pair(value)?.answer()),
            None => self.shared.loops.answer_in_discovery(key, value),
            Some(target) => self.shared.loops.answer(target, key, value),
        }
    }

    /// The state of an instance.
    pub fn state(&self, name: &str) -> String {
        if let Some(pair) = self.pair(name) {
            return pair.status().role.name().into();
        }
        if self.instance(name).draining.load(Relaxed) { "draining".into() } else { "serving".into() }
    }

    /// Sets the targets that use an upstream. The upstream must not lead back to them.
    pub fn uses(&self, router: &str, upstream: &str, targets: BTreeSet<String>) {
        self.shared.loops.uses(&name(router, upstream), targets);
    }

    /// Whether a logical unit is open with the current settings of its upstream.
    pub fn leads_to(&self, address: &LuAddress) -> bool {
        self.shared.state().open_lus.leads_to(address)
    }

    /// Opens a discovered logical unit, without a connection.
    ///
    /// # Errors
    /// [`ErrorCode::NotFound`] when it was not found; those of [`UpstreamLu::open`](crate::upstream::UpstreamLu::open).
    pub fn open(&self, address: &LuAddress) -> Result<RoutedLu, Error> {
        let mut state = self.shared.state();
        let state = &mut *state;
        let key = address.key();
        let not_found = || {
            Error::new(ErrorCode::NotFound, format!("{} has no LUN {}", name(&key.0, &key.1), address.lun))
        };
        let spec = state.specs.get(&key).ok_or_else(not_found)?;
        let there = state.found.targets(&key.0, &key.1).iter().find(|t| t.name == address.target);
        let found = there.and_then(|t| t.luns.get(&address.lun)).ok_or_else(not_found)?;
        let (routed_lu, fresh) = state.open_lus.open(address, spec, found)?;
        if let Some(remote) = fresh {
            if let Some(pair) = state.pairs.get(&address.router) {
                pair.add_lu(&remote);
            }
            let (address, shared) = (address.clone(), self.shared.clone());
            let watch_lu = move || lunar_runtime::spawn(access::watch_lu(address, remote, shared));
            self.cores.run_on(0, watch_lu);
        }
        Ok(routed_lu)
    }

    /// Sets the logical units that hosts see. The ALUA states of their paths follow the health of the upstream.
    pub fn serve(&self, served: Vec<ServedLu>) {
        let mut state = self.shared.state();
        state.served = served;
        state.settle();
    }

    /// The status of the upstreams of an instance.
    pub fn status(&self, router: &str) -> Vec<UpstreamStatus> {
        let state = self.shared.state();
        let mine = state.specs.iter().filter(|((of, _), _)| of == router);
        mine.map(|(key, spec)| {
            let luns = state.found.targets(&key.0, &key.1).iter().map(|target| target.luns.len()).sum();
            state.open_lus.status(key, spec, luns)
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A pair with this path loss timeout in seconds.
    pub(super) fn pair(path_loss_timeout: u64) -> failover::PairSpec {
        failover::PairSpec {
            router: "r1".into(),
            peer: "127.0.0.1:1".parse().expect("a portal"),
            group: 2,
            preferred: true,
            key: 7,
            seed: String::new(),
            initiator: None,
            path_loss_timeout: Duration::from_secs(path_loss_timeout),
        }
    }

    #[test]
    fn eligibility_survives_a_rebuilt_pair() {
        let routes = Routes::start(LoopDetector::default(), isids::IsidStore::default(), |hint| hint, || {})
            .expect("routes");
        let eligible = || routes.pair("r1").expect("a pair").status().eligible;
        routes.pairs(vec![pair(1)]);
        assert!(eligible());
        routes.pair("r1").expect("a pair").request(failover::FailoverRequest::Ineligible);
        for path_loss_timeout in [1, 2] {
            routes.pairs(vec![pair(path_loss_timeout)]);
            assert!(!eligible());
        }
    }
}
