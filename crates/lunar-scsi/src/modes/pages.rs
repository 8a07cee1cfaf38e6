//! The mode pages: fixed bytes and changeable bits.

use super::{ChangeableValues, D_SENSE, SWP, TAS, WCE};
use crate::PeripheralDeviceType;
use crate::table::DeviceTypes;
use lunar_wire::scsi::BitField;
use lunar_wire::scsi::mode::{self, caching, control};

/// A mode page without subpage.
pub(super) struct ModePageTemplate {
    pub(super) code: u8,
    types: DeviceTypes,
    /// The whole page including page code and length, with no changeable bit set.
    fixed: fn() -> Vec<u8>,
    /// Changeable bits, and the value of [`ChangeableValues`] of each.
    fields: &'static [(BitField, u8)],
}

/// All pages in ascending order, which is the order of page code 3Fh.
const PAGES: &[ModePageTemplate] = &[
    // SBC-4 section 6.4.8.
    ModePageTemplate {
        code: mode::ERROR_RECOVERY_PAGE,
        types: DeviceTypes::All,
        fixed: || mode::encode_page(mode::ERROR_RECOVERY_PAGE, 0x0a, []),
        fields: &[],
    },
    // SPC-5 section 7.5.10.
    ModePageTemplate {
        code: mode::DISCONNECT_RECONNECT_PAGE,
        types: DeviceTypes::Only(PeripheralDeviceType::Disk),
        fixed: || mode::encode_page(mode::DISCONNECT_RECONNECT_PAGE, 0x0e, []),
        fields: &[],
    },
    ModePageTemplate {
        code: mode::CACHING_PAGE,
        types: DeviceTypes::Only(PeripheralDeviceType::Disk),
        fixed: || mode::encode_page(mode::CACHING_PAGE, caching::LEN, []),
        fields: &[(caching::WCE, WCE)],
    },
    // One task set, unrestricted reordering of SIMPLE tasks.
    ModePageTemplate {
        code: mode::CONTROL_PAGE,
        types: DeviceTypes::All,
        fixed: || {
            let reorders = (control::QUEUE_ALGORITHM_MODIFIER, 1);
            mode::encode_page(mode::CONTROL_PAGE, control::LEN, [reorders])
        },
        fields: &[(control::D_SENSE, D_SENSE), (control::SWP, SWP), (control::TAS, TAS)],
    },
    // DEXCPT, because no exception is reported.
    ModePageTemplate {
        code: mode::INFORMATIONAL_EXCEPTIONS_CONTROL_PAGE,
        types: DeviceTypes::All,
        fixed: || {
            use mode::informational_exceptions_control::{DEXCPT, LEN};
            mode::encode_page(mode::INFORMATIONAL_EXCEPTIONS_CONTROL_PAGE, LEN, [(DEXCPT, 1)])
        },
        fields: &[],
    },
    ModePageTemplate {
        code: 0x2a,
        types: DeviceTypes::Only(PeripheralDeviceType::CdRom),
        fixed: || crate::cdrom::CAPABILITIES.to_vec(),
        fields: &[],
    },
];

/// The pages of a device type.
pub(super) fn of(device_type: PeripheralDeviceType) -> impl Iterator<Item = &'static ModePageTemplate> {
    PAGES.iter().filter(move |p| p.types == DeviceTypes::All || p.types == DeviceTypes::Only(device_type))
}

impl ModePageTemplate {
    /// The page with these values. PS is set if any can be changed.
    pub(super) fn with(&self, values: ChangeableValues) -> Vec<u8> {
        let mut page = (self.fixed)();
        mode::PS.set(&mut page, (!self.fields.is_empty()).into());
        self.fields.iter().for_each(|(field, value)| field.set(&mut page, values.has(*value).into()));
        page
    }

    /// PAGE LENGTH.
    pub(super) fn page_length(&self) -> u8 {
        mode::PAGE_LENGTH.get_u8(&(self.fixed)())
    }

    /// The page of changeable values: each changeable bit is set.
    pub(super) fn changeable(&self) -> Vec<u8> {
        let mut page = mode::encode_page(self.code, self.page_length(), []);
        mode::PS.set(&mut page, (!self.fields.is_empty()).into());
        self.fields.iter().for_each(|(field, _)| field.fill(&mut page));
        page
    }

    /// Stores the values of a page of the right length. An error is the bit of a value that cannot be changed.
    pub(super) fn take(&self, page: &[u8], values: &mut ChangeableValues) -> Result<(), BitField> {
        let (fixed, mask) = ((self.fixed)(), self.changeable());
        let bytes = page.iter().zip(&fixed).zip(&mask).enumerate();
        for (i, ((&new, &fixed), &mask)) in bytes.skip(mode::PAGE_HEADER_LEN) {
            let wrong = (new ^ fixed) & !mask;
            if wrong != 0 {
                return Err(BitField::flag(i as u16, 7 - wrong.leading_zeros() as u8));
            }
        }
        self.fields.iter().for_each(|(field, value)| values.set(*value, field.is_set(page)));
        Ok(())
    }
}
