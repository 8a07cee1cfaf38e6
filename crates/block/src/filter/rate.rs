//! A disk that gives no more than its share.

use super::{Filter, Hook, Op};
use crate::Backend;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What may be saved up while idle, in nanoseconds of the rate.
const BURST_NS: u64 = 100_000_000;

struct Rate {
    epoch: Instant,
    iops: Option<Bucket>,
    bytes: Option<Bucket>,
}

/// Lets through at most `iops` operations and `bytes_per_s` bytes a second; 0: no limit. What was not used in
/// the last tenth of a second may be used at once. Flushes pass uncounted: to hold them back keeps no
/// resource free.
pub fn rate(inner: Arc<dyn Backend>, iops: u64, bytes_per_s: u64) -> Arc<dyn Backend> {
    Filter::wrap(
        inner,
        Rate { epoch: Instant::now(), iops: Bucket::new(iops), bytes: Bucket::new(bytes_per_s) },
    )
}

/// A token bucket that keeps time instead of tokens: one number, and no lock between cores.
struct Bucket {
    per_s: u64,
    /// When everything let through so far is paid for, in nanoseconds since the epoch.
    paid_ns: AtomicU64,
}

impl Bucket {
    fn new(per_s: u64) -> Option<Bucket> {
        (per_s > 0).then_some(Bucket { per_s, paid_ns: AtomicU64::new(0) })
    }

    fn cost_ns(&self, units: u64) -> u64 {
        u64::try_from(u128::from(units) * 1_000_000_000 / u128::from(self.per_s)).unwrap_or(u64::MAX)
    }

    /// Pays for `units` and tells how long to wait, in nanoseconds.
    fn take(&self, units: u64, now: u64) -> u64 {
        let pay =
            |paid: u64| Some(paid.max(now.saturating_sub(BURST_NS)).saturating_add(self.cost_ns(units)));
        let paid = self.paid_ns.fetch_update(Relaxed, Relaxed, pay).unwrap_or_else(|paid| paid);
        paid.saturating_sub(now)
    }

    /// Pays for `units` if that takes no waiting.
    fn try_take(&self, units: u64, now: u64) -> bool {
        let pay = |paid: u64| {
            (paid <= now).then(|| paid.max(now.saturating_sub(BURST_NS)).saturating_add(self.cost_ns(units)))
        };
        self.paid_ns.fetch_update(Relaxed, Relaxed, pay).is_ok()
    }

    fn give_back(&self, units: u64) {
        self.paid_ns.fetch_sub(self.cost_ns(units), Relaxed);
    }
}

impl Rate {
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn try_take(&self, bytes: u64) -> bool {
        let now = self.now_ns();
        if self.iops.as_ref().is_some_and(|bucket| !bucket.try_take(1, now)) {
            return false;
        }
        let enough = self.bytes.as_ref().is_none_or(|bucket| bucket.try_take(bytes, now));
        if !enough && let Some(bucket) = &self.iops {
            bucket.give_back(1);
        }
        enough
    }
}

impl Hook for Rate {
    fn now(&self, _op: Op, bytes: u64) -> bool {
        self.try_take(bytes)
    }

    fn not_now(&self, bytes: u64) {
        for (bucket, units) in [(&self.iops, 1), (&self.bytes, bytes)] {
            if let Some(bucket) = bucket {
                bucket.give_back(units);
            }
        }
    }

    fn before(&self, op: Op, bytes: u64) -> (Duration, io::Result<()>) {
        if op == Op::Flush {
            return (Duration::ZERO, Ok(()));
        }
        let now = self.now_ns();
        let wait =
            |bucket: &Option<Bucket>, units| bucket.as_ref().map_or(0, |bucket| bucket.take(units, now));
        (Duration::from_nanos(wait(&self.iops, 1).max(wait(&self.bytes, bytes))), Ok(()))
    }

    fn describe(&self) -> Vec<(String, String)> {
        let told = |bucket: &Option<Bucket>| bucket.as_ref().map_or(0, |bucket| bucket.per_s).to_string();
        vec![
            ("filter".into(), "rate".into()),
            ("iops".into(), told(&self.iops)),
            ("bytes_per_s".into(), told(&self.bytes)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_bucket_lets_through_its_rate_after_its_burst() {
        let bucket = Bucket::new(1000).expect("a limit");
        let now = 10 * SECOND;
        let at_once = (0..1000).filter(|_| bucket.try_take(1, now)).count();
        assert_eq!(at_once, 101, "what a tenth of a second saved, and the one that makes the debt");
        assert_eq!(bucket.take(1, now), SECOND / 1000);
        assert_eq!(bucket.take(1, now), 2 * SECOND / 1000);
        let later = (0..1000).filter(|_| bucket.try_take(1, now + SECOND / 100)).count();
        assert_eq!(later, 8, "ten milliseconds earned ten, and two were owed");
    }

    #[test]
    fn what_was_given_back_can_be_taken_again() {
        let bucket = Bucket::new(1).expect("a limit");
        let now = 10 * SECOND;
        assert!(bucket.try_take(1, now));
        assert!(!bucket.try_take(1, now));
        bucket.give_back(1);
        assert!(bucket.try_take(1, now));
    }

    #[test]
    fn no_request_overflows_the_clock() {
        let bucket = Bucket::new(1).expect("a limit");
        assert_eq!(bucket.take(u64::MAX, SECOND), 0);
        assert!(bucket.take(u64::MAX, SECOND) > 0);
        assert!(!bucket.try_take(1, SECOND));
    }
}
