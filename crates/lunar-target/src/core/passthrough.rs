//! Commands that a remote logical unit executes.

use super::front_end::FrontEnd;
use super::task_execution::TaskExecution;
use crate::exec::{ExecutionOutput, ExecutionResult};
use crate::passthrough::{CommandFate, PassthroughCommand, PassthroughData};
use crate::{LogicalUnit, PassthroughNexus};
use lunar_runtime::Buf;
use lunar_scsi::{NexusId, Op, Plan};
use lunar_wire::scsi::Sense;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// UNIT ATTENTION.
const ATTENTION: u8 = 0x06;

/// Whether a plan forwards the command.
pub fn is_forwarded(plan: &Plan) -> bool {
    matches!(plan, Plan::Op(op) if matches!(**op, Op::Passthrough))
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Forwards the command and waits for its response. An abort of the task also aborts the forwarded command, and
    /// waits for the result.
    pub async fn pass(
        &self,
        unit: &Arc<LogicalUnit>,
        data: Option<Buf>,
        room: Option<Buf>,
    ) -> ExecutionResult {
        let Some((passthrough, nexus)) = self.passthrough(unit) else {
            return Err(Sense::LUN_NOT_SUPPORTED.into());
        };
        let c = self.command();
        let data = match (c.writes, c.reads) {
            (true, true) => return Err(Sense::INVALID_FIELD_IN_CDB.into()),
            // No buffer is large enough.
            (_, true) if room.is_none() && c.data_in_len() > 0 => {
                return Err(Sense::INVALID_FIELD_IN_CDB.into());
            }
            // Forward a length of zero too: the device then reports how many bytes it has.
            (true, _) => PassthroughData::Out(data.unwrap_or_else(|| Buf::zeroed(0))),
            (_, true) => PassthroughData::In(room.unwrap_or_else(|| Buf::zeroed(0))),
            _ => PassthroughData::None,
        };
        let tag = self.serial();
        let command = PassthroughCommand { tag, cdb: c.cdb().into(), attribute: c.attribute, data };
        let send_part = |part| self.send_part(part);
        let mut submitted = pin!(passthrough.submit_in_parts(command, &send_part));
        let (fate, reply) = match self.nexus().until_aborted(c, self.serial(), &mut submitted).await {
            Some(reply) => (reply.fate, reply),
            None => {
                let (fate, reply) = (passthrough.abort(tag).await, submitted.await);
                (fate.max(reply.fate), reply)
            }
        };
        if fate == CommandFate::Indeterminate {
            self.nexus().state().leave_indeterminate(self.serial());
        }
        if let Some(sense) = Sense::decode(&reply.sense).filter(|sense| sense.key == ATTENTION) {
            unit.lu.attention_received(nexus, sense);
        }
        Ok(ExecutionOutput::Passthrough(reply))
    }

    fn passthrough(&self, unit: &Arc<LogicalUnit>) -> Option<(Rc<dyn PassthroughNexus>, NexusId)> {
        let mut state = self.nexus().state();
        let handle = state.luns_mut().unit(self.command().lun, unit)?;
        Some((handle.passthrough()?, handle.nexus().id()))
    }
}
