//! The parameter list of EXTENDED COPY (SPC-4 section 6.4.2).

use super::{MAX_CSCDS, MAX_DESCRIPTORS_LEN, MAX_SEGMENT_LEN, MAX_SEGMENTS};
use crate::{CopySegment, LuSettings};
use lunar_wire::be;
use lunar_wire::scsi::Sense;

/// Bytes before the CSCD descriptors.
pub(super) const HEADER: usize = 16;
/// Descriptor type of the identification descriptor CSCD descriptor, and its length in bytes.
pub(super) const IDENTIFICATION: u8 = 0xe4;
pub(super) const CSCD_LEN: usize = 32;
/// Segment descriptor types: block to block, and the same with a length in bytes. SEGMENT_HEADER is the number of
/// bytes that DESCRIPTOR LENGTH does not count.
pub(super) const BLOCK_TO_BLOCK: u8 = 0x02;
pub(super) const BLOCK_TO_BLOCK_BYTES: u8 = 0x0a;
const SEGMENT_HEADER: usize = 4;
/// CSCD descriptor ID of the logical unit that received the command.
pub(super) const THIS: u16 = 0xffff;

/// LIST ID USAGE: the meaning of LIST IDENTIFIER.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListIdUsage {
    /// It identifies the copy for RECEIVE COPY RESULTS. Each identifier has one copy at a time (00b).
    One,
    /// It identifies the copy that ended last (10b). The standard requires one copy at a time here too, but hosts
    /// (QEMU) use one identifier for several concurrent copies.
    Last,
    /// It has no meaning (11b).
    None,
}

/// A decoded parameter list.
#[derive(Debug, PartialEq)]
pub(super) struct CopyParameterList {
    pub(super) id: u8,
    pub(super) tracking: ListIdUsage,
    pub(super) segments: Vec<CopySegment>,
}

/// The source or destination of a segment, from its CSCD descriptor.
#[derive(Clone)]
struct Cscd {
    naa: Vec<u8>,
    /// In bytes; 0 if the descriptor does not state it.
    block_size: u32,
    cdrom: bool,
}

impl CopyParameterList {
    /// Parses a complete parameter list that the logical unit `this` received.
    pub(super) fn parse(list: &[u8], this: &LuSettings) -> Result<CopyParameterList, Sense> {
        let Some((head, rest)) = list.split_at_checked(HEADER) else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        let (id, usage) = (head[0], head[1] >> 3 & 0x03);
        if head[1] & 0xc0 != 0 {
            return Err(Sense::parameter_field(1, 7));
        }
        let tracking = match usage {
            0 => ListIdUsage::One,
            2 => ListIdUsage::Last,
            3 if id == 0 => ListIdUsage::None,
            3 => return Err(Sense::parameter_field(0, 7)),
            _ => return Err(Sense::parameter_field(1, 4)),
        };
        if be::get32(&head[12..]) != 0 {
            return Err(Sense::INLINE_DATA_LENGTH);
        }
        let (cscds, segments) = split(rest, be::get16(&head[2..]), be::get32(&head[8..]))?;
        let cscds = parse_cscds(cscds)?;
        let segments =
            SegmentParser { cscds: &cscds, this, at: HEADER + CSCD_LEN * cscds.len() }.parse(segments)?;
        Ok(CopyParameterList { id, tracking, segments })
    }
}

