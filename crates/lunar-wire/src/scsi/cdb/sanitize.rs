//! Fields of SANITIZE (SBC-4 section 5.30).

use crate::scsi::BitField;

/// IMMED: the status precedes the operation.
pub const IMMED: BitField = BitField::flag(1, 7);
/// AUSE: EXIT FAILURE MODE may end a failure.
pub const AUSE: BitField = BitField::flag(1, 5);
/// SERVICE ACTION.
pub const SERVICE_ACTION: BitField = BitField::bits(1, 4, 5);
/// PARAMETER LIST LENGTH in bytes.
pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(7, 2);
