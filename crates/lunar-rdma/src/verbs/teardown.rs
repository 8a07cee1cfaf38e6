//! The end of a connection, as the device sees it.
//!
//! What was said last is waited for; then the connection is cut, and the device ends all that it has; when that has come
//! back the queue pair goes. A pair that went sooner would take completions with it, and with them memory for messages
//! that connections share. All of it takes a bounded time, and nobody waits for it but who wants its buffers back.

use super::endpoint::{EndStage, State, VerbsInner};
use super::ffi::{ESTABLISHED, WC_SUCCESS};
use super::receives;
use crate::EndpointEvent;
use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

/// For what was said last to arrive.
const GRACE: Duration = Duration::from_secs(1);
/// For the device to end what it has.
const DRAIN: Duration = Duration::from_secs(1);
/// For messages that are coming, and of which nothing is known yet, to end in memory that is shared; for devices that do
/// not tell when that is so.
const INBOUND_DRAIN: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 200 });
/// Between looks.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

thread_local! {
    /// How long the connections of a loop that ends may keep it from that, together.
    static LOOP_EXIT_BUDGET: Cell<Duration> = const { Cell::new(Duration::from_millis(200)) };
}

impl VerbsInner {
    /// Ends the connection, if it has not ended; with `is_graceful` what was said may still arrive.
    pub fn shut_down(&self, is_graceful: bool) {
        let mut state = self.state.borrow_mut();
        let is_graceful = is_graceful && !state.resets;
        if !state.end.is_over() {
            self.begin_teardown(&mut state, None, is_graceful);
        } else if !is_graceful {
            self.disconnect(&mut state);
        }
    }

    /// Ends the connection, and tells of it as soon as may be.
    pub fn begin_teardown(&self, state: &mut State, reason: Option<io::Error>, is_graceful: bool) {
        state.end = EndStage::TearingDown(reason);
        if !is_graceful || !state.out.is_sending() {
            self.disconnect(state);
        }
        self.report_end(state);
        self.async_sink.wakeup.notify(usize::MAX);
    }

    /// From now on the device ends what it has, with errors.
    fn disconnect(&self, state: &mut State) {
        if state.disconnected_at.is_none() {
            self.id.disconnect();
            state.disconnected_at = Some(Instant::now());
        }
    }

    /// Tells of the end, unless buffers that come back with it are still written to.
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

    /// Waits until the device is done with a connection that is over, and lets its queues go.
    pub async fn tear_down(&self) {
        let begun = Instant::now();
        while !self.advance_teardown(begun) {
            compio::time::sleep(POLL_INTERVAL).await;
        }
    }

    fn advance_teardown(&self, begun: Instant) -> bool {
        let state = &mut *self.state.borrow_mut();
        // Before what it is about is taken.
        let is_last = self.async_sink.is_last();
        self.reap(state);
        match state.disconnected_at {
            None if self.is_peer_gone() || !state.out.is_sending() || begun.elapsed() >= GRACE => {
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

    /// The other side does not listen any more.
    fn is_peer_gone(&self) -> bool {
        std::iter::from_fn(|| self.id.event().transpose())
            .any(|event| !event.is_ok_and(|e| e.kind == ESTABLISHED))
    }

    /// Takes back what the device is done with. Messages come too late.
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
            // Without memory the others wait, as at other times.
            _ = state.receives.refill(&self.queues);
        }
    }
}

/// The device has ended what it had, or had so long for it that it will not.
fn is_done(state: &State, is_last: bool, after: Duration) -> bool {
    let is_quiet = !state.receives.is_shared() || is_last || after >= INBOUND_DRAIN;
    after >= DRAIN || (is_quiet && state.out.is_at_rest())
}

/// The loop of a connection may end before that has parted.
impl Drop for VerbsInner {
    fn drop(&mut self) {
        let state = &mut *self.state.borrow_mut();
        self.reap(state);
        let begun = Instant::now();
        while state.disconnected_at.is_none()
            && !state.resets
            && state.out.is_sending()
            && begun.elapsed() < LOOP_EXIT_BUDGET.get()
        {
            std::thread::sleep(POLL_INTERVAL);
            self.reap(state);
        }
        LOOP_EXIT_BUDGET.set(LOOP_EXIT_BUDGET.get().saturating_sub(begun.elapsed()));
        if !self.queues.is_ended() {
            self.disconnect(state);
            self.reap(state);
        }
    }
}

#[cfg(test)]
#[path = "teardown_tests.rs"]
mod tests;
