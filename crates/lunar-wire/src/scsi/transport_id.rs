//! Fields of TransportIDs (SPC-5 section 7.6.4).

use super::BitField;

/// FORMAT CODE, whose meaning depends on the protocol.
pub const FORMAT_CODE: BitField = BitField::bits(0, 7, 2);
/// PROTOCOL IDENTIFIER.
pub const PROTOCOL_IDENTIFIER: BitField = BitField::bits(0, 3, 4);
/// ADDITIONAL LENGTH of an iSCSI TransportID, and of the private one of NVMe: the number of bytes that follow this field.
pub const ADDITIONAL_LENGTH: BitField = BitField::bytes(2, 2);
/// The first byte of the iSCSI name.
pub const ISCSI_NAME: usize = 4;
/// The protocol identifier of the private TransportID of an NVMe host, for which SPC-5 has none: no specific protocol.
pub const NVME_PROTOCOL: u8 = 15;
/// The first byte of the identifier of an NVMe host (HOSTID).
pub const NVME_HOST_ID: usize = 8;
/// The first byte of the name of an NVMe host (HOSTNQN), which ends with NULs up to a multiple of 4 bytes.
pub const NVME_NAME: usize = 24;
/// The first byte of the SRP initiator port identifier.
pub const SRP_PORT: usize = 8;
/// Bytes of an SRP TransportID.
pub const SRP_LEN: usize = 24;
