//! The beginning of task management functions, which all front ends share: checks, limit, async task, response.

use super::front_end::FrontEnd;
use super::function::{Function, FunctionRequest, ManagementResponse};
use super::nexus::{ItNexus, NexusState, SessionPhase};
use crate::fence;
use std::rc::Rc;

/// The reason why a function does not begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionRefusal {
    /// It has this response already.
    Answered(ManagementResponse),
    /// The session has as many unfinished functions as it may have.
    TooMany,
}

impl<F: FrontEnd> NexusState<F> {
    /// Begins a function in an async task, and counts it until it ends. Then `reply` queues the response, unless the
    /// session is over.
    ///
    /// # Errors
    /// The reason why the function does not begin.
    pub fn begin_function(
        &mut self,
        request: FunctionRequest,
        reply: impl FnOnce(&mut NexusState<F>, ManagementResponse) + 'static,
    ) -> Result<(), FunctionRefusal> {
        if let Some(refusal) = self.refuses(request.function, request.lun) {
            self.count_function(request.function, refusal);
            return Err(FunctionRefusal::Answered(refusal));
        }
        if self.functions_mut().is_full() {
            return Err(FunctionRefusal::TooMany);
        }
        let Some(nexus) = self.nexus() else { return Ok(()) };
        // With a closed fence, another core has ended the session, which answers nothing more.
        let Some(in_flight) = fence::enter(nexus.fence().clone()) else { return Ok(()) };
        self.functions_mut().begin();
        let serial = self.tasks_mut().next_serial();
        lunar_runtime::spawn(async move {
            let _in_flight = in_flight;
            nexus.run_function(request, serial, reply).await;
        });
        Ok(())
    }
}

impl<F: FrontEnd> NexusState<F> {
    /// Counts the response to a function.
    fn count_function(&self, function: Function, response: ManagementResponse) {
        if let Some(target) = &self.info().target {
            self.shared().events.managed(target, function.word(), response.word());
        }
    }
}

impl<F: FrontEnd> ItNexus<F> {
    /// Executes a function that has begun, and sends its response. `serial`: tasks that had arrived before it have lower serials.
    async fn run_function(
        self: Rc<Self>,
        request: FunctionRequest,
        serial: u64,
        reply: impl FnOnce(&mut NexusState<F>, ManagementResponse),
    ) {
        let managed = self.manage(request, serial).await;
        {
            let mut state = self.state();
            state.functions_mut().end();
            state.count_function(request.function, managed);
            if state.phase() != SessionPhase::Ended {
                reply(&mut state, managed);
            }
        }
        F::flush(&self);
        if request.function == Function::TargetColdReset {
            self.end_target_sessions().await;
        }
    }
}
