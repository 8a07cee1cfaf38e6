//! Data-Out in transit.

use lunar_proto::transfer::R2t;

/// A request for a part of a command's data.
#[derive(Clone, Copy, Debug)]
pub struct DataRequest {
    /// Identifies the request within the nexus (in iSCSI the Target Transfer Tag).
    pub tag: u32,
    /// The requested part.
    pub part: R2t,
}

/// Identifies the transfer that data belong to.
#[derive(Clone, Copy, Debug)]
pub struct DataOutId {
    /// The tag of the command.
    pub tag: u32,
    /// The LUN field that arrived with the data.
    pub lun: u64,
    /// The tag of the request. None: unsolicited data.
    pub transfer: Option<u32>,
}

/// The result of receiving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutResult {
    /// The data were stored, or are no longer needed. The caller must call [`State::progress`].
    Accepted,
    /// The task has ended. The data were ignored.
    Ignored,
    /// The data were not requested, or do not match the request.
    Invalid,
}
