//! Timers on a separate thread, for long-lived waits of connections. The event loops then neither arm nor check
//! timers for each command.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A deadline, and a number that makes it unique.
type TimerKey = (Instant, u64);

struct TimerQueue {
    waiting: BTreeMap<TimerKey, Waker>,
    last: u64,
}

static WHEEL: Mutex<TimerQueue> = Mutex::new(TimerQueue { waiting: BTreeMap::new(), last: 0 });
/// The earliest deadline has changed.
static EARLIER: Condvar = Condvar::new();

fn wheel() -> MutexGuard<'static, TimerQueue> {
    WHEEL.lock().unwrap_or_else(|e| e.into_inner())
}

/// Starts the thread unless it runs already.
pub(crate) fn start() -> io::Result<()> {
    static RUNS: Mutex<bool> = Mutex::new(false);
    let mut runs = RUNS.lock().unwrap_or_else(|e| e.into_inner());
    if !*runs {
        std::thread::Builder::new().name("timer".into()).spawn(run)?;
        *runs = true;
    }
    Ok(())
}

fn run() {
    loop {
        let due = wait();
        // Outside the lock: a waker may start or drop another sleep.
        due.into_values().for_each(Waker::wake);
    }
}

/// Waits for the next deadline and returns all wakers that are due.
fn wait() -> BTreeMap<TimerKey, Waker> {
    let mut wheel = wheel();
    loop {
        let now = Instant::now();
        let later = wheel.waiting.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut wheel.waiting, later);
        if !due.is_empty() {
            return due;
        }
        let first = wheel.waiting.keys().next().map(|(at, _)| at.saturating_duration_since(now));
        wheel = match first {
            Some(left) => EARLIER.wait_timeout(wheel, left).unwrap_or_else(|e| e.into_inner()).0,
            None => EARLIER.wait(wheel).unwrap_or_else(|e| e.into_inner()),
        };
    }
}

/// Sleeps until the deadline, on a core of [`Cores`](crate::Cores).
pub async fn sleep_until(deadline: Instant) {
    Sleep { deadline, number: None }.await
}

struct Sleep {
    deadline: Instant,
    /// The key, once it is in the queue.
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if Instant::now() >= self.deadline {
            return Poll::Ready(());
        }
        let mut wheel = wheel();
        let number = self.number.unwrap_or(wheel.last + 1);
        wheel.last = wheel.last.max(number);
        self.number = Some(number);
        let key = (self.deadline, number);
        let before = wheel.waiting.insert(key, cx.waker().clone());
        if wheel.waiting.keys().next() == Some(&key) {
            EARLIER.notify_one();
        }
        drop(wheel);
        drop(before);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        // Dropping the last waker drops its task, so it happens outside the lock.
        let gone = wheel().waiting.remove(&(self.deadline, number));
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::time::Duration;

    #[test]
    fn shorter_sleep_wakes_first() {
        start().expect("a thread");
        let (awake, order) = flume::unbounded();
        let started_at = Instant::now();
        compio::runtime::Runtime::new().expect("an event loop").block_on(async move {
            for ms in [60, 20, 40] {
                let awake = awake.clone();
                crate::spawn(async move {
                    sleep_until(started_at + Duration::from_millis(ms)).await;
                    assert!(started_at.elapsed() >= Duration::from_millis(ms));
                    awake.send(ms).expect("somebody listens");
                });
            }
            for expected in [20, 40, 60] {
                assert_eq!(order.recv_async().await, Ok(expected));
            }
        });
    }

    #[test]
    fn dropped_sleep_leaves_nothing_behind() {
        let deadline = Instant::now() + Duration::from_secs(3600);
        let waits = || wheel().waiting.keys().filter(|(at, _)| *at == deadline).count();
        {
            let mut sleep = pin!(sleep_until(deadline));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(sleep.as_mut().poll(&mut cx).is_pending());
            assert!(sleep.as_mut().poll(&mut cx).is_pending());
            assert_eq!(waits(), 1);
        }
        assert_eq!(waits(), 0);
    }
}
