//! Conversion of SRP requests to commands and functions of the core.

use crate::core::{self, Cdb, Function, TaskAttribute};
use lunar_wire::srp::{self, DataBuffer, MemoryDescriptor, SrpCommand, TaskManagement, function};

/// Maximum length of an additional CDB in bytes.
const MAX_ADDITIONAL_CDB: usize = 244;
/// Maximum length of a descriptor table in memory of the initiator, in bytes: enough for 16 MiB in 4 KiB pages.
const MAX_TABLE_LEN: u32 = 64 << 10;

/// The data buffer of a command, in either direction.
pub fn data<'a>(c: &SrpCommand<'a>) -> DataBuffer<'a> {
    if writes(c) { c.data_out } else { c.data_in }
}

/// Whether the data come from the initiator.
pub fn writes(c: &SrpCommand<'_>) -> bool {
    c.data_out != DataBuffer::None
}

/// Whether the command is supported. Bidirectional data, the ACA attribute, and a CDB or table that is too long are
/// not.
pub fn is_served(c: &SrpCommand<'_>) -> bool {
    let too_long = table(&data(c)).is_some_and(|table| table.len > MAX_TABLE_LEN);
    !c.is_bidirectional()
        && c.attribute != srp::SrpTaskAttribute::Aca
        && c.additional_cdb.len() <= MAX_ADDITIONAL_CDB
        && !too_long
}

/// The descriptor table in memory of the initiator, if the command does not contain all of it.
pub fn table(data: &DataBuffer<'_>) -> Option<MemoryDescriptor> {
    match data {
        DataBuffer::Indirect(all) if !all.is_whole() => Some(all.table),
        _ => None,
    }
}

/// Adds the descriptors that the command contains.
pub fn pieces(data: &DataBuffer<'_>, into: &mut Vec<MemoryDescriptor>) {
    match data {
        DataBuffer::Direct(one) => into.push(*one),
        DataBuffer::Indirect(all) => into.extend(all.descriptors()),
        DataBuffer::None | DataBuffer::Immediate(_) => {}
    }
}

/// Converts a command. The core identifies it by `tag`; `sequence` is its position in the order of the initiator.
pub fn command(c: &SrpCommand<'_>, tag: u32, sequence: u32) -> core::ScsiCommand {
    let attribute = match c.attribute {
        srp::SrpTaskAttribute::Ordered => TaskAttribute::Ordered,
        srp::SrpTaskAttribute::HeadOfQueue => TaskAttribute::HeadOfQueue,
        srp::SrpTaskAttribute::Simple | srp::SrpTaskAttribute::Aca => TaskAttribute::Simple,
    };
    let cdb = match c.additional_cdb {
        [] => Cdb::Short(*c.cdb),
        rest => Cdb::Long([&c.cdb[..], rest].concat().into()),
    };
    core::ScsiCommand {
        tag,
        connection: 0,
        lun: c.lun,
        sequence,
        immediate: false,
        reads: !writes(c) && c.data_in != DataBuffer::None,
        writes: writes(c),
        has_unsolicited: false,
        copies_stably: false,
        attribute,
        // Lengths of information units and descriptors have 32 bits.
        expected_len: data(c).len() as u32,
        cdb,
    }
}

/// The requested function. `tag`: the command that it names. None: not supported.
pub fn function(asked: &TaskManagement, tag: u32) -> Option<Function> {
    match asked.function {
        function::ABORT_TASK => Some(Function::AbortTask { tag }),
        function::ABORT_TASK_SET => Some(Function::AbortTaskSet),
        function::CLEAR_TASK_SET => Some(Function::ClearTaskSet),
        function::LUN_RESET => Some(Function::LunReset),
        // There is never an ACA condition to clear.
        _ => None,
    }
}
