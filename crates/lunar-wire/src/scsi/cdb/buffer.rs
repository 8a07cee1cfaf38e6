//! Fields of READ BUFFER and WRITE BUFFER.

/// READ BUFFER(10) (SPC-5 section 6.18).
pub mod read_buffer_10 {
    use crate::scsi::BitField;

    /// MODE.
    pub const MODE: BitField = BitField::bits(1, 4, 5);
    /// BUFFER ID.
    pub const BUFFER_ID: BitField = BitField::bytes(2, 1);
    /// BUFFER OFFSET in bytes.
    pub const BUFFER_OFFSET: BitField = BitField::bytes(3, 3);
    /// ALLOCATION LENGTH in bytes.
    pub const ALLOCATION_LENGTH: BitField = BitField::bytes(6, 3);
}

/// WRITE BUFFER (SPC-5 section 6.49).
pub mod write_buffer {
    pub use super::read_buffer_10::{BUFFER_ID, BUFFER_OFFSET, MODE};
    use crate::scsi::BitField;

    /// PARAMETER LIST LENGTH in bytes.
    pub const PARAMETER_LIST_LENGTH: BitField = BitField::bytes(6, 3);
}
