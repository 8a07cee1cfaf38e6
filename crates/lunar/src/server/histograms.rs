//! The places of LUNs among the histograms of `/metrics`: one of its own, or `other`, which LUNs of a target share.

use lunar_admin::metrics::{LunMetrics, OpMetrics, RemovedLuns};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of LUNs with histograms of their own. Each has hundreds of series.
const MAX_HISTOGRAMS: usize = 64;

/// A LUN by its target and number.
type LunKey = (String, u16);

/// Returns the counts of a LUN, also after it was removed.
pub type OpsOf = Box<dyn Fn() -> Vec<OpMetrics> + Send>;

/// LUNs with histograms of their own, and LUNs that used the server when there were enough. The place of a LUN does not
/// change, so that its series continue.
#[derive(Default)]
pub struct HistogramPlaces {
    luns: BTreeMap<LunKey, Place>,
    /// The counts of LUNs that are gone, by target. The series `other` keeps them, because a counter never falls.
    removed: BTreeMap<String, RemovedLuns>,
}

struct Place {
    is_own: bool,
    /// The logical unit. Another one may come to the same number.
    unit: u64,
    /// None: the LUN was gone before its counters could be kept.
    ops: Option<OpsOf>,
}

impl HistogramPlaces {
    /// Decides for each LUN that was used. Returns the counts of those that are gone.
    pub fn assign(
        &mut self,
        luns: &mut [LunMetrics],
        ops_of: impl Fn(&LunMetrics) -> Option<OpsOf>,
    ) -> Vec<RemovedLuns> {
        self.keep_removed(luns);
        let mut own = self.luns.values().filter(|place| place.is_own).count();
        for lun in luns.iter_mut().filter(|lun| lun.ops.iter().any(|op| op.commands > 0)) {
            let place = self.luns.entry(key(lun)).or_insert_with(|| {
                own += 1;
                Place { is_own: own <= MAX_HISTOGRAMS, unit: lun.unit, ops: ops_of(lun) }
            });
            lun.own_histograms = place.is_own;
        }
        self.removed.values().cloned().collect()
    }

    /// Removes the places of logical units that are gone.
    fn keep_removed(&mut self, luns: &[LunMetrics]) {
        let served: BTreeMap<LunKey, u64> = luns.iter().map(|lun| (key(lun), lun.unit)).collect();
        let units: BTreeSet<(&str, u64)> = luns.iter().map(|lun| (&*lun.target, lun.unit)).collect();
        let targets: BTreeSet<&str> = luns.iter().map(|lun| &*lun.target).collect();
        let is_gone = |key: &LunKey, place: &Place| match place.is_own {
            true => !served.contains_key(key),
            false => served.get(key) != Some(&place.unit),
        };
        for ((target, _), place) in self.luns.extract_if(.., |key, place| is_gone(key, place)) {
            // It may have moved to another number of the target, where its counts go on.
            if place.is_own || units.contains(&(&*target, place.unit)) {
                continue;
            }
            let removed = self.removed.entry(target).or_insert_with_key(|target| RemovedLuns::of(target));
            place.ops.iter().for_each(|ops| removed.add(&ops()));
        }
        // A target that is gone has no series.
        self.removed.retain(|target, _| targets.contains(&**target));
    }
}

fn key(lun: &LunMetrics) -> LunKey {
    (lun.target.clone(), lun.lun)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_admin::metrics::{LatencyBuckets, StageLatencies};

    fn ops(commands: u64) -> Vec<OpMetrics> {
        let whole = LatencyBuckets { counts: vec![commands, 0], sum_s: commands as f64 };
        let latency = Some(StageLatencies { whole, ..StageLatencies::default() });
        vec![OpMetrics { op: "read".into(), commands, latency }]
    }

    fn used(lun: u16, commands: u64) -> LunMetrics {
        let unit = u64::from(lun);
        LunMetrics { target: "iqn.t".into(), lun, unit, ops: ops(commands), ..LunMetrics::default() }
    }

    fn no_ops(_: &LunMetrics) -> Option<OpsOf> {
        None
    }

    #[test]
    fn lun_keeps_its_place_among_histograms() {
        let (mut places, max) = (HistogramPlaces::default(), MAX_HISTOGRAMS as u16);
        let mut luns: Vec<_> = (1..=max + 1).map(|lun| used(lun, 1)).collect();
        luns.insert(0, used(0, 0));
        let own = |luns: &[LunMetrics]| luns.iter().filter(|lun| lun.own_histograms).count();
        places.assign(&mut luns, no_ops);
        assert_eq!((own(&luns), luns[0].own_histograms, luns[65].own_histograms), (64, false, false));
        // LUN 0 is used later, and LUN 5 is gone.
        luns[0] = used(0, 1);
        luns.remove(5);
        luns.iter_mut().for_each(|lun| lun.own_histograms = false);
        places.assign(&mut luns, no_ops);
        assert_eq!((own(&luns), luns[0].own_histograms, luns[64].own_histograms), (64, true, false));
    }

    /// The reads of the series `other`: those of LUNs without a place of their own, and those that are kept.
    fn other(luns: &[LunMetrics], removed: &[RemovedLuns]) -> u64 {
        let shared = luns.iter().filter(|lun| !lun.own_histograms).flat_map(|lun| &lun.ops);
        let all = shared.chain(removed.iter().flat_map(|removed| &removed.ops));
        all.map(|op| op.latency.as_ref().map_or(0, |latency| latency.whole.counts[0])).sum()
    }

    #[test]
    fn other_histogram_keeps_counts_of_removed_luns() {
        let mut places = HistogramPlaces::default();
        let full: Vec<_> = (0..MAX_HISTOGRAMS as u16).map(|lun| used(lun, 1)).collect();
        let with = |more: &[LunMetrics]| [full.clone(), more.to_vec()].concat();
        // Its last counts are those after the last report.
        let mut of = |more: &[LunMetrics]| {
            let mut luns = with(more);
            let removed = places.assign(&mut luns, |lun| {
                let last = lun.ops[0].commands + 2;
                Some(Box::new(move || ops(last)) as OpsOf)
            });
            other(&luns, &removed)
        };
        assert_eq!(of(&[used(70, 5), used(71, 3)]), 8);
        assert_eq!(of(&[used(71, 3)]), 10, "LUN 70 is gone, with 7 reads");
        let replaced = LunMetrics { unit: 99, ..used(71, 1) };
        let moved = LunMetrics { lun: 72, ..replaced.clone() };
        assert_eq!(of(&[replaced]), 13, "another unit came to LUN 71, which had 5 reads");
        assert_eq!(of(&[moved]), 13, "a unit that moves counts once");
        assert_eq!(of(&[]), 15);
    }
}
