//! Sans-I/O state machines for iSCSI, NBD and NVMe over TCP.
//!
//! A machine takes bytes and PDUs as arguments, and returns PDUs and decisions as values. The caller does the I/O and
//! keeps the time. The crate has both roles of each protocol: iSCSI target and initiator, NBD server and client.
//!
//! It also contains small parsers that several crates share: sizes, durations, percent-encoding. The machine of
//! [`transfer`] serves every transport of a SCSI target.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod chap;
pub mod duration;
pub mod initiator;
pub mod keys;
pub mod login;
pub mod name;
pub mod nbd;
pub mod nearest;
pub mod nvme;
pub mod parameters;
pub mod percent;
pub mod size;
pub mod text;
mod text_reassembly;
pub mod transfer;
pub mod window;

use lunar_wire::iscsi::Bhs;

/// A PDU to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pdu {
    /// The Basic Header Segment, with DataSegmentLength set.
    pub header: Bhs,
    /// The data segment without padding.
    pub data: Vec<u8>,
}

impl Pdu {
    /// Joins a header and its data segment, and writes DataSegmentLength.
    pub fn new(mut header: Bhs, data: Vec<u8>) -> Self {
        header.set_data_len(data.len());
        Pdu { header, data }
    }
}
