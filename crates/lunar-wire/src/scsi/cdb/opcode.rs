//! The field that every CDB has.

use crate::scsi::BitField;

/// OPERATION CODE (SPC-5 section 4.2.5.1).
pub const OPERATION_CODE: BitField = BitField::bytes(0, 1);
