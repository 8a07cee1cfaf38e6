//! REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS (SPC-5), from the command table.

use crate::table::{self, ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Plan, PlanResult};
use lunar_wire::be;
use lunar_wire::scsi::{Sense, op};

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

/// RCTD and REPD, byte 2.
const MORE: u8 = 0x80;
/// A command timeouts descriptor that specifies no timeouts.
const TIMEOUTS: [u8; 12] = [0, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// ABORT TASK, ABORT TASK SET, CLEAR ACA, CLEAR TASK SET, LOGICAL UNIT RESET, TARGET RESET.
const FUNCTIONS: u8 = 0xfa;

fn operation_codes(cx: &mut CommandContext<'_>) -> PlanResult {
    let timeouts = cx.cdb[2] & MORE != 0;
    let data = match cx.cdb[2] & 0x07 {
        0 => all(cx, timeouts),
        options @ 1..=3 => one(cx, options, timeouts)?,
        _ => return Err(Sense::cdb_field(2, 2).into()),
    };
    Ok(Plan::data_cut(data, be::get32(&cx.cdb[6..])))
}

fn all(cx: &CommandContext<'_>, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0; 4];
    for row in table::rows(&cx.lu.settings()) {
        let flags = row.service_action.is_some() as u8 | (timeouts as u8) << 1;
        data.extend_from_slice(&[row.opcode, 0]);
        data.extend_from_slice(&row.service_action.unwrap_or(0).to_be_bytes());
        data.extend_from_slice(&[0, flags, 0, row.usage.len() as u8]);
        if timeouts {
            data.extend_from_slice(&TIMEOUTS);
        }
    }
    let len = data.len() as u32 - 4;
    be::put32(&mut data, len);
    data
}

/// REPORTING OPTIONS 1: without service action, 2: with service action, 3: either (SPC-5 section 6.29.1).
fn one(cx: &CommandContext<'_>, options: u8, timeouts: bool) -> Result<Vec<u8>, Sense> {
    let (opcode, action) = (cx.cdb[3], be::get16(&cx.cdb[4..]));
    let settings = cx.lu.settings();
    let mut rows = table::rows(&settings).filter(|r| r.opcode == opcode).peekable();
    let has_actions = rows.peek().is_some_and(|r| r.service_action.is_some());
    let known = rows.peek().is_some();
    if known && (options == 1 && has_actions || options == 2 && !has_actions) {
        return Err(Sense::cdb_field(2, 2));
    }
    match rows.find(|r| r.service_action.is_none_or(|a| a == action)) {
        Some(row) if row.service_action.is_some() || action == 0 || options == 1 => Ok(detail(row, timeouts)),
        _ => Ok(vec![0, 1, 0, 0]),
    }
}

fn detail(row: &Row, timeouts: bool) -> Vec<u8> {
    let mut data = vec![0, (timeouts as u8) << 7 | 3, 0, row.usage.len() as u8];
    data.extend_from_slice(row.usage);
    if timeouts {
        data.extend_from_slice(&TIMEOUTS);
    }
    data
}

fn task_management(cx: &mut CommandContext<'_>) -> PlanResult {
    let mut data = vec![FUNCTIONS, 0, 0, 0];
    if cx.cdb[2] & MORE != 0 {
        // Twelve more bytes, with timeouts of 0 (not specified).
        data[3] = 12;
        data.resize(16, 0);
    }
    Ok(Plan::data_cut(data, be::get32(&cx.cdb[6..])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;
    use crate::{LuSettings, Nexus};

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
