//! Submission queue entries.

use super::NvmeStatus;
use crate::le;

/// Whether a command is a part of a fused pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fuse {
    /// It is not.
    None,
    /// The first command: Compare.
    First,
    /// The second command: Write.
    Second,
    /// The reserved value.
    Reserved,
}

/// A submission queue entry, 64 bytes, as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sqe(pub [u8; Sqe::LEN]);

/// Where the data of a command are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// The command has no data.
    None,
    /// In the capsule, behind the command.
    Capsule,
    /// At the host: they move in data PDUs.
    Host,
}

/// A scatter gather list descriptor, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SglDescriptor {
    /// An address, or the offset in the capsule.
    pub address: u64,
    /// Bytes of the data.
    pub len: u32,
    /// Type (high nibble) and subtype.
    pub kind: u8,
}

impl SglDescriptor {
    /// Its length in bytes.
    pub const LEN: usize = 16;
    /// Data in the capsule: the address is an offset.
    pub const IN_CAPSULE: u8 = 0x01;
    /// Data that the transport moves.
    pub const TRANSPORT: u8 = 0x5a;

    /// A descriptor of data in the capsule.
    pub fn in_capsule(len: u32) -> SglDescriptor {
        SglDescriptor { address: 0, len, kind: SglDescriptor::IN_CAPSULE }
    }

    /// A descriptor of data that the transport moves. Commands without data have one of length 0.
    pub fn transport(len: u32) -> SglDescriptor {
        SglDescriptor { address: 0, len, kind: SglDescriptor::TRANSPORT }
    }

    /// Where the data are. A descriptor of zeros means that there are none, too.
    ///
    /// # Errors
    /// The status of the command: the type is not one of TCP, or the offset is not 0.
    #[inline]
    pub fn place(&self) -> Result<DataPlace, NvmeStatus> {
        match (self.kind, self.len) {
            (0, 0) | (SglDescriptor::TRANSPORT, 0) => Ok(DataPlace::None),
            (SglDescriptor::TRANSPORT, _) => Ok(DataPlace::Host),
            (SglDescriptor::IN_CAPSULE, _) if self.address != 0 => Err(NvmeStatus::SGL_INVALID_OFFSET),
            (SglDescriptor::IN_CAPSULE, _) => Ok(DataPlace::Capsule),
            _ => Err(NvmeStatus::SGL_INVALID_TYPE),
        }
    }
}

/// The offset of the descriptor.
const SGL: usize = 24;
/// PSDT, bits 6 and 7 of byte 1: the data are described by a descriptor.
const PSDT: u8 = 0x40;

impl Sqe {
    /// Its length in bytes.
    pub const LEN: usize = 64;

    /// A command without data.
    pub fn new(opcode: u8, id: u16, namespace: u32) -> Sqe {
        let mut sqe = Sqe([0; Sqe::LEN]);
        (sqe.0[0], sqe.0[1]) = (opcode, PSDT);
        le::put16(&mut sqe.0[2..], id);
        le::put32(&mut sqe.0[4..], namespace);
        sqe.with_data(SglDescriptor::transport(0))
    }

    /// The same command with data.
    pub fn with_data(mut self, data: SglDescriptor) -> Sqe {
        le::put64(&mut self.0[SGL..], data.address);
        le::put32(&mut self.0[SGL + 8..], data.len);
        self.0[SGL + 15] = data.kind;
        self
    }

    /// The same command with another command dword, from 10 to 15.
    ///
    /// # Panics
    /// When there is no such dword.
    pub fn with_dword(mut self, number: usize, value: u32) -> Sqe {
        assert!((10..16).contains(&number), "command dword {number}");
        le::put32(&mut self.0[4 * number..], value);
        self
    }

    /// The opcode.
    #[inline]
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Whether it is a part of a fused pair.
    #[inline]
    pub fn fuse(&self) -> Fuse {
        [Fuse::None, Fuse::First, Fuse::Second, Fuse::Reserved][usize::from(self.0[1] & 3)]
    }

    /// Whether its data are described by a descriptor, as over fabrics they must be (PSDT 01b).
    #[inline]
    pub fn has_sgl(&self) -> bool {
        self.0[1] & 0xc0 == PSDT
    }

    /// The identifier (CID).
    #[inline]
    pub fn id(&self) -> u16 {
        le::get16(&self.0[2..])
    }

    /// The namespace (NSID).
    #[inline]
    pub fn namespace(&self) -> u32 {
        le::get32(&self.0[4..])
    }

    /// The type of a fabrics command (FCTYPE).
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// The descriptor of the data.
    #[inline]
    pub fn data(&self) -> SglDescriptor {
        SglDescriptor {
            address: le::get64(&self.0[SGL..]),
            len: le::get32(&self.0[SGL + 8..]),
            kind: self.0[SGL + 15],
        }
    }

    /// A command dword, from 10 to 15.
    ///
    /// # Panics
    /// When there is no such dword.
    #[inline]
    pub fn dword(&self, number: usize) -> u32 {
        assert!((10..16).contains(&number), "command dword {number}");
        le::get32(&self.0[4 * number..])
    }

    /// Starting LBA (command dwords 10 and 11).
    #[inline]
    pub fn lba(&self) -> u64 {
        le::get64(&self.0[40..])
    }

    /// The number of logical blocks. The field is 0-based (NLB, command dword 12).
    #[inline]
    pub fn blocks(&self) -> u32 {
        (self.dword(12) & 0xffff) + 1
    }

    /// Force unit access (command dword 12, bit 30).
    #[inline]
    pub fn is_fua(&self) -> bool {
        self.dword(12) & 1 << 30 != 0
    }
}
