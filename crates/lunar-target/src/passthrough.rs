//! SCSI passthrough: a remote logical unit that executes commands unchanged.

pub use crate::core::Cdb;
use lunar_block::LocalBoxFuture;
use lunar_runtime::Buf;
use lunar_scsi::NexusPorts;
use lunar_wire::scsi::{TaskAttribute, TaskManagementFunction};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A remote logical unit, which all cores share.
pub trait PassthroughLu: Send + Sync {
    /// Creates the nexus of an I_T nexus with the remote logical unit. It does not wait, even if the logical unit is
    /// unreachable. The nexus stays on the caller's core, and ends when it is dropped.
    fn enter(&self, port: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus>;

    /// Counters and settings for users, as (name, value).
    fn describe(&self) -> Vec<(String, String)>;
}

/// The nexus of an I_T nexus with a remote logical unit.
pub trait PassthroughNexus {
    /// The queue of this nexus, if its commands need no future each.
    fn queue(&self) -> Option<&dyn PassthroughQueue> {
        None
    }

    /// Forwards a command and waits for its response.
    fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse>;

    /// The same. It may pass parts of the Data-In to `take`, if given, before the response, in order. The response
    /// contains the rest of the Data-In.
    fn submit_in_parts<'a>(
        &'a self,
        command: PassthroughCommand,
        _take: Option<&'a dyn Fn(Buf)>,
    ) -> LocalBoxFuture<'a, PassthroughResponse> {
        self.submit(command)
    }

    /// Aborts the command with this tag, remotely and here. Returns whether the remote logical unit may still execute
    /// it. Its response follows soon in any case.
    fn abort(&self, tag: u64) -> LocalBoxFuture<'_, CommandFate>;

    /// Performs ABORT TASK SET, CLEAR TASK SET or LOGICAL UNIT RESET at the remote logical unit. Returns whether it
    /// was performed. The caller still aborts the affected commands one by one.
    fn manage(&self, function: TaskManagementFunction) -> LocalBoxFuture<'_, bool>;
}

/// The commands of one nexus with a remote block device, without a future for each.
pub trait PassthroughQueue {
    /// Forwards a command. `lane` identifies it until its response; the caller uses small numbers.
    ///
    /// # Errors
    /// The command, if it has to wait before it is sent. The caller submits it instead.
    fn begin(&self, lane: usize, command: PassthroughCommand) -> Result<(), PassthroughCommand>;

    /// Polls for the next response, with the lane of its command.
    fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<(usize, PassthroughResponse)>;
}

/// The state at the remote logical unit of a command that has ended here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommandFate {
    /// The remote logical unit does not execute it anymore.
    #[default]
    Ended,
    /// The remote logical unit may still execute it.
    Indeterminate,
}

/// A command to forward.
#[derive(Debug)]
pub struct PassthroughCommand {
    /// Identifies the command within its nexus until its response.
    pub tag: u64,
    /// The CDB, 16 to 260 bytes.
    pub cdb: Cdb,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// Its data.
    pub data: PassthroughData,
}

/// The data of a forwarded command.
#[derive(Debug)]
pub enum PassthroughData {
    /// None.
    None,
    /// Data-In of at most the size of the buffer.
    In(Buf),
    /// Data-Out: the whole buffer.
    Out(Buf),
}

/// The response of a remote logical unit, or a substitute if there was none.
#[derive(Debug)]
pub struct PassthroughResponse {
    /// SCSI status.
    pub status: u8,
    /// Sense data as received; empty if there were none.
    pub sense: Box<[u8]>,
    /// The received Data-In that follows the parts; its length is that of the buffer.
    pub data: Option<Buf>,
    /// Bytes that the CDB requests: those that were transferred, in parts or not, and those that did not fit into the
    /// buffer.
    pub moved: u64,
    /// Whether the remote logical unit may still execute the command.
    pub fate: CommandFate,
}
