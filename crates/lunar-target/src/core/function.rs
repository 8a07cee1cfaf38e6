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

impl Function {
    /// The word of the label `function`.
    pub fn word(self) -> &'static str {
        match self {
            Function::AbortTask { .. } => "abort_task",
            Function::AbortTaskSet => "abort_task_set",
            Function::ClearAca => "clear_aca",
            Function::ClearTaskSet => "clear_task_set",
            Function::LunReset => "lun_reset",
            Function::TargetWarmReset => "target_warm_reset",
            Function::TargetColdReset => "target_cold_reset",
        }
    }
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
    /// The word of the label `response`.
    pub fn word(self) -> &'static str {
        match self {
            ManagementResponse::Complete => "complete",
            ManagementResponse::NoSuchTask => "no_such_task",
            ManagementResponse::NoSuchLun => "no_such_lun",
            ManagementResponse::Unauthorized => "unauthorized",
            ManagementResponse::Rejected => "rejected",
        }
    }

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
