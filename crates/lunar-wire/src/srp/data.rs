//! Data buffers of a command (SRP r16a section 5.6).

use super::SrpError;
use crate::be;

/// Bytes of a memory descriptor.
pub const DESCRIPTOR_LEN: usize = 16;

/// Data buffer format codes.
const NONE: u8 = 0;
const DIRECT: u8 = 1;
const INDIRECT: u8 = 2;
const IMMEDIATE: u8 = 3;

/// A memory descriptor: one piece of initiator memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryDescriptor {
    /// Virtual address: the tagged offset.
    pub address: u64,
    /// Memory handle: the steering tag.
    pub key: u32,
    /// Length in bytes.
    pub len: u32,
}

impl MemoryDescriptor {
    /// Encodes the descriptor.
    pub fn encode(self) -> [u8; DESCRIPTOR_LEN] {
        let mut b = [0; DESCRIPTOR_LEN];
        be::put64(&mut b, self.address);
        be::put32(&mut b[8..], self.key);
        be::put32(&mut b[12..], self.len);
        b
    }

    /// Decodes a descriptor.
    pub fn decode(b: &[u8; DESCRIPTOR_LEN]) -> MemoryDescriptor {
        MemoryDescriptor { address: be::get64(b), key: be::get32(&b[8..]), len: be::get32(&b[12..]) }
    }
}

/// An indirect data buffer: several pieces of initiator memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndirectBuffer<'a> {
    /// Location of the table of all descriptors in initiator memory; `len` is the length of the table in bytes.
    pub table: MemoryDescriptor,
    /// Data length in bytes.
    pub len: u32,
    /// The descriptors that the command includes, 16 bytes each: see [`IndirectBuffer::descriptors`].
    pub list: &'a [u8],
}

impl<'a> IndirectBuffer<'a> {
    /// The descriptors that the command includes.
    pub fn descriptors(&self) -> impl Iterator<Item = MemoryDescriptor> + use<'a> {
        self.list.as_chunks().0.iter().map(MemoryDescriptor::decode)
    }

    /// Whether the command includes all descriptors, so that the table need not be read.
    pub fn is_whole(&self) -> bool {
        self.list.len() == self.table.len as usize
    }

    fn check(&self) -> Result<(), SrpError> {
        let MemoryDescriptor { len, .. } = self.table;
        let whole = len > 0 && (len as usize).is_multiple_of(DESCRIPTOR_LEN);
        if !whole || !self.list.len().is_multiple_of(DESCRIPTOR_LEN) || self.list.len() > len as usize {
            return Err(SrpError::Table { len, descriptors: self.list.len() / DESCRIPTOR_LEN });
        }
        // Up to 255 lengths of 32 bits: no overflow.
        let sum = self.descriptors().map(|one| u64::from(one.len)).sum::<u64>();
        let fits = if self.is_whole() { sum == u64::from(self.len) } else { sum <= u64::from(self.len) };
        if fits { Ok(()) } else { Err(SrpError::Total { said: self.len, sum }) }
    }
}

/// The data buffer of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataBuffer<'a> {
    /// No data.
    None,
    /// Direct: one memory descriptor.
    Direct(MemoryDescriptor),
    /// Indirect: a table of memory descriptors.
    Indirect(IndirectBuffer<'a>),
    /// Immediate data, in the command itself. Data-out only.
    Immediate(&'a [u8]),
}

impl<'a> DataBuffer<'a> {
    /// Bytes of data.
    pub fn len(&self) -> usize {
        match self {
            DataBuffer::None => 0,
            DataBuffer::Direct(one) => one.len as usize,
            DataBuffer::Indirect(all) => all.len as usize,
            DataBuffer::Immediate(bytes) => bytes.len(),
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the buffer, and returns its format code and descriptor count.
    pub(super) fn kind(&self) -> Result<(u8, u8), SrpError> {
        Ok(match self {
            DataBuffer::None => (NONE, 0),
            DataBuffer::Direct(_) => (DIRECT, 0),
            DataBuffer::Indirect(all) => {
                all.check()?;
                let descriptors = all.list.len() / DESCRIPTOR_LEN;
                let count = u8::try_from(descriptors);
                (INDIRECT, count.map_err(|_| SrpError::Table { len: all.table.len, descriptors })?)
            }
            DataBuffer::Immediate(_) => (IMMEDIATE, 0),
        })
    }

    /// Appends the descriptors of the buffer.
    pub(super) fn put(&self, into: &mut Vec<u8>) {
        match self {
            DataBuffer::None => (),
            DataBuffer::Direct(one) => into.extend_from_slice(&one.encode()),
            DataBuffer::Indirect(all) => {
                into.extend_from_slice(&all.table.encode());
                into.extend_from_slice(&all.len.to_be_bytes());
                into.extend_from_slice(all.list);
            }
            DataBuffer::Immediate(bytes) => into.extend_from_slice(&(bytes.len() as u32).to_be_bytes()),
        }
    }
}

/// Decodes the descriptors of a command, from front to back.
pub(super) struct DescriptorReader<'a> {
    pub iu: &'a [u8],
    /// Bytes decoded so far.
    pub at: usize,
    /// The data buffer format byte, for errors.
    pub formats: u8,
    pub immediate_offset: Option<u16>,
}

impl<'a> DescriptorReader<'a> {
    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], SrpError> {
        let end = self.at + len;
        let short = SrpError::Short { needed: end as u64, there: self.iu.len() };
        let bytes = self.iu.get(self.at..end).ok_or(short)?;
        self.at = end;
        Ok(bytes)
    }

    /// The next `N` bytes.
    fn chunk<const N: usize>(&mut self) -> Result<&'a [u8; N], SrpError> {
        let short = SrpError::Short { needed: (self.at + N) as u64, there: self.iu.len() };
        self.take(N)?.first_chunk().ok_or(short)
    }

    /// The data buffer of one direction, by format code and descriptor count. Immediate data follow all descriptors:
    /// the buffer stays empty until [`DescriptorReader::immediate`] is called with the length returned beside it.
    pub fn data(&mut self, format: u8, count: u8) -> Result<(DataBuffer<'a>, Option<u32>), SrpError> {
        Ok(match format {
            NONE => (DataBuffer::None, None),
            DIRECT => (DataBuffer::Direct(MemoryDescriptor::decode(self.chunk()?)), None),
            INDIRECT => {
                let table = MemoryDescriptor::decode(self.chunk()?);
                let len = u32::from_be_bytes(*self.chunk()?);
                let all =
                    IndirectBuffer { table, len, list: self.take(usize::from(count) * DESCRIPTOR_LEN)? };
                all.check()?;
                (DataBuffer::Indirect(all), None)
            }
            IMMEDIATE if self.immediate_offset.is_some() => {
                (DataBuffer::Immediate(&[]), Some(u32::from_be_bytes(*self.chunk()?)))
            }
            _ => return Err(SrpError::Format(self.formats)),
        })
    }

    /// The immediate data, which begin at the negotiated offset.
    pub fn immediate(&self, len: u32) -> Result<&'a [u8], SrpError> {
        let at = self.immediate_offset.ok_or(SrpError::Format(self.formats))?;
        if usize::from(at) < self.at {
            return Err(SrpError::Offset { at, end: self.at });
        }
        let end = u64::from(at) + u64::from(len);
        let short = SrpError::Short { needed: end, there: self.iu.len() };
        usize::try_from(end).ok().and_then(|end| self.iu.get(at.into()..end)).ok_or(short)
    }
}
