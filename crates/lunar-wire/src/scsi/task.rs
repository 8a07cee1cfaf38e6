//! Task attributes and task management functions, common to all transports.

/// Task attribute (SAM-5 section 8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskAttribute {
    /// SIMPLE: in any order.
    #[default]
    Simple,
    /// ORDERED: after all older tasks and before all newer ones.
    Ordered,
    /// HEAD OF QUEUE: before all waiting tasks.
    HeadOfQueue,
}

/// Task management function (SAM-5 section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskManagementFunction {
    /// ABORT TASK.
    AbortTask,
    /// ABORT TASK SET.
    AbortTaskSet,
    /// CLEAR TASK SET.
    ClearTaskSet,
    /// LOGICAL UNIT RESET.
    LunReset,
    /// TARGET WARM RESET.
    TargetWarmReset,
    /// TARGET COLD RESET.
    TargetColdReset,
}
