//! Decides when to yield the core before a receive. A target on the same core may send each response separately, and
//! is then preempted by this session after each one. After a yield, one receive returns many responses. If yielding
//! has no effect, it pauses.

use std::time::{Duration, Instant};

/// Below this number of commands in flight, the core is not yielded.
const FEW: u32 = 8;
/// The number of receives without a yield after a yield that had little effect.
const PAUSE: u32 = 256;
/// The same after another task kept the core for longer than a target would.
const LONG_PAUSE: u32 = 16384;
const LONG: Duration = Duration::from_millis(1);
/// After this number of useful yields, one receive runs without a yield, to repeat the measurement.
const STREAK: u32 = 32;

/// The measurements of the last receives.
#[derive(Debug, Default)]
pub struct YieldHeuristic {
    /// The number of responses in the last receive without a yield.
    received: u32,
    /// The duration of the yield before this receive.
    away: Option<Duration>,
    /// The number of receives left without a yield.
    pause: u32,
    /// The number of useful yields in a row.
    streak: u32,
    /// The number of first parts left without a yield.
    parts_pause: u32,
}

impl YieldHeuristic {
    /// Called before a receive: yields the core if that may bring more responses.
    pub fn before_receive(&mut self, in_flight: u32) {
        self.away = None;
        if self.pause > 0 {
            self.pause -= 1;
        } else if self.streak == STREAK {
            self.streak = 0;
        } else if in_flight >= FEW && self.received * 8 <= in_flight {
            let started_at = Instant::now();
            std::thread::yield_now();
            self.away = Some(started_at.elapsed());
        }
    }

    /// Called before the rest of a long read is received, whose owner has passed the first part on: yields the core, so
    /// that the receiver of that part runs before the rest is copied, if it is on this core.
    pub fn after_first_part(&mut self) {
        if self.parts_pause > 0 {
            self.parts_pause -= 1;
            return;
        }
        let started_at = Instant::now();
        std::thread::yield_now();
        if started_at.elapsed() > LONG {
            self.parts_pause = PAUSE;
        }
    }

    /// Called after a receive, with the number of responses.
    pub fn after_receive(&mut self, received: u32) {
        match self.away {
            None => self.received = received,
            Some(away) if away > LONG => self.pause = LONG_PAUSE,
            Some(_) if received <= 2 * self.received => (self.pause, self.streak) = (PAUSE, 0),
            Some(_) => self.streak += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates one receive. Returns whether it yielded, which takes no time here.
    fn receive(patience: &mut YieldHeuristic, in_flight: u32, received: u32) -> bool {
        patience.before_receive(in_flight);
        let yielded = patience.away.is_some();
        patience.away = patience.away.map(|_| Duration::ZERO);
        patience.after_receive(received);
        yielded
    }

    #[test]
    fn yield_for_single_answers_stops_when_it_brings_nothing() {
        let mut patience = YieldHeuristic { received: 8, ..YieldHeuristic::default() };
        assert!(!receive(&mut patience, 16, 1), "the last receive returned half of the responses");
        assert!(!receive(&mut patience, FEW - 1, 1), "too few commands are in flight");
        assert!(receive(&mut patience, 32, 20), "the last receive returned one of many responses");
        assert!(receive(&mut patience, 32, 1), "the useful yield is repeated");
        for _ in 0..PAUSE {
            assert!(!receive(&mut patience, 32, 1));
        }
        assert!((0..STREAK).all(|_| receive(&mut patience, 32, 20)));
        assert!(!receive(&mut patience, 32, 20), "one receive measures without a yield");
        assert!(!receive(&mut patience, 32, 20), "it returned as many responses without a yield");
    }

    #[test]
    fn core_that_others_keep_is_not_given_away_again_soon() {
        let mut patience = YieldHeuristic { away: Some(2 * LONG), ..YieldHeuristic::default() };
        patience.after_receive(32);
        assert!((0..LONG_PAUSE).all(|_| !receive(&mut patience, 32, 1)));
    }
}
