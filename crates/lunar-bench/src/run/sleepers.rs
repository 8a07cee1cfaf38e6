//! The times at which lanes of a session continue.

use compio::time::sleep;
use lunar_block::LocalBoxFuture;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::task::Context;
use std::time::{Duration, Instant};

/// Lanes that wait for a time.
#[derive(Default)]
pub struct Sleepers {
    waiting: BinaryHeap<Reverse<(Instant, usize)>>,
    /// The timer of the first one.
    timer: Option<(Instant, LocalBoxFuture<'static, ()>)>,
}

impl Sleepers {
    pub fn add(&mut self, lane: usize, until: Instant) {
        self.waiting.push(Reverse((until, lane)));
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next lane that is due at `now`.
    pub fn take_due(&mut self, now: Instant) -> Option<usize> {
        self.waiting.peek().filter(|first| first.0.0 <= now)?;
        self.waiting.pop().map(|Reverse((_, lane))| lane)
    }

    /// Makes all lanes due.
    pub fn wake_all(&mut self, now: Instant) {
        self.waiting = self.waiting.drain().map(|Reverse((at, lane))| Reverse((at.min(now), lane))).collect();
    }

    /// Arranges that the task is polled when the first lane is due.
    pub fn arm(&mut self, cx: &mut Context<'_>) {
        let Some(Reverse((at, _))) = self.waiting.peek() else {
            self.timer = None;
            return;
        };
        if self.timer.as_ref().is_none_or(|timer| timer.0 != *at) {
            let wait = at.saturating_duration_since(Instant::now());
            self.timer = (wait > Duration::ZERO).then(|| (*at, Box::pin(sleep(wait)) as _));
        }
        let is_due = self.timer.as_mut().is_none_or(|(_, timer)| timer.as_mut().poll(cx).is_ready());
        if is_due {
            self.timer = None;
            cx.waker().wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use compio::runtime::Runtime;
    use std::future::poll_fn;
    use std::task::Poll;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn lanes_are_due_in_the_order_of_their_times() {
        let (mut sleepers, now) = (Sleepers::default(), Instant::now());
        [3, 1, 2].into_iter().for_each(|n| sleepers.add(n as usize, now + MS * n));
        assert_eq!(sleepers.take_due(now), None);
        assert_eq!([2, 2, 2].map(|n| sleepers.take_due(now + MS * n)), [Some(1), Some(2), None]);
        sleepers.wake_all(now);
        assert_eq!((sleepers.take_due(now), sleepers.is_empty()), (Some(3), true));
    }

    #[test]
    fn task_is_polled_when_the_first_lane_is_due() {
        let (mut sleepers, begin, mut order) = (Sleepers::default(), Instant::now(), Vec::new());
        [(0, 40), (1, 0)].into_iter().for_each(|(lane, ms)| sleepers.add(lane, begin + MS * ms));
        let work = poll_fn(|cx| {
            let now = Instant::now();
            while let Some(lane) = sleepers.take_due(now) {
                order.push((lane, now - begin));
                if lane == 1 && order.len() == 1 {
                    // Earlier than the lane that waits already.
                    sleepers.add(1, now + MS * 5);
                }
            }
            sleepers.arm(cx);
            if sleepers.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        });
        Runtime::new().expect("an event loop").block_on(work);
        assert_eq!(order.iter().map(|(lane, _)| *lane).collect::<Vec<_>>(), [1, 1, 0]);
        assert!(order[1].1 >= MS * 5 && order[2].1 >= MS * 40, "{order:?}");
    }
}
