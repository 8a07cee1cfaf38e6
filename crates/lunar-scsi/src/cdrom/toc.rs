//! READ TOC/PMA/ATIP (MMC-6 section 6.25): track 1 begins at block 0, and the lead-out at the end of the image.

use crate::table::CommandContext;
use crate::{Plan, PlanResult};
use lunar_wire::be;
use lunar_wire::scsi::Sense;

/// CONTROL of a data track. ADR 1: the Q sub-channel contains positions.
pub(super) const DATA_TRACK: u8 = 0x04;
const ADR_CONTROL: u8 = 0x10 | DATA_TRACK;
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
    let (msf, start) = (cx.cdb[1] & 0x02 != 0, cx.cdb[6]);
    let format = if cx.cdb[2] & 0x0f != 0 { cx.cdb[2] & 0x0f } else { cx.cdb[9] >> 6 };
    let body = match format {
        0 => tracks(start, blocks(cx), msf)?,
        1 => track(1, 0, msf).to_vec(),
        2 if start <= 1 => raw(blocks(cx)),
        2 => return Err(Sense::cdb_field(6, 7).into()),
        _ => return Err(Sense::cdb_field(2, 3).into()),
    };
    // The length (later), then the first and the last track or session.
    let mut data = vec![0, 0, 1, 1];
    be::put16(&mut data, body.len() as u16 + 2);
    data.extend_from_slice(&body);
    Ok(Plan::data_cut(data, be::get16(&cx.cdb[7..]) as u32))
}

/// Format 0: the tracks from number `start` on, and the lead-out.
fn tracks(start: u8, blocks: u32, msf: bool) -> Result<Vec<u8>, Sense> {
    let lead_out = track(LEAD_OUT, blocks, msf);
    match start {
        0 | 1 => Ok([track(1, 0, msf), lead_out].concat()),
        LEAD_OUT => Ok(lead_out.to_vec()),
        _ => Err(Sense::cdb_field(6, 7)),
    }
}

/// A track descriptor of formats 0 and 1.
fn track(number: u8, lba: u32, msf: bool) -> [u8; 8] {
    let mut b = [0, ADR_CONTROL, number, 0, 0, 0, 0, 0];
    if msf {
        b[5..].copy_from_slice(&minutes(lba));
    } else {
        be::put32(&mut b[4..], lba);
    }
    b
}

/// Format 2: points A0h to A2h of the lead-in, and track 1. Positions are in MSF.
fn raw(blocks: u32) -> Vec<u8> {
    let points = [(0xa0, [1, 0, 0]), (0xa1, [1, 0, 0]), (0xa2, minutes(blocks)), (1, minutes(0))];
    let entry = |(point, [m, s, f]): (u8, [u8; 3])| [1, ADR_CONTROL, 0, point, 0, 0, 0, 0, m, s, f];
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
