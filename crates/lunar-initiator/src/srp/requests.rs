//! What a session wants, as the units of SRP.

use super::answers::DataDirection;
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

/// The longest additional CDB, in bytes: of [`crate::MAX_CDB_LEN`] all but the first 16.
const MAX_ADDITIONAL_CDB: usize = crate::MAX_CDB_LEN - 16;
/// Bytes of the longest command without immediate data: one descriptor is enough for memory that lies in one piece.
pub const SHORT_IU_LEN: usize = SrpCommand::LEN + MAX_ADDITIONAL_CDB + DESCRIPTOR_LEN;
/// Bytes of the AHS of an Extended CDB before its CDB.
const AHS_HEAD: usize = 4;

/// The tag of a command: as it is sent again under the same Initiator Task Tag, its CmdSN stands before that.
pub fn tag(itt: u32, cmd_sn: u32) -> u64 {
    u64::from(cmd_sn) << 32 | u64::from(itt)
}

/// Where the data of a command is.
pub enum BufferPlace {
    /// There is none.
    None,
    /// In memory that is lent, so many bytes, for one of the directions.
    Lent(DataDirection, RemoteAddress, u32),
    /// It goes with the command.
    Here(Rc<Buf>),
}

impl BufferPlace {
    /// Which way it goes.
    pub fn way(&self) -> DataDirection {
        match self {
            BufferPlace::None => DataDirection::None,
            BufferPlace::Lent(way, ..) => *way,
            BufferPlace::Here(_) => DataDirection::Out,
        }
    }

    /// The steering tag of what is lent.
    pub fn lent(&self) -> Option<u32> {
        if let BufferPlace::Lent(_, at, _) = self { Some(at.stag) } else { None }
    }

    /// Bytes that go with the command.
    pub fn immediate_len(&self) -> usize {
        if let BufferPlace::Here(buf) = self { buf.len() } else { 0 }
    }

    /// Data-out and data-in.
    fn data(&self) -> (DataBuffer<'_>, DataBuffer<'_>) {
        match self {
            BufferPlace::None | BufferPlace::Lent(DataDirection::None, ..) => {
                (DataBuffer::None, DataBuffer::None)
            }
            BufferPlace::Lent(DataDirection::In, at, len) => (DataBuffer::None, direct(*at, *len)),
            BufferPlace::Lent(DataDirection::Out, at, len) => (direct(*at, *len), DataBuffer::None),
            BufferPlace::Here(buf) => (DataBuffer::Immediate(buf), DataBuffer::None),
        }
    }
}

/// A SCSI command, up to `immediate_offset` if immediate data goes with it.
///
/// # Errors
/// When no unit says this.
pub fn command(
    header: &Bhs,
    task: &Task,
    place: &BufferPlace,
    immediate_offset: u16,
) -> Result<Vec<u8>, SrpError> {
    let (data_out, data_in) = place.data();
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

/// What a CDB has behind its first 16 bytes, in whole words.
pub fn additional_cdb(task: &Task) -> &[u8] {
    task.rest.as_ref().and_then(|rest| rest.ahs().get(AHS_HEAD..)).unwrap_or_default()
}

/// A task management function; None if SRP does not have it: the resets of a target.
pub fn task_management(header: &Bhs) -> Option<Vec<u8>> {
    const CODES: [(TaskManagementFunction, u8); 4] = [
        (TaskManagementFunction::AbortTask, function::ABORT_TASK),
        (TaskManagementFunction::AbortTaskSet, function::ABORT_TASK_SET),
        (TaskManagementFunction::ClearTaskSet, function::CLEAR_TASK_SET),
        (TaskManagementFunction::LunReset, function::LUN_RESET),
    ];
    let (asked, function) =
        *CODES.iter().find(|(asked, _)| request::function_code(*asked) == header.flags() & 0x7f)?;
    // The tag and the CmdSN of what is to be aborted.
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

/// Is the target there? SRP has no ping: this is INQUIRY for no bytes, which any logical unit answers, there or not,
/// and which takes no unit attention from anybody (SAM-5 section 5.14).
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
