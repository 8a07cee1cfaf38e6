//! Commands of a session with retries.

use super::retry::{BusyRetry, perform_within, send_until_settled};
use crate::waits::{self, Wait};
use crate::{Command, CommandResult, Direction, Session};
use lunar_wire::scsi::cdb::{Cdb, opcode};
use lunar_wire::scsi::op;

impl Session {
    /// Sends a CDB with retries: while the logical unit is busy or becoming ready, and after a unit attention. The
    /// logical unit may be of any device type.
    ///
    /// # Errors
    /// The error of the logical unit, or the lack of a response. The buffer is returned in either case.
    pub async fn perform(&self, lun: u64, cdb: Cdb, data: Direction) -> CommandResult {
        let _wait = self.waits_for(opcode(&cdb));
        perform_within(BusyRetry::of(self), self, lun, cdb, data).await
    }

    /// The same for any command. Returns the final response, whatever its status.
    ///
    /// # Errors
    /// The lack of a response. The buffer is returned in either case.
    pub async fn ask(&self, command: Command) -> CommandResult {
        let _wait = self.waits_for(opcode(&command.cdb));
        let (result, buf) = send_until_settled(BusyRetry::of(self), self, command).await;
        (result.map(|(completion, _)| completion), buf)
    }

    fn waits_for(&self, opcode: u8) -> Wait {
        let (target, portal) = self.destination();
        let command = op::name(opcode).map_or_else(|| format!("command {opcode:02x}h"), str::to_owned);
        waits::on(format!("the answer of {target} at {portal} to {command}"))
    }
}
