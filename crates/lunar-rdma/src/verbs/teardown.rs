//! Teardown of a connection:
//!
//! 1. Wait until the last messages are sent.
//! 2. Disconnect, so that the device flushes its work.
//! 3. Wait for the flushed completions, then destroy the queue pair.
//!
//! Destroying the pair earlier would lose completions, and thus buffers of the shared receive queue. Each step has a
//! time limit. Callers wait for the teardown only if the device still uses their buffers.

use super::endpoint::{EndStage, State, VerbsInner};
use super::ffi::{ESTABLISHED, WC_SUCCESS};
use super::receives;
use crate::EndpointEvent;
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// The time limit for sending the last messages.
const GRACE: Duration = Duration::from_secs(1);
/// The time limit for the flush.
const DRAIN: Duration = Duration::from_secs(if cfg!(test) { 4 } else { 1 });
/// The time for incoming messages to complete in buffers of the shared receive queue. It applies only to devices that
/// do not report the last one.
const INBOUND_DRAIN: Duration = Duration::from_millis(if cfg!(test) { 3000 } else { 200 });
/// The interval between polls.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

thread_local! {
    /// The total time for which connections may delay the exit of their event loop.
    static LOOP_EXIT_BUDGET: Cell<Duration> = const { Cell::new(Duration::from_millis(200)) };
}

impl VerbsInner {
    /// Ends the connection, unless it has ended. `is_graceful` waits for sent messages before the disconnect.
    pub fn shut_down(&self, is_graceful: bool) {
        let mut state = self.state.borrow_mut();
        let is_graceful = is_graceful && !state.resets;
        if !state.end.is_over() {
            self.begin_teardown(&mut state, None, is_graceful);
        } else if !is_graceful {
            self.disconnect(&mut state);
        }
    }

    /// Ends the connection, and reports the end as soon as possible.
    pub fn begin_teardown(&self, state: &mut State, reason: Option<io::Error>, is_graceful: bool) {
        state.end = EndStage::TearingDown(reason);
        if !is_graceful || !state.out.is_sending() {
            self.disconnect(state);
        }
        self.report_end(state);
        self.async_sink.wakeup.notify(usize::MAX);
    }

    /// Disconnects, which makes the device flush its work.
    fn disconnect(&self, state: &mut State) {
        if state.disconnected_at.is_none() {
            self.id.disconnect();
            state.disconnected_at = Some(Instant::now());
        }
    }

    /// Reports the end, unless the device may still write into buffers that are returned with it.
    fn report_end(&self, state: &mut State) {
        if let EndStage::TearingDown(reason) = &mut state.end
            && (self.queues.is_ended() || !state.out.has_reads_in_place())
        {
            let reason = reason.take();
            let reads = state.out.fail();
            state.inbox.list.extend(reads);
            state.inbox.list.push(EndpointEvent::End(reason));
            state.end = EndStage::Reported;
            self.woken.notify(usize::MAX);
        }
    }

    /// Tears down a connection that has ended.
    pub async fn tear_down(&self) {
        let started_at = Instant::now();
        while !self.advance_teardown(started_at) {
            compio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn advance_teardown(&self, started_at: Instant) -> bool {
        let state = &mut *self.state.borrow_mut();
        // Read before the completions: all messages before that event are then in the completion queue.
        let is_last = self.async_sink.is_last();
        self.reap(state);
        match state.disconnected_at {
            None if self.is_peer_gone() || !state.out.is_sending() || started_at.elapsed() >= GRACE => {
                self.disconnect(state)
            }
            Some(since) if is_done(state, is_last, since.elapsed()) => {
                self.queues.end();
                self.reap(state);
            }
            _ => {}
        }
        self.report_end(state);
        self.queues.is_ended()
    }

    /// Whether the peer has disconnected.
    fn is_peer_gone(&self) -> bool {
        std::iter::from_fn(|| self.id.event().transpose())
            .any(|event| !event.is_ok_and(|e| e.kind == ESTABLISHED))
    }

    /// Takes completions to release their memory. Messages are discarded.
    fn reap(&self, state: &mut State) {
        while let Ok(n @ 1..) = self.queues.poll(&mut state.completions) {
            for wc in &state.completions[..n] {
                match receives::slot(wc.wr_id) {
                    Some(slot) => state.receives.discard(slot),
                    None if wc.status == WC_SUCCESS => {
                        state.inbox.list.extend(state.out.completed(wc.wr_id));
                    }
                    None => state.out.failed(wc.wr_id),
                }
            }
        }
        if state.receives.is_shared() {
            // On a lack of memory, the other connections wait (RNR).
            _ = state.receives.refill(&self.queues);
        }
    }
}

/// Whether the device has flushed its work, or has exceeded the time limit.
fn is_done(state: &State, is_last: bool, after: Duration) -> bool {
    let is_quiet = !state.receives.is_shared() || is_last || after >= INBOUND_DRAIN;
    after >= DRAIN || (is_quiet && state.out.is_at_rest())
}

/// Completes the teardown if the event loop exits first.
impl Drop for VerbsInner {
    fn drop(&mut self) {
        let state = &mut *self.state.borrow_mut();
        self.reap(state);
        let started_at = Instant::now();
        while state.disconnected_at.is_none()
            && !state.resets
            && state.out.is_sending()
            && started_at.elapsed() < LOOP_EXIT_BUDGET.get()
        {
            std::thread::sleep(POLL_INTERVAL);
            self.reap(state);
        }
        LOOP_EXIT_BUDGET.set(LOOP_EXIT_BUDGET.get().saturating_sub(started_at.elapsed()));
        if !self.queues.is_ended() {
            self.disconnect(state);
            self.reap(state);
        }
    }
}

#[cfg(test)]
#[path = "teardown_tests.rs"]
mod tests;
