//! Parameter data of CD and DVD drives (MMC-6), as a device server encodes them.

mod features;
mod toc;

use super::BitField;
pub use features::{CapabilitiesPage, Feature, FeatureData, Profile, encode_configuration};
pub use toc::{RawTocEntry, TocAddress, TrackDescriptor, encode_toc};

/// The data of GET EVENT STATUS NOTIFICATION (MMC-6 section 6.7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventStatus {
    /// SUPPORTED EVENT CLASSES: a bit per class.
    pub supported_classes: u8,
    /// The event of the media class; `None` (NEA) if no requested class is supported.
    pub media: Option<MediaEvent>,
}

/// The media event of GET EVENT STATUS NOTIFICATION.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaEvent {
    /// MEDIA EVENT: one of the constants of this type.
    pub event: u8,
    /// MEDIA PRESENT.
    pub is_present: bool,
    /// DOOR OR TRAY OPEN.
    pub is_open: bool,
}

impl MediaEvent {
    /// NOTIFICATION CLASS of media events.
    pub const CLASS: u8 = 4;
    /// [`MediaEvent::event`]: no change.
    pub const NO_CHANGE: u8 = 0;
    /// [`MediaEvent::event`]: another medium has become ready.
    pub const NEW_MEDIA: u8 = 2;
    /// [`MediaEvent::event`]: the medium has been removed.
    pub const MEDIA_REMOVAL: u8 = 3;

    const MEDIA_EVENT: BitField = BitField::bits(4, 3, 4);
    const MEDIA_PRESENT: BitField = BitField::flag(5, 1);
    const TRAY_OPEN: BitField = BitField::flag(5, 0);

    fn put(self, b: &mut [u8]) {
        Self::MEDIA_EVENT.set(b, self.event.into());
        Self::MEDIA_PRESENT.set(b, self.is_present.into());
        Self::TRAY_OPEN.set(b, self.is_open.into());
    }
}

impl EventStatus {
    /// Bytes of the event header. An allocation length up to it cuts the event off.
    pub const HEADER_LEN: usize = 4;

    const EVENT_DATA_LENGTH: BitField = BitField::bytes(0, 2);
    const NEA: BitField = BitField::flag(2, 7);
    const NOTIFICATION_CLASS: BitField = BitField::bits(2, 2, 3);
    const SUPPORTED_EVENT_CLASSES: BitField = BitField::bytes(3, 1);

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; if self.media.is_some() { Self::HEADER_LEN + 4 } else { Self::HEADER_LEN }];
        Self::EVENT_DATA_LENGTH.set_following_len(&mut b);
        Self::SUPPORTED_EVENT_CLASSES.set(&mut b, self.supported_classes.into());
        Self::NEA.set(&mut b, self.media.is_none().into());
        if let Some(media) = self.media {
            Self::NOTIFICATION_CLASS.set(&mut b, MediaEvent::CLASS.into());
            media.put(&mut b);
        }
        b
    }
}

/// Standard disc information of READ DISC INFORMATION.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscInformation {
    /// STATE OF LAST SESSION: 0 empty, 1 incomplete, or [`DiscInformation::SESSION_COMPLETE`].
    pub last_session_state: u8,
    /// DISC STATUS: 0 empty, 1 incomplete, or [`DiscInformation::FINALIZED`].
    pub status: u8,
    /// NUMBER OF FIRST TRACK ON DISC.
    pub first_track: u8,
    /// NUMBER OF SESSIONS, below 256.
    pub sessions: u8,
    /// FIRST TRACK NUMBER IN LAST SESSION, below 256.
    pub first_track_of_last_session: u8,
    /// LAST TRACK NUMBER IN LAST SESSION, below 256.
    pub last_track_of_last_session: u8,
    /// URU: unrestricted use.
    pub unrestricted_use: bool,
    /// LAST SESSION LEAD-IN START ADDRESS, or [`DiscInformation::NO_ADDRESS`].
    pub lead_in_start: u32,
    /// LAST POSSIBLE LEAD-OUT START ADDRESS, or [`DiscInformation::NO_ADDRESS`].
    pub lead_out_start: u32,
}

impl DiscInformation {
    /// [`DiscInformation::last_session_state`] of a complete session.
    pub const SESSION_COMPLETE: u8 = 3;
    /// [`DiscInformation::status`] of a finalized disc.
    pub const FINALIZED: u8 = 2;
    /// The address of a lead-in or lead-out that cannot be.
    pub const NO_ADDRESS: u32 = u32::MAX;

    const LENGTH: BitField = BitField::bytes(0, 2);
    const STATE_OF_LAST_SESSION: BitField = BitField::bits(2, 3, 2);
    const DISC_STATUS: BitField = BitField::bits(2, 1, 2);
    const FIRST_TRACK: BitField = BitField::bytes(3, 1);
    const SESSIONS: BitField = BitField::bytes(4, 1);
    const FIRST_TRACK_OF_LAST_SESSION: BitField = BitField::bytes(5, 1);
    const LAST_TRACK_OF_LAST_SESSION: BitField = BitField::bytes(6, 1);
    const URU: BitField = BitField::flag(7, 5);
    const LEAD_IN_START: BitField = BitField::bytes(16, 4);
    const LEAD_OUT_START: BitField = BitField::bytes(20, 4);

