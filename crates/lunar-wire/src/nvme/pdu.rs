//! PDUs: headers, checks of their form, and the parts that are specific to a type.
//!
//! On the wire, a PDU has its header, the header digest, padding up to the data offset, the data, and the data digest.

use super::{fatal_error, pdu_flag, pdu_type};
use crate::le;
use std::fmt;
use std::ops::Range;

/// Bytes of a digest (CRC32C).
const DIGEST: usize = 4;
/// Bytes of the header of a capsule with a command.
const COMMAND: usize = 72;
/// Bytes of the header of ICReq and ICResp.
const INITIALIZE: usize = 128;
/// Bytes of the other headers.
const SHORT: usize = 24;
/// The longest copy of a header in a termination request, in bytes.
const MAX_COPY: usize = 128;
/// Data begin at a multiple of this: the alignment that ICReq and ICResp ask for is 0 here.
const ALIGNMENT: usize = 4;

/// The type of a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NvmePduKind {
    /// ICReq.
    IcRequest = pdu_type::IC_REQUEST,
    /// ICResp.
    IcResponse = pdu_type::IC_RESPONSE,
    /// H2CTermReq.
    HostTermRequest = pdu_type::H2C_TERM_REQUEST,
    /// C2HTermReq.
    ControllerTermRequest = pdu_type::C2H_TERM_REQUEST,
    /// CapsuleCmd.
    Command = pdu_type::CAPSULE_COMMAND,
    /// CapsuleResp.
    Response = pdu_type::CAPSULE_RESPONSE,
    /// H2CData.
    HostData = pdu_type::H2C_DATA,
    /// C2HData.
    ControllerData = pdu_type::C2H_DATA,
    /// R2T.
    ReadyToTransfer = pdu_type::R2T,
}

impl NvmePduKind {
    #[inline]
    fn decode(code: u8) -> Option<NvmePduKind> {
        Some(match code {
            pdu_type::IC_REQUEST => NvmePduKind::IcRequest,
            pdu_type::IC_RESPONSE => NvmePduKind::IcResponse,
            pdu_type::H2C_TERM_REQUEST => NvmePduKind::HostTermRequest,
            pdu_type::C2H_TERM_REQUEST => NvmePduKind::ControllerTermRequest,
            pdu_type::CAPSULE_COMMAND => NvmePduKind::Command,
            pdu_type::CAPSULE_RESPONSE => NvmePduKind::Response,
            pdu_type::H2C_DATA => NvmePduKind::HostData,
            pdu_type::C2H_DATA => NvmePduKind::ControllerData,
            pdu_type::R2T => NvmePduKind::ReadyToTransfer,
            _ => return None,
        })
    }

    /// Bytes of the header (HLEN).
    #[inline]
    pub fn header_len(self) -> usize {
        match self {
            NvmePduKind::IcRequest | NvmePduKind::IcResponse => INITIALIZE,
            NvmePduKind::Command => COMMAND,
            _ => SHORT,
        }
    }

    /// Whether a host sends it.
    pub fn is_of_host(self) -> bool {
        matches!(
            self,
            NvmePduKind::IcRequest
                | NvmePduKind::HostTermRequest
                | NvmePduKind::Command
                | NvmePduKind::HostData
        )
    }

    /// Whether it has a header digest, if header digests were agreed on.
    fn has_digest(self) -> bool {
        !matches!(
            self,
            NvmePduKind::IcRequest
                | NvmePduKind::IcResponse
                | NvmePduKind::HostTermRequest
                | NvmePduKind::ControllerTermRequest
        )
    }

    /// The digests that it has, and the bytes of the header with its digest.
    #[inline]
    fn layout(self, digests: Digests) -> (Digests, usize) {
        let digests = if self.has_digest() { digests } else { Digests::default() };
        (digests, self.header_len() + digests.header_bytes())
    }

    /// Whether data may follow the header.
    fn takes_data(self) -> bool {
        matches!(self, NvmePduKind::Command | NvmePduKind::HostData | NvmePduKind::ControllerData)
    }
}

/// A fault in a PDU that ends its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmePduError {
    /// The fatal error status ([`fatal_error`]).
    pub status: u16,
    /// The offset of the faulty field for those that have one, otherwise 0.
    pub field: u32,
}

impl NvmePduError {
    /// A field of the header is invalid.
    pub fn field(offset: u32) -> NvmePduError {
        NvmePduError { status: fatal_error::INVALID_FIELD, field: offset }
    }

