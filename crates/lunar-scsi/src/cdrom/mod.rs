//! MMC-6 commands that a CD-ROM has in addition to those of a disk. An image is one finalized session with one data
//! track.

mod features;
mod toc;

use crate::table::{ChangeScope, CommandContext, ReservationClass, Row};
use crate::{NexusId, PeripheralDeviceType, Plan, PlanResult};
pub(crate) use features::CAPABILITIES;
use lunar_wire::scsi::cdb::{
    get_event_status, mechanism_status, read_disc_information, read_track_information as request,
};
use lunar_wire::scsi::mmc::{DiscInformation, EventStatus, MechanismStatus, MediaEvent, TrackInformation};
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
            (Some(false), true) => MediaEvent::NEW_MEDIA,
            (Some(true), false) => MediaEvent::MEDIA_REMOVAL,
            _ => MediaEvent::NO_CHANGE,
        }
    }
}

/// The bit of media events among event classes.
const MEDIA_CLASS: u8 = 1 << MediaEvent::CLASS;

fn present(cx: &CommandContext<'_>) -> bool {
    cx.state.medium.not_ready() != Some(Sense::NOT_READY_NO_MEDIUM)
}

/// GET EVENT STATUS NOTIFICATION: only polling, and only the media class.
fn event_status(cx: &mut CommandContext<'_>) -> PlanResult {
    use get_event_status::{ALLOCATION_LENGTH, NOTIFICATION_CLASS_REQUEST, POLLED};
    if !POLLED.is_set(cx.cdb) {
        return Err(Sense::in_cdb(POLLED).into());
    }
    let len = ALLOCATION_LENGTH.get_u32(cx.cdb);
    let is_requested = NOTIFICATION_CLASS_REQUEST.get_u8(cx.cdb) & MEDIA_CLASS != 0;
    let media = is_requested.then(|| media_event(cx, len));
    Ok(Plan::data_cut(EventStatus { supported_classes: MEDIA_CLASS, media }.encode(), len))
}

/// The media event. One that does not fit into the allocation length is reported next time.
fn media_event(cx: &mut CommandContext<'_>, len: u32) -> MediaEvent {
    let is_present = present(cx);
    let event = match len as usize > EventStatus::HEADER_LEN {
        true => cx.state.cdrom.event(cx.nexus, is_present),
        false => MediaEvent::NO_CHANGE,
    };
    MediaEvent { event, is_present, is_open: !is_present }
}

/// READ DISC INFORMATION, standard information: one finalized session with one track.
fn disc(cx: &mut CommandContext<'_>) -> PlanResult {
    use read_disc_information::{ALLOCATION_LENGTH, DATA_TYPE};
    if DATA_TYPE.is_set(cx.cdb) {
        return Err(Sense::in_cdb(DATA_TYPE).into());
    }
    let disc = DiscInformation {
        last_session_state: DiscInformation::SESSION_COMPLETE,
        status: DiscInformation::FINALIZED,
        first_track: 1,
        sessions: 1,
        first_track_of_last_session: 1,
        last_track_of_last_session: 1,
        unrestricted_use: true,
        lead_in_start: DiscInformation::NO_ADDRESS,
        lead_out_start: DiscInformation::NO_ADDRESS,
    };
    Ok(Plan::data_cut(disc.encode().to_vec(), ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// ADDRESS/NUMBER TYPE of READ TRACK INFORMATION.
const BY_LBA: u8 = 0;
const BY_TRACK: u8 = 1;
const BY_SESSION: u8 = 2;

fn track(cx: &mut CommandContext<'_>) -> PlanResult {
    let number = request::ADDRESS.get_u32(cx.cdb);
    match request::ADDRESS_NUMBER_TYPE.get_u8(cx.cdb) {
        BY_LBA if (number as u64) < cx.state.blocks => {}
        BY_LBA => return Err(Sense::LBA_OUT_OF_RANGE.at(number as u64).into()),
        BY_TRACK | BY_SESSION if number == 1 => {}
        BY_TRACK | BY_SESSION => return Err(Sense::in_cdb(request::ADDRESS).into()),
        _ => return Err(Sense::in_cdb(request::ADDRESS_NUMBER_TYPE).into()),
    }
    let blocks = toc::blocks(cx);
    let track = TrackInformation {
        track: 1,
        session: 1,
        track_mode: toc::DATA_TRACK,
        data_mode: 1,
        start: 0,
        blocks,
    };
    Ok(Plan::data_cut(track.encode().to_vec(), request::ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// MECHANISM STATUS: no fault, no changer, and whether the tray is open.
fn mechanism(cx: &mut CommandContext<'_>) -> PlanResult {
    let status = MechanismStatus { is_open: !present(cx) };
    Ok(Plan::data_cut(status.encode().to_vec(), mechanism_status::ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

#[cfg(test)]
mod tests;
