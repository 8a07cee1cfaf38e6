//! The latency of commands, from the receive that brought them until their response is handed to the network.
//!
//! The clock is read a few times for each receive and each flush, and not for each command. Commands that complete at
//! once share the time of their receive: it counts for the backend in equal parts, and for the queue otherwise.

use super::task::TaskTimes;
use crate::lu_counters::{NexusCounters, OpClass, Stages};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of responses that wait for the network. Beyond it, the oldest count as sent.
const MAX_WAITING: usize = 4096;

/// Commands with queued responses.
pub struct LoggedResponse {
    /// The counters of their nexus.
    pub counters: Arc<NexusCounters>,
    /// Their kind.
    pub class: OpClass,
    /// Their number.
    pub count: u32,
    /// See [`Stages::queue`].
    pub queue: Duration,
    /// See [`Stages::backend`].
    pub backend: Duration,
    /// When they ended.
    pub ended: Instant,
}

impl LoggedResponse {
    /// The response to a task. If its execution never began, it was queued until its end.
    pub fn of_task(
        counters: Arc<NexusCounters>,
        class: OpClass,
        times: TaskTimes,
        ended: Instant,
    ) -> LoggedResponse {
        let began = times.began.unwrap_or(ended);
        let queue = began.saturating_duration_since(times.arrived);
        let backend = ended.saturating_duration_since(began);
        LoggedResponse { counters, class, count: 1, queue, backend, ended }
    }

    fn sent(self, now: Instant) {
        let LoggedResponse { counters, class, count, queue, backend, ended } = self;
        let send = now.saturating_duration_since(ended);
        counters.add_latency(class, count, Stages { queue, backend, send });
    }
}

/// A place in the send queue of a connection.
#[derive(Clone, Copy, Debug)]
pub struct SendPosition {
    /// Bytes sent so far.
    pub sent: u64,
    /// The same when the queue is empty.
    pub end: u64,
}

/// The responses of a session that are not sent yet.
pub struct ResponseLog {
    /// The begin of the current receive.
    received: Cell<Instant>,
    /// The responses since the last flush.
    fresh: RefCell<Vec<LoggedResponse>>,
    /// Those that a flush left behind, with their ends in the send queue.
    waiting: RefCell<VecDeque<(u64, LoggedResponse)>>,
}

impl ResponseLog {
    /// Without responses.
    pub fn new() -> ResponseLog {
        let (fresh, waiting) = Default::default();
        ResponseLog { received: Cell::new(Instant::now()), fresh, waiting }
    }

    /// Begins a receive.
    #[inline]
    pub fn begin_receive(&self) {
        self.received.set(Instant::now());
    }

    /// The begin of the current receive.
    #[inline]
    pub fn received(&self) -> Instant {
        self.received.get()
    }

    /// Adds commands whose response is queued before the next flush.
    #[inline]
    pub fn add(&self, response: LoggedResponse) {
        self.fresh.borrow_mut().push(response);
    }

    /// A flush has ended: `is_empty` if the send queue is.
    #[inline]
    pub fn flushed(&self, is_empty: bool, position: impl FnOnce() -> SendPosition) {
        let mut fresh = self.fresh.borrow_mut();
        if fresh.is_empty() && self.waiting.borrow().is_empty() {
            return;
        }
        let now = Instant::now();
        if is_empty {
            self.waiting.borrow_mut().drain(..).for_each(|(_, response)| response.sent(now));
            return fresh.drain(..).for_each(|response| response.sent(now));
        }
        let (SendPosition { sent, end }, mut waiting) = (position(), self.waiting.borrow_mut());
        waiting.extend(fresh.drain(..).map(|response| (end, response)));
        while waiting.len() > MAX_WAITING || waiting.front().is_some_and(|(end, _)| *end <= sent) {
            waiting.pop_front().into_iter().for_each(|(_, response)| response.sent(now));
        }
    }

    /// The responses cannot be sent any more.
    pub fn lost(&self) {
        self.fresh.borrow_mut().clear();
        self.waiting.borrow_mut().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(counters: &Arc<NexusCounters>, count: u32) -> LoggedResponse {
        let (queue, backend) = (Duration::from_micros(5), Duration::from_micros(7));
        let counters = counters.clone();
        LoggedResponse { counters, class: OpClass::Read, count, queue, backend, ended: Instant::now() }
    }

    /// The number of commands whose latency is counted.
    fn counted(counters: &NexusCounters) -> u64 {
        let mut totals = crate::LuTotals::default();
        totals.add(counters);
        totals.latency[OpClass::Read as usize].as_ref().map_or(0, |of| of.send.buckets.iter().sum())
    }

    fn at(sent: u64, end: u64) -> impl FnOnce() -> SendPosition {
        move || SendPosition { sent, end }
    }

    #[test]
    fn response_counts_when_its_bytes_are_sent() {
        let (log, counters) = (ResponseLog::new(), Arc::<NexusCounters>::default());
        log.add(response(&counters, 2));
        log.flushed(false, at(100, 300));
        log.add(response(&counters, 1));
        log.flushed(false, at(299, 500));
        assert_eq!(counted(&counters), 0);
        log.flushed(false, at(300, 500));
        assert_eq!(counted(&counters), 2);
        log.flushed(true, || unreachable!("everything is sent"));
        assert_eq!(counted(&counters), 3);
    }

    #[test]
    fn responses_of_a_lost_connection_do_not_count() {
        let (log, counters) = (ResponseLog::new(), Arc::<NexusCounters>::default());
        log.add(response(&counters, 1));
        log.flushed(false, at(0, 1));
        log.add(response(&counters, 1));
        log.lost();
        log.flushed(true, at(1, 1));
        assert_eq!(counted(&counters), 0);
    }

    #[test]
    fn waiting_responses_are_bounded() {
        let (log, counters) = (ResponseLog::new(), Arc::<NexusCounters>::default());
        (0..=MAX_WAITING).for_each(|_| log.add(response(&counters, 1)));
        log.flushed(false, at(0, 1));
        assert_eq!(counted(&counters), 1);
    }
}
