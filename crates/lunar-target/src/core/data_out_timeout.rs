//! The requests for Data-Out, and the timeout of the requested data.
//!
//! The session ends if data stop arriving, or arrive too slowly. Empty segments are not progress. Data arrive in the
//! order of the requests, so a write is not late while an earlier one receives its requested data.

use super::data_out_transfer::{CHECKS_PER_TIMEOUT, is_late};
use super::front_end::FrontEnd;
use super::nexus::{ItNexus, NexusState, SessionPhase, TransferParts};
use super::task::Task;
use crate::end_reason::EndReason;
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

impl<F: FrontEnd> NexusState<F> {
    /// Requests the data that are due.
    pub(super) fn request_more(&mut self, tag: u32) {
        self.start_timer();
        let TransferParts { tasks, requests, front, .. } = self.transfer_parts();
        let Some((command, r)) = tasks.get_mut(tag).and_then(Task::command_and_transfer) else { return };
        while let Some(request) = r.next_request(requests) {
            front.request_data(command, request);
        }
    }

    /// Starts the timer for outstanding data, unless it is running.
    fn start_timer(&mut self) {
        if self.transfer_parts().requests.needs_timer()
            && let Some(nexus) = self.nexus()
        {
            let timeout = self.login_context().config.session.data_out_timeout;
            lunar_runtime::spawn(data_out_timer(Rc::downgrade(&nexus), timeout / CHECKS_PER_TIMEOUT));
        }
    }

    /// Checks the tasks that wait for data. None: no task waits. Some(true): data of a task are overdue.
    fn check_data_out(&mut self) -> Option<bool> {
        // Data cannot arrive while the target does not receive.
        let is_full = self.is_full();
        let mut waiting: Vec<_> = self.tasks_mut().values_mut().filter_map(Task::waits_for_data).collect();
        let missing_bytes = waiting.iter().map(|(_, receiving)| u64::from(receiving.missing_bytes())).sum();
        let mut is_slow = false;
        for (_, receiving) in &mut waiting {
            is_slow |= receiving.is_slow(missing_bytes, is_full);
        }
        (!waiting.is_empty()).then(|| is_late(waiting) | is_slow)
    }
}

/// Ends the session of an initiator that does not send the data that it announced or that were requested. The timer
/// stops when no task waits for data.
async fn data_out_timer<F: FrontEnd>(nexus: Weak<ItNexus<F>>, part: Duration) {
    loop {
        lunar_runtime::sleep_until(Instant::now() + part).await;
        let Some(nexus) = nexus.upgrade() else { return };
        let mut state = nexus.state();
        let late = state.check_data_out().filter(|_| state.phase() != SessionPhase::Ended);
        if late != Some(false) {
            state.transfer_parts().requests.stop_timer();
        }
        if late == Some(true) {
            state.set_end_reason(EndReason::DataOutTimeout);
            return state.front().close();
        }
        if late.is_none() {
            return;
        }
    }
}
