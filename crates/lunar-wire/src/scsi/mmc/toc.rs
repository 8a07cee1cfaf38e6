//! The table of contents: the data of READ TOC/PMA/ATIP (MMC-6 section 6.25).

use crate::scsi::BitField;

/// TOC DATA LENGTH: the bytes that follow the field.
const DATA_LENGTH: BitField = BitField::bytes(0, 2);
/// The number of the first track, or of the first session in formats 1 and 2.
const FIRST: BitField = BitField::bytes(2, 1);
/// The number of the last track, or of the last session in formats 1 and 2.
const LAST: BitField = BitField::bytes(3, 1);

/// A table of contents of these encoded descriptors. `first` and `last` are numbers of tracks in format 0, of sessions
/// in formats 1 and 2.
pub fn encode_toc(first: u8, last: u8, descriptors: &[u8]) -> Vec<u8> {
    let mut b = vec![0; 4];
    FIRST.set(&mut b, first.into());
    LAST.set(&mut b, last.into());
    b.extend_from_slice(descriptors);
    DATA_LENGTH.set_following_len(&mut b);
    b
}

/// The address in a track descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TocAddress {
    /// A logical block address.
    Lba(u32),
    /// Minute, second and frame.
    Msf([u8; 3]),
}

/// A track descriptor of formats 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackDescriptor {
    /// ADR.
    pub adr: u8,
    /// CONTROL.
    pub control: u8,
    /// TRACK NUMBER; AAh for the lead-out.
    pub number: u8,
    /// TRACK START ADDRESS.
    pub start: TocAddress,
}

impl TrackDescriptor {
    const ADR: BitField = BitField::bits(1, 7, 4);
    const CONTROL: BitField = BitField::bits(1, 3, 4);
    const TRACK_NUMBER: BitField = BitField::bytes(2, 1);
    const START_LBA: BitField = BitField::bytes(4, 4);
    const START_MSF: BitField = BitField::bytes(5, 3);

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; 8] {
        let mut b = [0; 8];
        Self::ADR.set(&mut b, self.adr.into());
        Self::CONTROL.set(&mut b, self.control.into());
        Self::TRACK_NUMBER.set(&mut b, self.number.into());
        match self.start {
            TocAddress::Lba(lba) => Self::START_LBA.set(&mut b, lba.into()),
            TocAddress::Msf(msf) => Self::START_MSF.set(&mut b, packed(msf)),
        }
        b
    }
}

/// A descriptor of format 2, the raw table of contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawTocEntry {
    /// SESSION NUMBER.
    pub session: u8,
    /// ADR.
    pub adr: u8,
    /// CONTROL.
    pub control: u8,
    /// POINT: a track number, or a description of the lead-in.
    pub point: u8,
    /// PMIN, PSEC and PFRAME.
    pub position: [u8; 3],
}

impl RawTocEntry {
    /// [`RawTocEntry::point`]: PMIN is the number of the first track.
    pub const FIRST_TRACK: u8 = 0xa0;
    /// [`RawTocEntry::point`]: PMIN is the number of the last track.
    pub const LAST_TRACK: u8 = 0xa1;
    /// [`RawTocEntry::point`]: the position is the start of the lead-out.
    pub const LEAD_OUT: u8 = 0xa2;

    const SESSION_NUMBER: BitField = BitField::bytes(0, 1);
    const ADR: BitField = BitField::bits(1, 7, 4);
    const CONTROL: BitField = BitField::bits(1, 3, 4);
    const POINT: BitField = BitField::bytes(3, 1);
    const POSITION: BitField = BitField::bytes(8, 3);

    /// Encodes the descriptor with TNO 0, the lead-in.
    pub fn encode(&self) -> [u8; 11] {
        let mut b = [0; 11];
        Self::SESSION_NUMBER.set(&mut b, self.session.into());
        Self::ADR.set(&mut b, self.adr.into());
        Self::CONTROL.set(&mut b, self.control.into());
        Self::POINT.set(&mut b, self.point.into());
        Self::POSITION.set(&mut b, packed(self.position));
        b
    }
}

/// Minute, second and frame as one number of three bytes.
fn packed([minute, second, frame]: [u8; 3]) -> u64 {
    u32::from_be_bytes([0, minute, second, frame]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toc_descriptors_lie_as_in_the_standard() {
        let lba = TrackDescriptor { adr: 1, control: 4, number: 0xaa, start: TocAddress::Lba(0x0102_0304) };
        assert_eq!(lba.encode(), [0, 0x14, 0xaa, 0, 1, 2, 3, 4]);
        let msf = TrackDescriptor { start: TocAddress::Msf([1, 2, 3]), ..lba };
        assert_eq!(msf.encode(), [0, 0x14, 0xaa, 0, 0, 1, 2, 3]);
        let raw = RawTocEntry {
            session: 1,
            adr: 1,
            control: 4,
            point: RawTocEntry::LEAD_OUT,
            position: [79, 59, 74],
        };
        assert_eq!(raw.encode(), [1, 0x14, 0, 0xa2, 0, 0, 0, 0, 79, 59, 74]);
        assert_eq!(encode_toc(1, 2, &lba.encode())[..6], [0, 10, 1, 2, 0, 0x14]);
    }
}
