//! MMC-6 commands that a CD-ROM has in addition to those of a disk. An image is one finalized session with one data
//! track.

mod features;
mod toc;

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{NexusId, PeripheralDeviceType, Plan, PlanResult};
pub(crate) use features::CAPABILITIES;
use lunar_wire::be;
use lunar_wire::scsi::{Sense, op};
use std::collections::BTreeMap;

/// Rows of the command table.
pub(crate) const ROWS: &[Row] = &[
    // The two highest bits of CONTROL are FORMAT for hosts that use SFF-8020i.
    row(
        op::READ_TOC,
        toc::read,
        ReservationClass::Reading,
        &[0x43, 0x02, 0x0f, 0, 0, 0, 0xff, 0xff, 0xff, 0xc0],
    )
    .medium(),
    row(
        op::GET_CONFIGURATION,
        features::get,
        ReservationClass::Always,
        &[0x46, 0x03, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0],
    )
    .despite_attention(),
    row(
        op::GET_EVENT_STATUS,
        event_status,
        ReservationClass::Always,
        &[0x4a, 0x01, 0, 0, 0xff, 0, 0, 0xff, 0xff, 0],
    )
    .despite_attention(),
    row(
        op::READ_DISC_INFORMATION,
        disc,
        ReservationClass::Reading,
        &[0x51, 0x07, 0, 0, 0, 0, 0, 0xff, 0xff, 0],
    )
    .medium(),
    row(op::READ_TRACK_INFORMATION, track, ReservationClass::Reading, READ_TRACK_INFORMATION).medium(),
    row(
        op::MECHANISM_STATUS,
        mechanism,
        ReservationClass::Always,
        &[0xbd, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0],
    ),
];

const READ_TRACK_INFORMATION: &[u8] = &[0x52, 0x03, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0];

const fn row(
    opcode: u8,
    handler: fn(&mut CommandContext<'_>) -> PlanResult,
    allowed: ReservationClass,
    usage: &'static [u8],
) -> Row {
    Row::new(opcode, handler, allowed, ChangeScope::Nothing, usage).only(PeripheralDeviceType::CdRom)
}

/// Whether a medium was present when an event was last reported to each nexus.
#[derive(Debug, Default)]
pub(crate) struct State {
    was_present: BTreeMap<NexusId, bool>,
}

impl State {
    /// Removes a lost nexus.
    pub(crate) fn detach(&mut self, nexus: NexusId) {
        self.was_present.remove(&nexus);
    }

    /// The media event to report to a nexus: the change since its last report.
    fn event(&mut self, nexus: NexusId, present: bool) -> u8 {
        match (self.was_present.insert(nexus, present), present) {
            (Some(false), true) => NEW_MEDIA,
            (Some(true), false) => MEDIA_REMOVAL,
            _ => NO_CHANGE,
        }
    }
}

/// Media events of GET EVENT STATUS NOTIFICATION, and their class.
const NO_CHANGE: u8 = 0;
const NEW_MEDIA: u8 = 2;
const MEDIA_REMOVAL: u8 = 3;
const MEDIA_CLASS: u8 = 4;
/// NEA: no requested event class is supported.
const NEA: u8 = 0x80;

fn present(cx: &CommandContext<'_>) -> bool {
    cx.state.medium.not_ready() != Some(Sense::NOT_READY_NO_MEDIUM)
}

/// GET EVENT STATUS NOTIFICATION: only polling, and only the media class.
fn event_status(cx: &mut CommandContext<'_>) -> PlanResult {
    if cx.cdb[1] & 1 == 0 {
        return Err(Sense::cdb_field(1, 0).into());
    }
    let asked = cx.cdb[4] & 1 << MEDIA_CLASS != 0;
    let mut b = if asked { vec![0, 6, MEDIA_CLASS, 0, 0, 0, 0, 0] } else { vec![0, 2, NEA, 0] };
    b[3] = 1 << MEDIA_CLASS;
    let len = be::get16(&cx.cdb[7..]);
    if asked {
        let present = present(cx);
        // An event that does not fit into the allocation length is reported next time.
        b[4] = if len > 4 { cx.state.cdrom.event(cx.nexus, present) } else { NO_CHANGE };
        // Media present, or tray open.
        b[5] = if present { 0x02 } else { 0x01 };
    }
    Ok(Plan::data_cut(b, len as u32))
}

/// READ DISC INFORMATION, standard information: one finalized session with one track.
fn disc(cx: &mut CommandContext<'_>) -> PlanResult {
    if cx.cdb[1] & 0x07 != 0 {
        return Err(Sense::cdb_field(1, 2).into());
    }
    let mut b = vec![0; 34];
    b[1] = 32;
    // The last session is complete, and the disc is finalized.
    b[2] = 0x0e;
    // Number of the first track, number of sessions, first and last track of the last session.
    b[3..7].fill(1);
    // URU: unrestricted use.
    b[7] = 0x20;
    // Start of the next session's lead-in, and last possible start of a lead-out: none.
    b[16..24].fill(0xff);
    Ok(Plan::data_cut(b, be::get16(&cx.cdb[7..]) as u32))
}

/// ADDRESS/NUMBER TYPE of READ TRACK INFORMATION.
const BY_LBA: u8 = 0;
const BY_TRACK: u8 = 1;
const BY_SESSION: u8 = 2;

fn track(cx: &mut CommandContext<'_>) -> PlanResult {
    let (by, number) = (cx.cdb[1] & 0x03, be::get32(&cx.cdb[2..]));
    match by {
        BY_LBA if (number as u64) < cx.state.blocks => {}
        BY_LBA => return Err(Sense::LBA_OUT_OF_RANGE.at(number as u64).into()),
        BY_TRACK | BY_SESSION if number == 1 => {}
        BY_TRACK | BY_SESSION => return Err(Sense::cdb_field(2, 7).into()),
        _ => return Err(Sense::cdb_field(1, 1).into()),
    }
    let blocks = toc::blocks(cx);
    let mut b = vec![0; 36];
    b[1] = 34;
    // Track and session number, track mode and data mode.
    (b[2], b[3], b[5], b[6]) = (1, 1, toc::DATA_TRACK, 1);
    be::put32(&mut b[24..], blocks);
    Ok(Plan::data_cut(b, be::get16(&cx.cdb[7..]) as u32))
}

/// MECHANISM STATUS: no fault, no changer, and whether the tray is open.
fn mechanism(cx: &mut CommandContext<'_>) -> PlanResult {
    let mut b = vec![0; 8];
    b[1] = if present(cx) { 0 } else { 0x10 };
    Ok(Plan::data_cut(b, be::get16(&cx.cdb[8..]) as u32))
}

#[cfg(test)]
mod tests;
