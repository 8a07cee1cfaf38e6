//! NVMe over TCP on the wire: PDUs, queue entries, and the data of fabrics commands (NVM Express Base and TCP transport
//! specifications). Integers are little-endian. Reserved fields are zero when sent, and ignored when received.
//!
//! One TCP connection is one queue pair. It begins with ICReq and ICResp; then commands travel in capsules.

mod command;
mod completion;
mod discovery;
mod fabrics;
mod identify;
mod log;
mod nqn;
mod page;
mod pdu;
mod reservation;
mod status;
#[cfg(test)]
mod tests;

pub use command::{DataPlace, Fuse, SglDescriptor, Sqe};
pub use completion::Cqe;
pub use discovery::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, DiscoveryKind, SecureChannel, TransportKind,
};
pub use fabrics::{ConnectCommand, ConnectData, ConnectFault, ControllerConfiguration, PropertyAccess};
pub use identify::{
    IdentifyController, IdentifyNamespace, NamespaceIdentifier, listed_namespaces, namespace_list,
    padded_text,
};
pub use log::{
    AnaEntry, AnaGroup, AnaState, ErrorEntry, FirmwareLog, ReservationLog, SmartLog, changed_namespaces,
    effect, effects, log_page,
};
pub use nqn::{DISCOVERY_NQN, InvalidNqn, NQN_LEN, Nqn};
pub use pdu::{
    DataPdu, Digests, IcRequest, IcResponse, NvmePdu, NvmePduError, NvmePduKind, PduHeader, TermRequest,
};
pub use reservation::{
    ReservationAction, ReservationKind, ReservationRegistrant, ReservationReport, reservation_key,
    reservation_keys,
};
pub use status::NvmeStatus;

/// PDU types: the first byte of a PDU.
pub mod pdu_type {
    /// Host to controller: initialize the connection.
    pub const IC_REQUEST: u8 = 0x00;
    /// Controller to host: the connection is initialized.
    pub const IC_RESPONSE: u8 = 0x01;
    /// Host to controller: the connection ends because of a fault.
    pub const H2C_TERM_REQUEST: u8 = 0x02;
    /// Controller to host: the connection ends because of a fault.
    pub const C2H_TERM_REQUEST: u8 = 0x03;
    /// Host to controller: a command.
    pub const CAPSULE_COMMAND: u8 = 0x04;
    /// Controller to host: the completion of a command.
    pub const CAPSULE_RESPONSE: u8 = 0x05;
    /// Host to controller: data of a command.
    pub const H2C_DATA: u8 = 0x06;
    /// Controller to host: data of a command.
    pub const C2H_DATA: u8 = 0x07;
    /// Controller to host: ready to transfer, a request for data.
    pub const R2T: u8 = 0x09;
}

/// Flags of a PDU: its second byte.
pub mod pdu_flag {
    /// A header digest follows the header.
    pub const HEADER_DIGEST: u8 = 0x01;
    /// A data digest follows the data.
    pub const DATA_DIGEST: u8 = 0x02;
    /// The last data PDU of a transfer.
    pub const LAST: u8 = 0x04;
    /// With [`LAST`]: the command has succeeded, and no capsule follows.
    pub const SUCCESS: u8 = 0x08;
}

/// Fatal error status (FES) of a termination request.
pub mod fatal_error {
    /// A field of the header is invalid; FEI is its offset.
    pub const INVALID_FIELD: u16 = 1;
    /// The PDU is not allowed at this point.
    pub const SEQUENCE: u16 = 2;
    /// The header digest differs.
    pub const HEADER_DIGEST: u16 = 3;
    /// The data are outside of the range that was requested.
    pub const OUT_OF_RANGE: u16 = 4;
    /// More R2Ts or more data than the limit.
    pub const LIMIT_EXCEEDED: u16 = 5;
    /// The parameter is not supported; FEI is its offset.
    pub const UNSUPPORTED_PARAMETER: u16 = 6;
}

/// Opcodes of commands on the admin queue.
pub mod admin_opcode {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// A fabrics command, on any queue.
    pub const FABRICS: u8 = 0x7f;
}

/// Opcodes of the NVM command set.
pub mod nvm_opcode {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Write Uncorrectable.
    pub const WRITE_UNCORRECTABLE: u8 = 0x04;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0c;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
    /// Copy.
    pub const COPY: u8 = 0x19;
}

/// Types of fabrics commands (FCTYPE).
pub mod fabrics_type {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Offsets of the properties of a controller.
pub mod property {
    /// Controller capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// Subsystem reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
}

/// The registered port of I/O controllers.
pub const IO_PORT: u16 = 4420;
/// The registered port of discovery controllers.
pub const DISCOVERY_PORT: u16 = 8009;
