//! REPORT LUNS (SPC-5 section 6.33), LUNs without a logical unit, and the REPORT LUNS well-known logical unit.

use crate::inquiry::head;
use crate::ready::sense_data;
use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Op, Plan, PlanResult};
use lunar_wire::scsi::cdb::inquiry;
use lunar_wire::scsi::cdb::report_luns::{ALLOCATION_LENGTH, SELECT_REPORT};
use lunar_wire::scsi::inquiry::{Peripheral, StandardInquiry};
use lunar_wire::scsi::{Sense, lun, op, vpd};

const REPORT_LUNS: &[u8] = &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[Row::new(
    op::REPORT_LUNS,
    report_own_luns,
    ReservationClass::Always,
    ChangeScope::Nothing,
    REPORT_LUNS,
)
.despite_attention()
.despite_reserve()
.in_standby()
.while_sanitizing()];

/// The highest supported SELECT REPORT: 0 excludes well-known logical units, 1 lists only them, 2 lists all.
const SELECT_MAX: u8 = 2;

/// REPORT LUNS clears REPORTED LUNS DATA HAS CHANGED on its nexus.
fn report_own_luns(cx: &mut CommandContext<'_>) -> PlanResult {
    if let Some(peer) = cx.state.nexuses.get_mut(&cx.nexus) {
        peer.attentions.forget(Sense::LUNS_CHANGED);
    }
    report(cx.cdb)
}

fn report(cdb: &[u8]) -> PlanResult {
    match (SELECT_REPORT.get_u8(cdb), ALLOCATION_LENGTH.get_u32(cdb)) {
        (select, _) if select > SELECT_MAX => Err(Sense::in_cdb(SELECT_REPORT).into()),
        (_, 0) => Ok(Plan::Done),
        (select, allocation_len) => Ok(Plan::op(Op::ReportLuns { select, allocation_len })),
    }
}

/// Data-In of REPORT LUNS. `luns` are the LUNs that the initiator may see. SELECT REPORT 1 and 2 add the well-known
/// logical unit.
pub fn report_luns(luns: &[u16], select: u8, allocation_len: u32) -> PlanResult {
    let own = luns.iter().map(|&l| lun::encode(l)).filter(|_| select != 1);
    let well_known = (select != 0).then_some(lun::REPORT_LUNS);
    Ok(Plan::data_cut(lun::encode_list(own.chain(well_known)), allocation_len))
}

/// The response of a LUN without a logical unit (SPC-5 section 6.7.2, SAM-5 section 5.11). `cdb` has at least 16
/// bytes.
pub fn absent_lun(cdb: &[u8]) -> PlanResult {
    if cdb.len() < 16 {
        return Err(Sense::INVALID_OPCODE.into());
    }
    match *cdb {
        [op::INQUIRY, ..] => nameless(cdb, Peripheral::NONE),
        [op::REPORT_LUNS, ..] => checked_report(cdb),
        [op::REQUEST_SENSE, ..] => Ok(sense_data(cdb, Sense::LUN_NOT_SUPPORTED)),
        _ => Err(Sense::LUN_NOT_SUPPORTED.into()),
    }
}

/// The response of the REPORT LUNS well-known logical unit (SPC-5 section 8.2). `cdb` has at least 16 bytes.
pub fn well_known_lu(cdb: &[u8]) -> PlanResult {
    if cdb.len() < 16 {
        return Err(Sense::INVALID_OPCODE.into());
    }
    match *cdb {
        [op::INQUIRY, ..] => nameless(cdb, Peripheral::WELL_KNOWN),
        [op::REPORT_LUNS, ..] => checked_report(cdb),
        [op::REQUEST_SENSE, ..] => Ok(sense_data(cdb, Sense::NO_SENSE)),
        [op::TEST_UNIT_READY, ..] => Ok(Plan::Done),
        _ => Err(Sense::INVALID_OPCODE.into()),
    }
}

/// REPORT LUNS where no table of commands checks the CDB.
fn checked_report(cdb: &[u8]) -> PlanResult {
    ROWS.iter().try_for_each(|row| row.check(cdb))?;
    report(cdb)
}

