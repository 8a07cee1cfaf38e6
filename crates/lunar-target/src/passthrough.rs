//! The seam of SCSI pass-through: a logical unit elsewhere to which commands are handed as they are.

use lunar_block::LocalBoxFuture;
use lunar_runtime::Buf;
use lunar_scsi::NexusPorts;
use lunar_wire::iscsi::request::{TaskAttribute, TaskManagementFunction};
use std::rc::Rc;
use std::sync::Arc;

/// A logical unit elsewhere, shared by all cores.
pub trait PassthroughLu: Send + Sync {
    /// The way to it of one I_T nexus: at once, whether the logical unit can be reached or not. It stays on the
    /// core of the caller, and ends when it is dropped.
    fn enter(&self, port: &Arc<NexusPorts>) -> Rc<dyn PassthroughNexus>;

    /// Counters and settings for people, as (name, value).
    fn describe(&self) -> Vec<(String, String)>;
}

/// The way of one I_T nexus to a logical unit elsewhere.
pub trait PassthroughNexus {
    /// Hands a command over and waits for its end.
    fn submit(&self, command: PassthroughCommand) -> LocalBoxFuture<'_, PassthroughResponse>;

    /// Ends the command of this tag, there and here, and says what is known of it. Its
    /// [`PassthroughNexus::submit`] ends soon, whatever the
    /// answer.
    fn abort(&self, tag: u64) -> LocalBoxFuture<'_, CommandFate>;

    /// A task management function on the logical unit: ABORT TASK SET, CLEAR TASK SET or LOGICAL UNIT RESET. True
    /// when it is done there; commands that it ended are still to be aborted one by one.
    fn manage(&self, function: TaskManagementFunction) -> LocalBoxFuture<'_, bool>;
}

/// What is known of a command that has ended here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommandFate {
    /// It is not carried out any more.
    #[default]
    Ended,
    /// It may still be carried out.
    Indeterminate,
}

/// A command on its way.
#[derive(Debug)]
pub struct PassthroughCommand {
    /// Names it among the commands of its way, from [`PassthroughNexus::submit`] to its end.
    pub tag: u64,
    /// The CDB, 16 to 260 bytes.
    pub cdb: Box<[u8]>,
    /// The task attribute.
    pub attribute: TaskAttribute,
    /// Its data.
    pub data: PassthroughData,
}

/// The data of a command that is passed on.
#[derive(Debug)]
pub enum PassthroughData {
    /// None.
    None,
    /// Data-In, at most as much as the buffer holds.
    In(Buf),
    /// Data-Out, the whole buffer.
    Out(Buf),
}

/// What a logical unit answered, or what stands for its answer when there was none.
#[derive(Debug)]
pub struct PassthroughResponse {
    /// SCSI status.
    pub status: u8,
    /// Sense data as they came; empty without any.
    pub sense: Box<[u8]>,
    /// Data-In: what has come, with its length.
    pub data: Option<Buf>,
    /// Bytes that the command had to move by its CDB: what came in or was taken, and what found no room.
    pub moved: u64,
    /// Whether the command may still be carried out.
    pub fate: CommandFate,
}
