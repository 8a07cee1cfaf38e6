//! Data-Out in transit.

use lunar_proto::transfer::R2t;

/// A request for a part of the data of a command.
#[derive(Clone, Copy, Debug)]
pub struct DataRequest {
    /// Identifies the request among all of the nexus (in iSCSI the Target Transfer Tag).
    pub tag: u32,
    /// The part of the data.
    pub part: R2t,
}

/// Identifies the transfer that data belong to.
#[derive(Clone, Copy, Debug)]
pub struct DataOutId {
    /// The tag of the command.
    pub tag: u32,
    /// The LUN field that came with them.
    pub lun: u64,
    /// The tag of the request; None: unsolicited data.
    pub transfer: Option<u32>,
}

/// The result of receiving data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutResult {
    /// The data were taken, or are no longer needed: the caller must call [`State::progress`].
    Accepted,
    /// The task has ended. The data do no harm.
    Ignored,
    /// The data were not requested, or differ from the request.
    Invalid,
}