    /// Encodes the data without OPC tables.
    pub fn encode(&self) -> [u8; 34] {
        let mut b = [0; 34];
        for (field, value) in [
            (Self::LENGTH, 32),
            (Self::STATE_OF_LAST_SESSION, self.last_session_state.into()),
            (Self::DISC_STATUS, self.status.into()),
            (Self::FIRST_TRACK, self.first_track.into()),
            (Self::SESSIONS, self.sessions.into()),
            (Self::FIRST_TRACK_OF_LAST_SESSION, self.first_track_of_last_session.into()),
            (Self::LAST_TRACK_OF_LAST_SESSION, self.last_track_of_last_session.into()),
            (Self::URU, self.unrestricted_use.into()),
            (Self::LEAD_IN_START, self.lead_in_start.into()),
            (Self::LEAD_OUT_START, self.lead_out_start.into()),
        ] {
            field.set(&mut b, value);
        }
        b
    }
}

/// The data of READ TRACK INFORMATION (MMC-6 section 6.26).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackInformation {
    /// TRACK NUMBER, below 256.
    pub track: u8,
    /// SESSION NUMBER, below 256.
    pub session: u8,
    /// TRACK MODE: CONTROL of the Q sub-channel.
    pub track_mode: u8,
    /// DATA MODE.
    pub data_mode: u8,
    /// TRACK START ADDRESS.
    pub start: u32,
    /// TRACK SIZE in blocks.
    pub blocks: u32,
}

impl TrackInformation {
    const LENGTH: BitField = BitField::bytes(0, 2);
    const TRACK_NUMBER: BitField = BitField::bytes(2, 1);
    const SESSION_NUMBER: BitField = BitField::bytes(3, 1);
    const TRACK_MODE: BitField = BitField::bits(5, 3, 4);
    const DATA_MODE: BitField = BitField::bits(6, 3, 4);
    const TRACK_START: BitField = BitField::bytes(8, 4);
    const TRACK_SIZE: BitField = BitField::bytes(24, 4);

    /// Encodes the data.
    pub fn encode(&self) -> [u8; 36] {
        let mut b = [0; 36];
        Self::LENGTH.set(&mut b, 34);
        Self::TRACK_NUMBER.set(&mut b, self.track.into());
        Self::SESSION_NUMBER.set(&mut b, self.session.into());
        Self::TRACK_MODE.set(&mut b, self.track_mode.into());
        Self::DATA_MODE.set(&mut b, self.data_mode.into());
        Self::TRACK_START.set(&mut b, self.start.into());
        Self::TRACK_SIZE.set(&mut b, self.blocks.into());
        b
    }
}

/// The data of MECHANISM STATUS of a drive without a changer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MechanismStatus {
    /// DOOR OPEN.
    pub is_open: bool,
}

impl MechanismStatus {
    const DOOR_OPEN: BitField = BitField::flag(1, 4);

    /// Encodes the data without a slot table.
    pub fn encode(&self) -> [u8; 8] {
        let mut b = [0; 8];
        Self::DOOR_OPEN.set(&mut b, self.is_open.into());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_without_a_supported_class_is_a_header() {
        let none = EventStatus { supported_classes: 1 << MediaEvent::CLASS, media: None };
        assert_eq!(none.encode(), [0, 2, 0x80, 0x10]);
        let media = MediaEvent { event: MediaEvent::NEW_MEDIA, is_present: true, is_open: true };
        assert_eq!(EventStatus { media: Some(media), ..none }.encode(), [0, 6, 4, 0x10, 2, 3, 0, 0]);
    }

    #[test]
    fn disc_information_lies_as_in_the_standard() {
        let disc = DiscInformation {
            last_session_state: 3,
            status: 2,
            first_track: 1,
            sessions: 2,
            first_track_of_last_session: 3,
            last_track_of_last_session: 4,
            unrestricted_use: true,
            lead_in_start: u32::MAX,
            lead_out_start: 0x0102_0304,
        };
        let expected = [&[0, 32, 0x0e, 1, 2, 3, 4, 0x20][..], &[0; 8], &[0xff; 4], &[1, 2, 3, 4], &[0; 10]];
        assert_eq!(disc.encode(), *expected.concat());
    }

    #[test]
    fn track_information_lies_as_in_the_standard() {
        let track =
            TrackInformation { track: 1, session: 2, track_mode: 4, data_mode: 1, start: 7, blocks: 0x102 };
        let start = [0, 34, 1, 2, 0, 4, 1, 0, 0, 0, 0, 7];
        let expected = [&start[..], &[0; 12], &[0, 0, 1, 2], &[0; 8]];
        assert_eq!(track.encode(), *expected.concat());
        assert_eq!(MechanismStatus { is_open: true }.encode(), [0, 0x10, 0, 0, 0, 0, 0, 0]);
    }
}
