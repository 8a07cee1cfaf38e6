//! Requests of an initiator as the PDUs of a session.

use lunar_wire::iscsi::request::{self, Attribute, Function};
use lunar_wire::iscsi::{Bhs, NONE};
use lunar_wire::srp::{self, Command, Data, Descriptor, TaskManagement, function};

/// Bytes of an additional CDB that a session takes.
const ADDITIONAL_CDB: usize = 244;
/// Bytes of the longest table of descriptors that is read from an initiator: as many as name 16 MiB page by page.
const TABLE: u32 = 64 << 10;

/// The data of a command, in whichever direction it goes.
pub fn data<'a>(c: &Command<'a>) -> Data<'a> {
    if writes(c) { c.data_out } else { c.data_in }
}

/// Its data comes from the initiator.
pub fn writes(c: &Command<'_>) -> bool {
    c.data_out != Data::None
}

/// Nothing speaks against it but what cannot be served here: data in both directions, the ACA attribute, a CDB or a
/// table that is too long.
pub fn is_served(c: &Command<'_>) -> bool {
    let too_long = table(&data(c)).is_some_and(|table| table.len > TABLE);
    !c.is_bidirectional()
        && c.attribute != srp::Attribute::Aca
        && c.additional_cdb.len() <= ADDITIONAL_CDB
        && !too_long
}

/// The table of descriptors, if the command has only a part of it.
pub fn table(data: &Data<'_>) -> Option<Descriptor> {
    match data {
        Data::Indirect(all) if !all.is_whole() => Some(all.table),
        _ => None,
    }
}

/// Adds the descriptors that the command has.
pub fn pieces(data: &Data<'_>, into: &mut Vec<Descriptor>) {
    match data {
        Data::Direct(one) => into.push(*one),
        Data::Indirect(all) => into.extend(all.descriptors()),
        Data::None | Data::Immediate(_) => {}
    }
}

/// A SCSI Command PDU, and its additional header segments.
pub fn command(c: &Command<'_>, itt: u32, cmd_sn: u32) -> (Bhs, Vec<u8>) {
    let attribute = match c.attribute {
        srp::Attribute::Ordered => Attribute::Ordered,
        srp::Attribute::HeadOfQueue => Attribute::HeadOfQueue,
        srp::Attribute::Simple | srp::Attribute::Aca => Attribute::Simple,
    };
    let mut header = request::scsi_command(c.lun, itt, attribute, c.cdb);
    // The lengths of information units and descriptors have 32 bits.
    let len = data(c).len() as u32;
    match (writes(c), c.data_in) {
        (true, _) => request::writes(&mut header, len, false),
        (false, Data::None) => {}
        (false, _) => request::reads(&mut header, len),
    }
    request::stamp(&mut header, cmd_sn, 0);
    let ahs = match c.additional_cdb {
        [] => Vec::new(),
        rest => request::extended_cdb(rest),
    };
    (header, ahs)
}

/// A Task Management PDU; None for a function that there is not. `task` is the Initiator Task Tag and the CmdSN of the
/// command that it is about, `cmd_sn` that of the next command.
pub fn task_management(
    asked: &TaskManagement,
    itt: u32,
    task: Option<(u32, u32)>,
    cmd_sn: u32,
) -> Option<Bhs> {
    let function = match asked.function {
        function::ABORT_TASK => Function::AbortTask,
        function::ABORT_TASK_SET => Function::AbortTaskSet,
        function::CLEAR_TASK_SET => Function::ClearTaskSet,
        function::LUN_RESET => Function::LunReset,
        // There is never an ACA condition to clear.
        _ => return None,
    };
    // A command that is not known is none that could still come.
    let task = task.unwrap_or((NONE, cmd_sn));
    let mut header = request::task_management(asked.lun, itt, function, Some(task));
    request::stamp(&mut header, cmd_sn, 0);
    Some(header)
}
