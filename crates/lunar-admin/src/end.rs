//! The end of a server, for clients that wait for its result.

use lunar_config::Diagnostic;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The result of a server that ends.
#[derive(Default)]
pub struct ServerEnd {
    state: Mutex<EndState>,
    changed: Condvar,
}

#[derive(Default)]
struct EndState {
    /// None: the server still runs.
    problems: Option<Vec<Diagnostic>>,
    waiters: usize,
}

/// A client that waits for the end. Drop it when its response is sent.
pub struct EndWaiter(Arc<ServerEnd>);

impl ServerEnd {
    fn state(&self) -> MutexGuard<'_, EndState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client that waits.
    pub fn waiter(self: &Arc<Self>) -> EndWaiter {
        self.state().waiters += 1;
        EndWaiter(self.clone())
    }

    /// Sets the result: `problems` is empty if no data is lost. Waits up to `limit` until all waiters have it.
    pub fn set(&self, problems: Vec<Diagnostic>, limit: Duration) {
        let mut state = self.state();
        state.problems = Some(problems);
        self.changed.notify_all();
        let has_waiters = |state: &mut EndState| state.waiters > 0;
        // A client that takes no response must not keep the process.
        drop(self.changed.wait_timeout_while(state, limit, has_waiters));
    }
}

impl EndWaiter {
    /// Waits for the end of the server, and returns its problems.
    pub fn problems(&self) -> Vec<Diagnostic> {
        let is_open = |state: &mut EndState| state.problems.is_none();
        let ended = self.0.changed.wait_while(self.0.state(), is_open);
        ended.unwrap_or_else(PoisonError::into_inner).problems.clone().unwrap_or_default()
    }
}

impl Drop for EndWaiter {
    fn drop(&mut self) {
        self.0.state().waiters -= 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn server_ends_after_its_waiters_have_the_result() {
        let end = Arc::new(ServerEnd::default());
        let waiter = end.waiter();
        let (sent, result) = channel();
        let waits = std::thread::spawn(move || {
            sent.send(waiter.problems()).unwrap();
            waiter
        });
        let set = std::thread::spawn({
            let end = end.clone();
            move || end.set(vec![Diagnostic::new("lost", "none")], LONG)
        });
        assert_eq!(result.recv().unwrap()[0].what, "lost");
        let waiter = waits.join().unwrap();
        assert!(!set.is_finished(), "its response is not sent yet");
        drop(waiter);
        set.join().unwrap();
        assert_eq!(end.waiter().problems().len(), 1, "a late client");
    }

    #[test]
    fn client_that_takes_no_response_keeps_no_server() {
        let end = Arc::new(ServerEnd::default());
        let _waiter = end.waiter();
        end.set(Vec::new(), Duration::from_millis(1));
    }
}
