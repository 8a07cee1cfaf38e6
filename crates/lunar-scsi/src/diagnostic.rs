//! SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS (SPC-5 sections 6.42 and 6.27).

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Plan, PlanResult};
use lunar_wire::scsi::cdb::{receive_diagnostic_results, send_diagnostic};
use lunar_wire::scsi::diagnostic::DiagnosticPageHeader;
use lunar_wire::scsi::{BitField, Sense, op};

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    Row::new(
        op::RECEIVE_DIAGNOSTIC,
        receive,
        ReservationClass::Reading,
        ChangeScope::Nothing,
        &[0x1c, 0x01, 0xff, 0xff, 0xff, 0],
    )
    .in_standby(),
    Row::new(
        op::SEND_DIAGNOSTIC,
        send,
        ReservationClass::Never,
        ChangeScope::Nothing,
        &[0x1d, 0x17, 0, 0xff, 0xff, 0],
    )
    .in_standby(),
];

/// Page code of the supported diagnostic pages.
const SUPPORTED: u8 = 0x00;

/// PCV selects a page; without PCV it is the page of the last SEND DIAGNOSTIC. In both cases it can only be page 00h.
fn receive(cx: &mut CommandContext<'_>) -> PlanResult {
    use receive_diagnostic_results::{ALLOCATION_LENGTH, PAGE_CODE, PCV};
    if PCV.is_set(cx.cdb) && PAGE_CODE.get_u8(cx.cdb) != SUPPORTED {
        return Err(Sense::in_cdb(PAGE_CODE).into());
    }
    Ok(Plan::data_cut(supported_pages(), ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// The list of pages: only the list itself.
fn supported_pages() -> Vec<u8> {
    let pages = [SUPPORTED];
    let header = DiagnosticPageHeader { page_code: SUPPORTED, page_length: pages.len() as u16 };
    [&header.encode()[..], &pages].concat()
}

/// Runs the default self-test, which cannot fail, or accepts page 00h. The usage data reserve SELF-TEST CODE, because
/// other self-tests are not supported.
fn send(cx: &mut CommandContext<'_>) -> PlanResult {
    use send_diagnostic::{PARAMETER_LIST_LENGTH, PF, SELFTEST};
    match (PARAMETER_LIST_LENGTH.get_u32(cx.cdb), cx.parameters) {
        (0, _) => Ok(Plan::Done),
        (_, _) if SELFTEST.is_set(cx.cdb) => Err(Sense::in_cdb(PARAMETER_LIST_LENGTH).into()),
        (_, _) if !PF.is_set(cx.cdb) => Err(Sense::in_cdb(PF).into()),
        (len, _) if len as usize != DiagnosticPageHeader::LEN => Err(Sense::PARAMETER_LIST_LENGTH.into()),
        (len, None) => Ok(Plan::Parameters { len }),
        (_, Some(page)) => page_00(page),
    }
}

fn page_00(page: &[u8]) -> PlanResult {
    if page.len() != DiagnosticPageHeader::LEN {
        return Err(Sense::PARAMETER_LIST_LENGTH.into());
    }
    match page.iter().position(|&b| b != 0) {
        Some(at) => Err(Sense::in_parameters(BitField::bytes(at as u16, 1)).into()),
        None => Ok(Plan::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::*;

    #[test]
    fn default_self_test_is_good_and_others_are_unknown() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(run(&mut n, &[op::SEND_DIAGNOSTIC, 0x04, 0, 0, 0, 0]), Ok(Plan::Done));
        assert_eq!(run(&mut n, &[op::SEND_DIAGNOSTIC, 0x24, 0, 0, 0, 0]), fails(Sense::cdb_field(1, 5)));
        assert_eq!(run(&mut n, &[op::SEND_DIAGNOSTIC, 0x14, 0, 0, 4, 0]), fails(Sense::cdb_field(3, 7)));
    }

    #[test]
    fn page_00_can_be_selected_and_received() {
        let mut n = nexus(&lu(disk()), "a");
        let send = [op::SEND_DIAGNOSTIC, 0x10, 0, 0, 4, 0];
        assert_eq!(run_with(&mut n, &send, &[0; 4]), Ok(Plan::Done));
        assert_eq!(run_with(&mut n, &send, &[0; 3]), fails(Sense::PARAMETER_LIST_LENGTH));
        assert_eq!(run_with(&mut n, &send, &[0x40, 0, 0, 0]), fails(Sense::parameter_field(0, 7)));
        assert_eq!(data(&mut n, &[op::RECEIVE_DIAGNOSTIC, 0, 0, 0, 255, 0]), [0, 0, 0, 1, 0]);
        assert_eq!(data(&mut n, &[op::RECEIVE_DIAGNOSTIC, 1, 0, 0, 4, 0]), [0, 0, 0, 1]);
        assert_eq!(run(&mut n, &[op::RECEIVE_DIAGNOSTIC, 1, 0x40, 0, 255, 0]), fails(Sense::cdb_field(2, 7)));
    }

    #[test]
    fn list_without_page_format_or_of_another_length_is_refused() {
        let mut n = nexus(&lu(disk()), "a");
        assert_eq!(run(&mut n, &[op::SEND_DIAGNOSTIC, 0, 0, 0, 4, 0]), fails(Sense::cdb_field(1, 4)));
        let long = [op::SEND_DIAGNOSTIC, 0x10, 0, 0xff, 0xff, 0];
        assert_eq!(run(&mut n, &long), fails(Sense::PARAMETER_LIST_LENGTH));
    }
}
