//! The plan of a command: the work that the target does for it.

use crate::{AccessState, NexusId, PendingCommit};
use lunar_wire::scsi::{Sense, Status};

/// The plan of a command, or the status with which it fails.
pub type PlanResult = Result<Plan, CommandError>;

/// A status other than GOOD, with sense data if it is CHECK CONDITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The status.
    pub status: Status,
    /// Sense data, if the status is CHECK CONDITION.
    pub sense: Option<Sense>,
}

impl From<Sense> for CommandError {
    fn from(sense: Sense) -> Self {
        CommandError { status: Status::CheckCondition, sense: Some(sense) }
    }
}

impl From<Status> for CommandError {
    fn from(status: Status) -> Self {
        CommandError { status, sense: None }
    }
}

/// The work to do for a command. Offsets and lengths are bytes of the medium, within its capacity.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// GOOD, no data.
    Done,
    /// Send Data-In, which is already cut to the allocation length, then GOOD.
    Data(Vec<u8>),
    /// Read from the medium.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Write Data-Out to the medium.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// The data must be on stable storage before the status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Receive parameter data and call [`Nexus::parameters`](crate::Nexus::parameters).
    Parameters {
        /// Length of the parameter data in bytes; never 0.
        len: u32,
    },
    /// Send the command unchanged to the backing device, with all data that the initiator offers. Report unit
    /// attentions of the device to [`Lu::attention_received`](crate::Lu::attention_received).
    Passthrough,
    /// Another operation.
    Op(Box<Op>),
}

/// Less frequent operations on a medium or on the logical unit. Each ends with GOOD unless it fails.
#[derive(Debug, PartialEq)]
pub enum Op {
    /// Make all acknowledged writes stable.
    Flush,
    /// Read a range into the cache, as a hint. The status is GOOD, because CONDITION MET would promise that the cache
    /// holds all of it.
    Prefetch {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Read the medium, and compare it with Data-Out according to `compare`.
    Verify {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// The data to compare.
        compare: Compare,
    },
    /// Write Data-Out, make it stable, and read it back.
    WriteVerify {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// Compare the data byte by byte; otherwise only read them back.
        compare: bool,
    },
    /// Write one block to a whole range: that of Data-Out, or zeros.
    WriteSame {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Write zeros; the command has no Data-Out.
        zero: bool,
        /// The range may be deallocated instead, if it then reads as the written block.
        unmap: bool,
        /// Block size in bytes.
        block_size: u32,
        /// The data must be on stable storage before the status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Deallocate extents.
    Unmap {
        /// Offset and length of each extent in bytes.
        extents: Vec<(u64, u64)>,
        /// The change must be on stable storage before the status: the write cache is off.
        stable: bool,
    },
    /// Compare and write. Data-Out is the expected data and then the data to write, `len` bytes each.
    CompareAndWrite {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes of the data to compare, and of the data to write.
        len: u32,
        /// The data must be on stable storage before the status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Write Data-Out atomically, and on stable storage before the status. Other commands, and readers after a
    /// failure, see all of the data or none.
    WriteAtomic {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// Combine Data-Out with the medium by a bitwise OR.
    OrWrite {
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// The data must be on stable storage before the status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Send Data-In of GET LBA STATUS: see [`lba_status`](crate::lba_status).
    LbaStatus {
        /// Offset of the first byte.
        offset: u64,
        /// ALLOCATION LENGTH: maximum bytes of Data-In.
        allocation_len: u32,
        /// Block size in bytes.
        block_size: u32,
    },
    /// Write [`PendingCommit::bytes`] to stable storage, then continue with the result of
    /// [`Lu::commit`](crate::Lu::commit). The command has no effect before that.
    Persist(PendingCommit),
    /// Abort all tasks of these nexuses (PREEMPT AND ABORT).
    Preempt {
        /// The preempted nexuses.
        victims: Vec<NexusId>,
    },
    /// Change the access states of target port groups of a shared logical unit, on all servers (SET TARGET PORT GROUPS).
    SetAccess {
        /// Portal group tags and their wanted states, in order.
        groups: Vec<(u16, AccessState)>,
    },
    /// Send Data-In of REPORT LUNS: see [`report_luns`](crate::report_luns).
    ReportLuns {
        /// SELECT REPORT (SPC-5 section 6.33).
        select: u8,
        /// ALLOCATION LENGTH: maximum bytes of Data-In.
        allocation_len: u32,
    },
    /// EXTENDED COPY between logical units that this nexus may see. Compute [`CopySegment::range`] of every segment,
    /// copy them in order, and record the result with [`Lu::copy_ended`](crate::Lu::copy_ended).
    Copy {
        /// The nexus of the command.
        nexus: NexusId,
        /// LIST IDENTIFIER.
        list_id: u8,
        /// The segments in order.
        segments: Vec<CopySegment>,
    },
    /// SANITIZE. Store the state of the logical unit. Then overwrite every block with
    /// [`overwrite_block`](crate::overwrite_block) in each pass, or erase all blocks. Then call
    /// [`Lu::sanitize_ended`](crate::Lu::sanitize_ended), and store the state again. No abort and no reset ends this.
    Sanitize {
        /// The pattern of an overwrite; `None` for a block erase.
        pattern: Option<Vec<u8>>,
        /// Number of overwrite passes.
        passes: u8,
        /// The pattern is inverted in every other pass.
        invert: bool,
        /// IMMED: send the status as soon as the state is stored the first time.
        immediate: bool,
    },
    /// Flush before the status, and do nothing else (START STOP UNIT ejects or stops the medium).
    Stop,
}

/// BYTCHK: the comparison of VERIFY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// No comparison: the medium is only read (00b).
    Nothing,
    /// Data-Out has the length of the range (01b).
    Whole,
    /// Data-Out is one block, compared with every block (11b); its size in bytes.
    OneBlock(u32),
}

/// A block to block segment of EXTENDED COPY. Logical units are identified by their NAA designators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySegment {
    /// NAA designator of the source.
    pub source: Vec<u8>,
    /// NAA designator of the destination.
    pub destination: Vec<u8>,
    /// First block of the source.
    pub source_lba: u64,
    /// First block of the destination.
    pub destination_lba: u64,
    /// Number of blocks: of the destination if `count_by_destination`, otherwise of the source.
    pub blocks: u64,
    /// DC.
    pub count_by_destination: bool,
    /// Block size of the source in bytes, from its CSCD descriptor; 0 if that does not state it.
    pub source_block_size: u32,
    /// Block size of the destination, as for the source.
    pub destination_block_size: u32,
}

impl Plan {
    /// A plan that sends Data-In; [`Plan::Done`] if there is none.
    pub(crate) fn data(data: Vec<u8>) -> Plan {
        if data.is_empty() { Plan::Done } else { Plan::Data(data) }
    }

    /// A plan with one of the less frequent operations.
    pub(crate) fn op(op: Op) -> Plan {
        Plan::Op(Box::new(op))
    }

    /// A plan that sends Data-In, cut to the allocation length.
    pub(crate) fn data_cut(mut data: Vec<u8>, allocation_len: u32) -> Plan {
        data.truncate(allocation_len as usize);
        Plan::data(data)
    }
}
