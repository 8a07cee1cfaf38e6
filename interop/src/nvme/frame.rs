//! A PDU of NVMe/TCP.

use super::NvmeEntry;
use crate::digest::crc32c;

/// Types of PDUs.
pub mod pdu {
    /// ICReq.
    pub const IC_REQUEST: u8 = 0;
    /// ICResp.
    pub const IC_RESPONSE: u8 = 1;
    /// H2CTermReq.
    pub const HOST_TERM: u8 = 2;
    /// C2HTermReq.
    pub const TERM: u8 = 3;
    /// CapsuleCmd.
    pub const COMMAND: u8 = 4;
    /// CapsuleResp.
    pub const RESPONSE: u8 = 5;
    /// H2CData.
    pub const HOST_DATA: u8 = 6;
    /// C2HData.
    pub const DATA: u8 = 7;
    /// R2T.
    pub const R2T: u8 = 9;
    /// Flags: header digest, data digest, the last PDU of a transfer, no completion follows.
    pub const HEADER_DIGEST: u8 = 1;
    pub const DATA_DIGEST: u8 = 2;
    pub const LAST: u8 = 4;
    pub const SUCCESS: u8 = 8;
}

/// A PDU: the header without digest, and the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmeFrame {
    pub head: Vec<u8>,
    pub data: Vec<u8>,
}

/// Bytes of the header of a type.
pub(super) fn header_len(kind: u8) -> usize {
    match kind {
        pdu::IC_REQUEST | pdu::IC_RESPONSE => 128,
        pdu::COMMAND => 72,
        _ => 24,
    }
}

/// Whether PDUs of a type never have digests.
pub(super) fn is_plain(kind: u8) -> bool {
    matches!(kind, pdu::IC_REQUEST | pdu::IC_RESPONSE | pdu::HOST_TERM | pdu::TERM)
}

impl NvmeFrame {
    /// A PDU of this type, whose other fields are 0.
    pub fn new(kind: u8) -> NvmeFrame {
        let mut head = vec![0; header_len(kind)];
        (head[0], head[2]) = (kind, header_len(kind) as u8);
        NvmeFrame { head, data: Vec::new() }
    }

    /// ICReq with these bits of DGST.
    pub fn ic_request(digests: u8) -> NvmeFrame {
        NvmeFrame::new(pdu::IC_REQUEST).byte(11, digests)
    }

    /// CapsuleCmd.
    pub fn command(entry: &NvmeEntry, data: &[u8]) -> NvmeFrame {
        NvmeFrame { data: data.to_vec(), ..NvmeFrame::new(pdu::COMMAND).bytes(8, &entry.0) }
    }

    /// H2CData with these flags.
    pub fn host_data(flags: u8, id: u16, tag: u16, offset: u32, data: &[u8]) -> NvmeFrame {
        let frame =
            NvmeFrame::new(pdu::HOST_DATA).byte(1, flags).set16(8, id).set16(10, tag).set32(12, offset);
        NvmeFrame { data: data.to_vec(), ..frame.set32(16, data.len() as u32) }
    }

    /// Sets a byte of the header.
    pub fn byte(mut self, at: usize, value: u8) -> NvmeFrame {
        self.head[at] = value;
        self
    }

    /// Sets bytes of the header.
    pub fn bytes(mut self, at: usize, value: &[u8]) -> NvmeFrame {
        self.head[at..at + value.len()].copy_from_slice(value);
        self
    }

    /// Sets 2 bytes of the header.
    pub fn set16(self, at: usize, value: u16) -> NvmeFrame {
        self.bytes(at, &value.to_le_bytes())
    }

    /// Sets 4 bytes of the header.
    pub fn set32(self, at: usize, value: u32) -> NvmeFrame {
        self.bytes(at, &value.to_le_bytes())
    }

    /// The type.
    pub fn kind(&self) -> u8 {
        self.head[0]
    }

    /// The flags.
    pub fn flags(&self) -> u8 {
        self.head[1]
    }

    /// 2 bytes of the header.
    pub fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes(self.head[at..at + 2].try_into().expect("2 bytes"))
    }

    /// 4 bytes of the header.
    pub fn get32(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.head[at..at + 4].try_into().expect("4 bytes"))
    }

    /// The bytes on the wire, with flags, offsets and lengths that are right.
    pub fn encode(&self, header_digest: bool, data_digest: bool) -> Vec<u8> {
        let digests = !is_plain(self.kind());
        let (header_digest, data_digest) =
            (header_digest && digests, data_digest && digests && !self.data.is_empty());
        let start = self.head.len() + if header_digest { 4 } else { 0 };
        let len = start + self.data.len() + if data_digest { 4 } else { 0 };
        let mut all = self.head.clone();
        all[1] |= u8::from(header_digest) | u8::from(data_digest) << 1;
        if !self.data.is_empty() && digests {
            all[3] = start as u8;
        }
        all[4..8].copy_from_slice(&(len as u32).to_le_bytes());
        if header_digest {
            all.extend(crc32c(&all));
        }
        all.extend_from_slice(&self.data);
        if data_digest {
            all.extend(crc32c(&self.data));
        }
        all
    }
}
