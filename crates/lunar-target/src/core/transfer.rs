//! Parts of the data of a command on their way to the target.

use lunar_proto::transfer::R2t;
use lunar_runtime::Buf;

/// A part of the data of a command that is to be asked for.
#[derive(Clone, Copy, Debug)]
pub struct DataRequest {
    /// Names it among all transfers of the nexus (in iSCSI the Target Transfer Tag).
    pub tag: u32,
    /// Which part.
    pub part: R2t,
}

/// Data that have arrived.
pub enum ReceivedData<'a> {
    /// Where they were received: gone after the call.
    Bytes(&'a [u8]),
    /// In a buffer of their own.
    Buf(Buf),
    /// In the buffer of their task, which comes back.
    Placed(Buf),
}

impl ReceivedData<'_> {
    /// The bytes; those that landed with their task are not shown.
    pub fn bytes(&self) -> &[u8] {
        match self {
            ReceivedData::Bytes(bytes) => bytes,
            ReceivedData::Buf(buf) => buf,
            ReceivedData::Placed(_) => &[],
        }
    }
}

/// What data are a part of.
#[derive(Clone, Copy, Debug)]
pub struct DataOutId {
    /// The tag of the command.
    pub tag: u32,
    /// The LUN field that came with them.
    pub lun: u64,
    /// The tag of the transfer; None: nobody asked for them.
    pub transfer: Option<u32>,
}

/// What came of data that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataOutResult {
    /// They were taken, or are no longer wanted: [`State::progress`] is due.
    Accepted,
    /// Their task has ended, which harms nothing.
    Ignored,
    /// They were never asked for, or are not what was asked for.
    Invalid,
}
