//! Another configuration that is tried out: what serves goes on until that is kept, and again if it is not.

use super::ways::Ways;
use super::{Key, Routes, Spec, State, spec};
use crate::Found;
use crate::pair::{self, Pair};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was there before.
pub(super) struct Before {
    specs: BTreeMap<Key, Spec>,
    found: Found,
    ways: Ways,
    /// Those that are set up anew meanwhile wait for the end of these.
    pairs: BTreeMap<String, Arc<Pair>>,
    ends: BTreeMap<String, pair::End>,
}

impl State {
    /// What serves: what is only tried out does not yet.
    pub(super) fn serving(&self) -> (&Ways, &BTreeMap<String, Arc<Pair>>) {
        self.before.as_ref().map_or((&self.ways, &self.pairs), |before| (&before.ways, &before.pairs))
    }
}

impl Routes {
    /// What is set and opened from here on may come to nothing: what is there now goes on beside it, and is what hosts
    /// and peers are told of, until one of the two is over.
    pub fn try_out(&self) {
        let mut state = self.shared.state();
        let State { specs, found, ways, pairs, ends, .. } = &*state;
        let before = Before {
            specs: specs.clone(),
            found: found.clone(),
            ways: ways.clone(),
            pairs: pairs.clone(),
            ends: ends.clone(),
        };
        state.before = Some(before);
    }

    /// What is tried out holds. What it replaces ends.
    pub fn keep(&self) {
        let before = self.shared.state().before.take();
        drop(before);
    }

    /// What is tried out came to nothing: what was there before is what there is.
    pub fn give_up(&self) {
        let mut state = self.shared.state();
        let Some(before) = state.before.take() else { return };
        let Before { specs, found, ways, pairs, ends } = before;
        (state.ways, state.pairs, state.ends) = (ways, pairs, ends);
        if !spec::are_alike(&specs, &state.specs) {
            (state.specs, state.found) = (specs, found);
            self.watch(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::pair;
    use super::super::{How, Opened, Place};
    use super::*;
    use crate::loops::Loops;
    use crate::ports;
    use crate::upstream::Upstream;
    use crate::{FoundLun, FoundTarget};
    use lunar_block::Backend;
    use lunar_initiator::Url;
    use std::time::Duration;

    const TARGET: &str = "iqn.2026-11.org.example:a";

    fn upstream(hold: u64) -> Spec {
        let url = format!("iscsi://127.0.0.1:1/{TARGET}");
        let known = Upstream::new("r1", "u", vec![Url::parse(&url).expect("a URL")]);
        let upstream = Upstream { hold: Duration::from_secs(hold), fence: Some(7), ..known };
        Spec { upstream, written: vec![url], how: How::Block }
    }

    fn open(routes: &Routes) -> Arc<dyn Backend> {
        let (router, upstream, target) = ("r1".into(), "u".into(), TARGET.into());
        match routes.open(&Place { router, upstream, target, lun: 0 }) {
            Ok(Opened::Blocks(blocks)) => blocks,
            _ => panic!("blocks"),
        }
    }

    /// Routes to a disk that was found.
    fn routes() -> Routes {
        let routes = Routes::start(Loops::default(), ports::Routers::default(), || {}).expect("routes");
        routes.pairs(vec![pair(1)]);
        routes.set(vec![upstream(1)]);
        let disk = FoundLun { block_size: 512, capacity: 1 << 20, ..FoundLun::default() };
        let target = FoundTarget { name: TARGET.into(), luns: [(0, disk)].into(), ..FoundTarget::default() };
        routes.shared.state().found.0.insert(("r1".into(), "u".into()), vec![target]);
        routes
    }

    #[test]
    fn what_is_given_up_leaves_all_as_it_was() {
        let routes = routes();
        let (disk, before) = (open(&routes), routes.pair("r1").expect("a pair"));
        routes.try_out();
        routes.pairs(vec![pair(2)]);
        routes.set(vec![upstream(2)]);
        assert!(!Arc::ptr_eq(&open(&routes), &disk), "it would be reached in another way");
        assert!(Arc::ptr_eq(&routes.pair("r1").expect("a pair"), &before), "it serves still");
        routes.give_up();
        assert!(Arc::ptr_eq(&routes.pair("r1").expect("a pair"), &before));
        assert!(Arc::ptr_eq(&open(&routes), &disk));
        routes.pairs(vec![pair(1)]);
        routes.set(vec![upstream(1)]);
        assert!(Arc::ptr_eq(&routes.pair("r1").expect("a pair"), &before), "nothing is set up anew");
        assert!(Arc::ptr_eq(&open(&routes), &disk));
    }

    #[test]
    fn what_is_kept_replaces_what_was_there() {
        let routes = routes();
        let (disk, before) = (open(&routes), routes.pair("r1").expect("a pair"));
        let place = Place { router: "r1".into(), upstream: "u".into(), target: TARGET.into(), lun: 0 };
        routes.try_out();
        routes.pairs(vec![pair(2)]);
        routes.set(vec![upstream(2)]);
        assert!(!routes.leads_to(&place), "it is not opened in its new way yet");
        let other = open(&routes);
        routes.keep();
        assert!(routes.leads_to(&place));
        let after = routes.pair("r1").expect("a pair");
        assert!(!Arc::ptr_eq(&after, &before) && !Arc::ptr_eq(&other, &disk));
        assert!(Arc::ptr_eq(&open(&routes), &other));
        let end = before.end();
        drop(before);
        assert!(end.recv_timeout(Duration::from_secs(10)).is_err(), "nobody keeps it");
        assert!(end.is_disconnected());
    }
}
