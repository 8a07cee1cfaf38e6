//! Parameter data of REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-5 sections
//! 6.35 and 6.36).

use crate::scsi::BitField;
use crate::scsi::fields::{Field, split};

/// COMMAND DATA LENGTH, before the command descriptors.
const DATA_LENGTH: BitField = BitField::bytes(0, 4);

/// A command descriptor.
mod descriptor {
    use crate::scsi::BitField;

    pub(super) const LEN: usize = 8;
    pub(super) const OPERATION_CODE: BitField = BitField::bytes(0, 1);
    pub(super) const SERVICE_ACTION: BitField = BitField::bytes(2, 2);
    pub(super) const CTDP: BitField = BitField::flag(5, 1);
    pub(super) const SERVACTV: BitField = BitField::flag(5, 0);
    pub(super) const CDB_LENGTH: BitField = BitField::bytes(6, 2);
}

/// The header of the data of one command.
mod one {
    use crate::scsi::BitField;

    pub(super) const LEN: usize = 4;
    pub(super) const CTDP: BitField = BitField::flag(1, 7);
    pub(super) const SUPPORT: BitField = BitField::bits(1, 2, 3);
    pub(super) const CDB_SIZE: BitField = BitField::bytes(2, 2);
}

/// Bytes of a command timeouts descriptor.
const TIMEOUTS_LEN: usize = 12;
/// DESCRIPTOR LENGTH of a command timeouts descriptor: the bytes that follow the field.
const TIMEOUTS_LENGTH: BitField = BitField::bytes(0, 2);

/// A command timeouts descriptor that specifies no timeouts.
fn timeouts() -> [u8; TIMEOUTS_LEN] {
    let mut b = [0; TIMEOUTS_LEN];
    TIMEOUTS_LENGTH.set(&mut b, TIMEOUTS_LEN as u64 - 2);
    b
}

/// A command descriptor of REPORT SUPPORTED OPERATION CODES.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SupportedCommand {
    /// Operation code.
    pub opcode: u8,
    /// Service action, if the operation code has service actions.
    pub action: Option<u16>,
    /// Bytes of the CDB.
    pub len: u16,
}

impl SupportedCommand {
    fn decode(d: &[u8]) -> SupportedCommand {
        SupportedCommand {
            opcode: descriptor::OPERATION_CODE.get_u8(d),
            action: descriptor::SERVACTV.is_set(d).then(|| descriptor::SERVICE_ACTION.get_u16(d)),
            len: descriptor::CDB_LENGTH.get_u16(d),
        }
    }

    fn encode(&self, with_timeouts: bool) -> [u8; descriptor::LEN] {
        let mut d = [0; descriptor::LEN];
        descriptor::OPERATION_CODE.set(&mut d, self.opcode.into());
        descriptor::SERVICE_ACTION.set(&mut d, self.action.unwrap_or(0).into());
        descriptor::CTDP.set(&mut d, with_timeouts.into());
        descriptor::SERVACTV.set(&mut d, self.action.is_some().into());
        descriptor::CDB_LENGTH.set(&mut d, self.len.into());
        d
    }
}

/// The command descriptors in the data of REPORT SUPPORTED OPERATION CODES. Command timeouts descriptors are skipped.
pub fn commands(answer: &[u8]) -> impl Iterator<Item = SupportedCommand> {
    let rest = answer.get(4..).unwrap_or(&[]);
    let rest = &rest[..rest.len().min(DATA_LENGTH.get(answer) as usize)];
    let timed = descriptor::LEN + TIMEOUTS_LEN;
    let len = move |d: &[u8]| if descriptor::CTDP.is_set(d) { timed } else { descriptor::LEN };
    split(rest, move |d| (d.len() >= descriptor::LEN).then(|| len(d))).map(SupportedCommand::decode)
}

/// The data of REPORT SUPPORTED OPERATION CODES of all commands. With timeouts, each command has a descriptor that
/// specifies none.
pub fn encode_commands(commands: impl Iterator<Item = SupportedCommand>, with_timeouts: bool) -> Vec<u8> {
    let mut b = vec![0; 4];
    for command in commands {
        b.extend_from_slice(&command.encode(with_timeouts));
        if with_timeouts {
            b.extend_from_slice(&timeouts());
        }
    }
    DATA_LENGTH.set_following_len(&mut b);
    b
}

/// The data of REPORT SUPPORTED OPERATION CODES of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandSupport<'a> {
    /// SUPPORT: one of the constants of this type.
    pub support: u8,
    /// CDB USAGE DATA: the bits of the CDB that the device server evaluates; empty for an unsupported command.
    pub usage: &'a [u8],
    /// Whether a command timeouts descriptor follows, which specifies no timeouts.
    pub with_timeouts: bool,
}

impl<'a> CommandSupport<'a> {
    /// [`CommandSupport::support`]: the command is not supported.
    pub const NOT_SUPPORTED: u8 = 1;
    /// [`CommandSupport::support`]: the command is supported as in the standard.
    pub const AS_STANDARD: u8 = 3;

