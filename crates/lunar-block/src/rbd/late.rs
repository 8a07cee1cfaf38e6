//! Operations that did not end in time, and run on.

use super::operation::Operation;
use crate::locked;
use lunar_runtime::{either, sleep_until};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// The interval in which waiting operations look for the end of late ones.
const CHECK: Duration = Duration::from_millis(100);
/// The interval in which a running operation looks whether it is given up.
const GIVEN_UP: Duration = Duration::from_secs(1);

enum Late {
    Operation(Operation),
    /// A call on a thread, which holds the other reference.
    Call(Weak<()>),
}

/// Operations that ended as `TimedOut` and run on. They keep their order with later ones, and occupy no more threads,
/// only if these wait.
#[derive(Default)]
pub struct LateOperations {
    running: Mutex<Vec<Late>>,
    is_given_up: AtomicBool,
}

impl Late {
    fn has_ended(&self) -> bool {
        match self {
            Late::Operation(operation) => operation.has_ended(),
            Late::Call(call) => call.strong_count() == 0,
        }
    }
}

impl LateOperations {
    pub fn push(&self, operation: Operation) {
        locked(&self.running).push(Late::Operation(operation));
    }

    /// Operations that run or wait expire within a second, and later ones at once.
    pub fn give_up(&self) {
        self.is_given_up.store(true, SeqCst);
    }

    /// Waits until an operation expires: at its deadline, or because it is given up.
    pub async fn expired(&self, deadline: Instant) {
        while Instant::now() < deadline && !self.is_given_up.load(SeqCst) {
            sleep_until(deadline.min(Instant::now() + GIVEN_UP)).await;
        }
    }

    fn have_ended(&self) -> bool {
        let mut late = locked(&self.running);
        late.retain(|operation| !operation.has_ended());
        late.is_empty()
    }

    /// Waits until no late operation runs any more.
    pub async fn wait(&self, deadline: Instant) -> io::Result<()> {
        while !self.is_given_up.load(SeqCst) {
            if self.have_ended() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                break;
            }
            sleep_until(Instant::now() + CHECK).await;
        }
        Err(timed_out())
    }

    /// Makes a call that may wait for the cluster, on a thread.
    pub async fn call<T: Send + 'static>(
        &self,
        deadline: Instant,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let running = Arc::new(());
        let late = Late::Call(Arc::downgrade(&running));
        let work = lunar_runtime::blocking(move || {
            let _running = running;
            call()
        });
        let expired = async {
            self.expired(deadline).await;
            None
        };
        let ended = either(async { Some(work.await) }, expired).await;
        ended.unwrap_or_else(|| {
            locked(&self.running).push(late);
            Err(timed_out())
        })
    }
}

pub fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the Ceph cluster does not answer")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn operations_that_are_given_up_expire() {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let (late, (end, ended)) = (LateOperations::default(), mpsc::channel::<()>());
            let kind = |e: io::Error| e.kind();
            let deadline = Instant::now() + Duration::from_secs(3600);
            late.give_up();
            let call = late.call(deadline, move || Ok(ended.recv().is_ok()));
            assert_eq!(call.await.map_err(kind), Err(io::ErrorKind::TimedOut), "it runs");
            assert_eq!(late.wait(deadline).await.map_err(kind), Err(io::ErrorKind::TimedOut), "it waits");
            drop(end);
        });
    }

    #[test]
    fn call_that_is_late_holds_later_operations_until_it_ends() {
        let runtime = compio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let (late, (end, ended)) = (LateOperations::default(), mpsc::channel::<()>());
            let kind = |e: io::Error| e.kind();
            let soon = || Instant::now() + Duration::from_secs(60);
            let call = late.call(Instant::now(), move || Ok(ended.recv().is_ok()));
            assert_eq!(call.await.map_err(kind), Err(io::ErrorKind::TimedOut));
            assert_eq!(late.wait(Instant::now()).await.map_err(kind), Err(io::ErrorKind::TimedOut));
            end.send(()).expect("the call runs");
            while !late.have_ended() {
                std::thread::yield_now();
            }
            assert_eq!(late.wait(Instant::now()).await.map_err(kind), Ok(()));
            assert_eq!(late.call(soon(), || Ok(7)).await.map_err(kind), Ok(7));
            assert!(late.have_ended(), "a call in time is not late");
        });
    }
}
