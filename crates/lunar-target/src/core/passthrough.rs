//! Commands that a remote logical unit executes.

use super::command::ScsiCommand;
use super::execution::TaskEnd;
use super::front_end::FrontEnd;
use super::lun_map::LunLookup;
use super::nexus::{ItNexus, NexusState, Route};
use super::passed_commands::{PassOrder, PassedCommand, PassedCommands, PassedLane};
use super::task::{Task, TaskLu};
use super::task_execution::TaskExecution;
use crate::exec::{ExecutionOutput, ExecutionResult};
use crate::passthrough::{CommandFate, PassthroughCommand, PassthroughData, PassthroughResponse};
use crate::{LogicalUnit, PassthroughNexus, fence};
use lunar_runtime::{Buf, Pool, ReceivedData};
use lunar_scsi::NexusId;
use lunar_wire::scsi::Sense;
use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

/// UNIT ATTENTION.
const ATTENTION: u8 = 0x06;
/// Maximum length of a read without an async task, in bytes.
const MAX_QUEUED_READ: usize = 256 << 10;

impl PassthroughData {
    /// The data of a command that needs no async task. None: it has both directions, a length of zero, a long read,
    /// data in a buffer of their own, or there is no buffer.
    fn at_once(pool: &Pool, c: &ScsiCommand, data: &ReceivedData<'_>) -> Option<PassthroughData> {
        let (room, offered) = (c.data_in_len() as usize, c.data_out_len() as usize);
        match (c.reads, c.writes, data) {
            (false, false, _) => Some(PassthroughData::None),
            (true, false, _) if (1..=MAX_QUEUED_READ).contains(&room) => {
                pool.try_get(room).map(PassthroughData::In)
            }
            (false, true, ReceivedData::Bytes(bytes)) if offered > 0 && bytes.len() == offered => {
                let mut buf = pool.try_get(offered)?;
                buf.copy_from_slice(bytes);
                Some(PassthroughData::Out(buf))
            }
            _ => None,
        }
    }
}

/// The unit attention of a response.
fn attention_of(response: &PassthroughResponse) -> Option<Sense> {
    Sense::decode(&response.sense).filter(|sense| sense.key == ATTENTION)
}

impl<F: FrontEnd> NexusState<F> {
    /// Forwards a command that holds the task set lock and has all of its data. It keeps the lock until it ends.
    /// False: it needs an async task, and nothing was done.
    pub(super) fn try_pass(&mut self, c: &ScsiCommand, data: &ReceivedData<'_>) -> bool {
        let Some(nexus) = self.nexus() else { return false };
        let serial = self.tasks_mut().next_serial();
        let Route { lun: LunLookup::LogicalUnit(handle), pool, .. } = self.route(c.lun) else { return false };
        let Some(commands) = handle.passed().filter(|commands| commands.is_in_order()) else { return false };
        let Some(data) = PassthroughData::at_once(pool, c, data) else { return false };
        let Some(in_flight) = fence::enter(nexus.fence().clone()) else { return false };
        let command = PassthroughCommand { tag: serial, cdb: c.cdb.clone(), attribute: c.attribute, data };
        let Some(lane) = commands.begin(command) else { return false };
        let commands = commands.clone();
        let (tag, inside) = (c.tag, handle.task_set().into_guard());
        let lu = TaskLu::new(handle.unit().clone(), handle.nexus().id(), handle.nexus().epoch());
        if commands.add(PassedCommand { tag, serial, inside, in_flight }) {
            lunar_runtime::spawn(serve(commands.clone(), nexus));
        }
        let (passed, arrived) = (PassedLane { commands, lane }, self.received_at());
        self.insert_task(Task::passed(serial, c.clone(), lu, passed, arrived));
        true
    }

    /// For a task that is ready: keeps later commands from being forwarded before it.
    pub(super) fn pass_order(&mut self, lun: u64, unit: &Arc<LogicalUnit>) -> Option<PassOrder> {
        unit.passthrough()?;
        Some(self.luns_mut().unit(lun, unit)?.passed()?.order())
    }

    /// Forwards the abort of a command that has no async task.
    pub(super) fn abort_passed(&self, PassedLane { commands, lane }: PassedLane) {
        let Some(nexus) = self.nexus() else { return };
        commands.abort_begins(lane);
        lunar_runtime::spawn(async move {
            let fate = commands.abort(lane).await;
            if let Some((command, response)) = commands.abort_ended(lane, fate) {
                nexus.end_passed(command, response);
                nexus.ended_tasks();
            }
        });
    }
}

/// Completes the commands of a nexus until there are none.
async fn serve<F: FrontEnd>(commands: Rc<PassedCommands>, nexus: Rc<ItNexus<F>>) {
    let any = Cell::new(false);
    let ends = commands.take_ends(|command, response| {
        any.set(true);
        nexus.end_passed(command, response);
    });
    nexus.end_together(&any, ends).await;
}

impl<F: FrontEnd> ItNexus<F> {
    /// Ends a command that has no async task. The caller calls [`ItNexus::ended_tasks`].
    fn end_passed(&self, command: PassedCommand, response: PassthroughResponse) {
        let PassedCommand { tag, serial, inside, in_flight } = command;
        if response.fate == CommandFate::Indeterminate {
            self.state().leave_indeterminate(serial);
        }
        if let Some(sense) = attention_of(&response)
            && let Some(lu) = self.state().tasks().find(tag, serial).and_then(Task::lu)
        {
            lu.unit().lu.attention_received(lu.nexus(), sense);
        }
        drop((inside, in_flight));
        self.state().end_task(tag, serial, TaskEnd::of(Ok(ExecutionOutput::Passthrough(response))));
    }
}

impl<F: FrontEnd> TaskExecution<F> {
    /// Forwards the command and waits for its response. An abort of the task also aborts the forwarded command, and
    /// waits for the result.
    pub async fn pass(
        &self,
        unit: &Arc<LogicalUnit>,
        data: Option<Buf>,
        room: Option<Buf>,
        order: Option<PassOrder>,
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
        let command = PassthroughCommand { tag, cdb: c.cdb.clone(), attribute: c.attribute, data };
        let send_part = |part| self.send_part(part);
        let mut submitted = pin!(passthrough.submit_in_parts(command, Some(&send_part)));
        drop(order);
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
        if let Some(sense) = attention_of(&reply) {
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
