//! Commands that are carried out by a logical unit elsewhere.

use super::command::Attribute;
use super::execution::TaskExecution;
use super::front_end::FrontEnd;
use crate::exec::{Ended, Outcome};
use crate::passage::{Data, Fate, Passed};
use crate::{Unit, Way};
use lunar_runtime::Buf;
use lunar_scsi::{NexusId, Op, Plan};
use lunar_wire::iscsi::request;
use lunar_wire::scsi::Sense;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// UNIT ATTENTION.
const ATTENTION: u8 = 0x06;

/// A command that is handed over.
pub fn passes(plan: &Plan) -> bool {
    matches!(plan, Plan::Op(op) if matches!(**op, Op::Pass))
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Hands the command over and waits for its end. Who aborts it here aborts it there, and waits for that.
    pub async fn pass(&self, unit: &Arc<Unit>, data: Option<Buf>, room: Option<Buf>) -> Ended {
        let Some((way, nexus)) = self.way(unit) else {
            return Err(Sense::LUN_NOT_SUPPORTED.into());
        };
        let c = &self.command;
        let data = match (c.writes, c.reads) {
            (true, true) => return Err(Sense::INVALID_FIELD_IN_CDB.into()),
            // More than there are buffers for.
            (_, true) if room.is_none() && c.room() > 0 => return Err(Sense::INVALID_FIELD_IN_CDB.into()),
            // Also where no byte is expected: the device tells then how many there are.
            (true, _) => Data::Out(data.unwrap_or_else(|| Buf::zeroed(0))),
            (_, true) => Data::In(room.unwrap_or_else(|| Buf::zeroed(0))),
            _ => Data::None,
        };
        let attribute = match c.attribute {
            Attribute::Simple => request::Attribute::Simple,
            Attribute::Ordered => request::Attribute::Ordered,
            Attribute::HeadOfQueue => request::Attribute::HeadOfQueue,
        };
        let tag = self.serial;
        let mut submitted = pin!(way.submit(Passed { tag, cdb: c.cdb().into(), attribute, data }));
        let (fate, reply) = match self.nexus.unless_aborted(c, self.serial, &mut submitted).await {
            Some(reply) => (reply.fate, reply),
            None => (way.abort(tag).await, submitted.await),
        };
        if fate == Fate::Indeterminate {
            self.nexus.state().leave_indeterminate(self.serial);
        }
        if let Some(sense) = Sense::decode(&reply.sense).filter(|sense| sense.key == ATTENTION) {
            unit.lu.heard(nexus, sense);
        }
        Ok(Outcome::Passed(reply))
    }

    fn way(&self, unit: &Arc<Unit>) -> Option<(Rc<dyn Way>, NexusId)> {
        let mut state = self.nexus.state();
        let handle = state.luns.unit(self.command.lun, unit)?;
        Some((handle.way.clone()?, handle.nexus.id()))
    }
}
