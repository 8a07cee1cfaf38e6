//! Log pages: headers, and the parameter that a target reports (SPC-5 section 7.3).

use super::BitField;

/// The header of a log page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPageHeader {
    /// DS: the parameters are not saved.
    pub disable_save: bool,
    /// SPF: the page has a subpage code.
    pub subpage_format: bool,
    /// PAGE CODE.
    pub page_code: u8,
    /// SUBPAGE CODE.
    pub subpage_code: u8,
    /// PAGE LENGTH: bytes after the header.
    pub page_length: u16,
}

impl LogPageHeader {
    /// Bytes of the header.
    pub const LEN: usize = 4;
    /// DS.
    pub const DS: BitField = BitField::flag(0, 7);
    /// SPF.
    pub const SPF: BitField = BitField::flag(0, 6);
    /// PAGE CODE.
    pub const PAGE_CODE: BitField = BitField::bits(0, 5, 6);
    /// SUBPAGE CODE.
    pub const SUBPAGE_CODE: BitField = BitField::bytes(1, 1);
    /// PAGE LENGTH.
    pub const PAGE_LENGTH: BitField = BitField::bytes(2, 2);

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        Self::DS.set(&mut b, self.disable_save.into());
        Self::SPF.set(&mut b, self.subpage_format.into());
        Self::PAGE_CODE.set(&mut b, self.page_code.into());
        Self::SUBPAGE_CODE.set(&mut b, self.subpage_code.into());
        Self::PAGE_LENGTH.set(&mut b, self.page_length.into());
        b
    }

    /// Decodes the header. Missing bytes count as zeros.
    pub fn decode(b: &[u8]) -> LogPageHeader {
        LogPageHeader {
            disable_save: Self::DS.is_set(b),
            subpage_format: Self::SPF.is_set(b),
            page_code: Self::PAGE_CODE.get_u8(b),
            subpage_code: Self::SUBPAGE_CODE.get_u8(b),
            page_length: Self::PAGE_LENGTH.get_u16(b),
        }
    }
}

/// The header of a log parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogParameterHeader {
    /// PARAMETER CODE.
    pub parameter_code: u16,
    /// The parameter control byte.
    pub control: u8,
    /// PARAMETER LENGTH: bytes of the value.
    pub parameter_length: u8,
}

impl LogParameterHeader {
    /// Bytes of the header.
    pub const LEN: usize = 4;
    /// PARAMETER CODE.
    pub const PARAMETER_CODE: BitField = BitField::bytes(0, 2);
    /// The parameter control byte.
    pub const CONTROL: BitField = BitField::bytes(2, 1);
    /// PARAMETER LENGTH.
    pub const PARAMETER_LENGTH: BitField = BitField::bytes(3, 1);

    /// TSD of the parameter control byte: the target does not save the parameter.
    pub const TSD: u8 = 0x20;
    /// FORMAT AND LINKING of the parameter control byte: a binary list.
    pub const BINARY_LIST: u8 = 0x03;

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        Self::PARAMETER_CODE.set(&mut b, self.parameter_code.into());
        Self::CONTROL.set(&mut b, self.control.into());
        Self::PARAMETER_LENGTH.set(&mut b, self.parameter_length.into());
        b
    }

    /// Decodes the header. Missing bytes count as zeros.
    pub fn decode(b: &[u8]) -> LogParameterHeader {
        LogParameterHeader {
            parameter_code: Self::PARAMETER_CODE.get_u16(b),
            control: Self::CONTROL.get_u8(b),
            parameter_length: Self::PARAMETER_LENGTH.get_u8(b),
        }
    }
}

/// The value of parameter 0000h of the informational exceptions log page (2Fh).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InformationalExceptions {
    /// INFORMATIONAL EXCEPTION ADDITIONAL SENSE CODE.
    pub asc: u8,
    /// INFORMATIONAL EXCEPTION ADDITIONAL SENSE CODE QUALIFIER.
    pub ascq: u8,
    /// MOST RECENT TEMPERATURE READING in degrees Celsius; FFh if unknown.
    pub temperature: u8,
}

impl InformationalExceptions {
    /// Bytes of the value.
    pub const LEN: usize = 4;

    /// Encodes the value.
    pub fn encode(&self) -> [u8; Self::LEN] {
        [self.asc, self.ascq, self.temperature, 0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_page_header_lies_as_in_the_standard() {
        let header = LogPageHeader {
            disable_save: true,
            subpage_format: false,
            page_code: 0x2f,
            subpage_code: 1,
            page_length: 0x203,
        };
        assert_eq!(header.encode(), [0xaf, 1, 2, 3]);
        let subpage = LogPageHeader { disable_save: false, subpage_format: true, ..header };
        assert_eq!(subpage.encode(), [0x6f, 1, 2, 3]);
        assert_eq!(LogPageHeader::decode(&[0xaf, 1, 2, 3]), header);
        assert_eq!(LogPageHeader::decode(&[0x6f, 1, 2, 3, 4]), subpage);
        assert_eq!(LogPageHeader::decode(&[]), LogPageHeader::default());
    }

    #[test]
    fn log_parameter_header_lies_as_in_the_standard() {
        let header = LogParameterHeader { parameter_code: 0x102, control: 0x23, parameter_length: 8 };
        assert_eq!(header.encode(), [1, 2, 0x23, 8]);
        assert_eq!(LogParameterHeader::decode(&[1, 2, 0x23, 8, 9]), header);
        let cut = LogParameterHeader { control: 0, parameter_length: 0, ..header };
        assert_eq!(LogParameterHeader::decode(&[1, 2]), cut);
    }

    #[test]
    fn informational_exceptions_lie_as_in_the_standard() {
        let value = InformationalExceptions { asc: 0x5d, ascq: 0x10, temperature: 31 };
        assert_eq!(value.encode(), [0x5d, 0x10, 31, 0]);
    }
}
