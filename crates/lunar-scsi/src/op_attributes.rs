//! The attributes of operations: one row for each operation, so that a new one cannot be forgotten.

use crate::{Compare, Op, Plan};

/// Attributes of an operation; none are set for a plan that only returns a status or data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpAttributes {
    /// It accesses the medium, and planning it again has no side effects.
    pub accesses_medium: bool,
    /// It must not hold the task set lock. During SANITIZE, the logical unit must report its state to other commands.
    /// PREEMPT AND ABORT waits for tasks that may wait for this lock. A copy takes several locks, and must not hold
    /// one while it waits for another. A change of access states waits for all commands that hold it.
    pub releases_lock: bool,
    /// An abort of its command does not wait for its end. SANITIZE outlasts the command, and PREEMPT AND ABORT waits
    /// for tasks, one of which may wait for this task.
    pub outlasts_abort: bool,
}

impl OpAttributes {
    const NONE: OpAttributes =
        OpAttributes { accesses_medium: false, releases_lock: false, outlasts_abort: false };
    const MEDIUM: OpAttributes = OpAttributes { accesses_medium: true, ..OpAttributes::NONE };
    const UNLOCKED: OpAttributes = OpAttributes { releases_lock: true, ..OpAttributes::NONE };
    const ENDLESS: OpAttributes = OpAttributes { outlasts_abort: true, ..OpAttributes::UNLOCKED };
}

impl Plan {
    /// The attributes of the plan.
    pub fn attributes(&self) -> OpAttributes {
        match self {
            Plan::Read { .. } | Plan::Write { .. } => OpAttributes::MEDIUM,
            Plan::Op(op) => op.attributes(),
            Plan::Done | Plan::Data(_) | Plan::Parameters { .. } | Plan::Passthrough => OpAttributes::NONE,
        }
    }

    /// Bytes that a WRITE writes to the medium; `None` for other commands.
    pub fn written_len(&self) -> Option<u32> {
        match self {
            Plan::Write { len, .. } => Some(*len),
            Plan::Op(op) => op.written_len(),
            Plan::Done | Plan::Data(_) | Plan::Read { .. } | Plan::Parameters { .. } | Plan::Passthrough => {
                None
            }
        }
    }

    /// Bytes of Data-Out that the plan needs.
    pub fn data_out_len(&self) -> u32 {
        match self {
            Plan::Write { len, .. } | Plan::Parameters { len } => *len,
            // Only the device knows the length, so accept all that the initiator offers.
            Plan::Passthrough => u32::MAX,
            Plan::Op(op) => op.data_out_len(),
            Plan::Done | Plan::Data(_) | Plan::Read { .. } => 0,
        }
    }
}

impl Op {
    fn attributes(&self) -> OpAttributes {
        match self {
            Op::Prefetch { .. } | Op::Verify { .. } | Op::LbaStatus { .. } => OpAttributes::MEDIUM,
            Op::WriteVerify { .. } | Op::WriteSame { .. } | Op::WriteAtomic { .. } => OpAttributes::MEDIUM,
            Op::CompareAndWrite { .. } | Op::OrWrite { .. } => OpAttributes::MEDIUM,
            Op::Copy { .. } | Op::SetAccess { .. } => OpAttributes::UNLOCKED,
            Op::Preempt { .. } | Op::Sanitize { .. } => OpAttributes::ENDLESS,
            Op::Flush | Op::Stop | Op::Unmap { .. } | Op::Persist(_) => OpAttributes::NONE,
            Op::ReportLuns { .. } => OpAttributes::NONE,
        }
    }

    fn written_len(&self) -> Option<u32> {
        match self {
            Op::WriteAtomic { len, .. } => Some(*len),
            Op::WriteVerify { .. } | Op::WriteSame { .. } | Op::CompareAndWrite { .. } => None,
            Op::OrWrite { .. } | Op::Unmap { .. } | Op::Copy { .. } | Op::Sanitize { .. } => None,
            Op::Prefetch { .. } | Op::Verify { .. } | Op::LbaStatus { .. } | Op::ReportLuns { .. } => None,
            Op::Flush | Op::Stop | Op::Persist(_) | Op::Preempt { .. } | Op::SetAccess { .. } => None,
        }
    }

    fn data_out_len(&self) -> u32 {
        match self {
            Op::Verify { len, compare: Compare::Whole, .. } => *len as u32,
            Op::Verify { compare: Compare::OneBlock(size), .. } => *size,
            Op::WriteVerify { len, .. } | Op::WriteAtomic { len, .. } | Op::OrWrite { len, .. } => *len,
            Op::WriteSame { zero: false, block_size, .. } => *block_size,
            Op::CompareAndWrite { len, .. } => 2 * len,
            Op::Verify { compare: Compare::Nothing, .. } | Op::WriteSame { zero: true, .. } => 0,
            Op::Flush | Op::Stop | Op::Prefetch { .. } | Op::LbaStatus { .. } | Op::ReportLuns { .. } => 0,
            // Their parameter data have arrived before.
            Op::Unmap { .. } | Op::Persist(_) | Op::Preempt { .. } | Op::SetAccess { .. } => 0,
            Op::Copy { .. } | Op::Sanitize { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_have_the_attributes_of_their_operation() {
        let write = Plan::Write { offset: 0, len: 512, stable: false };
        assert!(write.attributes().accesses_medium && !write.attributes().releases_lock);
        assert_eq!(Plan::Parameters { len: 24 }.attributes(), OpAttributes::NONE);
        let copy = Plan::op(Op::Copy { nexus: crate::NexusId(1), list_id: 0, segments: vec![] });
        assert!(copy.attributes().releases_lock && !copy.attributes().outlasts_abort);
        let preempt = Plan::op(Op::Preempt { victims: vec![] });
        assert!(preempt.attributes().releases_lock && preempt.attributes().outlasts_abort);
        assert_eq!(Plan::op(Op::Flush).attributes(), OpAttributes::NONE);
    }

    #[test]
    fn data_out_len_covers_what_is_sent_twice_or_not_at_all() {
        let compare = Plan::op(Op::CompareAndWrite { offset: 0, len: 512, stable: true });
        assert_eq!((compare.data_out_len(), compare.written_len()), (1024, None));
        let atomic = Plan::op(Op::WriteAtomic { offset: 0, len: 4096 });
        assert_eq!((atomic.data_out_len(), atomic.written_len()), (4096, Some(4096)));
        let verify = |compare| Plan::op(Op::Verify { offset: 0, len: 4096, compare }).data_out_len();
        assert_eq!([Compare::Nothing, Compare::Whole, Compare::OneBlock(512)].map(verify), [0, 4096, 512]);
    }
}
