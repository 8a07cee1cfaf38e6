//! The interval at which a session looks at more than its commands.

use lunar_block::LocalBoxFuture;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(50);

/// A repeated timer, on the timer thread: the event loop has no timer to check.
pub struct Tick {
    at: Instant,
    timer: LocalBoxFuture<'static, ()>,
    /// Whether the timer wakes the task.
    is_armed: bool,
}

impl Tick {
    pub fn new() -> Tick {
        let at = Instant::now() + TICK;
        Tick { at, timer: Box::pin(lunar_runtime::sleep_until(at)), is_armed: false }
    }

    /// Ready once for each tick. A caller that has read the clock passes the time, which saves most polls of the timer.
    pub fn poll(&mut self, now: Option<Instant>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_armed && now.is_some_and(|now| now < self.at) {
            return Poll::Pending;
        }
        self.is_armed = true;
        let ticked = self.timer.as_mut().poll(cx);
        if ticked.is_ready() {
            *self = Tick::new();
        }
        ticked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lunar_runtime::Cores;
    use std::future::poll_fn;

    #[test]
    fn task_that_was_busy_at_first_is_woken_by_each_tick() {
        let ticks = Cores::one().expect("a core").wait(0, || async {
            let (begin, mut tick, mut busy) = (Instant::now(), Tick::new(), Some(Instant::now()));
            for _ in 0..3 {
                poll_fn(|cx| tick.poll(busy.take(), cx)).await;
            }
            begin.elapsed()
        });
        assert!(ticks.expect("the core runs") >= 3 * TICK);
    }
}
