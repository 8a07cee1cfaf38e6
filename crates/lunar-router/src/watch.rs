//! Probes the upstreams periodically.

use crate::loops::{self, LoopDetector};
use crate::upstream::{Upstream, probe};
use crate::{Found, FoundLun, FoundTarget};
use compio::runtime::JoinHandle;
use lunar_initiator::{ErrorCode, Hint};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The intervals of probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeSchedule {
    /// The pause after the first failed probe. It doubles after each further failure.
    pub first: Duration,
    /// The maximum pause while the upstream is unreachable.
    pub longest: Duration,
    /// The interval while it is reachable.
    pub refresh: Duration,
}

impl Default for ProbeSchedule {
    fn default() -> ProbeSchedule {
        let s = Duration::from_secs;
        ProbeSchedule { first: s(1), longest: s(30), refresh: s(60) }
    }
}

/// The words of a hint in the log.
pub type HintWords = fn(&Hint) -> &str;

/// The result of one probe.
type ProbeResult = ((String, String), Vec<FoundTarget>);

/// Probes upstreams until the receiver is dropped, and sends all discoveries after each change. Discoveries of an
/// unreachable upstream are kept, as are the `known` ones. If the identity of a logical unit changes at the same LUN,
/// it is reported unchanged: hosts of the old one must not write to the new one. Call it inside an event loop.
pub async fn watch(
    upstreams: Vec<Upstream>,
    pace: ProbeSchedule,
    known: Found,
    loops: Arc<LoopDetector>,
    hint_words: HintWords,
    sender: flume::Sender<Found>,
) {
    let (probe_sender, seen) = flume::unbounded();
    let key = |upstream: &Upstream| (upstream.router.clone(), upstream.name.clone());
    let rechecks: BTreeMap<_, _> = upstreams.iter().map(|u| (key(u), u.recheck.clone())).collect();
    // The tasks end when this is dropped.
    let _tasks: Vec<JoinHandle<()>> = upstreams
        .into_iter()
        .map(|upstream| {
            compio::runtime::spawn(attend(upstream, pace, loops.clone(), hint_words, probe_sender.clone()))
        })
        .collect();
    drop(probe_sender);
    let (mut all, mut missing) = (known, MissedProbes::default());
    while let Ok((key, targets)) = seen.recv_async().await {
        let targets = match all.0.get(&key) {
            Some(before) => {
                if is_doubtful(before, &targets) {
                    rechecks.get(&key).into_iter().for_each(|rechecks| _ = rechecks.notify(usize::MAX));
                }
                missing.carry_over(&key, before, keep_identities(&key, before, targets))
            }
            None => targets,
        };
        let is_known = all.0.get(&key) == Some(&targets);
        all.0.insert(key, targets);
        if !is_known && sender.send(all.clone()).is_err() {
            return;
        }
    }
}

async fn attend(
    upstream: Upstream,
    pace: ProbeSchedule,
    loops: Arc<LoopDetector>,
    hint_words: HintWords,
    probe_sender: flume::Sender<ProbeResult>,
) {
    let mut pause = pace.first;
    let mut last = None;
    loop {
        // Before the probe: a change during the probe triggers another.
        let rediscover = upstream.rediscover.listen();
        let wait = match probe(&upstream, &loops).await {
            Ok(targets) => {
                (pause, last) = (pace.first, None);
                *upstream.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = None;
                let key = (upstream.router.clone(), upstream.name.clone());
                if probe_sender.send((key, targets)).is_err() {
                    return;
                }
                pace.refresh
            }
            Err(e) => {
                // A target that responds at all was not down.
                if matches!(e.code, ErrorCode::Unreachable | ErrorCode::UnknownHost | ErrorCode::TimedOut) {
                    loops.record_outage(&loops::name(&upstream.router, &upstream.name));
                }
                *upstream.obstacle.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.what.clone());
                if last.as_ref() != Some(&e) {
                    tracing::warn!(
                        name: "upstream.unreachable",
                        router = upstream.router,
                        upstream = upstream.name,
                        hint = e.hint.as_ref().map(hint_words),
                        "cannot probe the upstream: {e}"
                    );
                }
                last = Some(e);
                let wait = pause;
                pause = (pause * 2).min(pace.longest);
                wait
            }
        };
        // Probe after either.
        _ = compio::time::timeout(wait, rediscover).await;
    }
}

/// The number of consecutive probes that must miss a logical unit before it counts as removed: a target that has just
/// started may not have all of them yet.
const MISSED: u32 = 3;

/// The number of consecutive probes that missed each logical unit, by upstream, target and LUN.
#[derive(Default)]
struct MissedProbes(BTreeMap<((String, String), String, u16), u32>);

