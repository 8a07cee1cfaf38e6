//! Diagnostic pages (SPC-5 section 7.2).

use super::BitField;

/// The header of a diagnostic page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiagnosticPageHeader {
    /// PAGE CODE.
    pub page_code: u8,
    /// PAGE LENGTH: bytes after the header.
    pub page_length: u16,
}

impl DiagnosticPageHeader {
    /// Bytes of the header.
    pub const LEN: usize = 4;
    const PAGE_CODE: BitField = BitField::bytes(0, 1);
    const PAGE_LENGTH: BitField = BitField::bytes(2, 2);

    /// Encodes the header.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        Self::PAGE_CODE.set(&mut b, self.page_code.into());
        Self::PAGE_LENGTH.set(&mut b, self.page_length.into());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn diagnostic_page_header_lies_as_in_the_standard() {
        let header = DiagnosticPageHeader { page_code: 0x40, page_length: 0x102 };
        assert_eq!(header.encode(), [0x40, 0, 1, 2]);
    }
}
