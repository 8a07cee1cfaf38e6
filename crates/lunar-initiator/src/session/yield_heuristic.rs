//! When to let the target go on before its answers are taken. A target that sends each answer by itself, on a core that it
//! shares with us, is interrupted by us at each. After a yield, many are there at once. Where that brings nothing, it is
//! left for a while.

use std::time::{Duration, Instant};

/// With fewer commands under way, the core does not yield.
const FEW: u32 = 8;
/// Receives without yielding, after one that brought hardly more than without.
const PAUSE: u32 = 256;
/// The same after another task kept the core for longer than a target would.
const LONG_PAUSE: u32 = 16384;
const LONG: Duration = Duration::from_millis(1);
/// After so many that brought more, one receives without yielding, to see what that brings by now.
const STREAK: u32 = 32;

/// What the latest receives have brought.
#[derive(Debug, Default)]
pub struct YieldHeuristic {
    /// Answers of the latest receive without yielding.
    came: u32,
    /// How long the core was away before this one.
    away: Option<Duration>,
    /// Receives until it is tried again.
    pause: u32,
    /// Receives since then that brought more.
    streak: u32,
}

impl YieldHeuristic {
    /// Before a receive: yields the core if more answers may come by that.
    pub fn before_receive(&mut self, under_way: u32) {
        self.away = None;
        if self.pause > 0 {
            self.pause -= 1;
        } else if self.streak == STREAK {
            self.streak = 0;
        } else if under_way >= FEW && self.came * 8 <= under_way {
            let begun = Instant::now();
            std::thread::yield_now();
            self.away = Some(begun.elapsed());
        }
    }

    /// After it: so many answers came.
    pub fn after_receive(&mut self, came: u32) {
        match self.away {
            None => self.came = came,
            Some(away) if away > LONG => self.pause = LONG_PAUSE,
            Some(_) if came <= 2 * self.came => (self.pause, self.streak) = (PAUSE, 0),
            Some(_) => self.streak += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One receive; whether it yielded, which took no time.
    fn receive(patience: &mut YieldHeuristic, under_way: u32, came: u32) -> bool {
        patience.before_receive(under_way);
        let yielded = patience.away.is_some();
        patience.away = patience.away.map(|_| Duration::ZERO);
        patience.after_receive(came);
        yielded
    }

    #[test]
    fn yield_for_single_answers_stops_when_it_brings_nothing() {
        let mut patience = YieldHeuristic { came: 8, ..YieldHeuristic::default() };
        assert!(!receive(&mut patience, 16, 1), "the latest receive brought half of them");
        assert!(!receive(&mut patience, FEW - 1, 1), "there are too few");
        assert!(receive(&mut patience, 32, 20), "one of many came");
        assert!(receive(&mut patience, 32, 1), "it brought more, so it is done again, now in vain");
        for _ in 0..PAUSE {
            assert!(!receive(&mut patience, 32, 1));
        }
        assert!((0..STREAK).all(|_| receive(&mut patience, 32, 20)));
        assert!(!receive(&mut patience, 32, 20), "one without");
        assert!(!receive(&mut patience, 32, 20), "it brought as many");
    }

    #[test]
    fn core_that_others_keep_is_not_given_away_again_soon() {
        let mut patience = YieldHeuristic { away: Some(2 * LONG), ..YieldHeuristic::default() };
        patience.after_receive(32);
        assert!((0..LONG_PAUSE).all(|_| !receive(&mut patience, 32, 1)));
    }
}