    /// A fault without a field.
    pub fn of(status: u16) -> NvmePduError {
        NvmePduError { status, field: 0 }
    }
}

impl fmt::Display for NvmePduError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.status {
            fatal_error::INVALID_FIELD => {
                return write!(f, "invalid PDU header field at byte {}", self.field);
            }
            fatal_error::UNSUPPORTED_PARAMETER => {
                return write!(f, "unsupported parameter at byte {}", self.field);
            }
            fatal_error::SEQUENCE => "PDU sequence error",
            fatal_error::HEADER_DIGEST => "header digest mismatch",
            fatal_error::OUT_OF_RANGE => "data transfer out of range",
            fatal_error::LIMIT_EXCEEDED => "data transfer limit exceeded",
            status => return write!(f, "fatal error status {status}"),
        };
        f.write_str(what)
    }
}

impl std::error::Error for NvmePduError {}

/// The digests of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Headers have one.
    pub header: bool,
    /// Data have one.
    pub data: bool,
}

impl Digests {
    fn decode(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    fn encode(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    fn header_bytes(self) -> usize {
        if self.header { DIGEST } else { 0 }
    }

    fn data_bytes(self) -> usize {
        if self.data { DIGEST } else { 0 }
    }

    /// The flags of a PDU with these digests.
    fn flags(self, has_data: bool) -> u8 {
        let header = if self.header { pdu_flag::HEADER_DIGEST } else { 0 };
        let data = if self.data && has_data { pdu_flag::DATA_DIGEST } else { 0 };
        header | data
    }
}

/// The common header of a PDU, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduHeader {
    /// The type ([`pdu_type`]).
    pub kind: u8,
    /// Flags ([`pdu_flag`]).
    pub flags: u8,
    /// Bytes of the header (HLEN).
    pub header_len: u8,
    /// The offset of the data (PDO); 0 without data.
    pub data_offset: u8,
    /// Bytes of the whole PDU (PLEN).
    pub len: u32,
}

/// A PDU whose form is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmePdu {
    /// Its type.
    pub kind: NvmePduKind,
    /// Its flags.
    pub flags: u8,
    /// Where the header digest is, if it has one.
    pub header_digest: Option<Range<usize>>,
    /// Where the data are; empty without data.
    pub data: Range<usize>,
    /// Where the data digest is, if it has one.
    pub data_digest: Option<Range<usize>>,
    /// Bytes of the whole PDU.
    pub len: usize,
}

impl NvmePdu {
    /// Whether it is the last data PDU of a transfer.
    pub fn is_last(&self) -> bool {
        self.flags & pdu_flag::LAST != 0
    }

    /// Whether no capsule follows: the command has succeeded.
    pub fn is_success(&self) -> bool {
        self.flags & pdu_flag::SUCCESS != 0
    }
}

impl PduHeader {
    /// Its length in bytes.
    pub const LEN: usize = 8;

    /// Decodes a header.
    #[inline]
    pub fn decode(bytes: &[u8; PduHeader::LEN]) -> PduHeader {
        let [kind, flags, header_len, data_offset, ..] = *bytes;
        PduHeader { kind, flags, header_len, data_offset, len: le::get32(&bytes[4..]) }
    }

    /// Encodes the header.
    #[inline]
    pub fn encode(&self) -> [u8; PduHeader::LEN] {
        let mut bytes = [self.kind, self.flags, self.header_len, self.data_offset, 0, 0, 0, 0];
        le::put32(&mut bytes[4..], self.len);
        bytes
    }

