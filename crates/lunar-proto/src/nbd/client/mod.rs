//! The client side: choosing an export and decoding the server's replies. All that a server sends is
//! checked against what it was asked.

mod negotiation;
mod received_ranges;
mod reply;

pub use negotiation::{ClientNegotiation, NegotiationFailure, NegotiationStep};
pub use reply::{
    BufferFill, ExtentStatus, PendingCommand, ProtocolViolation, ServerError, ServerMessage, next_message,
};

use lunar_wire::nbd::{command, command_flag, transmission_flag as flag};

use super::NbdCommand;

/// Bytes of a server's words that are kept.
const MAX_SAID: usize = 256;
/// The longest READ and WRITE in bytes with a server that names no limit, or one above it.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// The export that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Bytes, a multiple of the minimum block.
    pub size: u64,
    /// Transmission flags.
    flags: u16,
    /// Reads are answered in chunks.
    pub structured: bool,
    /// The server's handle of the context `base:allocation`, if it has that.
    pub allocation: Option<u32>,
    /// Minimum block in bytes, a power of two: offsets and lengths are multiples of it.
    pub block_size: u32,
    /// The longest READ and WRITE in bytes, a multiple of the minimum block.
    pub max_payload: u32,
}

impl ExportInfo {
    /// Nothing can be written.
    pub fn is_read_only(&self) -> bool {
        self.flags & flag::READ_ONLY != 0
    }

    /// It supports FLUSH.
    pub fn can_flush(&self) -> bool {
        self.flags & flag::SEND_FLUSH != 0
    }

    /// It supports the flag FUA.
    pub fn can_fua(&self) -> bool {
        self.flags & flag::SEND_FUA != 0
    }

    /// It supports TRIM.
    pub fn can_trim(&self) -> bool {
        self.flags & flag::SEND_TRIM != 0
    }

    /// It supports WRITE_ZEROES.
    pub fn can_write_zeroes(&self) -> bool {
        self.flags & flag::SEND_WRITE_ZEROES != 0
    }

    /// A flush on one connection covers what was written on any.
    pub fn can_multi_conn(&self) -> bool {
        self.flags & flag::CAN_MULTI_CONN != 0
    }
}

/// The type and flags of a command.
fn encoded(command: NbdCommand) -> (u16, u16) {
    let flag = |fua: bool| if fua { command_flag::FUA } else { 0 };
    match command {
        NbdCommand::Read { whole } => (command::READ, if whole { command_flag::DF } else { 0 }),
        NbdCommand::Write { fua } => (command::WRITE, flag(fua)),
        NbdCommand::Disconnect => (command::DISC, 0),
        NbdCommand::Flush => (command::FLUSH, 0),
        NbdCommand::Trim { fua } => (command::TRIM, flag(fua)),
        NbdCommand::Cache => (command::CACHE, 0),
        NbdCommand::WriteZeroes { fua, unmap, fast } => {
            let hole = if unmap { 0 } else { command_flag::NO_HOLE };
            let fast = if fast { command_flag::FAST_ZERO } else { 0 };
            (command::WRITE_ZEROES, flag(fua) | hole | fast)
        }
        NbdCommand::BlockStatus { one } => {
            (command::BLOCK_STATUS, if one { command_flag::REQ_ONE } else { 0 })
        }
    }
}

/// A server's words, fit to be shown: bounded, and without what steers a terminal.
fn said(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SAID)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests;