/// Splits the descriptors into CSCD descriptors and segment descriptors.
fn split(rest: &[u8], cscds_len: u16, segments_len: u32) -> Result<(&[u8], &[u8]), Sense> {
    let len = cscds_len as u64 + segments_len as u64;
    if len > MAX_DESCRIPTORS_LEN as u64 || len > rest.len() as u64 {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    Ok(rest[..len as usize].split_at(cscds_len as usize))
}

fn parse_cscds(bytes: &[u8]) -> Result<Vec<Cscd>, Sense> {
    if !bytes.len().is_multiple_of(CSCD_LEN) {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    if bytes.len() / CSCD_LEN > MAX_CSCDS {
        return Err(Sense::TOO_MANY_TARGETS.pointing(false, 2, 7));
    }
    let each = bytes.chunks_exact(CSCD_LEN).enumerate();
    each.map(|(i, b)| Cscd::parse(b, (HEADER + i * CSCD_LEN) as u16)).collect()
}

impl Cscd {
    /// `at` is the offset of the descriptor in the parameter list. LU ID TYPE and NUL are obsolete.
    fn parse(b: &[u8], at: u16) -> Result<Cscd, Sense> {
        if b[0] != IDENTIFICATION {
            return Err(Sense::UNSUPPORTED_TARGET_TYPE.pointing(false, at, 7));
        }
        let cdrom = match b[1] & 0x1f {
            0x00 => false,
            0x05 => true,
            _ => return Err(Sense::COPY_WRONG_TARGET.pointing(false, at + 1, 4)),
        };
        let len = b[7] as usize;
        match (b[4] & 0x0f, b[5] & 0x3f, len) {
            // Binary, association logical unit, NAA.
            (1, 0x03, 8 | 16) => {
                Ok(Cscd { naa: b[8..8 + len].to_vec(), block_size: be::get24(&b[29..]), cdrom })
            }
            (1, 0x03, _) => Err(Sense::parameter_field(at + 7, 7)),
            (1, _, _) => Err(Sense::parameter_field(at + 5, 5)),
            _ => Err(Sense::parameter_field(at + 4, 3)),
        }
    }
}

/// Parses segment descriptors.
struct SegmentParser<'a> {
    cscds: &'a [Cscd],
    this: &'a LuSettings,
    /// Offset of the next descriptor in the parameter list.
    at: usize,
}

impl SegmentParser<'_> {
    fn parse(mut self, mut bytes: &[u8]) -> Result<Vec<CopySegment>, Sense> {
        let mut segments = Vec::new();
        while !bytes.is_empty() {
            if segments.len() == MAX_SEGMENTS {
                return Err(Sense::TOO_MANY_SEGMENTS.pointing(false, 8, 7));
            }
            let len = self.len(bytes)?;
            let (segment, rest) = bytes.split_at_checked(len).ok_or(Sense::PARAMETER_LIST_LENGTH)?;
            segments.push(self.segment(segment, segments.len() as u16)?);
            self.at += len;
            bytes = rest;
        }
        Ok(segments)
    }

    /// The length of a descriptor, by its type. DESCRIPTOR LENGTH must agree.
    fn len(&self, b: &[u8]) -> Result<usize, Sense> {
        if b.len() < SEGMENT_HEADER {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let len = match b[0] {
            BLOCK_TO_BLOCK => 28,
            BLOCK_TO_BLOCK_BYTES => 32,
            _ => return Err(Sense::UNSUPPORTED_SEGMENT_TYPE.pointing(false, self.at as u16, 7)),
        };
        match be::get16(&b[2..]) as usize + SEGMENT_HEADER {
            declared if declared == len => Ok(len),
            _ => Err(self.field(2, 7)),
        }
    }

    fn segment(&self, b: &[u8], number: u16) -> Result<CopySegment, Sense> {
        if b[1] & 0xfc != 0 {
            return Err(self.field(1, 7));
        }
        let (source, destination) = (self.end(b, 4, number)?, self.end(b, 6, number)?);
        if destination.cdrom {
            return Err(Sense::COPY_WRONG_TARGET.segment(number, 6));
        }
        // DC is ignored if the length is in bytes.
        let count_by_destination = b[0] == BLOCK_TO_BLOCK && b[1] & 0x02 != 0;
        let blocks = match b[0] {
            BLOCK_TO_BLOCK => be::get16(&b[10..]) as u64,
            _ => self.blocks(b, source.block_size, number)?,
        };
        Ok(CopySegment {
            source: source.naa,
            destination: destination.naa,
            source_lba: be::get64(&b[12..]),
            destination_lba: be::get64(&b[20..]),
            blocks,
            count_by_destination,
            source_block_size: source.block_size,
            destination_block_size: destination.block_size,
        })
    }

    /// Converts the length in bytes to blocks of the source. A length that is not a multiple of the block size, or a
    /// byte offset within a block, is not supported.
    fn blocks(&self, b: &[u8], block_size: u32, number: u16) -> Result<u64, Sense> {
        let len = be::get32(&b[8..]);
        if len > MAX_SEGMENT_LEN {
            return Err(self.field(8, 7));
        }
        if let Some(at) = [28, 30].into_iter().find(|&at| be::get16(&b[at..]) != 0) {
            return Err(self.field(at as u16, 7));
        }
        match len.checked_rem(block_size) {
            Some(0) => Ok((len / block_size) as u64),
            _ => Err(Sense::COPY_INEXACT_SEGMENT.segment(number, 8)),
        }
    }

    /// The CSCD to which the CSCD descriptor ID at byte `at` refers.
    fn end(&self, b: &[u8], at: u16, number: u16) -> Result<Cscd, Sense> {
        match be::get16(&b[at as usize..]) {
            THIS => {
                let naa = self.this.identity.naa.clone();
                Ok(Cscd { naa, block_size: self.this.block_size, cdrom: false })
            }
            id => self.cscds.get(id as usize).cloned().ok_or(Sense::COPY_UNKNOWN_TARGET.segment(number, at)),
        }
    }

    fn field(&self, byte: u16, bit: u8) -> Sense {
        Sense::parameter_field(self.at as u16 + byte, bit)
    }
}
