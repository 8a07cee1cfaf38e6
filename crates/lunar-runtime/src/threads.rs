//! Turns at the runtime's threads, which do what would make a core wait.
//!
//! The runtime has a bounded number of threads for each core, and a core that finds all of them busy asks
//! again and again until one is free: nothing else runs there meanwhile. So fewer operations are let in at a
//! time, and the others wait asleep.

use compio::BufResult;
use compio::buf::IntoInner;
use compio::driver::DriverType;
use compio::driver::op::Asyncify;
use compio::runtime::{Runtime, submit};
use event_listener::Event;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Operations of a core that are on the runtime's threads at a time.
pub const AT_ONCE: usize = 64;
/// Threads of a core, at most: more, since one that has given its result is not free at the same moment.
pub(crate) const THREADS: usize = 2 * AT_ONCE;

thread_local! {
    static TURNS: Arc<ThreadPermits> = Arc::new(ThreadPermits { free: AtomicUsize::new(AT_ONCE), freed: Event::new() });
}

struct ThreadPermits {
    free: AtomicUsize,
    freed: Event,
}

/// The right to be on one of the threads of a core. It is given back on its core, and not on a thread: a thread that wakes a
/// task of the core waits until there is room for the wake-up, while the core may wait for a thread.
pub struct ThreadPermit(Arc<ThreadPermits>);

impl ThreadPermit {
    /// Waits for one.
    pub async fn wait() -> ThreadPermit {
        let turns = TURNS.with(Arc::clone);
        loop {
            if let Some(turn) = turns.take() {
                return turn;
            }
            let freed = turns.freed.listen();
            if let Some(turn) = turns.take() {
                return turn;
            }
            freed.await;
        }
    }

    /// As [`ThreadPermit::wait`], where reads and writes of files are done by threads; None where the ring does them.
    pub async fn for_file() -> Option<ThreadPermit> {
        match Runtime::with_current(|runtime| runtime.driver_type()) {
            DriverType::Poll => Some(ThreadPermit::wait().await),
            _ => None,
        }
    }
}

impl ThreadPermits {
    fn take(self: &Arc<Self>) -> Option<ThreadPermit> {
        let taken = self.free.fetch_update(SeqCst, SeqCst, |free| free.checked_sub(1));
        taken.is_ok().then(|| ThreadPermit(self.clone()))
    }
}

impl Drop for ThreadPermit {
    fn drop(&mut self) {
        self.0.free.fetch_add(1, SeqCst);
        self.0.freed.notify_additional(1);
    }
}

fn panicked() -> io::Error {
    io::Error::other("a thread panicked")
}

/// Runs `work` on one of the runtime's threads when its turn has come: for calls that wait and that the ring
/// does not offer. Who stops waiting for the result does not stop the work.
///
/// # Errors
/// Those of `work`; `Other` when it panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let turn = ThreadPermit::wait().await;
    let call = move || {
        // Otherwise the runtime would let the panic go on in the one who waits.
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()));
        // The turn goes back to the core with the result, whether somebody waits for it or not.
        BufResult(Ok(0), (done, turn))
    };
    let BufResult(result, op) = submit(Asyncify::new(call)).await;
    result?;
    let (done, _turn) = op.into_inner();
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cores::WAKES;
    use compio::driver::ProactorBuilder;
    use compio::runtime::RuntimeBuilder;
    use std::time::Duration;

    /// With and without io_uring.
    fn runs<F: Future>(test: impl Fn() -> F) {
        let mut polling = ProactorBuilder::new();
        polling.driver_type(DriverType::Poll);
        for mut proactor in [ProactorBuilder::new(), polling] {
            proactor.thread_pool_limit(THREADS);
            // As a core has it: here, too, many threads wake at the same moment.
            let mut builder = RuntimeBuilder::new();
            builder.with_proactor(proactor).sync_queue_size(WAKES);
            let runtime = builder.build().expect("a runtime");
            runtime.block_on(test());
        }
    }

    /// The loop of the core goes on while every thread is held up, and all of the work is done in the end.
    #[test]
    fn work_waits_asleep_for_its_turn() {
        runs(|| async {
            let (go, gone) = flume::bounded::<()>(0);
            let [inside, most] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
            let work: Vec<_> = (0..5 * THREADS)
                .map(|_| {
                    let (inside, most, gone) = (inside.clone(), most.clone(), gone.clone());
                    compio::runtime::spawn(blocking(move || {
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        let _ = gone.recv(); // until its sender goes
                        inside.fetch_sub(1, SeqCst);
                        Ok(())
                    }))
                })
                .collect();
            while most.load(SeqCst) < AT_ONCE {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(go);
            for one in work {
                one.await.expect("joined").expect("done");
            }
            assert_eq!((most.load(SeqCst), inside.load(SeqCst)), (AT_ONCE, 0));
        });
    }

    /// A turn is given back by who has gone, and by work that panics.
    #[test]
    fn no_turn_is_lost() {
        runs(|| async {
            for _ in 0..2 * AT_ONCE {
                drop(compio::runtime::spawn(blocking(|| Ok(()))));
                let panicked = blocking(|| -> io::Result<()> {
                    std::panic::resume_unwind(Box::new("as it may happen, without the noise"))
                })
                .await;
                assert!(panicked.is_err());
            }
            let all: Vec<_> = std::iter::repeat_with(ThreadPermit::wait).take(AT_ONCE).collect();
            for one in all {
                std::mem::forget(one.await);
            }
            TURNS.with(|turns| turns.free.store(AT_ONCE, SeqCst));
        });
    }
}
