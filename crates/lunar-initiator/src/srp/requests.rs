//! Requests of a session as SRP information units.

use super::responses::DataDirection;
use crate::session::task::Task;
use lunar_rdma::RemoteAddress;
use lunar_runtime::Buf;
use lunar_wire::iscsi::{Bhs, request};
use lunar_wire::scsi::TaskAttribute;
use lunar_wire::scsi::TaskManagementFunction;
use lunar_wire::scsi::cdb;
use lunar_wire::srp::{
    DESCRIPTOR_LEN, DataBuffer, MemoryDescriptor, SrpCommand, SrpError, SrpTaskAttribute, TaskManagement,
    function,
};
use std::rc::Rc;

/// The maximum length of an additional CDB in bytes: [`crate::MAX_CDB_LEN`] without the first 16.
const MAX_ADDITIONAL_CDB: usize = crate::MAX_CDB_LEN - 16;
/// The maximum length of a command without immediate data in bytes: contiguous memory needs one descriptor.
pub const SHORT_IU_LEN: usize = SrpCommand::LEN + MAX_ADDITIONAL_CDB + DESCRIPTOR_LEN;
/// The length of an Extended CDB AHS before its CDB bytes.
const AHS_HEAD: usize = 4;

/// The SRP tag of a request: CmdSN and Initiator Task Tag. A resent command has the same Initiator Task Tag, but
/// another CmdSN.
pub fn tag(itt: u32, cmd_sn: u32) -> u64 {
    u64::from(cmd_sn) << 32 | u64::from(itt)
}

/// The location of a command's data.
pub enum BufferLocation {
    /// No data.
    None,
    /// In registered memory of this length, for transfers in this direction.
    Lent(DataDirection, RemoteAddress, u32),
    /// Immediate data, sent with the command.
    Here(Rc<Buf>),
}

impl BufferLocation {
    /// The direction of the data.
    pub fn direction(&self) -> DataDirection {
        match self {
            BufferLocation::None => DataDirection::None,
            BufferLocation::Lent(direction, ..) => *direction,
            BufferLocation::Here(_) => DataDirection::Out,
        }
    }

    /// The steering tag of the registered memory.
    pub fn lent(&self) -> Option<u32> {
        if let BufferLocation::Lent(_, at, _) = self { Some(at.stag) } else { None }
    }

    /// The number of bytes sent with the command.
    pub fn immediate_len(&self) -> usize {
        if let BufferLocation::Here(buf) = self { buf.len() } else { 0 }
    }

    /// The Data-Out and Data-In buffers.
    fn data(&self) -> (DataBuffer<'_>, DataBuffer<'_>) {
        match self {
            BufferLocation::None | BufferLocation::Lent(DataDirection::None, ..) => {
                (DataBuffer::None, DataBuffer::None)
            }
            BufferLocation::Lent(DataDirection::In, at, len) => (DataBuffer::None, direct(*at, *len)),
            BufferLocation::Lent(DataDirection::Out, at, len) => (direct(*at, *len), DataBuffer::None),
            BufferLocation::Here(buf) => (DataBuffer::Immediate(buf), DataBuffer::None),
        }
    }
}

/// Encodes a SCSI command, up to `immediate_offset` if it has immediate data.
///
/// # Errors
/// When the command cannot be represented.
pub fn command(
    header: &Bhs,
    task: &Task,
    location: &BufferLocation,
    immediate_offset: u16,
) -> Result<Vec<u8>, SrpError> {
    let (data_out, data_in) = location.data();
    let command = SrpCommand {
        notifications: 0,
        tag: tag(task.tag, header.cmd_sn()),
        lun: task.lun,
        attribute: attribute(task.attribute),
        cdb: &task.cdb,
        additional_cdb: additional_cdb(task),
        data_out,
        data_in,
    };
    let mut unit = Vec::new();
    command.encode_before_data(Some(immediate_offset), &mut unit)?;
    Ok(unit)
}

fn direct(at: RemoteAddress, len: u32) -> DataBuffer<'static> {
    DataBuffer::Direct(MemoryDescriptor { address: at.offset, key: at.stag, len })
}

fn attribute(attribute: TaskAttribute) -> SrpTaskAttribute {
    match attribute {
        TaskAttribute::Simple => SrpTaskAttribute::Simple,
        TaskAttribute::Ordered => SrpTaskAttribute::Ordered,
        TaskAttribute::HeadOfQueue => SrpTaskAttribute::HeadOfQueue,
    }
}

/// The CDB bytes after the first 16, padded to whole words.
pub fn additional_cdb(task: &Task) -> &[u8] {
    task.extended_cdb.as_ref().and_then(|rest| rest.ahs().get(AHS_HEAD..)).unwrap_or_default()
}

/// Encodes a task management function. None if SRP does not define it: the target resets.
pub fn task_management(header: &Bhs) -> Option<Vec<u8>> {
    const CODES: [(TaskManagementFunction, u8); 4] = [
        (TaskManagementFunction::AbortTask, function::ABORT_TASK),
        (TaskManagementFunction::AbortTaskSet, function::ABORT_TASK_SET),
        (TaskManagementFunction::ClearTaskSet, function::CLEAR_TASK_SET),
        (TaskManagementFunction::LunReset, function::LUN_RESET),
    ];
    let (asked, function) =
        *CODES.iter().find(|(asked, _)| request::function_code(*asked) == header.flags() & 0x7f)?;
    // The tag and the CmdSN of the command to abort.
    let referenced = tag(header.referenced_task_tag(), header.ref_cmd_sn());
    let aborts = asked == TaskManagementFunction::AbortTask;
    let unit = TaskManagement {
        notifications: 0,
        tag: tag(header.itt(), 0),
        lun: header.lun(),
        function,
        task_tag: if aborts { referenced } else { 0 },
    };
    Some(unit.encode().to_vec())
}

/// Encodes a ping. SRP has none, so this is an INQUIRY for zero bytes: every LUN responds to it, even without a
/// logical unit, and it clears no unit attention (SAM-5 section 5.14).
pub fn ping(itt: u32) -> Result<Vec<u8>, SrpError> {
    let inquiry = cdb::inquiry(None, 0);
    let command = SrpCommand {
        notifications: 0,
        tag: tag(itt, 0),
        lun: 0,
        attribute: SrpTaskAttribute::Simple,
        cdb: &inquiry,
        additional_cdb: &[],
        data_out: DataBuffer::None,
        data_in: DataBuffer::None,
    };
    let mut unit = Vec::new();
    command.encode(None, &mut unit)?;
    Ok(unit)
}
