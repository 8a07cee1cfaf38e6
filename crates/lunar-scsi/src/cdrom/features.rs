//! GET CONFIGURATION (MMC-6 section 6.6) and the capabilities mode page 2Ah: the features of the drive.

use super::present;
use crate::table::CommandContext;
use crate::{Plan, PlanResult};
use lunar_wire::scsi::Sense;
use lunar_wire::scsi::cdb::get_configuration::{ALLOCATION_LENGTH, RT, STARTING_FEATURE_NUMBER};
use lunar_wire::scsi::mmc::{CapabilitiesPage, Feature, FeatureData, Profile, encode_configuration};

/// Blocks of 80 minutes: a larger image has the profile DVD-ROM.
const CD_BLOCKS: u64 = 80 * 60 * 75;

/// Values of RT: the current features, or one feature. 0 means all.
const CURRENT: u8 = 1;
const ONE: u8 = 2;

/// PHYSICAL INTERFACE STANDARD: SCSI family.
const SCSI_FAMILY: u32 = 1;
/// LOADING MECHANISM TYPE: tray.
const TRAY: u8 = 1;

/// The features in ascending order. Only a medium makes it randomly readable, in transfers of 16 blocks.
fn features(profile: u16, present: bool) -> [Feature; 5] {
    // The larger profile is the first.
    let profiles =
        [Profile::DVD_ROM, Profile::CD_ROM].map(|number| Profile { number, is_current: number == profile });
    let drive = |version, data| Feature { version, is_persistent: true, is_current: true, data };
    let random = FeatureData::RandomReadable { block_size: 2048, blocking: 16 };
    [
        drive(0, FeatureData::ProfileList(profiles)),
        drive(2, FeatureData::Core { physical_interface: SCSI_FAMILY }),
        drive(1, FeatureData::Morphing),
        drive(0, FeatureData::RemovableMedium { loading_mechanism: TRAY, eject: true, lock: true }),
        Feature { version: 0, is_persistent: false, is_current: present, data: random },
    ]
}

/// The current profile; 0 without a medium.
fn profile(cx: &CommandContext<'_>) -> u16 {
    match present(cx) {
        false => 0,
        true if cx.state.blocks <= CD_BLOCKS => Profile::CD_ROM,
        true => Profile::DVD_ROM,
    }
}

pub(super) fn get(cx: &mut CommandContext<'_>) -> PlanResult {
    let (requested, start) = (RT.get_u8(cx.cdb), STARTING_FEATURE_NUMBER.get_u16(cx.cdb));
    if requested > ONE {
        return Err(Sense::in_cdb(RT).into());
    }
    let (profile, present) = (profile(cx), present(cx));
    let is_wanted = |feature: &&Feature| match requested {
        ONE => feature.code() == start,
        CURRENT => feature.code() >= start && feature.is_current,
        _ => feature.code() >= start,
    };
    let features = features(profile, present);
    let data = encode_configuration(profile, features.iter().filter(is_wanted));
    Ok(Plan::data_cut(data, ALLOCATION_LENGTH.get_u32(cx.cdb)))
}

/// The speed of a 24x CD drive, which is obsolete but shown by hosts.
const SPEED: u16 = 24 * 176;

/// Mode page 2Ah (MMC-3 section 5.5.10). The current lock state is not reported.
pub(crate) const CAPABILITIES: [u8; 20] = CapabilitiesPage {
    reads_cd_r: true,
    reads_cd_rw: true,
    reads_dvd_rom: true,
    loading_mechanism: TRAY,
    eject: true,
    lock: true,
    max_read_speed: SPEED,
    read_speed: SPEED,
}
.encode();
