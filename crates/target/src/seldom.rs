//! Lines of the log that anybody on the network can bring about: a few of them tell as much as all.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines in each stretch of time.
const LINES: u32 = 10;
/// How long such a stretch is.
const STRETCH: Duration = Duration::from_secs(10);

/// Counts lines, and those that were left out.
#[derive(Default)]
pub struct Seldom(Mutex<State>);

#[derive(Default)]
struct State {
    since: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Seldom {
    /// Whether one more line may be written now; if so, how many were left out since the last, where any were.
    pub fn may(&self, now: Instant) -> Option<Option<u64>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.is_none_or(|since| now.duration_since(since) >= STRETCH) {
            (state.since, state.lines) = (Some(now), 0);
        }
        if state.lines >= LINES {
            state.left_out += 1;
            return None;
        }
        state.lines += 1;
        Some(Some(std::mem::take(&mut state.left_out)).filter(|left_out| *left_out > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_by_its_first_lines_and_a_number() {
        let (seldom, now) = (Seldom::default(), Instant::now());
        let told = (0..1000).filter_map(|_| seldom.may(now)).collect::<Vec<_>>();
        assert_eq!(told, [None; LINES as usize]);
        assert_eq!(seldom.may(now + STRETCH), Some(Some(1000 - LINES as u64)));
        assert_eq!(seldom.may(now + STRETCH), Some(None));
    }
}
