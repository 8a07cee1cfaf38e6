//! READ TOC/PMA/ATIP (MMC-6 section 6.25): track 1 begins at block 0, and the lead-out at the end of the image.

use crate::table::CommandContext;
use crate::{Plan, PlanResult};
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::cdb::read_toc::{ALLOCATION_LENGTH, FORMAT, MSF, OLD_FORMAT, TRACK_SESSION_NUMBER};
use lunar_wire::scsi::mmc::{RawTocEntry, TocAddress, TrackDescriptor, encode_toc};

/// CONTROL of a data track.
pub(super) const DATA_TRACK: u8 = 0x04;
/// ADR: the Q sub-channel contains positions.
const POSITIONS: u8 = 1;
/// Track number of the lead-out.
const LEAD_OUT: u8 = 0xaa;
/// Frames (blocks) before block 0, per second, and per minute.
const LEAD_IN: u32 = 150;
const SECOND: u32 = 75;
const MINUTE: u32 = 60 * SECOND;

/// Number of blocks of the medium. An image has fewer than 2^32.
pub(super) fn blocks(cx: &CommandContext<'_>) -> u32 {
    u32::try_from(cx.state.blocks).unwrap_or(u32::MAX)
}

pub(super) fn read(cx: &mut CommandContext<'_>) -> PlanResult {
    let (msf, start) = (MSF.is_set(cx.cdb), TRACK_SESSION_NUMBER.get_u8(cx.cdb));
    let body = match format(cx.cdb) {
        0 => tracks(start, blocks(cx), msf)?,
        1 => track(1, 0, msf).to_vec(),
        2 if start <= 1 => raw(blocks(cx)),
        2 => return Err(Sense::in_cdb(TRACK_SESSION_NUMBER).into()),
        _ => return Err(Sense::in_cdb(FORMAT).into()),
    };
    Ok(Plan::data_cut(encode_toc(1, 1, &body), ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

fn format(cdb: &[u8]) -> u8 {
    if FORMAT.is_set(cdb) { FORMAT.get_u8(cdb) } else { OLD_FORMAT.get_u8(cdb) }
}

/// Format 0: the tracks from number `start` on, and the lead-out.
fn tracks(start: u8, blocks: u32, msf: bool) -> Result<Vec<u8>, Sense> {
    let lead_out = track(LEAD_OUT, blocks, msf);
    match start {
        0 | 1 => Ok([track(1, 0, msf), lead_out].concat()),
        LEAD_OUT => Ok(lead_out.to_vec()),
        _ => Err(Sense::in_cdb(TRACK_SESSION_NUMBER)),
    }
}

/// A track descriptor of formats 0 and 1.
fn track(number: u8, lba: u32, msf: bool) -> [u8; 8] {
    let start = if msf { TocAddress::Msf(minutes(lba)) } else { TocAddress::Lba(lba) };
    TrackDescriptor { adr: POSITIONS, control: DATA_TRACK, number, start }.encode()
}

/// Format 2: the first track, the last track and the lead-out, and track 1. Positions are in MSF.
fn raw(blocks: u32) -> Vec<u8> {
    let entry = |(point, position)| {
        RawTocEntry { session: 1, adr: POSITIONS, control: DATA_TRACK, point, position }.encode()
    };
    let points = [
        (RawTocEntry::FIRST_TRACK, [1, 0, 0]),
        (RawTocEntry::LAST_TRACK, [1, 0, 0]),
        (RawTocEntry::LEAD_OUT, minutes(blocks)),
        (1, minutes(0)),
    ];
    points.map(entry).concat()
}

/// An LBA as minute, second and frame, limited to the last position that fits.
fn minutes(lba: u32) -> [u8; 3] {
    let frames = lba.saturating_add(LEAD_IN);
    match u8::try_from(frames / MINUTE) {
        Ok(m) => [m, (frames / SECOND % 60) as u8, (frames % SECOND) as u8],
        Err(_) => [255, 59, 74],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_begin_two_seconds_before_block_0_and_end() {
        assert_eq!(minutes(0), [0, 2, 0]);
        assert_eq!(minutes(4500 - 150), [1, 0, 0]);
        assert_eq!(minutes(4500 - 151), [0, 59, 74]);
        assert_eq!(minutes(256 * 4500 - 151), [255, 59, 74]);
        assert_eq!(minutes(u32::MAX), [255, 59, 74]);
    }
}
