//! The mode pages: fixed bytes and changeable bits.

use super::{ChangeableValues, D_SENSE, SWP, TAS, WCE};
use crate::PeripheralDeviceType;
use crate::table::DeviceTypes;

/// A mode page without subpage.
pub(super) struct ModePageTemplate {
    pub(super) code: u8,
    types: DeviceTypes,
    /// The whole page including page code and length, with no changeable bit set.
    fixed: &'static [u8],
    /// Changeable bits: byte of the page, mask, value of [`ChangeableValues`].
    fields: &'static [(usize, u8, u8)],
}

/// PS: the page can be saved.
pub(super) const PS: u8 = 0x80;

/// All pages in ascending order, which is the order of page code 3Fh.
const PAGES: &[ModePageTemplate] = &[
    // Read-write error recovery (SBC-4 section 6.4.8).
    ModePageTemplate {
        code: 0x01,
        types: DeviceTypes::All,
        fixed: &[0x01, 0x0a, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        fields: &[],
    },
    // Disconnect-reconnect (SPC-5 section 7.5.10).
    ModePageTemplate {
        code: 0x02,
        types: DeviceTypes::Only(PeripheralDeviceType::Disk),
        fixed: &[0x02, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        fields: &[],
    },
    // Caching (SBC-4 section 6.4.5).
    ModePageTemplate {
        code: 0x08,
        types: DeviceTypes::Only(PeripheralDeviceType::Disk),
        fixed: &[0x08, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        fields: &[(2, 0x04, WCE)],
    },
    // Control (SPC-5 section 7.5.9): one task set, unrestricted reordering of SIMPLE tasks.
    ModePageTemplate {
        code: 0x0a,
        types: DeviceTypes::All,
        fixed: &[0x0a, 0x0a, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0],
        fields: &[(2, 0x04, D_SENSE), (4, 0x08, SWP), (5, 0x40, TAS)],
    },
    // Informational exceptions control (SPC-5 section 7.5.13): DEXCPT, because no exception is reported.
    ModePageTemplate {
        code: 0x1c,
        types: DeviceTypes::All,
        fixed: &[0x1c, 0x0a, 0x08, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        fields: &[],
    },
    ModePageTemplate {
        code: 0x2a,
        types: DeviceTypes::Only(PeripheralDeviceType::CdRom),
        fixed: &crate::cdrom::CAPABILITIES,
        fields: &[],
    },
];

/// The pages of a device type.
pub(super) fn of(device_type: PeripheralDeviceType) -> impl Iterator<Item = &'static ModePageTemplate> {
    PAGES.iter().filter(move |p| p.types == DeviceTypes::All || p.types == DeviceTypes::Only(device_type))
}

impl ModePageTemplate {
    fn head(&self) -> u8 {
        if self.fields.is_empty() { self.code } else { self.code | PS }
    }

    /// The page with these values.
    pub(super) fn with(&self, values: ChangeableValues) -> Vec<u8> {
        let mut page = self.fixed.to_vec();
        page[0] = self.head();
        for &(byte, bit, value) in self.fields {
            if values.has(value) {
                page[byte] |= bit;
            }
        }
        page
    }

    /// The page of changeable values: each changeable bit is set.
    pub(super) fn changeable(&self) -> Vec<u8> {
        let mut page = vec![0; self.fixed.len()];
        (page[0], page[1]) = (self.head(), self.fixed[1]);
        self.fields.iter().for_each(|&(byte, bit, _)| page[byte] |= bit);
        page
    }

    /// Stores the values of a page of the right length. An error contains byte and bit of a value that cannot be
    /// changed.
    pub(super) fn take(&self, page: &[u8], values: &mut ChangeableValues) -> Result<(), (usize, u8)> {
        let mask = self.changeable();
        for (i, ((&new, &fixed), &mask)) in page.iter().zip(self.fixed).zip(&mask).enumerate().skip(2) {
            let wrong = (new ^ fixed) & !mask;
            if wrong != 0 {
                return Err((i, 7 - wrong.leading_zeros() as u8));
            }
        }
        for &(byte, bit, value) in self.fields {
            values.set(value, page[byte] & bit != 0);
        }
        Ok(())
    }
}
