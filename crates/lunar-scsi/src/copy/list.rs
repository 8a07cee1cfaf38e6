//! The parameter list of EXTENDED COPY (SPC-4 section 6.4.2).

use super::{MAX_CSCDS, MAX_DESCRIPTORS_LEN, MAX_SEGMENT_LEN, MAX_SEGMENTS};
use crate::{CopySegment, LuSettings};
use lunar_wire::scsi::copy::{
    BLOCK_TO_BLOCK, BLOCK_TO_BLOCK_BYTES, IDENTIFICATION, THIS, cscd_descriptor as cscd,
    list_header as header, segment_descriptor as segment,
};
use lunar_wire::scsi::{BitField, Sense};

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
        let Some((head, rest)) = list.split_at_checked(header::LEN) else {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        };
        let id = header::LIST_IDENTIFIER.get_u8(head);
        if header::RESERVED.is_set(head) {
            return Err(Sense::in_parameters(header::RESERVED));
        }
        let tracking = match header::LIST_ID_USAGE.get(head) {
            0 => ListIdUsage::One,
            2 => ListIdUsage::Last,
            3 if id == 0 => ListIdUsage::None,
            3 => return Err(Sense::in_parameters(header::LIST_IDENTIFIER)),
            _ => return Err(Sense::in_parameters(header::LIST_ID_USAGE)),
        };
        if header::INLINE_DATA_LENGTH.is_set(head) {
            return Err(Sense::INLINE_DATA_LENGTH);
        }
        let (cscds, segments) =
            split(rest, header::CSCD_LIST_LENGTH.get_u16(head), header::SEGMENT_LIST_LENGTH.get_u32(head))?;
        let cscds = parse_cscds(cscds)?;
        let segments = SegmentParser { cscds: &cscds, this, at: header::LEN + cscd::LEN * cscds.len() }
            .parse(segments)?;
        Ok(CopyParameterList { id, tracking, segments })
    }
}

/// Adds a field pointer into the parameter list.
fn at(sense: Sense, field: BitField) -> Sense {
    sense.pointing(false, field.byte(), field.bit())
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
    if !bytes.len().is_multiple_of(cscd::LEN) {
        return Err(Sense::PARAMETER_LIST_LENGTH);
    }
    if bytes.len() / cscd::LEN > MAX_CSCDS {
        return Err(at(Sense::TOO_MANY_TARGETS, header::CSCD_LIST_LENGTH));
    }
    let each = bytes.chunks_exact(cscd::LEN).enumerate();
    each.map(|(i, b)| Cscd::parse(b, (header::LEN + i * cscd::LEN) as u16)).collect()
}

impl Cscd {
    /// `offset` is that of the descriptor in the parameter list. LU ID TYPE and NUL are obsolete.
    fn parse(b: &[u8], offset: u16) -> Result<Cscd, Sense> {
        if cscd::TYPE_CODE.get_u8(b) != IDENTIFICATION {
            return Err(at(Sense::UNSUPPORTED_TARGET_TYPE, cscd::TYPE_CODE.after(offset)));
        }
        let cdrom = match cscd::PERIPHERAL_DEVICE_TYPE.get(b) {
            0x00 => false,
            0x05 => true,
            _ => return Err(at(Sense::COPY_WRONG_TARGET, cscd::PERIPHERAL_DEVICE_TYPE.after(offset))),
        };
        let len = cscd::DESIGNATOR_LENGTH.get(b) as usize;
        let wrong = match (cscd::CODE_SET.get(b), cscd::ASSOCIATION_AND_TYPE.get(b), len) {
            // Binary, association logical unit, NAA.
            (1, 0x03, 8 | 16) => {
                let naa = b[cscd::DESIGNATOR..][..len].to_vec();
                return Ok(Cscd { naa, block_size: cscd::BLOCK_LENGTH.get_u32(b), cdrom });
            }
            (1, 0x03, _) => cscd::DESIGNATOR_LENGTH,
            (1, _, _) => cscd::ASSOCIATION_AND_TYPE,
            _ => cscd::CODE_SET,
        };
        Err(Sense::in_parameters(wrong.after(offset)))
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
                return Err(at(Sense::TOO_MANY_SEGMENTS, header::SEGMENT_LIST_LENGTH));
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
        if b.len() < segment::HEADER_LEN {
            return Err(Sense::PARAMETER_LIST_LENGTH);
        }
        let len = match segment::TYPE_CODE.get_u8(b) {
            BLOCK_TO_BLOCK => segment::LEN,
            BLOCK_TO_BLOCK_BYTES => segment::LEN_WITH_OFFSETS,
            _ => return Err(at(Sense::UNSUPPORTED_SEGMENT_TYPE, segment::TYPE_CODE.after(self.at as u16))),
        };
        match segment::DESCRIPTOR_LENGTH.get(b) as usize + segment::HEADER_LEN {
            declared if declared == len => Ok(len),
            _ => Err(self.field(segment::DESCRIPTOR_LENGTH)),
        }
    }

    fn segment(&self, b: &[u8], number: u16) -> Result<CopySegment, Sense> {
        if segment::RESERVED.is_set(b) {
            return Err(self.field(segment::RESERVED));
        }
        let source = self.end(b, segment::SOURCE, number)?;
        let destination = self.end(b, segment::DESTINATION, number)?;
        if destination.cdrom {
            return Err(Sense::COPY_WRONG_TARGET.segment(number, segment::DESTINATION.byte()));
        }
        // DC is ignored if the length is in bytes.
        let in_blocks = segment::TYPE_CODE.get_u8(b) == BLOCK_TO_BLOCK;
        let count_by_destination = in_blocks && segment::DC.is_set(b);
        let blocks = match in_blocks {
            true => segment::BLOCKS.get(b),
            false => self.blocks(b, source.block_size, number)?,
        };
        Ok(CopySegment {
            source: source.naa,
            destination: destination.naa,
            source_lba: segment::SOURCE_LBA.get(b),
            destination_lba: segment::DESTINATION_LBA.get(b),
            blocks,
            count_by_destination,
            source_block_size: source.block_size,
            destination_block_size: destination.block_size,
        })
    }

    /// Converts the length in bytes to blocks of the source. A length that is not a multiple of the block size, or a
    /// byte offset within a block, is not supported.
    fn blocks(&self, b: &[u8], block_size: u32, number: u16) -> Result<u64, Sense> {
        let len = segment::BYTES.get_u32(b);
        if len > MAX_SEGMENT_LEN {
            return Err(self.field(segment::BYTES));
        }
        let offsets = [segment::SOURCE_OFFSET, segment::DESTINATION_OFFSET];
        if let Some(offset) = offsets.into_iter().find(|offset| offset.is_set(b)) {
            return Err(self.field(offset));
        }
        match len.checked_rem(block_size) {
            Some(0) => Ok((len / block_size) as u64),
            _ => Err(Sense::COPY_INEXACT_SEGMENT.segment(number, segment::BYTES.byte())),
        }
    }

    /// The CSCD to which a CSCD descriptor ID refers.
    fn end(&self, b: &[u8], id: BitField, number: u16) -> Result<Cscd, Sense> {
        let unknown = Sense::COPY_UNKNOWN_TARGET.segment(number, id.byte());
        match id.get_u16(b) {
            THIS => {
                let naa = self.this.identity.naa.clone();
                Ok(Cscd { naa, block_size: self.this.block_size, cdrom: false })
            }
            id => self.cscds.get(id as usize).cloned().ok_or(unknown),
        }
    }

    fn field(&self, field: BitField) -> Sense {
        Sense::in_parameters(field.after(self.at as u16))
    }
}
