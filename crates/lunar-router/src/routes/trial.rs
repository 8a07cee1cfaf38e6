//! A configuration on trial: the previous routes keep serving until the new ones are confirmed, or return after a
//! rollback.

use super::open_lus::OpenLus;
use super::{Key, Routes, State, UpstreamSpec, spec};
use crate::Found;
use crate::failover::{self, Pair};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The routes before the trial.
pub(super) struct PreviousRoutes {
    specs: BTreeMap<Key, UpstreamSpec>,
    found: Found,
    open_lus: OpenLus,
    /// The previous pairs. Pairs that the trial starts again wait for their end.
    pairs: BTreeMap<String, Arc<Pair>>,
    ends: BTreeMap<String, failover::PairEnd>,
}

impl State {
    /// The logical units and pairs that serve. Those on trial do not serve yet.
    pub(super) fn serving(&self) -> (&OpenLus, &BTreeMap<String, Arc<Pair>>) {
        self.previous
            .as_ref()
            .map_or((&self.open_lus, &self.pairs), |previous| (&previous.open_lus, &previous.pairs))
    }
}

impl Routes {
    /// Begins a trial. Until [`Routes::keep`] or [`Routes::give_up`], the current routes continue, and hosts and
    /// peers see only them.
    pub fn try_out(&self) {
        let mut state = self.shared.state();
        let State { specs, found, open_lus, pairs, ends, .. } = &*state;
        let previous = PreviousRoutes {
            specs: specs.clone(),
            found: found.clone(),
            open_lus: open_lus.clone(),
            pairs: pairs.clone(),
            ends: ends.clone(),
        };
        state.previous = Some(previous);
    }

    /// Ends the trial: the new routes replace the previous ones.
    pub fn keep(&self) {
        let previous = self.shared.state().previous.take();
        drop(previous);
    }

    /// Ends the trial: the previous routes return.
    pub fn give_up(&self) {
        let mut state = self.shared.state();
        let Some(previous) = state.previous.take() else { return };
        let PreviousRoutes { specs, found, open_lus, pairs, ends } = previous;
        (state.open_lus, state.pairs, state.ends) = (open_lus, pairs, ends);
        if !spec::are_alike(&specs, &state.specs) {
            (state.specs, state.found) = (specs, found);
            self.watch(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair;
    use super::super::{LuAddress, Mode, RoutedLu};
    use super::*;
    use crate::isids;
    use crate::loops::LoopDetector;
    use crate::upstream::Upstream;
    use crate::{FoundLun, FoundTarget};
    use lunar_block::Backend;
    use lunar_initiator::Url;
    use std::time::Duration;

    const TARGET: &str = "iqn.2026-11.org.example:a";

    fn upstream(path_loss_timeout: u64) -> UpstreamSpec {
        let url = format!("iscsi://127.0.0.1:1/{TARGET}");
        let known = Upstream::new("r1", "u", vec![Url::parse(&url).expect("a URL")]);
        let upstream =
            Upstream { path_loss_timeout: Duration::from_secs(path_loss_timeout), fence: Some(7), ..known };
        UpstreamSpec { upstream, written: vec![url], mode: Mode::Block }
    }

    fn open(routes: &Routes) -> Arc<dyn Backend> {
        let (router, upstream, target) = ("r1".into(), "u".into(), TARGET.into());
        match routes.open(&LuAddress { router, upstream, target, lun: 0 }) {
            Ok(RoutedLu::Blocks(blocks)) => blocks,
            _ => panic!("blocks"),
        }
    }

    /// Routes to a discovered disk.
    fn routes() -> Routes {
        let routes = Routes::start(LoopDetector::default(), isids::IsidStore::default(), |hint| hint, || {})
            .expect("routes");
        routes.pairs(vec![pair(1)]);
        routes.set(vec![upstream(1)]);
        let disk = FoundLun { block_size: 512, capacity: 1 << 20, ..FoundLun::default() };
        let target = FoundTarget { name: TARGET.into(), luns: [(0, disk)].into(), ..FoundTarget::default() };
        routes.shared.state().found.0.insert(("r1".into(), "u".into()), vec![target]);
        routes
    }

    #[test]
    fn rollback_restores_the_previous_routes() {
        let routes = routes();
        let (disk, previous) = (open(&routes), routes.pair("r1").expect("a pair"));
        routes.try_out();
        routes.pairs(vec![pair(2)]);
        routes.set(vec![upstream(2)]);
        assert!(!Arc::ptr_eq(&open(&routes), &disk), "the trial must open it with the new settings");
        assert!(
            Arc::ptr_eq(&routes.pair("r1").expect("a pair"), &previous),
            "the previous pair must keep serving"
        );
        routes.give_up();
        assert!(Arc::ptr_eq(&routes.pair("r1").expect("a pair"), &previous));
        assert!(Arc::ptr_eq(&open(&routes), &disk));
        routes.pairs(vec![pair(1)]);
        routes.set(vec![upstream(1)]);
        assert!(
            Arc::ptr_eq(&routes.pair("r1").expect("a pair"), &previous),
            "the previous pair must be reused"
        );
        assert!(Arc::ptr_eq(&open(&routes), &disk));
    }

    #[test]
    fn commit_replaces_the_previous_routes() {
        let routes = routes();
        let (disk, previous) = (open(&routes), routes.pair("r1").expect("a pair"));
        let address = LuAddress { router: "r1".into(), upstream: "u".into(), target: TARGET.into(), lun: 0 };
        routes.try_out();
        routes.pairs(vec![pair(2)]);
        routes.set(vec![upstream(2)]);
        assert!(!routes.leads_to(&address), "it is not open with the new settings yet");
        let other = open(&routes);
        routes.keep();
        assert!(routes.leads_to(&address));
        let after = routes.pair("r1").expect("a pair");
        assert!(!Arc::ptr_eq(&after, &previous) && !Arc::ptr_eq(&other, &disk));
        assert!(Arc::ptr_eq(&open(&routes), &other));
        let end = previous.end();
        drop(previous);
        assert!(end.recv_timeout(Duration::from_secs(10)).is_err(), "the pair has ended");
        assert!(end.is_disconnected());
    }
}
