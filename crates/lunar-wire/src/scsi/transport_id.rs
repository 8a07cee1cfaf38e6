//! Fields of TransportIDs (SPC-5 section 7.6.4).

use super::BitField;

/// FORMAT CODE, whose meaning depends on the protocol.
pub const FORMAT_CODE: BitField = BitField::bits(0, 7, 2);
/// PROTOCOL IDENTIFIER.
pub const PROTOCOL_IDENTIFIER: BitField = BitField::bits(0, 3, 4);
/// ADDITIONAL LENGTH of an iSCSI TransportID: the number of bytes that follow this field.
pub const ADDITIONAL_LENGTH: BitField = BitField::bytes(2, 2);
/// The first byte of the iSCSI name.
pub const ISCSI_NAME: usize = 4;
/// The first byte of the SRP initiator port identifier.
pub const SRP_PORT: usize = 8;
/// Bytes of an SRP TransportID.
pub const SRP_LEN: usize = 24;
