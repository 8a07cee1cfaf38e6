//! Errors of information units.

use std::fmt;

/// The rule that an information unit violates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrpError {
    /// Shorter than its contents require.
    Short {
        /// Bytes that the contents require.
        needed: u64,
        /// Bytes of the information unit.
        there: usize,
    },
    /// Unexpected opcode.
    Opcode(u8),
    /// Reserved multichannel code.
    Channels(u8),
    /// Reserved or unsupported data buffer formats; data-out is in the high nibble.
    Format(u8),
    /// Reserved task attribute.
    Attribute(u8),
    /// Invalid length of the additional CDB, in bytes.
    Cdb(usize),
    /// The table length is no multiple of a descriptor, or less than the descriptors in the command.
    Table {
        /// Table length in bytes.
        len: u32,
        /// Descriptors in the command.
        descriptors: usize,
    },
    /// The descriptor lengths do not add up to the total length.
    Total {
        /// Total length that the command states, in bytes.
        said: u32,
        /// Sum of the descriptor lengths, in bytes.
        sum: u64,
    },
    /// The immediate data overlap the descriptors.
    Offset {
        /// Negotiated offset of immediate data.
        at: u16,
        /// End of the descriptors.
        end: usize,
    },
    /// A response with both overflow and underflow set for one direction; the flags byte.
    Residual(u8),
}

impl fmt::Display for SrpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SrpError::Short { needed, there } => {
                write!(f, "an SRP information unit of {there} bytes, expected at least {needed}")
            }
            SrpError::Opcode(opcode) => {
                write!(f, "an SRP information unit with the unexpected opcode {opcode:#04x}")
            }
            SrpError::Channels(code) => write!(f, "an SRP login with the invalid multichannel code {code}"),
            SrpError::Format(byte) => {
                write!(f, "an SRP command with the unsupported buffer formats {byte:#04x}")
            }
            SrpError::Attribute(code) => write!(f, "an SRP command with the invalid task attribute {code}"),
            SrpError::Cdb(len) => {
                write!(f, "an SRP command with an additional CDB of the invalid length of {len} bytes")
            }
            SrpError::Table { len, descriptors } => {
                write!(
                    f,
                    "an SRP command whose table of {len} bytes does not match its {descriptors} descriptors"
                )
            }
            SrpError::Total { said, sum } => {
                write!(f, "an SRP command for {said} bytes, but its descriptors have {sum} bytes")
            }
            SrpError::Offset { at, end } => {
                write!(
                    f,
                    "an SRP command with immediate data at byte {at}, but its descriptors end at byte {end}"
                )
            }
            SrpError::Residual(flags) => {
                write!(f, "an SRP response with the invalid residual flags {flags:#04x}")
            }
        }
    }
}

impl std::error::Error for SrpError {}

/// The first `N` bytes of an information unit.
pub(super) fn whole<const N: usize>(iu: &[u8]) -> Result<&[u8; N], SrpError> {
    iu.first_chunk().ok_or(SrpError::Short { needed: N as u64, there: iu.len() })
}

/// The first `N` bytes of an information unit, after a check of the opcode in byte `at`.
pub(super) fn of<const N: usize>(iu: &[u8], at: usize, opcode: u8) -> Result<&[u8; N], SrpError> {
    let b = whole::<N>(iu)?;
    if b[at] == opcode { Ok(b) } else { Err(SrpError::Opcode(b[at])) }
}