    /// Checks type, lengths and flags of a received PDU. `by_host`: the sender is a host. `max_data` limits the bytes of
    /// data.
    ///
    /// # Errors
    /// The fault, which ends the connection.
    #[inline(always)]
    pub fn check(&self, by_host: bool, digests: Digests, max_data: usize) -> Result<NvmePdu, NvmePduError> {
        let kind = NvmePduKind::decode(self.kind).filter(|kind| kind.is_of_host() == by_host);
        let kind = kind.ok_or(NvmePduError::field(0))?;
        if usize::from(self.header_len) != kind.header_len() {
            return Err(NvmePduError::field(2));
        }
        let (digests, after_header) = kind.layout(digests);
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        let has_data = kind.takes_data() && len > after_header;
        let expected = digests.flags(has_data);
        if self.flags & (pdu_flag::HEADER_DIGEST | pdu_flag::DATA_DIGEST) != expected {
            return Err(NvmePduError::field(1));
        }
        let rest = match kind {
            _ if kind.takes_data() => max_data + usize::from(u8::MAX) + DIGEST,
            NvmePduKind::HostTermRequest | NvmePduKind::ControllerTermRequest => MAX_COPY,
            _ => 0,
        };
        if !(after_header..=after_header + rest).contains(&len) {
            return Err(NvmePduError::field(4));
        }
        let data = self.data(after_header, len, digests, has_data)?;
        if has_data && data.len() > max_data {
            return Err(NvmePduError::of(fatal_error::LIMIT_EXCEEDED));
        }
        let digest_at = |at: usize, has_one: bool| has_one.then_some(at..at + DIGEST);
        Ok(NvmePdu {
            kind,
            flags: self.flags,
            header_digest: digest_at(kind.header_len(), digests.header),
            data_digest: digest_at(data.end, has_data && digests.data),
            data,
            len,
        })
    }

    /// Where the data are. `has_data`: they follow a header whose data offset must fit.
    #[inline(always)]
    fn data(
        &self,
        after_header: usize,
        len: usize,
        digests: Digests,
        has_data: bool,
    ) -> Result<Range<usize>, NvmePduError> {
        if !has_data {
            return Ok(after_header..len);
        }
        let (at, digest) = (usize::from(self.data_offset), digests.data_bytes());
        if at < after_header || !at.is_multiple_of(ALIGNMENT) || at >= len {
            return Err(NvmePduError::field(3));
        }
        if len < at + digest + 1 {
            return Err(NvmePduError::field(4));
        }
        Ok(at..len - digest)
    }

    /// The header of a PDU that is sent, with `data` bytes behind it.
    #[inline]
    pub fn of(kind: NvmePduKind, flags: u8, digests: Digests, data: usize) -> PduHeader {
        let (digests, after_header) = kind.layout(digests);
        let has_data = data > 0 && kind.takes_data();
        let tail = if has_data { digests.data_bytes() } else { 0 };
        PduHeader {
            kind: kind as u8,
            flags: flags | digests.flags(has_data),
            header_len: kind.header_len() as u8,
            data_offset: if has_data { after_header as u8 } else { 0 },
            len: (after_header + data + tail) as u32,
        }
    }
}

/// ICReq: a host initializes the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcRequest {
    /// The alignment of data from the controller, in dwords, 0-based (HPDA).
    pub alignment: u8,
    /// The digests that the host asks for.
    pub digests: Digests,
    /// R2Ts that may be outstanding for a command, 0-based (MAXR2T).
    pub max_r2t: u32,
}

/// The largest alignment.
const MAX_ALIGNMENT: u8 = 31;

impl IcRequest {
    /// Its length in bytes.
    pub const LEN: usize = INITIALIZE;

    /// Decodes the whole PDU.
    ///
    /// # Errors
    /// The version of the format is not 0, or the alignment is too large.
    pub fn decode(pdu: &[u8; IcRequest::LEN]) -> Result<IcRequest, NvmePduError> {
        match (le::get16(&pdu[8..]), pdu[10]) {
            (0, 0..=MAX_ALIGNMENT) => Ok(IcRequest {
                alignment: pdu[10],
                digests: Digests::decode(pdu[11]),
                max_r2t: le::get32(&pdu[12..]),
            }),
            (0, _) => Err(NvmePduError::field(10)),
            _ => Err(NvmePduError::field(8)),
        }
    }

    /// Encodes the whole PDU.
    pub fn encode(&self) -> [u8; IcRequest::LEN] {
        initialize(NvmePduKind::IcRequest, self.alignment, self.digests, self.max_r2t)
    }
}

/// ICResp: the connection is initialized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcResponse {
    /// The alignment of data from the host, in dwords, 0-based (CPDA).
    pub alignment: u8,
    /// The digests of the connection.
    pub digests: Digests,
    /// The most data of one H2CData, in bytes: at least 4096, and a multiple of 4 (MAXH2CDATA).
    pub max_data: u32,
}

impl IcResponse {
    /// Its length in bytes.
    pub const LEN: usize = INITIALIZE;
    /// The smallest limit of data.
    pub const MIN_DATA: u32 = 4096;

