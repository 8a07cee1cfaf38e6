//! Received data and the outcome of a receive, for all transports.

use crate::{Buf, PipedBytes};

/// Data that have arrived, without padding.
pub enum ReceivedData<'a> {
    /// In the receive buffer: valid during the call only.
    Bytes(&'a [u8]),
    /// In a separate buffer.
    Buf(Buf),
    /// In the buffer of their task, which this returns.
    Placed(Buf),
    /// In a pipe of their task, behind the earlier ones.
    Piped(PipedBytes),
}

impl ReceivedData<'_> {
    /// The bytes; empty for [`ReceivedData::Placed`] and [`ReceivedData::Piped`].
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            ReceivedData::Bytes(bytes) => bytes,
            ReceivedData::Buf(buf) => buf,
            ReceivedData::Placed(_) | ReceivedData::Piped(_) => &[],
        }
    }
}

/// The outcome of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveStatus {
    /// Receive again when more has arrived.
    More,
    /// The handler has no room for more responses: receive again when it has.
    Full,
    /// The peer has closed the connection, or the handler wants no more.
    End,
}
