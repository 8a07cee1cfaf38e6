//! SCSI commands (SRP r16a section 6.8).

use super::data::DescriptorReader;
use super::{DataBuffer, SrpError, error::of, opcode};
use crate::be;

/// Task attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum SrpTaskAttribute {
    /// SIMPLE.
    #[default]
    Simple = 0,
    /// HEAD OF QUEUE.
    HeadOfQueue = 1,
    /// ORDERED.
    Ordered = 2,
    /// ACA.
    Aca = 4,
}

impl SrpTaskAttribute {
    fn decode(code: u8) -> Result<SrpTaskAttribute, SrpError> {
        Ok(match code & 7 {
            0 => SrpTaskAttribute::Simple,
            1 => SrpTaskAttribute::HeadOfQueue,
            2 => SrpTaskAttribute::Ordered,
            4 => SrpTaskAttribute::Aca,
            code => return Err(SrpError::Attribute(code)),
        })
    }
}

const LEN: usize = 48;

/// A SCSI command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrpCommand<'a> {
    /// Solicited notification (UCSOLNT, SCSOLNT): 0x02 for a successful response, 0x04 for any other.
    pub notifications: u8,
    /// Tag that the initiator chose.
    pub tag: u64,
    /// LUN field: eight bytes as SAM-5 section 4.7 encodes them.
    pub lun: u64,
    /// Task attribute.
    pub attribute: SrpTaskAttribute,
    /// The first bytes of the CDB.
    pub cdb: &'a [u8; 16],
    /// The other bytes of the CDB: a multiple of 4, at most 252.
    pub additional_cdb: &'a [u8],
    /// Data from the initiator.
    pub data_out: DataBuffer<'a>,
    /// Data to the initiator.
    pub data_in: DataBuffer<'a>,
}

impl<'a> SrpCommand<'a> {
    /// Bytes before the additional CDB and the descriptors.
    pub const LEN: usize = LEN;

    /// Whether the command transfers data in both directions.
    pub fn is_bidirectional(&self) -> bool {
        self.data_out != DataBuffer::None && self.data_in != DataBuffer::None
    }

    /// Tag and solicited notification of an information unit that [`SrpCommand::decode`] may reject; `None` if it is
    /// shorter than [`SrpCommand::LEN`].
    pub fn tag_and_notifications(iu: &[u8]) -> Option<(u64, u8)> {
        let b: &[u8; LEN] = iu.first_chunk()?;
        Some((be::get64(&b[8..]), b[1]))
    }

    /// Decodes an information unit. `immediate_offset` is the negotiated offset of immediate data; `None` without it.
    ///
    /// # Errors
    /// The rule that the information unit violates.
    pub fn decode(iu: &'a [u8], immediate_offset: Option<u16>) -> Result<SrpCommand<'a>, SrpError> {
        let b: &[u8; LEN] = of(iu, 0, opcode::COMMAND)?;
        let mut rest = DescriptorReader { iu, at: Self::LEN, formats: b[5], immediate_offset };
        let additional_cdb = rest.take(usize::from(b[31] & !3))?;
        let (mut data_out, immediate) = rest.data(b[5] >> 4, b[6])?;
        let (data_in, immediate_in) = rest.data(b[5] & 0xf, b[7])?;
        if immediate_in.is_some() {
            return Err(SrpError::Format(b[5]));
        }
        if let Some(len) = immediate {
            data_out = DataBuffer::Immediate(rest.immediate(len)?);
        }
        Ok(SrpCommand {
            notifications: b[1],
            tag: be::get64(&b[8..]),
            lun: be::get64(&b[20..]),
            attribute: SrpTaskAttribute::decode(b[29])?,
            cdb: iu[32..].first_chunk().ok_or(SrpError::Short { needed: 48, there: iu.len() })?,
            additional_cdb,
            data_out,
            data_in,
        })
    }

    /// Appends the encoded information unit. `immediate_offset` is the negotiated offset of immediate data.
    ///
    /// # Errors
    /// No information unit can express this command: see [`SrpError`]. Nothing is appended then.
    pub fn encode(&self, immediate_offset: Option<u16>, into: &mut Vec<u8>) -> Result<(), SrpError> {
        self.encode_before_data(immediate_offset, into)?;
        if let DataBuffer::Immediate(bytes) = self.data_out {
            into.extend_from_slice(bytes);
        }
        Ok(())
    }

    /// Like [`SrpCommand::encode`], but without the immediate data, which the caller sends from its own buffer.
    ///
    /// # Errors
    /// The same as for [`SrpCommand::encode`].
    pub fn encode_before_data(
        &self,
        immediate_offset: Option<u16>,
        into: &mut Vec<u8>,
    ) -> Result<(), SrpError> {
        let start = into.len();
        into.extend_from_slice(&self.head()?);
        into.extend_from_slice(self.additional_cdb);
        self.data_out.put(into);
        self.data_in.put(into);
        if matches!(self.data_out, DataBuffer::Immediate(_)) {
            let end = into.len() - start;
            let Some(at) = immediate_offset.filter(|at| usize::from(*at) >= end) else {
                let formats = into[start + 5];
                into.truncate(start);
                return Err(
                    immediate_offset.map_or(SrpError::Format(formats), |at| SrpError::Offset { at, end })
                );
            };
            into.resize(start + usize::from(at), 0);
        }
        Ok(())
    }

    /// The fixed part, before the additional CDB.
    fn head(&self) -> Result<[u8; LEN], SrpError> {
        let ((out_format, out_count), (in_format, in_count)) = (self.data_out.kind()?, self.data_in.kind()?);
        let formats = (out_format << 4) | in_format;
        if matches!(self.data_in, DataBuffer::Immediate(_)) {
            return Err(SrpError::Format(formats));
        }
        let cdb_len = self.additional_cdb.len();
        if !cdb_len.is_multiple_of(4) || cdb_len > 252 {
            return Err(SrpError::Cdb(cdb_len));
        }
        let mut b = [0; LEN];
        (b[0], b[1], b[5]) = (opcode::COMMAND, self.notifications, formats);
        (b[6], b[7], b[29], b[31]) = (out_count, in_count, self.attribute as u8, cdb_len as u8);
        be::put64(&mut b[8..], self.tag);
        be::put64(&mut b[20..], self.lun);
        b[32..].copy_from_slice(self.cdb);
        Ok(b)
    }
}