    /// The data of an unsupported command.
    pub const fn none() -> CommandSupport<'a> {
        CommandSupport { support: Self::NOT_SUPPORTED, usage: &[], with_timeouts: false }
    }

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; one::LEN];
        one::CTDP.set(&mut b, self.with_timeouts.into());
        one::SUPPORT.set(&mut b, self.support.into());
        one::CDB_SIZE.set(&mut b, self.usage.len() as u64);
        b.extend_from_slice(self.usage);
        if self.with_timeouts {
            b.extend_from_slice(&timeouts());
        }
        b
    }
}

/// The task management functions in the data of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub mod task_management {
    use crate::scsi::BitField;

    /// ABORT TASK.
    pub const ABORT_TASK: BitField = BitField::flag(0, 7);
    /// ABORT TASK SET.
    pub const ABORT_TASK_SET: BitField = BitField::flag(0, 6);
    /// CLEAR ACA.
    pub const CLEAR_ACA: BitField = BitField::flag(0, 5);
    /// CLEAR TASK SET.
    pub const CLEAR_TASK_SET: BitField = BitField::flag(0, 4);
    /// LOGICAL UNIT RESET.
    pub const LOGICAL_UNIT_RESET: BitField = BitField::flag(0, 3);
    /// QUERY TASK.
    pub const QUERY_TASK: BitField = BitField::flag(0, 2);
    /// TARGET RESET (obsolete).
    pub const TARGET_RESET: BitField = BitField::flag(0, 1);
    /// WAKEUP (obsolete).
    pub const WAKEUP: BitField = BitField::flag(0, 0);
    /// QUERY ASYNCHRONOUS EVENT.
    pub const QUERY_ASYNCHRONOUS_EVENT: BitField = BitField::flag(1, 2);
    /// QUERY TASK SET.
    pub const QUERY_TASK_SET: BitField = BitField::flag(1, 1);
    /// I_T NEXUS RESET.
    pub const I_T_NEXUS_RESET: BitField = BitField::flag(1, 0);
}

/// ADDITIONAL DATA LENGTH of extended data: the bytes that follow the field.
const FUNCTIONS_LENGTH: BitField = BitField::bytes(3, 1);

/// The data of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS. Extended data specify no timeouts.
pub fn encode_functions(supported: &[BitField], is_extended: bool) -> Vec<u8> {
    let mut b = vec![0; if is_extended { 16 } else { 4 }];
    supported.iter().for_each(|function| function.fill(&mut b));
    FUNCTIONS_LENGTH.set_following_len(&mut b);
    b
}

/// Fields of REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS.
pub static FUNCTIONS: &[Field] = &[
    Field::flag("abort_task", task_management::ABORT_TASK),
    Field::flag("abort_task_set", task_management::ABORT_TASK_SET),
    Field::flag("clear_aca", task_management::CLEAR_ACA),
    Field::flag("clear_task_set", task_management::CLEAR_TASK_SET),
    Field::flag("logical_unit_reset", task_management::LOGICAL_UNIT_RESET),
    Field::flag("query_task", task_management::QUERY_TASK),
    Field::flag("target_reset", task_management::TARGET_RESET),
    Field::flag("wakeup", task_management::WAKEUP),
    Field::flag("query_asynchronous_event", task_management::QUERY_ASYNCHRONOUS_EVENT),
    Field::flag("query_task_set", task_management::QUERY_TASK_SET),
    Field::flag("i_t_nexus_reset", task_management::I_T_NEXUS_RESET),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_descriptors_are_skipped() {
        let plain = [0x28, 0, 0, 0, 0, 0, 0, 10];
        let timed = [&[0x9e, 0, 0, 0x10, 0, 3, 0, 16][..], &[0, 10], &[0; 10]].concat();
        let b = [&[0, 0, 0, 28][..], &plain, &timed].concat();
        let all: Vec<_> = commands(&b).collect();
        assert_eq!(all[0], SupportedCommand { opcode: 0x28, action: None, len: 10 });
        assert_eq!(all[1], SupportedCommand { opcode: 0x9e, action: Some(0x10), len: 16 });
        let all = || commands(&b);
        assert_eq!(encode_commands(all().take(1), false), [&[0, 0, 0, 8][..], &plain].concat());
        assert_eq!(encode_commands(all().skip(1), true), [&[0, 0, 0, 20][..], &timed].concat());
        (0..b.len()).for_each(|n| assert!(commands(&b[..n]).count() < 2));
    }

    #[test]
    fn one_command_is_encoded_with_its_usage() {
        let usage = &[0x12, 1, 0xff, 0xff, 0xff, 0][..];
        let plain = CommandSupport { support: CommandSupport::AS_STANDARD, usage, with_timeouts: false };
        assert_eq!(plain.encode(), [&[0, 3, 0, 6][..], usage].concat());
        let timed = CommandSupport { with_timeouts: true, ..plain }.encode();
        assert_eq!(timed, [&[0, 0x83, 0, 6][..], usage, &[0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]].concat());
        assert_eq!(CommandSupport::none().encode(), [0, 1, 0, 0]);
    }

    #[test]
    fn task_management_functions_lie_as_in_the_standard() {
        use task_management::{ABORT_TASK, I_T_NEXUS_RESET, WAKEUP};
        assert_eq!(encode_functions(&[ABORT_TASK, WAKEUP, I_T_NEXUS_RESET], false), [0x81, 1, 0, 0]);
        let extended = encode_functions(&[ABORT_TASK], true);
        assert_eq!(extended, [0x80, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
