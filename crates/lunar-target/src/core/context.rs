//! What a command may ask of the world around its logical unit.

use super::command::Command;
use super::front_end::FrontEnd;
use super::nexus::ItNexus;
use crate::exec::Surroundings;
use crate::exec::copy::Ends;
use crate::gate::{Entry, Member};
use crate::registry::{Letter, Which};
use lunar_scsi::{CopyRange, CopySegment, NexusId};
use lunar_wire::scsi::Sense;

/// What one command may ask for.
pub struct TaskContext<'a, F: FrontEnd> {
    /// Its I_T nexus.
    pub nexus: &'a ItNexus<F>,
    /// The command.
    pub command: &'a Command,
    /// The serial of its task.
    pub serial: u64,
    /// The gate of its logical unit, if it has one, and how it steps in.
    pub gate: Option<(Member, Entry)>,
}

impl<F: FrontEnd> Surroundings for TaskContext<'_, F> {
    fn luns(&self) -> Vec<u16> {
        self.nexus.state().luns.map().keys().copied().collect()
    }

    fn copy_ends(&self, number: u16, segment: &CopySegment) -> Result<Ends, Sense> {
        let mut state = self.nexus.state();
        let ends = state.luns.copy_ends(number, segment)?;
        if let Some(task) = state.tasks.get_mut(&self.command.tag).filter(|t| t.serial == self.serial) {
            task.reaches.extend([ends.source.nexus, ends.destination.nexus]);
        }
        Ok(ends)
    }

    fn copy_range(&self, number: u16, segment: &CopySegment, ends: &Ends) -> Result<CopyRange, Sense> {
        self.nexus.state().luns.copy_range(number, segment, ends)
    }

    fn own_gate(&self) -> Option<(Member, Entry)> {
        self.gate.clone()
    }

    fn abort(&self, victims: Vec<NexusId>) -> lunar_block::Future<'_, ()> {
        let which = Which::Nexuses(victims.into());
        let (shared, from) = self.nexus.origin();
        Box::pin(async move {
            let letter = |done| {
                let (which, from, indeterminate) = (which.clone(), from.clone(), Default::default());
                Letter::Abort { which, from, indeterminate, done }
            };
            shared.registry.tell_all(None, letter).await;
        })
    }

    fn is_aborted(&self) -> bool {
        let state = self.nexus.state();
        let c = self.command;
        state.is_aborted(c.tag, self.serial) || state.front().why_late(c.connection, None).is_some()
    }
}
