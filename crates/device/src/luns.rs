//! REPORT LUNS (SPC-5 section 6.33), LUNs that do not exist, and the REPORT LUNS well-known logical unit.

use crate::inquiry::head;
use crate::ready::sense_data;
use crate::table::{Allowed, Cx, Row};
use crate::{Answer, Op, Plan};
use wire::be;
use wire::iscsi::lun;
use wire::scsi::{Sense, op};

const REPORT_LUNS: &[u8] = &[0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[Row::new(op::REPORT_LUNS, this, Allowed::Always, REPORT_LUNS)
    .despite_attention()
    .in_standby()
    .while_sanitizing()];

/// Logical units without well-known ones, only well-known ones, all.
const SELECT_MAX: u8 = 2;
/// Peripheral qualifier 011b: no device can be here.
const NO_DEVICE: u8 = 0x7f;
/// Peripheral device type of a well-known logical unit.
const WELL_KNOWN: u8 = 0x1e;

/// Asking for the list ends REPORTED LUNS DATA HAS CHANGED.
fn this(cx: &mut Cx<'_>) -> Answer {
    if let Some(peer) = cx.state.peers.get_mut(&cx.nexus) {
        peer.attentions.forget(Sense::LUNS_CHANGED);
    }
    report(cx.cdb)
}

fn report(cdb: &[u8]) -> Answer {
    match (cdb[2], be::get32(&cdb[6..])) {
        (select, _) if select > SELECT_MAX => Err(Sense::cdb_field(2, 7).into()),
        (_, 0) => Ok(Plan::Done),
        (select, allocation_len) => Ok(Plan::Op(Box::new(Op::ReportLuns { select, allocation_len }))),
    }
}

/// Data-In of REPORT LUNS: `luns` are those that the initiator may see; SELECT REPORT 1 and 2 add the well-known one.
pub fn report_luns(luns: &[u16], select: u8, allocation_len: u32) -> Answer {
    let own = luns.iter().map(|&l| lun::encode(l)).filter(|_| select != 1);
    let well_known = (select != 0).then_some(lun::REPORT_LUNS);
    let list: Vec<u8> = own.chain(well_known).flat_map(u64::to_be_bytes).collect();
    let mut data = vec![0; 8];
    be::put32(&mut data, list.len() as u32);
    data.extend_from_slice(&list);
    Ok(Plan::data_cut(data, allocation_len))
}

/// The answer of a LUN that does not exist (SPC-5 section 6.7.2, SAM-5 section 5.11). `cdb` has 16 bytes or more.
pub fn absent(cdb: &[u8]) -> Answer {
    match cdb[0] {
        op::INQUIRY => nameless(cdb, NO_DEVICE),
        op::REPORT_LUNS => checked(cdb, REPORT_LUNS).and_then(|()| report(cdb)),
        op::REQUEST_SENSE => Ok(sense_data(cdb, Sense::LUN_NOT_SUPPORTED)),
        _ => Err(Sense::LUN_NOT_SUPPORTED.into()),
    }
}

/// The answer of the REPORT LUNS well-known logical unit (SPC-5 section 8.2). `cdb` has 16 bytes or more.
pub fn well_known(cdb: &[u8]) -> Answer {
    match cdb[0] {
        op::INQUIRY => nameless(cdb, WELL_KNOWN),
        op::REPORT_LUNS => checked(cdb, REPORT_LUNS).and_then(|()| report(cdb)),
        op::REQUEST_SENSE => Ok(sense_data(cdb, Sense::NO_SENSE)),
        op::TEST_UNIT_READY => Ok(Plan::Done),
        _ => Err(Sense::INVALID_OPCODE.into()),
    }
}

fn checked(cdb: &[u8], usage: &'static [u8]) -> Result<(), crate::Failure> {
    Row::new(cdb[0], |_| Ok(Plan::Done), Allowed::Always, usage).check(cdb)?;
    Ok(())
}

/// INQUIRY of what has no pages but the list of none.
fn nameless(cdb: &[u8], device: u8) -> Answer {
    let data = match (cdb[1] & 1, cdb[2]) {
        (0, 0) => head(device, "LUNAR", "", ""),
        (1, 0) => vec![device, 0, 0, 1, 0],
        _ => return Err(Sense::cdb_field(2, 7).into()),
    };
    Ok(Plan::data_cut(data, be::get16(&cdb[3..]) as u32))
}
