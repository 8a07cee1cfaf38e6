//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-5), from the command table.

use crate::table::{self, ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Plan, PlanResult};
use lunar_wire::scsi::cdb::{report_supported_operation_codes as request, report_task_management};
use lunar_wire::scsi::report::{self, CommandSupport, SupportedCommand, task_management as function};
use lunar_wire::scsi::{BitField, Sense, op};

/// Service actions of MAINTENANCE IN.
const OPERATION_CODES: u16 = 0x0c;
const TASK_MANAGEMENT: u16 = 0x0d;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    Row::new(
        op::MAINTENANCE_IN,
        operation_codes,
        ReservationClass::Always,
        ChangeScope::Nothing,
        &[0xa3, 0x0c, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .action(OPERATION_CODES)
    .in_standby()
    .while_sanitizing(),
    Row::new(
        op::MAINTENANCE_IN,
        task_management,
        ReservationClass::Always,
        ChangeScope::Nothing,
        &[0xa3, 0x0d, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0],
    )
    .action(TASK_MANAGEMENT)
    .in_standby()
    .while_sanitizing(),
];

/// The supported task management functions.
const FUNCTIONS: [BitField; 6] = [
    function::ABORT_TASK,
    function::ABORT_TASK_SET,
    function::CLEAR_ACA,
    function::CLEAR_TASK_SET,
    function::LOGICAL_UNIT_RESET,
    function::TARGET_RESET,
];

fn operation_codes(cx: &mut CommandContext<'_>) -> PlanResult {
    let timeouts = request::RCTD.is_set(cx.cdb);
    let data = match request::REPORTING_OPTIONS.get_u8(cx.cdb) {
        0 => all(cx, timeouts),
        options @ 1..=3 => one(cx, options, timeouts)?,
        _ => return Err(Sense::in_cdb(request::REPORTING_OPTIONS).into()),
    };
    Ok(Plan::data_cut(data, request::ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

fn all(cx: &CommandContext<'_>, timeouts: bool) -> Vec<u8> {
    let settings = cx.lu.settings();
    let commands = table::rows(&settings).map(|row| SupportedCommand {
        opcode: row.opcode,
        action: row.service_action,
        len: row.usage.len() as u16,
    });
    report::encode_commands(commands, timeouts)
}

/// REPORTING OPTIONS 1: without service action, 2: with service action, 3: either (SPC-5 section 6.29.1).
fn one(cx: &CommandContext<'_>, options: u8, timeouts: bool) -> Result<Vec<u8>, Sense> {
    let opcode = request::REQUESTED_OPERATION_CODE.get_u8(cx.cdb);
    let action = request::REQUESTED_SERVICE_ACTION.get_u16(cx.cdb);
    let settings = cx.lu.settings();
    let mut rows = table::rows(&settings).filter(|r| r.opcode == opcode).peekable();
    let has_actions = rows.peek().is_some_and(|r| r.service_action.is_some());
    let known = rows.peek().is_some();
    if known && (options == 1 && has_actions || options == 2 && !has_actions) {
        return Err(Sense::in_cdb(request::REPORTING_OPTIONS));
    }
    let support = match rows.find(|r| r.service_action.is_none_or(|a| a == action)) {
        Some(row) if row.service_action.is_some() || action == 0 || options == 1 => detail(row, timeouts),
        _ => CommandSupport::none(),
    };
    Ok(support.encode())
}

fn detail(row: &Row, with_timeouts: bool) -> CommandSupport<'static> {
    CommandSupport { support: CommandSupport::AS_STANDARD, usage: row.usage, with_timeouts }
}

fn task_management(cx: &mut CommandContext<'_>) -> PlanResult {
    let data = report::encode_functions(&FUNCTIONS, report_task_management::REPD.is_set(cx.cdb));
    Ok(Plan::data_cut(data, report_task_management::ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{LuSettings, Nexus};
    use lunar_wire::be;

    fn codes(n: &mut Nexus, options: u8, opcode: u8, action: u8) -> PlanResult {
        run(n, &[0xa3, 0x0c, options, opcode, 0, action, 0, 0, 0xff, 0xff, 0, 0])
    }

    fn bytes(answer: PlanResult) -> Vec<u8> {
        match answer {
            Ok(Plan::Data(data)) => data,
            other => panic!("{other:?} instead of data"),
        }
    }

    #[test]
    fn each_reported_command_is_reported_alone_too() {
        let mut n = nexus(&lu(disk()), "a");
        let all = bytes(codes(&mut n, 0, 0, 0));
        assert_eq!(be::get32(&all) as usize, all.len() - 4);
        assert!(all.len() > 4 + 8 * 40);
        for d in all[4..].chunks_exact(8) {
            let (opcode, action, has_action) = (d[0], d[3], d[5] == 1);
            let (right, wrong) = if has_action { (2, 1) } else { (1, 2) };
            let one = bytes(codes(&mut n, right, opcode, action));
            assert_eq!((one[1], one[3], one[4]), (3, d[7], opcode));
            assert_eq!(one.len(), 4 + d[7] as usize);
            assert_eq!(codes(&mut n, wrong, opcode, action), fails(Sense::cdb_field(2, 2)));
            assert_eq!(bytes(codes(&mut n, 3, opcode, action)), one);
        }
    }

    #[test]
    fn time_outs_are_added_on_demand() {
        let mut n = nexus(&lu(disk()), "a");
        let all = bytes(codes(&mut n, 0x80, 0, 0));
        assert!(all[4..].chunks_exact(20).all(|d| d[5] & 2 != 0 && d[8..10] == [0, 10]));
        let one = bytes(codes(&mut n, 0x81, op::READ_10, 0));
        assert_eq!(one[..6], [0, 0x83, 0, 10, op::READ_10, 0x18]);
        assert_eq!(one[14..], [0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn command_descriptors_match_golden_bytes() {
        let mut n = nexus(&lu(disk()), "a");
        for (options, timeouts) in [(0, 0), (0x80, 2)] {
            let all = bytes(codes(&mut n, options, 0, 0));
            let expected = [
                [op::READ_10, 0, 0, 0, 0, timeouts, 0, 10],
                [op::SERVICE_ACTION_IN_16, 0, 0, 0x10, 0, 1 | timeouts, 0, 16],
            ];
            let step = if timeouts == 0 { 8 } else { 20 };
            for one in expected {
                assert!(all[4..].chunks_exact(step).any(|d| d[..8] == one), "{one:02x?}");
            }
        }
    }

    #[test]
    fn unsupported_command_is_reported_as_such() {
        let mut n = nexus(&lu(LuSettings { thin: false, ..disk() }), "a");
        assert_eq!(bytes(codes(&mut n, 1, op::UNMAP, 0)), [0, 1, 0, 0]);
        assert_eq!(bytes(codes(&mut n, 2, op::SERVICE_ACTION_IN_16, 0x1f)), [0, 1, 0, 0]);
        assert_eq!(bytes(codes(&mut n, 3, op::READ_10, 1)), [0, 1, 0, 0]);
        assert_eq!(codes(&mut n, 4, 0, 0), fails(Sense::cdb_field(2, 2)));
    }

    #[test]
    fn task_management_functions() {
        let mut n = nexus(&lu(disk()), "a");
        let mut cdb = [0xa3, 0x0d, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];
        assert_eq!(data(&mut n, &cdb), [0xfa, 0, 0, 0]);
        cdb[2] = 0x80;
        assert_eq!(data(&mut n, &cdb), [0xfa, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
