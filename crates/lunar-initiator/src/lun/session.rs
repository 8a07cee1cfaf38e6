//! Commands of a session as a host sends them.

use super::retry::{BusyRetry, perform_within, send_until_settled};
use crate::waits::{self, Wait};
use crate::{Command, CommandResult, Direction, Session};
use lunar_wire::scsi::cdb::Cdb;
use lunar_wire::scsi::op;

impl Session {
    /// Sends a CDB as a host does: again where the logical unit was busy, becoming ready, or reported a
    /// unit attention. The logical unit need not be a disk.
    ///
    /// # Errors
    /// What the logical unit answers, or that there was no answer; with the buffer.
    pub async fn perform(&self, lun: u64, cdb: Cdb, data: Direction) -> CommandResult {
        let _wait = self.waits_for(cdb[0]);
        perform_within(BusyRetry::of(self), self, lun, cdb, data).await
    }

    /// The same of any command, and returns the final answer: it is no error, whatever its status.
    ///
    /// # Errors
    /// That there was no answer; with the buffer.
    pub async fn ask(&self, command: Command) -> CommandResult {
        let _wait = self.waits_for(command.cdb[0]);
        let (result, buf) = send_until_settled(BusyRetry::of(self), self, command).await;
        (result.map(|(completion, _)| completion), buf)
    }

    fn waits_for(&self, opcode: u8) -> Wait {
        let (target, portal) = self.destination();
        let command = op::name(opcode).map_or_else(|| format!("command {opcode:02x}h"), str::to_owned);
        waits::on(format!("the answer of {target} at {portal} to {command}"))
    }
}