impl MissedProbes {
    /// Keeps missing logical units for some probes.
    fn carry_over(
        &mut self,
        key: &(String, String),
        before: &[FoundTarget],
        mut now: Vec<FoundTarget>,
    ) -> Vec<FoundTarget> {
        for was in before {
            let at = now.iter().position(|target| target.name == was.name);
            let mut stays: BTreeMap<u16, FoundLun> = BTreeMap::new();
            for (number, lun) in &was.luns {
                let place = (key.clone(), was.name.clone(), *number);
                if at.is_some_and(|at| now[at].luns.contains_key(number)) {
                    self.0.remove(&place);
                    continue;
                }
                let missed = self.0.entry(place).or_default();
                *missed += 1;
                if *missed < MISSED {
                    stays.insert(*number, lun.clone());
                } else {
                    self.0.remove(&(key.clone(), was.name.clone(), *number));
                }
            }
            match at {
                Some(at) => now[at].luns.extend(stays),
                None if stays.is_empty() => {}
                None => now.push(FoundTarget { luns: stays, ..was.clone() }),
            }
        }
        now
    }
}

/// Whether a logical unit has another identity or size now. Without a medium it has no size.
fn is_doubtful(before: &[FoundTarget], now: &[FoundTarget]) -> bool {
    let is_other = |was: &FoundLun, lun: &FoundLun| {
        !was.is_same(lun) || (lun.capacity > 0 && lun.capacity != was.capacity)
    };
    now.iter().any(|target| {
        let was = before.iter().find(|was| was.name == target.name).map(|was| &was.luns);
        let of = |number: &u16| was.and_then(|luns| luns.get(number));
        target.luns.iter().any(|(number, lun)| of(number).is_some_and(|was| is_other(was, lun)))
    })
}

/// Restores the discovery of a logical unit that was replaced by another one, and the properties of its medium while
/// it is not ready.
fn keep_identities(
    key: &(String, String),
    before: &[FoundTarget],
    mut now: Vec<FoundTarget>,
) -> Vec<FoundTarget> {
    let known: BTreeMap<&str, &FoundTarget> = before.iter().map(|t| (t.name.as_str(), t)).collect();
    for target in &mut now {
        let Some(before) = known.get(target.name.as_str()) else { continue };
        target.window = before.window;
        for (number, lun) in &mut target.luns {
            let Some(was) = before.luns.get(number) else { continue };
            if !was.is_same(lun) {
                log_change(key, (&target.name, *number), was, lun);
                lun.clone_from(was);
            } else if lun.block_size == 0 {
                lun.clone_from(was);
            }
        }
    }
    now
}

fn log_change(key: &(String, String), (target, lun): (&str, u16), was: &FoundLun, now: &FoundLun) {
    tracing::error!(
        name: "upstream.changed",
        router = key.0,
        upstream = key.1,
        target,
        lun,
        was = was.name(),
        now = now.name(),
        "another logical unit replaced the routed unit; hint: restore the previous unit, or remove the LUN",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(luns: &[(u16, u8, u64)]) -> FoundTarget {
        let lun = |(number, name, capacity): &(u16, u8, u64)| {
            let designators = vec![1, 3, 0, 1, *name];
            let block_size = if *capacity > 0 { 512 } else { 0 };
            (*number, FoundLun { designators, block_size, capacity: *capacity, ..FoundLun::default() })
        };
        FoundTarget { name: "iqn.x:y".into(), window: 8, luns: luns.iter().map(lun).collect() }
    }

    #[test]
    fn one_scan_that_misses_a_lun_removes_nothing() {
        let key = ("r".to_owned(), "a".to_owned());
        let (both, one) = ([target(&[(0, 1, 10), (1, 2, 10)])], target(&[(1, 2, 10)]));
        let mut missing = MissedProbes::default();
        for now in [vec![one.clone()], vec![]] {
            let luns: Vec<_> =
                missing.carry_over(&key, &both, now).into_iter().flat_map(|t| t.luns).collect();
            assert_eq!(luns.len(), 2);
        }
        assert_eq!(
            missing.carry_over(&key, &both, both.to_vec()),
            both,
            "the logical unit is back, so the count restarts"
        );
        for _ in 1..MISSED {
            assert_eq!(missing.carry_over(&key, &both, vec![one.clone()])[0].luns.len(), 2);
        }
        assert_eq!(missing.carry_over(&key, &both, vec![one.clone()]), [one]);
    }

    #[test]
    fn another_identity_and_another_size_are_doubtful() {
        let before = [target(&[(0, 1, 10), (1, 2, 10)])];
        for (now, is) in [
            (target(&[(0, 1, 10), (1, 2, 10)]), false),
            (target(&[(0, 1, 10)]), false),
            (target(&[(0, 1, 0), (2, 9, 10)]), false),
            (target(&[(0, 1, 20)]), true),
            (target(&[(1, 9, 10)]), true),
        ] {
            assert_eq!(is_doubtful(&before, &[now]), is);
        }
    }

    #[test]
    fn lun_keeps_its_identity_until_it_has_left() {
        let key = ("r".to_owned(), "a".to_owned());
        let before = [target(&[(0, 1, 10), (1, 2, 10)])];
        for (now, expected) in [
            (target(&[(0, 1, 20), (1, 9, 20)]), target(&[(0, 1, 20), (1, 2, 10)])),
            (target(&[(0, 1, 0)]), target(&[(0, 1, 10)])),
            (target(&[(0, 1, 10), (2, 9, 5)]), target(&[(0, 1, 10), (2, 9, 5)])),
        ] {
            assert_eq!(keep_identities(&key, &before, vec![now]), [expected]);
        }
    }
}
