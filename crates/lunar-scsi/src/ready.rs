//! TEST UNIT READY and REQUEST SENSE (SPC-5).

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{Plan, PlanResult};
use lunar_wire::scsi::cdb::request_sense::{ALLOCATION_LENGTH, DESC};
use lunar_wire::scsi::{Sense, op};

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    Row::new(
        op::TEST_UNIT_READY,
        |_| Ok(Plan::Done),
        ReservationClass::Always,
        ChangeScope::Nothing,
        &[0x00, 0, 0, 0, 0, 0],
    )
    .medium(),
    Row::new(
        op::REQUEST_SENSE,
        request_sense,
        ReservationClass::Always,
        ChangeScope::Nothing,
        &[0x03, 0x01, 0, 0, 0xff, 0],
    )
    .despite_attention()
    .despite_reserve()
    .in_standby()
    .while_sanitizing(),
];

/// Reports a pending unit attention, a state that makes the unit not ready, or no sense; always with GOOD (SPC-5
/// section 6.39).
fn request_sense(cx: &mut CommandContext<'_>) -> PlanResult {
    let pending = cx.state.nexuses.get_mut(&cx.nexus).and_then(|p| p.attentions.take());
    let sense = pending
        .or_else(|| cx.state.sanitize.not_ready())
        .or_else(|| cx.state.alua.not_ready(cx.port))
        .or_else(|| cx.state.no_medium())
        .unwrap_or(Sense::NO_SENSE);
    Ok(sense_data(cx.cdb, sense))
}

/// Sense data as parameter data. DESC selects the format.
pub(crate) fn sense_data(cdb: &[u8], sense: Sense) -> Plan {
    Plan::data_cut(sense.encode(DESC.is_set(cdb)), ALLOCATION_LENGTH.get_u32(cdb))
}
