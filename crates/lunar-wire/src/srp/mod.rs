//! SRP, the SCSI RDMA Protocol, on the wire: its information units as Linux speaks them (SRP r16a section 6, and
//! immediate data of SRP-2). Integers are big-endian. Reserved fields are zero when sent, and ignored when received.
//!
//! A login travels in the private data of the connection setup. Every other information unit is a message of its own.

mod command;
mod control;
mod data;
mod error;
mod login;
mod port;
mod response;
#[cfg(test)]
mod tests;

pub use command::{SrpCommand, SrpTaskAttribute};
pub use control::{Aer, CreditRequest, TargetLogout, TaskManagement, aer_response, credit_response, logout};
pub use data::{DESCRIPTOR_LEN, DataBuffer, IndirectBuffer, MemoryDescriptor};
pub use error::SrpError;
pub use login::{LoginFormat, LoginReject, LoginRejectReason, LoginRequest, LoginResponse, PreviousChannels};
pub use port::{InvalidPortId, PortId};
pub use response::{Residual, SrpResponse};

/// Opcodes: the first byte of an information unit.
pub mod opcode {
    /// Initiator to target: login request.
    pub const LOGIN_REQUEST: u8 = 0x00;
    /// Initiator to target: a task management function.
    pub const TASK_MANAGEMENT: u8 = 0x01;
    /// Initiator to target: a SCSI command.
    pub const COMMAND: u8 = 0x02;
    /// Initiator to target: logout.
    pub const INITIATOR_LOGOUT: u8 = 0x03;
    /// Initiator to target: response to a credit request.
    pub const CREDIT_RESPONSE: u8 = 0x41;
    /// Initiator to target: response to an asynchronous event.
    pub const AER_RESPONSE: u8 = 0x42;
    /// Target to initiator: login response.
    pub const LOGIN_RESPONSE: u8 = 0xc0;
    /// Target to initiator: response to a command or a task management function.
    pub const RESPONSE: u8 = 0xc1;
    /// Target to initiator: login reject.
    pub const LOGIN_REJECT: u8 = 0xc2;
    /// Target to initiator: logout.
    pub const TARGET_LOGOUT: u8 = 0x80;
    /// Target to initiator: credit request.
    pub const CREDIT_REQUEST: u8 = 0x81;
    /// Target to initiator: an asynchronous event.
    pub const AER_REQUEST: u8 = 0x82;
}

/// Data buffer formats of a login.
pub mod format {
    /// Direct data buffer descriptors.
    pub const DIRECT: u16 = 0x0002;
    /// Indirect data buffer descriptors.
    pub const INDIRECT: u16 = 0x0004;
}

/// Codes of task management functions.
pub mod function {
    /// ABORT TASK.
    pub const ABORT_TASK: u8 = 0x01;
    /// ABORT TASK SET.
    pub const ABORT_TASK_SET: u8 = 0x02;
    /// CLEAR TASK SET.
    pub const CLEAR_TASK_SET: u8 = 0x04;
    /// LOGICAL UNIT RESET.
    pub const LUN_RESET: u8 = 0x08;
    /// CLEAR ACA.
    pub const CLEAR_ACA: u8 = 0x40;
}

/// Status of a task management function (RSP_CODE).
pub mod task_status {
    /// The function is complete.
    pub const COMPLETE: u8 = 0x00;
    /// Invalid field in the request.
    pub const INVALID_FIELDS: u8 = 0x02;
    /// The function is not supported.
    pub const NOT_SUPPORTED: u8 = 0x04;
    /// The function failed.
    pub const FAILED: u8 = 0x05;
}

/// Offset of immediate data in a command that Linux initiators request, in bytes.
pub const IMMEDIATE_OFFSET: u16 = 68;
/// Maximum information unit length that Linux initiators request, in bytes: 8 KiB of immediate data.
pub const LINUX_IU_LEN: usize = IMMEDIATE_OFFSET as usize + 8192;

/// An information unit from an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromInitiator<'a> {
    /// A SCSI command.
    Command(SrpCommand<'a>),
    /// A task management function.
    TaskManagement(TaskManagement),
    /// Response to a credit request, with its tag.
    CreditResponse(u64),
    /// Response to an asynchronous event, with its tag.
    AerResponse(u64),
    /// Logout, with its tag.
    Logout(u64),
}

impl<'a> FromInitiator<'a> {
    /// Decodes a message. `immediate_offset` is the negotiated offset of immediate data; `None` without it.
    ///
    /// # Errors
    /// The rule that the message violates.
    pub fn decode(iu: &'a [u8], immediate_offset: Option<u16>) -> Result<Self, SrpError> {
        Ok(match *iu.first().ok_or(SrpError::Short { needed: 1, there: 0 })? {
            opcode::COMMAND => Self::Command(SrpCommand::decode(iu, immediate_offset)?),
            opcode::TASK_MANAGEMENT => Self::TaskManagement(TaskManagement::decode(iu)?),
            opcode::CREDIT_RESPONSE => Self::CreditResponse(control::tag(iu)?),
            opcode::AER_RESPONSE => Self::AerResponse(control::tag(iu)?),
            opcode::INITIATOR_LOGOUT => Self::Logout(control::tag(iu)?),
            opcode => return Err(SrpError::Opcode(opcode)),
        })
    }
}

/// An information unit from a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromTarget<'a> {
    /// The response to a command or a task management function.
    Response(SrpResponse<'a>),
    /// A credit request.
    Credit(CreditRequest),
    /// An asynchronous event.
    Aer(Aer<'a>),
    /// Logout.
    Logout(TargetLogout),
}

impl<'a> FromTarget<'a> {
    /// Decodes a message.
    ///
    /// # Errors
    /// The rule that the message violates.
    pub fn decode(iu: &'a [u8]) -> Result<Self, SrpError> {
        Ok(match *iu.first().ok_or(SrpError::Short { needed: 1, there: 0 })? {
            opcode::RESPONSE => Self::Response(SrpResponse::decode(iu)?),
            opcode::CREDIT_REQUEST => Self::Credit(CreditRequest::decode(iu)?),
            opcode::AER_REQUEST => Self::Aer(Aer::decode(iu)?),
            opcode::TARGET_LOGOUT => Self::Logout(TargetLogout::decode(iu)?),
            opcode => return Err(SrpError::Opcode(opcode)),
        })
    }
}
