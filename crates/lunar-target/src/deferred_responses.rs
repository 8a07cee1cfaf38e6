//! Responses that report the end of tasks, deferred while RDMA Reads fetch data of these tasks. An initiator that
//! receives such a response reuses the memory.

use crate::core::InFlightReads;
use std::collections::VecDeque;

/// Deferred responses, and all responses queued after them, in queue order.
pub struct DeferredResponses<T> {
    list: VecDeque<T>,
    /// Number of responses that were deferred since the start.
    ever: u64,
}

impl<T> Default for DeferredResponses<T> {
    fn default() -> DeferredResponses<T> {
        DeferredResponses { list: VecDeque::new(), ever: 0 }
    }
}

impl<T> DeferredResponses<T> {
    /// Whether a response must be deferred: its own RDMA Reads are in flight, or an earlier response is deferred.
    pub fn must_defer(&self, is_busy: impl FnOnce() -> bool) -> bool {
        !self.list.is_empty() || is_busy()
    }

    /// Defers a response.
    pub fn push(&mut self, response: T) {
        self.ever += 1;
        self.list.push_back(response);
    }

    /// Takes the first response, if it need not wait any longer.
    pub fn pop_ready(&mut self, is_busy: impl FnOnce(&T) -> bool) -> Option<T> {
        self.list.pop_front_if(|first| !is_busy(first))
    }

    /// Whether no response is deferred.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The deferred responses.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.list.iter()
    }

    /// A mark after the RDMA Reads up to number `latest`, and after the responses that are deferred now.
    pub fn mark(&self, latest: u64) -> InFlightReads {
        InFlightReads { latest, deferred: self.ever }
    }

    /// Whether the RDMA Reads before this mark have ended, and the responses before it were sent. `reads_up_to`:
    /// whether an RDMA Read up to this number is in flight.
    pub fn has_passed(&self, mark: InFlightReads, reads_up_to: impl FnOnce(u64) -> bool) -> bool {
        self.ever - self.list.len() as u64 >= mark.deferred && !reads_up_to(mark.latest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_behind_deferred_one_is_deferred() {
        let mut deferred = DeferredResponses::default();
        assert!(deferred.must_defer(|| true) && !deferred.must_defer(|| false));
        deferred.push('a');
        assert!(deferred.must_defer(|| false));
        deferred.push('b');
        assert_eq!(deferred.pop_ready(|first| *first == 'a'), None);
        assert_eq!([(); 3].map(|()| deferred.pop_ready(|_| false)), [Some('a'), Some('b'), None]);
        assert!(!deferred.must_defer(|| false));
    }

    #[test]
    fn mark_ignores_later_responses() {
        let mut deferred = DeferredResponses::default();
        deferred.push('a');
        let mark = deferred.mark(0);
        deferred.push('b');
        assert!(!deferred.has_passed(mark, |_| false));
        deferred.pop_ready(|_| false);
        assert!(deferred.has_passed(mark, |_| false) && !deferred.has_passed(deferred.mark(0), |_| false));
    }

    #[test]
    fn mark_ignores_later_reads() {
        let deferred = DeferredResponses::<char>::default();
        let oldest_read = 5;
        let has_passed = |latest| deferred.has_passed(deferred.mark(latest), |number| oldest_read <= number);
        assert_eq!([4, 5, 6].map(has_passed), [true, false, false]);
    }
}