    /// Decodes the whole PDU.
    ///
    /// # Errors
    /// The version of the format is not 0, the alignment is too large, or the limit of data is invalid.
    pub fn decode(pdu: &[u8; IcResponse::LEN]) -> Result<IcResponse, NvmePduError> {
        let max_data = le::get32(&pdu[12..]);
        match (le::get16(&pdu[8..]), pdu[10]) {
            (0, 0..=MAX_ALIGNMENT) if max_data >= IcResponse::MIN_DATA && max_data.is_multiple_of(4) => {
                Ok(IcResponse { alignment: pdu[10], digests: Digests::decode(pdu[11]), max_data })
            }
            (0, 0..=MAX_ALIGNMENT) => Err(NvmePduError::field(12)),
            (0, _) => Err(NvmePduError::field(10)),
            _ => Err(NvmePduError::field(8)),
        }
    }

    /// Encodes the whole PDU.
    pub fn encode(&self) -> [u8; IcResponse::LEN] {
        initialize(NvmePduKind::IcResponse, self.alignment, self.digests, self.max_data)
    }
}

fn initialize(kind: NvmePduKind, alignment: u8, digests: Digests, limit: u32) -> [u8; INITIALIZE] {
    let mut pdu = [0; INITIALIZE];
    pdu[..PduHeader::LEN].copy_from_slice(&PduHeader::of(kind, 0, Digests::default(), 0).encode());
    (pdu[10], pdu[11]) = (alignment, digests.encode());
    le::put32(&mut pdu[12..], limit);
    pdu
}

/// H2CTermReq and C2HTermReq: the sender ends the connection because of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermRequest<'a> {
    /// The fault.
    pub error: NvmePduError,
    /// The header of the faulty PDU, up to 128 bytes.
    pub header: &'a [u8],
}

impl<'a> TermRequest<'a> {
    /// Decodes a PDU whose form is right.
    pub fn decode(pdu: &'a [u8]) -> Option<TermRequest<'a>> {
        let (head, header) = pdu.split_at_checked(SHORT)?;
        let error = NvmePduError { status: le::get16(&head[8..]), field: le::get32(&head[10..]) };
        Some(TermRequest { error, header })
    }

    /// Encodes the whole PDU. Hosts take one without a part of the faulty header for malformed: then it has a byte of 0.
    pub fn encode(&self, kind: NvmePduKind) -> Vec<u8> {
        let copied = self.header.get(..MAX_COPY).unwrap_or(self.header);
        let copied = if copied.is_empty() { &[0][..] } else { copied };
        let mut pdu = vec![0; SHORT];
        let header =
            PduHeader { len: (SHORT + copied.len()) as u32, ..PduHeader::of(kind, 0, Digests::default(), 0) };
        pdu[..PduHeader::LEN].copy_from_slice(&header.encode());
        le::put16(&mut pdu[8..], self.error.status);
        le::put32(&mut pdu[10..], self.error.field);
        pdu.extend_from_slice(copied);
        pdu
    }
}

/// The part of a header that H2CData, C2HData and R2T share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPdu {
    /// The identifier of the command (CCCID).
    pub command: u16,
    /// The tag of the transfer, which the controller chose (TTAG).
    pub tag: u16,
    /// The offset in the data of the command.
    pub offset: u32,
    /// Bytes of the data, or requested bytes.
    pub len: u32,
}

impl DataPdu {
    /// Bytes of the header.
    pub const LEN: usize = SHORT;

    /// Decodes the header of a PDU.
    pub fn decode(header: &[u8; DataPdu::LEN]) -> DataPdu {
        DataPdu {
            command: le::get16(&header[8..]),
            tag: le::get16(&header[10..]),
            offset: le::get32(&header[12..]),
            len: le::get32(&header[16..]),
        }
    }

    /// Encodes the header of a PDU. `flags` are those of data PDUs; an R2T has none.
    #[inline]
    pub fn encode(&self, kind: NvmePduKind, flags: u8, digests: Digests) -> [u8; DataPdu::LEN] {
        let data = if kind.takes_data() { self.len as usize } else { 0 };
        let mut header = [0; DataPdu::LEN];
        header[..PduHeader::LEN].copy_from_slice(&PduHeader::of(kind, flags, digests, data).encode());
        le::put16(&mut header[8..], self.command);
        le::put16(&mut header[10..], self.tag);
        le::put32(&mut header[12..], self.offset);
        le::put32(&mut header[16..], self.len);
        header
    }
}
