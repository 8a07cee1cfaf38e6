//! SRP, the SCSI RDMA Protocol, on the wire: its information units as Linux speaks them (SRP r16a section 6, and
//! immediate data of SRP-2). Integers are big-endian. Reserved fields are zero when sent, and ignored when received.
//!
//! Login goes with the private data of the connection, everything else in messages, one information unit each.

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

/// First bytes of information units.
pub mod opcode {
    /// Initiator to target: wants a connection.
    pub const LOGIN_REQUEST: u8 = 0x00;
    /// Initiator to target: a task management function.
    pub const TASK_MANAGEMENT: u8 = 0x01;
    /// Initiator to target: a SCSI command.
    pub const COMMAND: u8 = 0x02;
    /// Initiator to target: the end.
    pub const INITIATOR_LOGOUT: u8 = 0x03;
    /// Initiator to target: answers a credit request.
    pub const CREDIT_RESPONSE: u8 = 0x41;
    /// Initiator to target: answers an asynchronous event.
    pub const AER_RESPONSE: u8 = 0x42;
    /// Target to initiator: accepts a login.
    pub const LOGIN_RESPONSE: u8 = 0xc0;
    /// Target to initiator: answers a command or a task management function.
    pub const RESPONSE: u8 = 0xc1;
    /// Target to initiator: turns a login down.
    pub const LOGIN_REJECT: u8 = 0xc2;
    /// Target to initiator: the end.
    pub const TARGET_LOGOUT: u8 = 0x80;
    /// Target to initiator: more credits.
    pub const CREDIT_REQUEST: u8 = 0x81;
    /// Target to initiator: an asynchronous event.
    pub const AER_REQUEST: u8 = 0x82;
}

/// Formats of data buffers that a login asks for or grants.
pub mod format {
    /// One descriptor.
    pub const DIRECT: u16 = 0x0002;
    /// A table of descriptors.
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

/// What the response to a task management function says.
pub mod task_status {
    /// It was done.
    pub const COMPLETE: u8 = 0x00;
    /// A field of the request is not valid.
    pub const INVALID_FIELDS: u8 = 0x02;
    /// There is no such function here.
    pub const NOT_SUPPORTED: u8 = 0x04;
    /// It could not be done.
    pub const FAILED: u8 = 0x05;
}

/// Where Linux initiators put immediate data in a command, in bytes.
pub const IMMEDIATE_OFFSET: u16 = 68;
/// Bytes of the longest information unit that Linux initiators ask for: immediate data of 8 KiB.
pub const LINUX_IU_LEN: usize = IMMEDIATE_OFFSET as usize + 8192;

/// What an initiator says in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromInitiator<'a> {
    /// A SCSI command.
    Command(SrpCommand<'a>),
    /// A task management function.
    TaskManagement(TaskManagement),
    /// It took the credits: the tag of the request.
    CreditResponse(u64),
    /// It took the event: the tag of the request.
    AerResponse(u64),
    /// The end, with a tag.
    Logout(u64),
}

impl<'a> FromInitiator<'a> {
    /// Reads a message. `immediate_offset` is where the login put immediate data; None: it was not agreed on.
    ///
    /// # Errors
    /// The rule that it breaks.
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

/// What a target says in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromTarget<'a> {
    /// The response to a command or a task management function.
    Response(SrpResponse<'a>),
    /// More credits.
    Credit(CreditRequest),
    /// An asynchronous event.
    Aer(Aer<'a>),
    /// The end.
    Logout(TargetLogout),
}

impl<'a> FromTarget<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// The rule that it breaks.
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
