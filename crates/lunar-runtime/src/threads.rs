//! Permits for the threads of the event loop, which make system calls that would block a core.
//!
//! compio has a bounded number of threads for each core. A core that finds all of them busy spins until one is free,
//! and nothing else runs there meanwhile. Permits admit fewer operations than there are threads; the others sleep.

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

/// Permits of a core: operations on its threads at a time.
pub const AT_ONCE: usize = 64;
/// The limit of threads of a core. It exceeds the number of permits, because a thread that returns its result is not
/// free at once.
pub(crate) const THREADS: usize = 2 * AT_ONCE;

thread_local! {
    static PERMITS: Arc<ThreadPermits> = Arc::new(ThreadPermits { free: AtomicUsize::new(AT_ONCE), freed: Event::new() });
}

struct ThreadPermits {
    free: AtomicUsize,
    freed: Event,
}

/// The right to use one of the threads of a core. It must be dropped on its core, not on a thread: a thread that
/// wakes a task of the core may wait for room in the wake-up queue while the core waits for a thread.
pub struct ThreadPermit(Arc<ThreadPermits>);

impl ThreadPermit {
    /// Waits for a permit.
    pub async fn wait() -> ThreadPermit {
        let permits = PERMITS.with(Arc::clone);
        loop {
            if let Some(permit) = permits.take() {
                return permit;
            }
            let freed = permits.freed.listen();
            if let Some(permit) = permits.take() {
                return permit;
            }
            freed.await;
        }
    }

    /// As [`ThreadPermit::wait`] where threads read and write files (polling driver); None where io_uring does.
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
    io::Error::other("the thread of a blocking operation panicked")
}

/// Runs `work` on a thread once a permit is free: for blocking calls that io_uring does not offer. Dropping the
/// future does not stop the work.
///
/// # Errors
/// Those of `work`; `Other` when it panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let permit = ThreadPermit::wait().await;
    let call = move || {
        // Without this, the panic would continue in the waiting task.
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(panicked()));
        // The permit returns to the core with the result, even if the waiter is gone.
        BufResult(Ok(0), (done, permit))
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

    /// Runs the test with io_uring and with polling.
    fn runs<F: Future>(test: impl Fn() -> F) {
        let mut polling = ProactorBuilder::new();
        polling.driver_type(DriverType::Poll);
        for mut proactor in [ProactorBuilder::new(), polling] {
            proactor.thread_pool_limit(THREADS);
            // The queue size of a core: here, too, many threads wake tasks at the same moment.
            let mut builder = RuntimeBuilder::new();
            builder.with_proactor(proactor).sync_queue_size(WAKES);
            let runtime = builder.build().expect("a runtime");
            runtime.block_on(test());
        }
    }

    /// The loop of the core continues while every permit is in use, and all work completes in the end.
    #[test]
    fn blocking_work_waits_for_a_permit() {
        runs(|| async {
            let (go, gone) = flume::bounded::<()>(0);
            let [inside, max] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
            let work: Vec<_> = (0..5 * THREADS)
                .map(|_| {
                    let (inside, max, gone) = (inside.clone(), max.clone(), gone.clone());
                    compio::runtime::spawn(blocking(move || {
                        max.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        let _ = gone.recv(); // until the sender is dropped
                        inside.fetch_sub(1, SeqCst);
                        Ok(())
                    }))
                })
                .collect();
            while max.load(SeqCst) < AT_ONCE {
                compio::time::sleep(Duration::from_millis(1)).await;
            }
            drop(go);
            for one in work {
                one.await.expect("joined").expect("done");
            }
            assert_eq!((max.load(SeqCst), inside.load(SeqCst)), (AT_ONCE, 0));
        });
    }

    /// A permit is returned when its waiter is dropped, and when its work panics.
    #[test]
    fn no_thread_permit_is_lost() {
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
            PERMITS.with(|permits| permits.free.store(AT_ONCE, SeqCst));
        });
    }
}
