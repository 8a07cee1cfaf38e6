//! Features and profiles: the data of GET CONFIGURATION (MMC-6 section 6.6), and the capabilities mode page.

use crate::scsi::BitField;

/// DATA LENGTH: the bytes that follow the field.
const DATA_LENGTH: BitField = BitField::bytes(0, 4);
const CURRENT_PROFILE: BitField = BitField::bytes(6, 2);

/// The data of GET CONFIGURATION. A current profile of 0 is none.
pub fn encode_configuration<'a>(
    current_profile: u16,
    features: impl Iterator<Item = &'a Feature>,
) -> Vec<u8> {
    let mut b = vec![0; 8];
    CURRENT_PROFILE.set(&mut b, current_profile.into());
    features.for_each(|feature| b.extend_from_slice(&feature.encode()));
    DATA_LENGTH.set_following_len(&mut b);
    b
}

/// A profile descriptor of the profile list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// PROFILE NUMBER.
    pub number: u16,
    /// CURRENTP.
    pub is_current: bool,
}

impl Profile {
    /// [`Profile::number`] of CD-ROM.
    pub const CD_ROM: u16 = 0x0008;
    /// [`Profile::number`] of DVD-ROM.
    pub const DVD_ROM: u16 = 0x0010;

    const NUMBER: BitField = BitField::bytes(0, 2);
    const CURRENTP: BitField = BitField::flag(2, 0);

    fn encode(&self) -> [u8; 4] {
        let mut b = [0; 4];
        Self::NUMBER.set(&mut b, self.number.into());
        Self::CURRENTP.set(&mut b, self.is_current.into());
        b
    }
}

/// A feature descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature {
    /// VERSION.
    pub version: u8,
    /// PERSISTENT: the feature is always current.
    pub is_persistent: bool,
    /// CURRENT.
    pub is_current: bool,
    /// The feature and its data.
    pub data: FeatureData,
}

/// A feature, and its feature dependent data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureData {
    /// Profile list: the profiles of the drive.
    ProfileList([Profile; 2]),
    /// Core, without INQ2 and DBE.
    Core {
        /// PHYSICAL INTERFACE STANDARD: 1 SCSI family.
        physical_interface: u32,
    },
    /// Morphing, without OCEVENT and ASYNC.
    Morphing,
    /// Removable medium.
    RemovableMedium {
        /// LOADING MECHANISM TYPE: 1 tray.
        loading_mechanism: u8,
        /// EJECT: START STOP UNIT ejects the medium.
        eject: bool,
        /// LOCK: PREVENT ALLOW MEDIUM REMOVAL locks the medium.
        lock: bool,
    },
    /// Random readable, without the error recovery mode page (PP).
    RandomReadable {
        /// LOGICAL BLOCK SIZE in bytes.
        block_size: u32,
        /// BLOCKING: blocks per readable unit.
        blocking: u16,
    },
}

impl FeatureData {
    const PHYSICAL_INTERFACE: BitField = BitField::bytes(0, 4);
    const LOADING_MECHANISM: BitField = BitField::bits(0, 7, 3);
    const EJECT: BitField = BitField::flag(0, 3);
    const LOCK: BitField = BitField::flag(0, 0);
    const BLOCK_SIZE: BitField = BitField::bytes(0, 4);
    const BLOCKING: BitField = BitField::bytes(4, 2);

    /// FEATURE CODE.
    pub const fn code(&self) -> u16 {
        match self {
            FeatureData::ProfileList(_) => 0x0000,
            FeatureData::Core { .. } => 0x0001,
            FeatureData::Morphing => 0x0002,
            FeatureData::RemovableMedium { .. } => 0x0003,
            FeatureData::RandomReadable { .. } => 0x0010,
        }
    }

    /// The feature dependent data: at most eight bytes, and their length.
    fn encode(&self) -> ([u8; 8], usize) {
        let mut b = [0; 8];
        let len = match *self {
            FeatureData::ProfileList(profiles) => {
                let places = b.chunks_exact_mut(4).zip(profiles);
                places.for_each(|(place, profile)| place.copy_from_slice(&profile.encode()));
                8
            }
            FeatureData::Core { physical_interface } => {
                Self::PHYSICAL_INTERFACE.set(&mut b, physical_interface.into());
                8
            }
            FeatureData::Morphing => 4,
            FeatureData::RemovableMedium { loading_mechanism, eject, lock } => {
                Self::LOADING_MECHANISM.set(&mut b, loading_mechanism.into());
                Self::EJECT.set(&mut b, eject.into());
                Self::LOCK.set(&mut b, lock.into());
                4
            }
            FeatureData::RandomReadable { block_size, blocking } => {
                Self::BLOCK_SIZE.set(&mut b, block_size.into());
                Self::BLOCKING.set(&mut b, blocking.into());
                8
            }
        };
        (b, len)
    }
}

