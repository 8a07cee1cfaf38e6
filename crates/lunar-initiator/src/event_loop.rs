//! The event loop that [`crate::blocking`] and [`crate::any_executor`] share. Its thread starts at first use and runs
//! until the process ends.

use crate::{Error, ErrorCode};
use lunar_runtime::Cores;
use std::io;
use std::sync::{Mutex, PoisonError};

/// The result of work on the event loop.
pub(crate) struct Reply<T>(flume::Receiver<T>);

impl<T> Reply<T> {
    /// Blocks the thread until the work has ended.
    pub fn wait(self) -> Result<T, Error> {
        self.0.recv().map_err(|_| stopped())
    }

    /// Waits until the work has ended, on any executor.
    pub async fn ended(self) -> Result<T, Error> {
        self.0.into_recv_async().await.map_err(|_| stopped())
    }
}

/// Begins work on the event loop. Dropping the reply does not cancel the work.
///
/// # Errors
/// When the event loop cannot be started.
pub(crate) fn start<T, W>(work: impl FnOnce() -> W + Send + 'static) -> Result<Reply<T>, Error>
where
    T: Send + 'static,
    W: Future<Output = T> + 'static,
{
    Ok(Reply(shared()?.start_on(0, work)))
}

/// The event loop. Once it runs, callers take no lock to reach it.
fn shared() -> Result<&'static Cores, Error> {
    static STARTED: std::sync::OnceLock<Cores> = std::sync::OnceLock::new();
    static STARTING: Mutex<()> = Mutex::new(());
    if let Some(cores) = STARTED.get() {
        return Ok(cores);
    }
    let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(cores) = STARTED.get() {
        return Ok(cores);
    }
    let cores = Cores::unbound().map_err(|e| cannot_start(&e))?;
    Ok(STARTED.get_or_init(|| cores))
}

fn cannot_start(e: &io::Error) -> Error {
    Error::new(
        ErrorCode::Other,
        format!("cannot start the event loop of the initiator: {}", lunar_runtime::error::text(e)),
    )
}

fn stopped() -> Error {
    Error::new(
        ErrorCode::SessionClosed,
        "the event loop of the initiator ended the operation without a result",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{self, ThreadId};

    fn thread_of_work() -> ThreadId {
        start(|| async { thread::current().id() }).expect("an event loop").wait().expect("a result")
    }

    #[test]
    fn threads_that_start_work_share_one_loop() {
        let first = thread_of_work();
        let others: Vec<_> = (0..4).map(|_| thread::spawn(thread_of_work)).collect();
        others.into_iter().for_each(|other| assert_eq!(other.join().expect("a thread"), first));
        assert_ne!(first, thread::current().id());
    }

    #[test]
    fn work_that_panics_ends_alone() {
        let panics = start::<(), _>(|| async { panic!("expected by this test") }).expect("an event loop");
        assert_eq!(panics.wait().map_err(|e| e.code), Err(ErrorCode::SessionClosed));
        thread_of_work();
    }
}