/// INQUIRY of a device whose only VPD page is the list of pages (00h).
fn nameless(cdb: &[u8], peripheral: Peripheral) -> PlanResult {
    let data = match (inquiry::EVPD.is_set(cdb), inquiry::PAGE_CODE.get_u8(cdb)) {
        (false, 0) => StandardInquiry { vendor: "LUNAR", ..head(peripheral) }.encode().to_vec(),
        (true, vpd::SUPPORTED_PAGES) => pages_without_others(peripheral),
        _ => return Err(Sense::in_cdb(inquiry::PAGE_CODE).into()),
    };
    Ok(Plan::data_cut(data, inquiry::ALLOCATION_LENGTH.get_u32(cdb)))
}

fn pages_without_others(peripheral: Peripheral) -> Vec<u8> {
    let mut page = vpd::encode(vpd::SUPPORTED_PAGES, &[vpd::SUPPORTED_PAGES]);
    peripheral.put(&mut page);
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::fails;

    fn cdb(bytes: &[u8]) -> [u8; 16] {
        std::array::from_fn(|i| bytes.get(i).copied().unwrap_or(0))
    }

    fn bytes(answer: PlanResult) -> Vec<u8> {
        match answer {
            Ok(Plan::Data(data)) => data,
            other => panic!("{other:?} instead of data"),
        }
    }

    #[test]
    fn list_by_select_report() {
        let of = |select| bytes(report_luns(&[0, 300], select, 255));
        let (zero, far) = ([0; 8], [0x41, 0x2c, 0, 0, 0, 0, 0, 0]);
        let known = [0xc1, 1, 0, 0, 0, 0, 0, 0];
        let head = |len| [0, 0, 0, len, 0, 0, 0, 0];
        assert_eq!(of(0), [head(16), zero, far].concat());
        assert_eq!(of(1), [head(8), known].concat());
        assert_eq!(of(2), [head(24), zero, far, known].concat());
        assert_eq!(bytes(report_luns(&[0], 0, 9)).len(), 9);
        assert_eq!(report_luns(&[0], 0, 0), Ok(Plan::Done));
    }

    #[test]
    fn lun_that_does_not_exist() {
        let data = bytes(absent_lun(&cdb(&[op::INQUIRY, 0, 0, 0, 255])));
        let head = [0x7f, 0, 6, 0x12, 91, 0, 0, 2];
        assert_eq!(data, [&head[..], b"LUNAR                       ", &[0; 60]].concat());
        assert_eq!(bytes(absent_lun(&cdb(&[op::INQUIRY, 1, 0, 0, 255]))), [0x7f, 0, 0, 1, 0]);
        assert_eq!(absent_lun(&cdb(&[op::INQUIRY, 1, 0x80, 0, 255])), fails(Sense::cdb_field(2, 7)));
        let sense = bytes(absent_lun(&cdb(&[op::REQUEST_SENSE, 1, 0, 0, 255])));
        assert_eq!(sense, Sense::LUN_NOT_SUPPORTED.encode(true));
        let list = Op::ReportLuns { select: 2, allocation_len: 16 };
        assert_eq!(absent_lun(&cdb(&[op::REPORT_LUNS, 0, 2, 0, 0, 0, 0, 0, 0, 16])), Ok(Plan::op(list)));
        assert_eq!(absent_lun(&cdb(&[op::REPORT_LUNS, 0, 3])), fails(Sense::cdb_field(2, 7)));
        assert_eq!(absent_lun(&cdb(&[op::TEST_UNIT_READY])), fails(Sense::LUN_NOT_SUPPORTED));
        assert_eq!(absent_lun(&cdb(&[op::READ_10])), fails(Sense::LUN_NOT_SUPPORTED));
    }

    #[test]
    fn well_known_logical_unit() {
        assert_eq!(bytes(well_known_lu(&cdb(&[op::INQUIRY, 0, 0, 0, 255])))[0], 0x1e);
        assert_eq!(well_known_lu(&cdb(&[op::TEST_UNIT_READY])), Ok(Plan::Done));
        assert_eq!(well_known_lu(&cdb(&[op::REPORT_LUNS])), Ok(Plan::Done));
        assert_eq!(well_known_lu(&cdb(&[op::REPORT_LUNS, 0x80])), fails(Sense::cdb_field(1, 7)));
        let sense = bytes(well_known_lu(&cdb(&[op::REQUEST_SENSE, 0, 0, 0, 255])));
        assert_eq!(sense, Sense::NO_SENSE.encode(false));
        assert_eq!(well_known_lu(&cdb(&[op::READ_10])), fails(Sense::INVALID_OPCODE));
    }
}
