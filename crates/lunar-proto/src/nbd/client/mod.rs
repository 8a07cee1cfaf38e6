//! The client: it negotiates an export, and decodes the server's replies. Every message of the server is checked
//! against the request that it answers.

mod negotiation;
mod received_ranges;
mod reply;

pub use negotiation::{ClientNegotiation, NegotiationFailure, NegotiationStep};
pub use reply::{
    BufferFill, ExtentStatus, PendingCommand, ProtocolViolation, ServerError, ServerMessage, next_message,
};

use lunar_wire::nbd::{command, command_flag, transmission_flag as flag};

use super::NbdCommand;

/// Maximum number of bytes kept of a server's message.
const MAX_SAID: usize = 256;
/// Maximum length of READ and WRITE in bytes if the server states no limit or a larger one.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// The negotiated export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes, a multiple of `block_size`.
    pub size: u64,
    /// Transmission flags.
    flags: u16,
    /// Structured replies are negotiated.
    pub structured: bool,
    /// The server's ID of the metadata context `base:allocation`, if it was selected.
    pub allocation: Option<u32>,
    /// Minimum block size in bytes, a power of two: offsets and lengths are multiples of it.
    pub block_size: u32,
    /// Maximum length of READ and WRITE in bytes, a multiple of `block_size`.
    pub max_payload: u32,
}

impl ExportInfo {
    /// Whether the export is read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags & flag::READ_ONLY != 0
    }

    /// Whether the server supports FLUSH.
    pub fn can_flush(&self) -> bool {
        self.flags & flag::SEND_FLUSH != 0
    }

    /// Whether the server supports the flag FUA.
    pub fn can_fua(&self) -> bool {
        self.flags & flag::SEND_FUA != 0
    }

    /// Whether the server supports TRIM.
    pub fn can_trim(&self) -> bool {
        self.flags & flag::SEND_TRIM != 0
    }

    /// Whether the server supports WRITE_ZEROES.
    pub fn can_write_zeroes(&self) -> bool {
        self.flags & flag::SEND_WRITE_ZEROES != 0
    }

    /// Whether a flush on one connection covers the completed writes of all connections.
    pub fn can_multi_conn(&self) -> bool {
        self.flags & flag::CAN_MULTI_CONN != 0
    }
}

/// The request type and flags of a command.
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

/// A server's message for display: at most 256 bytes, and without control characters.
fn said(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(MAX_SAID)]);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests;
