//! iSCSI and NBD as machines without I/O: bytes and time come in as arguments, PDUs and decisions go out as
//! values.
#![forbid(unsafe_code)]

pub mod chap;
pub mod duration;
pub mod fnv;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod name;
pub mod nbd;
pub mod nearest;
pub mod parameters;
pub mod percent;
pub mod size;
pub mod text;
mod text_reassembly;
pub mod transfer;
pub mod window;

use lunar_wire::iscsi::Bhs;

/// A PDU to send: its header, with DataSegmentLength set, and its data without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// The 48 bytes.
    pub header: Bhs,
    /// The data segment.
    pub data: Vec<u8>,
}

impl Pdu {
    /// Joins a header and its data, and writes DataSegmentLength.
    pub fn new(mut header: Bhs, data: Vec<u8>) -> Self {
        header.set_data_len(data.len());
        Pdu { header, data }
    }
}
