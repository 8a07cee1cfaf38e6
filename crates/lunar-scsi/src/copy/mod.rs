//! EXTENDED COPY (LID1) and RECEIVE COPY RESULTS (SPC-5 section 5.17, SPC-4 sections 6.4 and 6.24). `list` parses the
//! parameter list, `segment` computes the bytes that a segment copies, and `results` keeps the results.

mod list;
mod page;
mod results;
mod segment;

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Op, PeripheralDeviceType, Plan, PlanResult};
use list::CopyParameterList;
use lunar_wire::scsi::cdb::extended_copy::PARAMETER_LIST_LENGTH;
use lunar_wire::scsi::copy::list_header;
use lunar_wire::scsi::{Sense, op};
pub(crate) use page::third_party_page;
pub use results::CopyResult;
pub(crate) use results::State;
pub use segment::CopyRange;

const EXTENDED_COPY: &[u8] = &[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
const COPY_STATUS: &[u8] = &[0x84, 0x00, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
const OPERATING_PARAMETERS: &[u8] = &[0x84, 0x03, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];
const FAILED_SEGMENT: &[u8] = &[0x84, 0x04, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0];

/// Rows of the command table. RECEIVE DATA (01h) is not supported, because no data is held.
pub(crate) const ROWS: &[Row] = &[
    Row::new(op::EXTENDED_COPY, copy, ReservationClass::Never, ChangeScope::Shared, EXTENDED_COPY)
        .action(0)
        .only(PeripheralDeviceType::Disk)
        .medium(),
    receive(results::copy_status, 0, COPY_STATUS),
    receive(results::operating_parameters, 3, OPERATING_PARAMETERS),
    receive(results::failed_segment_details, 4, FAILED_SEGMENT),
];

const fn receive(
    handler: fn(&mut CommandContext<'_>) -> PlanResult,
    action: u16,
    usage: &'static [u8],
) -> Row {
    Row::new(op::RECEIVE_COPY_RESULTS, handler, ReservationClass::Reading, ChangeScope::Nothing, usage)
        .action(action)
        .only(PeripheralDeviceType::Disk)
}

/// Maximum number of CSCD descriptors, of segment descriptors, and of bytes of both.
const MAX_CSCDS: usize = 16;
const MAX_SEGMENTS: usize = 64;
const MAX_DESCRIPTORS_LEN: usize = 32 * (MAX_CSCDS + MAX_SEGMENTS);
/// Maximum number of bytes that one segment copies.
const MAX_SEGMENT_LEN: u32 = 256 << 20;
/// Maximum number of concurrent copies of a logical unit.
const MAX_COPIES: usize = 64;

fn copy(cx: &mut CommandContext<'_>) -> PlanResult {
    let len = PARAMETER_LIST_LENGTH.get_u32(cx.cdb);
    match cx.parameters {
        _ if len == 0 => Ok(Plan::Done),
        _ if len as usize > list_header::LEN + MAX_DESCRIPTORS_LEN => {
            Err(Sense::PARAMETER_LIST_LENGTH.into())
        }
        None => Ok(Plan::Parameters { len }),
        Some(bytes) => begin(cx, bytes),
    }
}

fn begin(cx: &mut CommandContext<'_>, bytes: &[u8]) -> PlanResult {
    let list = CopyParameterList::parse(bytes, &cx.lu.settings())?;
    if list.segments.is_empty() {
        return Ok(Plan::Done);
    }
    cx.state.copy.begin(cx.nexus, list.id, list.tracking)?;
    Ok(Plan::op(Op::Copy { nexus: cx.nexus, list_id: list.id, segments: list.segments }))
}

#[cfg(test)]
pub(crate) mod tests;
