//! GET CONFIGURATION (MMC-6 section 6.6) and the capabilities mode page 2Ah: the features of the drive.

use super::present;
use crate::table::CommandContext;
use crate::{Plan, PlanResult};
use lunar_wire::be;
use lunar_wire::scsi::Sense;

/// Profile numbers.
const CD_ROM: u16 = 0x0008;
const DVD_ROM: u16 = 0x0010;
/// Blocks of 80 minutes: a larger image has the profile DVD-ROM.
const CD_BLOCKS: u64 = 80 * 60 * 75;

/// Values of RT: the current features, or one feature. 0 means all.
const CURRENT: u8 = 1;
const ONE: u8 = 2;

/// A feature. If it is persistent it is always current, otherwise only with a medium.
struct Feature {
    code: u16,
    version: u8,
    persistent: bool,
    data: &'static [u8],
}

/// Features in ascending order, without the profile list (0000h).
const FEATURES: &[Feature] = &[
    // Core: physical interface standard SCSI family; INQ2, DBEVENT.
    Feature { code: 0x0001, version: 2, persistent: true, data: &[0, 0, 0, 1, 0, 0, 0, 0] },
    // Morphing: events must be polled.
    Feature { code: 0x0002, version: 1, persistent: true, data: &[0, 0, 0, 0] },
    // Removable medium: a tray with eject and lock.
    Feature { code: 0x0003, version: 0, persistent: true, data: &[0x29, 0, 0, 0] },
    // Random readable: 2048 bytes per block, 16 blocks per transfer, no error recovery page.
    Feature { code: 0x0010, version: 0, persistent: false, data: &[0, 0, 8, 0, 0, 16, 0, 0] },
];

impl Feature {
    fn encode(&self, present: bool) -> Vec<u8> {
        let mut b = vec![0; 4];
        be::put16(&mut b, self.code);
        let current = self.persistent || present;
        b[2] = self.version << 2 | (self.persistent as u8) << 1 | current as u8;
        b[3] = self.data.len() as u8;
        b.extend_from_slice(self.data);
        b
    }
}

fn profile(cx: &CommandContext<'_>) -> u16 {
    match present(cx) {
        false => 0,
        true if cx.state.blocks <= CD_BLOCKS => CD_ROM,
        true => DVD_ROM,
    }
}

pub(super) fn get(cx: &mut CommandContext<'_>) -> PlanResult {
    let (requested, start) = (cx.cdb[1] & 0x03, be::get16(&cx.cdb[2..]));
    if requested > ONE {
        return Err(Sense::cdb_field(1, 1).into());
    }
    let (profile, present) = (profile(cx), present(cx));
    let wanted = |code: u16, current: bool| match requested {
        ONE => code == start,
        CURRENT => code >= start && current,
        _ => code >= start,
    };
    let mut b = vec![0; 8];
    be::put16(&mut b[6..], profile);
    if wanted(0, true) {
        b.extend_from_slice(&profiles(profile));
    }
    for feature in FEATURES.iter().filter(|f| wanted(f.code, f.persistent || present)) {
        b.extend_from_slice(&feature.encode(present));
    }
    let len = b.len() as u32 - 4;
    be::put32(&mut b, len);
    Ok(Plan::data_cut(b, be::get16(&cx.cdb[7..]) as u32))
}

/// Feature 0000h (profile list): persistent and current, the larger profile first.
fn profiles(current: u16) -> Vec<u8> {
    let mut b = vec![0, 0, 0x03, 8];
    for profile in [DVD_ROM, CD_ROM] {
        b.extend_from_slice(&profile.to_be_bytes());
        b.extend_from_slice(&[(profile == current) as u8, 0]);
    }
    b
}

/// Mode page 2Ah (MMC-3 section 5.5.10): reads CD-R, CD-RW and DVD-ROM; a tray with eject and lock; the speed of a
/// 24x CD drive, which is obsolete but shown by hosts. The current lock state is not reported.
pub(crate) const CAPABILITIES: [u8; 20] =
    [0x2a, 0x12, 0x0b, 0, 0, 0, 0x29, 0, 0x10, 0x80, 0, 0, 0, 0, 0x10, 0x80, 0, 0, 0, 0];
