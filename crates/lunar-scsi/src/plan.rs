//! The plan of a command: what the target has to do for it.

use crate::{NexusId, PendingCommit};
use lunar_wire::scsi::{Sense, Status};

/// A command's plan, or why it fails.
pub type PlanResult = Result<Plan, CommandError>;

/// A status other than GOOD, with its sense data when it is CHECK CONDITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandError {
    /// The status.
    pub status: Status,
    /// Sense, for CHECK CONDITION.
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

/// What is to be done for a command. Offsets and lengths are bytes of the medium, inside its capacity.
#[derive(Debug, PartialEq)]
pub enum Plan {
    /// GOOD, no data.
    Done,
    /// Data-In, already cut to the allocation length, then GOOD.
    Data(Vec<u8>),
    /// Read from the medium.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Write Data-Out to the medium.
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// On stable storage before status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Fetch this many bytes of parameter data and call [`Nexus::parameters`](crate::Nexus::parameters) with
    /// them.
    Parameters {
        /// Bytes; never 0.
        len: u32,
    },
    /// A less frequent operation.
    Op(Box<Op>),
}

/// The less frequent operations on a medium or on the whole logical unit. Each ends with GOOD unless it fails.
#[derive(Debug, PartialEq)]
pub enum Op {
    /// Acknowledged writes become stable.
    Flush,
    /// A hint. It ends with GOOD: CONDITION MET would promise that the cache holds all of it.
    Prefetch {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Read the medium back and, as `compare` says, compare it with Data-Out.
    Verify {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// What is compared.
        compare: Compare,
    },
    /// Write Data-Out, make it stable, and read it back; with `compare` byte by byte.
    WriteVerify {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Compare byte by byte; otherwise only read back.
        compare: bool,
    },
    /// Write one block (Data-Out, or zeros without Data-Out when `zero`) over and over.
    WriteSame {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Zeros are written, without Data-Out.
        zero: bool,
        /// The blocks may be deallocated instead, if they then read as written.
        unmap: bool,
        /// Block size in bytes.
        block_size: u32,
        /// On stable storage before status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Deallocate extents.
    Unmap {
        /// Offset and length of each extent in bytes.
        extents: Vec<(u64, u64)>,
        /// On stable storage before status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Data-Out is the expected data and then the data to write, `len` bytes each.
    CompareAndWrite {
        /// First byte.
        offset: u64,
        /// Bytes to compare, and to write.
        len: u32,
        /// On stable storage before status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Write Data-Out atomically, on stable storage before status: other commands, and any reader
    /// after a failure, see all of it or nothing.
    WriteAtomic {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
    },
    /// Data-Out is ORed into the medium.
    OrWrite {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// On stable storage before status: FUA, or the write cache is off.
        stable: bool,
    },
    /// Data-In of GET LBA STATUS from this byte on, at most `allocation_len` bytes of it; `block_size` to
    /// convert.
    LbaStatus {
        /// First byte.
        offset: u64,
        /// Maximum bytes of Data-In.
        allocation_len: u32,
        /// Block size in bytes.
        block_size: u32,
    },
    /// Nothing is done yet: write [`PendingCommit::bytes`] to stable storage, then continue with the result of
    /// [`Lu::commit`](crate::Lu::commit).
    Persist(PendingCommit),
    /// Abort every task of these nexuses (PREEMPT AND ABORT).
    Preempt {
        /// The preempted nexuses.
        victims: Vec<NexusId>,
    },
    /// Data-In of REPORT LUNS: SELECT REPORT, allocation length.
    ReportLuns {
        /// SELECT REPORT (SPC-5 section 6.33).
        select: u8,
        /// Maximum bytes of Data-In.
        allocation_len: u32,
    },
    /// EXTENDED COPY between logical units that this nexus may see: find [`CopySegment::range`] of every
    /// segment, copy them in order, and report the end with [`Lu::copy_ended`](crate::Lu::copy_ended).
    Copy {
        /// The nexus of the command.
        nexus: NexusId,
        /// LIST IDENTIFIER.
        list_id: u8,
        /// The segments in order.
        segments: Vec<CopySegment>,
    },
    /// Keep the state of the logical unit, then overwrite every block with
    /// [`overwrite_block`](crate::overwrite_block) of each pass, or erase them all (`pattern` None), then
    /// call [`Lu::sanitize_ended`](crate::Lu::sanitize_ended) and keep the state again. With `immediate` status
    /// comes when the state is kept first. No abort and no reset ends this.
    Sanitize {
        /// The pattern of an overwrite; None: a block erase.
        pattern: Option<Vec<u8>>,
        /// Number of overwrite passes.
        passes: u8,
        /// The pattern is inverted on every other pass.
        invert: bool,
        /// Status as soon as the state is saved (IMMED).
        immediate: bool,
    },
    /// Flush before the status, then do nothing (START STOP UNIT, medium ejected or stopped).
    Stop,
    /// Pass the command on unchanged, with all the data that its initiator offers, and call
    /// [`Lu::attention_received`](crate::Lu::attention_received) for unit attentions that come back.
    Passthrough,
}

/// What VERIFY compares (BYTCHK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Nothing: the medium is read (00b).
    Nothing,
    /// Data-Out of the whole length (01b).
    Whole,
    /// One block of Data-Out against every block (11b), with its size in bytes.
    OneBlock(u32),
}

/// A block to block segment of EXTENDED COPY. Logical units are named by their NAA designator.
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
    /// Number of blocks: of the source, or of the destination when `count_by_destination` (DC).
    pub blocks: u64,
    /// DC bit.
    pub count_by_destination: bool,
    /// Block size of the source in bytes from its descriptor; 0 when that has none.
    pub source_block_size: u32,
    /// Block size of the destination likewise.
    pub destination_block_size: u32,
}

impl Plan {
    /// Data-In; nothing at all is [`Plan::Done`].
    pub(crate) fn data(data: Vec<u8>) -> Plan {
        if data.is_empty() { Plan::Done } else { Plan::Data(data) }
    }

    /// One of the less frequent operations.
    pub(crate) fn op(op: Op) -> Plan {
        Plan::Op(Box::new(op))
    }

    /// Data-In cut to an allocation length.
    pub(crate) fn data_cut(mut data: Vec<u8>, allocation_len: u32) -> Plan {
        data.truncate(allocation_len as usize);
        Plan::data(data)
    }

    /// Bytes that a WRITE puts on the medium.
    pub fn written_len(&self) -> Option<u32> {
        match self {
            Plan::Write { len, .. } => Some(*len),
            Plan::Op(op) => match **op {
                Op::WriteAtomic { len, .. } => Some(len),
                _ => None,
            },
            _ => None,
        }
    }

    /// Bytes of Data-Out that the command needs.
    pub fn data_out_len(&self) -> u32 {
        match self {
            Plan::Write { len, .. } | Plan::Parameters { len } => *len,
            Plan::Op(op) => op.data_out_len(),
            Plan::Done | Plan::Data(_) | Plan::Read { .. } => 0,
        }
    }
}

impl Op {
    fn data_out_len(&self) -> u32 {
        match self {
            Op::Verify { len, compare: Compare::Whole, .. } => *len as u32,
            Op::Verify { compare: Compare::OneBlock(size), .. } => *size,
            Op::WriteVerify { len, .. } | Op::WriteAtomic { len, .. } | Op::OrWrite { len, .. } => *len,
            Op::WriteSame { zero: false, block_size, .. } => *block_size,
            Op::CompareAndWrite { len, .. } => 2 * len,
            // Only the device knows the amount: accept all that the initiator offers.
            Op::Passthrough => u32::MAX,
            _ => 0,
        }
    }
}
