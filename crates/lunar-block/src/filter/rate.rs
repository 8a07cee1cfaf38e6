//! A filter that limits operations and bytes per second.

use super::{Filter, FilterOp, Hook};
use crate::{Backend, describe_row};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The burst allowed after idle time, in nanoseconds of the rate.
const BURST_NS: u64 = 100_000_000;

/// A limit of operations and bytes per second, which several backends may share.
pub struct RateLimit {
    epoch: Instant,
    iops: TokenBucket,
    bytes: TokenBucket,
}

/// Limits the rate of a backend. The unused part of the last tenth of a second may be used at once. Flushes are not
/// limited, because delaying them frees no resource.
pub fn rate(inner: Arc<dyn Backend>, rate: Arc<RateLimit>) -> Arc<dyn Backend> {
    Filter::wrap(inner, rate)
}

/// A token bucket that keeps time instead of tokens: one number, and no lock between cores.
struct TokenBucket {
    /// Units per second; 0 for no limit.
    per_s: AtomicU64,
    /// When everything admitted so far is paid for, in nanoseconds since the epoch.
    paid_ns: AtomicU64,
}

impl TokenBucket {
    fn new(per_s: u64) -> TokenBucket {
        TokenBucket { per_s: AtomicU64::new(per_s), paid_ns: AtomicU64::new(0) }
    }

    /// Sets another limit; waiting operations keep their delay.
    fn set(&self, per_s: u64) {
        if self.per_s.swap(per_s, Relaxed) != per_s {
            self.paid_ns.store(0, Relaxed);
        }
    }

    fn cost_ns(&self, units: u64) -> u64 {
        match self.per_s.load(Relaxed) {
            0 => 0,
            per_s => u64::try_from(u128::from(units) * 1_000_000_000 / u128::from(per_s)).unwrap_or(u64::MAX),
        }
    }

    /// Pays for `units` and returns how long to wait, in nanoseconds.
    fn take(&self, units: u64, now: u64) -> u64 {
        let cost = self.cost_ns(units);
        if cost == 0 {
            return 0;
        }
        let pay = |paid: u64| Some(paid.max(now.saturating_sub(BURST_NS)).saturating_add(cost));
        let paid = self.paid_ns.fetch_update(Relaxed, Relaxed, pay).unwrap_or_else(|paid| paid);
        paid.saturating_sub(now)
    }

    /// Pays for `units` if that needs no waiting.
    fn try_take(&self, units: u64, now: u64) -> bool {
        let cost = self.cost_ns(units);
        let pay =
            |paid: u64| (paid <= now).then(|| paid.max(now.saturating_sub(BURST_NS)).saturating_add(cost));
        cost == 0 || self.paid_ns.fetch_update(Relaxed, Relaxed, pay).is_ok()
    }

    fn give_back(&self, units: u64) {
        let less = |paid: u64| Some(paid.saturating_sub(self.cost_ns(units)));
        // The update never fails.
        _ = self.paid_ns.fetch_update(Relaxed, Relaxed, less);
    }
}

impl RateLimit {
    /// At most `iops` operations and `bytes_per_s` bytes a second; 0: no limit.
    pub fn new(iops: u64, bytes_per_s: u64) -> Arc<RateLimit> {
        Arc::new(RateLimit {
            epoch: Instant::now(),
            iops: TokenBucket::new(iops),
            bytes: TokenBucket::new(bytes_per_s),
        })
    }

    /// Sets other limits.
    pub fn set(&self, iops: u64, bytes_per_s: u64) {
        self.iops.set(iops);
        self.bytes.set(bytes_per_s);
    }

    /// Whether no operation waits.
    pub fn is_unlimited(&self) -> bool {
        [&self.iops, &self.bytes].iter().all(|bucket| bucket.per_s.load(Relaxed) == 0)
    }

    /// Pays for an operation of this many bytes and returns how long it must wait.
    pub fn pay(&self, bytes: u64) -> Duration {
        let now = self.now_ns();
        Duration::from_nanos(self.iops.take(1, now).max(self.bytes.take(bytes, now)))
    }

    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn try_take(&self, bytes: u64) -> bool {
        let now = self.now_ns();
        if !self.iops.try_take(1, now) {
            return false;
        }
        let enough = self.bytes.try_take(bytes, now);
        if !enough {
            self.iops.give_back(1);
        }
        enough
    }
}

impl Hook for Arc<RateLimit> {
    fn now(&self, _op: FilterOp, bytes: u64) -> bool {
        self.try_take(bytes)
    }

    fn not_now(&self, bytes: u64) {
        self.iops.give_back(1);
        self.bytes.give_back(bytes);
    }

    fn before(&self, op: FilterOp, bytes: u64) -> (Duration, io::Result<()>) {
        if op == FilterOp::Flush {
            return (Duration::ZERO, Ok(()));
        }
        (self.pay(bytes), Ok(()))
    }

    fn describe(&self) -> Vec<(String, String)> {
        vec![
            describe_row("filter", "rate"),
            describe_row("iops", self.iops.per_s.load(Relaxed)),
            describe_row("bytes_per_s", self.bytes.per_s.load(Relaxed)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn bucket_lets_through_its_rate_after_its_burst() {
        let bucket = TokenBucket::new(1000);
        let now = 10 * SECOND;
        let at_once = (0..1000).filter(|_| bucket.try_take(1, now)).count();
        assert_eq!(at_once, 101, "the burst of a tenth of a second, and one on credit");
        assert_eq!(bucket.take(1, now), SECOND / 1000);
        assert_eq!(bucket.take(1, now), 2 * SECOND / 1000);
        let later = (0..1000).filter(|_| bucket.try_take(1, now + SECOND / 100)).count();
        assert_eq!(later, 8, "ten milliseconds add ten tokens, of which two were owed");
    }

    #[test]
    fn returned_tokens_can_be_taken_again() {
        let bucket = TokenBucket::new(1);
        let now = 10 * SECOND;
        assert!(bucket.try_take(1, now));
        assert!(!bucket.try_take(1, now));
        bucket.give_back(1);
        assert!(bucket.try_take(1, now));
    }

    #[test]
    fn limit_can_change_and_go() {
        let (rate, now) = (TokenBucket::new(1), 10 * SECOND);
        assert!(rate.try_take(1, now) && !rate.try_take(1, now));
        rate.set(0);
        assert!((0..1000).all(|_| rate.try_take(1, now)) && rate.take(1000, now) == 0);
        rate.set(2);
        assert!(rate.try_take(1, now) && !rate.try_take(1, now));
    }

    #[test]
    fn no_request_overflows_the_clock() {
        let bucket = TokenBucket::new(1);
        assert_eq!(bucket.take(u64::MAX, SECOND), 0);
        assert!(bucket.take(u64::MAX, SECOND) > 0);
        assert!(!bucket.try_take(1, SECOND));
    }
}
