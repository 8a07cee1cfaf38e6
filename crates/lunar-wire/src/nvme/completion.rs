//! Completion queue entries.

use super::NvmeStatus;
use crate::le;

/// A completion queue entry, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// The result that is specific to the command.
    pub result: u64,
    /// The number of commands that were taken from the queue, modulo its size (SQHD).
    pub head: u16,
    /// The identifier of the command (CID).
    pub id: u16,
    /// How the command has ended.
    pub status: NvmeStatus,
}

impl Cqe {
    /// Its length in bytes.
    pub const LEN: usize = 16;

    /// Decodes an entry.
    pub fn decode(bytes: &[u8; Cqe::LEN]) -> Cqe {
        Cqe {
            result: le::get64(bytes),
            head: le::get16(&bytes[8..]),
            id: le::get16(&bytes[12..]),
            status: NvmeStatus::decode(le::get16(&bytes[14..])),
        }
    }

    /// Encodes the entry.
    #[inline]
    pub fn encode(&self) -> [u8; Cqe::LEN] {
        let mut bytes = [0; Cqe::LEN];
        le::put64(&mut bytes, self.result);
        le::put16(&mut bytes[8..], self.head);
        le::put16(&mut bytes[12..], self.id);
        le::put16(&mut bytes[14..], self.status.encode());
        bytes
    }
}
