//! What is wrong with an information unit.

use std::fmt;

/// The rule that an information unit breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SrpError {
    /// It is too short for what it says it holds: bytes that it takes, and bytes that are there.
    Short { needed: u64, there: usize },
    /// It has an opcode that does not belong here.
    Opcode(u8),
    /// Its multichannel code is reserved.
    Channels(u8),
    /// Its data buffer formats, data-out in the high nibble, are reserved, the wrong way round, or were not agreed on.
    Format(u8),
    /// Its task attribute is reserved.
    Attribute(u8),
    /// Its additional CDB, of so many bytes, is not made of whole words or too long.
    Cdb(usize),
    /// Its table, of so many bytes, is not made of whole descriptors, or has fewer of them than the information unit.
    Table { len: u32, descriptors: usize },
    /// Its descriptors are for other than as many bytes as it says itself.
    Total { said: u32, sum: u64 },
    /// Its immediate data would begin at this offset, within its descriptors, which end there.
    Offset { at: u16, end: usize },
    /// Its flags, of a response, say both that there was too much and too little.
    Residual(u8),
}

impl fmt::Display for SrpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SrpError::Short { needed, there } => {
                write!(f, "an SRP unit of {there} bytes that takes {needed}")
            }
            SrpError::Opcode(opcode) => write!(f, "an SRP unit with the opcode {opcode:#04x}"),
            SrpError::Channels(code) => write!(f, "an SRP login with the multichannel code {code}"),
            SrpError::Format(byte) => write!(f, "an SRP command with the buffer formats {byte:#04x}"),
            SrpError::Attribute(code) => write!(f, "an SRP command with the task attribute {code}"),
            SrpError::Cdb(len) => write!(f, "an SRP command with an additional CDB of {len} bytes"),
            SrpError::Table { len, descriptors } => {
                write!(f, "an SRP command with a table of {len} bytes and {descriptors} of its descriptors")
            }
            SrpError::Total { said, sum } => {
                write!(f, "an SRP command for {said} bytes with descriptors for {sum}")
            }
            SrpError::Offset { at, end } => {
                write!(f, "an SRP command with immediate data at byte {at}, its descriptors end at {end}")
            }
            SrpError::Residual(flags) => write!(f, "an SRP response with the flags {flags:#04x}"),
        }
    }
}

impl std::error::Error for SrpError {}

/// The first `N` bytes of an information unit whose opcode is known.
pub(super) fn whole<const N: usize>(iu: &[u8]) -> Result<&[u8; N], SrpError> {
    iu.first_chunk().ok_or(SrpError::Short { needed: N as u64, there: iu.len() })
}

/// The same, with the opcode that it is to have in byte `at`.
pub(super) fn of<const N: usize>(iu: &[u8], at: usize, opcode: u8) -> Result<&[u8; N], SrpError> {
    let b = whole::<N>(iu)?;
    if b[at] == opcode { Ok(b) } else { Err(SrpError::Opcode(b[at])) }
}
