//! Task management functions, as front ends request and answer them.

/// A task management function (SAM-5 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// ABORT TASK.
    AbortTask {
        /// The tag of the command.
        tag: u32,
    },
    /// ABORT TASK SET.
    AbortTaskSet,
    /// CLEAR ACA: no ACA condition ever exists.
    ClearAca,
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// LOGICAL UNIT RESET.
    LunReset,
    /// TARGET WARM RESET: resets every logical unit that the initiator sees.
    TargetWarmReset,
    /// TARGET COLD RESET: the same, and ends every session of the target.
    TargetColdReset,
}

/// The response to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManagementResponse {
    /// FUNCTION COMPLETE.
    Complete,
    /// The task does not exist.
    NoSuchTask,
    /// INCORRECT LOGICAL UNIT NUMBER.
    NoSuchLun,
    /// The access list does not allow the function.
    Unauthorized,
    /// FUNCTION REJECTED: a remote target may still execute a task.
    Rejected,
}

impl ManagementResponse {
    /// FUNCTION COMPLETE, or FUNCTION REJECTED if it was not performed.
    pub(super) fn if_done(is_done: bool) -> ManagementResponse {
        if is_done { ManagementResponse::Complete } else { ManagementResponse::Rejected }
    }
}

/// A request for a function.
#[derive(Clone, Copy, Debug)]
pub struct FunctionRequest {
    /// The function.
    pub function: Function,
    /// LUN field.
    pub lun: u64,
    /// Its position in the order of the initiator.
    pub sequence: u32,
}