impl Feature {
    const FEATURE_CODE: BitField = BitField::bytes(0, 2);
    const VERSION: BitField = BitField::bits(2, 5, 4);
    const PERSISTENT: BitField = BitField::flag(2, 1);
    const CURRENT: BitField = BitField::flag(2, 0);
    const ADDITIONAL_LENGTH: BitField = BitField::bytes(3, 1);

    /// FEATURE CODE.
    pub const fn code(&self) -> u16 {
        self.data.code()
    }

    fn encode(&self) -> Vec<u8> {
        let (data, len) = self.data.encode();
        let mut b = vec![0; 4];
        Self::FEATURE_CODE.set(&mut b, self.code().into());
        Self::VERSION.set(&mut b, self.version.into());
        Self::PERSISTENT.set(&mut b, self.is_persistent.into());
        Self::CURRENT.set(&mut b, self.is_current.into());
        Self::ADDITIONAL_LENGTH.set(&mut b, len as u64);
        b.extend_from_slice(&data[..len]);
        b
    }
}

/// The capabilities and mechanical status mode page (2Ah; MMC-3 section 5.5.10) of a drive that does not write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapabilitiesPage {
    /// CD-R READ.
    pub reads_cd_r: bool,
    /// CD-RW READ.
    pub reads_cd_rw: bool,
    /// DVD-ROM READ.
    pub reads_dvd_rom: bool,
    /// LOADING MECHANISM TYPE: 1 tray.
    pub loading_mechanism: u8,
    /// EJECT: START STOP UNIT ejects the medium.
    pub eject: bool,
    /// LOCK: PREVENT ALLOW MEDIUM REMOVAL locks the medium.
    pub lock: bool,
    /// MAXIMUM READ SPEED SUPPORTED in 1000 bytes per second (obsolete).
    pub max_read_speed: u16,
    /// CURRENT READ SPEED SELECTED in 1000 bytes per second (obsolete).
    pub read_speed: u16,
}

impl CapabilitiesPage {
    const LEN: usize = 20;
    const PAGE_CODE: u8 = 0x2a;

    /// Encodes the page with PS clear.
    pub const fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[0] = Self::PAGE_CODE;
        b[1] = Self::LEN as u8 - 2;
        b[2] = self.reads_cd_r as u8 | (self.reads_cd_rw as u8) << 1 | (self.reads_dvd_rom as u8) << 3;
        b[6] = self.lock as u8 | (self.eject as u8) << 3 | self.loading_mechanism << 5;
        [b[8], b[9]] = self.max_read_speed.to_be_bytes();
        [b[14], b[15]] = self.read_speed.to_be_bytes();
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_lie_as_in_the_standard() {
        let profile = |number, is_current| Profile { number, is_current };
        let list = [profile(Profile::DVD_ROM, true), profile(Profile::CD_ROM, false)];
        let one = Feature {
            version: 0,
            is_persistent: true,
            is_current: true,
            data: FeatureData::ProfileList(list),
        };
        let medium = FeatureData::RemovableMedium { loading_mechanism: 1, eject: true, lock: true };
        let other = Feature { version: 2, is_persistent: false, is_current: false, data: medium };
        let expected: [&[u8]; 3] = [
            &[0, 0, 0, 24, 0, 0, 0, 0x10],
            &[0, 0, 0x03, 8, 0, 0x10, 1, 0, 0, 8, 0, 0],
            &[0, 3, 0x08, 4, 0x29, 0, 0, 0],
        ];
        assert_eq!(encode_configuration(Profile::DVD_ROM, [one, other].iter()), expected.concat());
    }

    #[test]
    fn capabilities_page_lies_as_in_the_standard() {
        let page =
            CapabilitiesPage { reads_cd_rw: true, eject: true, read_speed: 0x0102, ..Default::default() };
        let expected = [0x2a, 18, 0x02, 0, 0, 0, 0x08, 0, 0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0];
        assert_eq!(page.encode(), expected);
    }
}
