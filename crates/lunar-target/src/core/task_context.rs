//! The access of a command beyond its own logical unit.

use super::command::ScsiCommand;
use super::front_end::FrontEnd;
use super::nexus::{ItNexus, NexusState};
use crate::exec::ExecutionContext;
use crate::exec::copy::CopyEnds;
use crate::registry::{AbortScope, SessionMessage};
use crate::task_set_lock::{LockMode, TaskSetHandle};
use lunar_scsi::{CopyRange, CopySegment, NexusId};
use lunar_wire::scsi::Sense;

/// The context of one command.
pub struct TaskContext<'a, F: FrontEnd> {
    /// Its I_T nexus.
    pub nexus: &'a ItNexus<F>,
    /// The command.
    pub command: &'a ScsiCommand,
    /// The serial of its task.
    pub serial: u64,
    /// The task set lock of its logical unit, if it has one, and the mode in which the command takes it.
    pub lock: Option<(TaskSetHandle, LockMode)>,
}

impl<F: FrontEnd> ExecutionContext for TaskContext<'_, F> {
    fn luns(&self) -> Vec<u16> {
        self.nexus.state().lun_map().keys().copied().collect()
    }

    fn copy_ends(&self, number: u16, segment: &CopySegment) -> Result<CopyEnds, Sense> {
        let mut state = self.nexus.state();
        let ends = state.luns_mut().copy_ends(number, segment)?;
        if let Some(task) = state.tasks_mut().find_mut(self.command.tag, self.serial) {
            task.add_copy_nexuses([ends.source.nexus, ends.destination.nexus]);
        }
        Ok(ends)
    }

    fn copy_range(&self, number: u16, segment: &CopySegment, ends: &CopyEnds) -> Result<CopyRange, Sense> {
        self.nexus.state().luns_mut().copy_range(number, segment, ends)
    }

    fn own_lock(&self) -> Option<(TaskSetHandle, LockMode)> {
        self.lock.clone()
    }

    fn copies_stably(&self) -> bool {
        self.command.copies_stably
    }

    fn abort(&self, victims: Vec<NexusId>) -> lunar_block::LocalBoxFuture<'_, ()> {
        let scope = AbortScope::Nexuses(victims.into());
        let (shared, from) = self.nexus.origin();
        Box::pin(async move {
            let message = |done| {
                let (scope, from, indeterminate) = (scope.clone(), from.clone(), Default::default());
                SessionMessage::Abort { scope, from: Some(from), indeterminate, done }
            };
            shared.registry.broadcast(None, message).await;
        })
    }

    fn is_aborted(&self) -> bool {
        self.is_aborted_in(&self.nexus.state())
    }

    fn until_aborted(&self) -> lunar_block::LocalBoxFuture<'_, ()> {
        Box::pin(self.nexus.wait_until(|state| self.is_aborted_in(state)))
    }
}

impl<F: FrontEnd> TaskContext<'_, F> {
    fn is_aborted_in(&self, state: &NexusState<F>) -> bool {
        let c = self.command;
        state.is_aborted(c.tag, self.serial) || state.front().stale_reason(c.connection).is_some()
    }
}
