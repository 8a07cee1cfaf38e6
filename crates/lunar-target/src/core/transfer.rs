//! Data-Out in transit.

/// A request for a part of a command's data.
#[derive(Clone, Copy, Debug)]
pub struct DataRequest {
    /// The transfer tag, which identifies the request within the nexus. It never has all bits set.
    pub transfer_tag: u32,
    /// Position among all requests of the command, from 0 on.
    pub number: u32,
    /// Bytes from the start of the command's data.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Identifies the transfer that data belong to.
#[derive(Clone, Copy, Debug)]
pub struct DataOutId {
    /// Index of the connection that received the data. It must be that of the command.
    pub connection: u16,
    /// The tag of the command.
    pub task_tag: u32,
    /// The LUN field that arrived with the data.
    pub lun: u64,
    /// The transfer tag of the request. None: unsolicited data.
    pub transfer_tag: Option<u32>,
}

/// The result of receiving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutResult {
    /// The data were stored, or are no longer needed. The caller must call [`NexusState::progress`].
    Accepted,
    /// The task has ended. The data were ignored.
    Ignored,
    /// The data were not requested, or do not match the request.
    Invalid,
}
