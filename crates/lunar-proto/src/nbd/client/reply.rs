//! Replies of a server ("Transmission phase"). Each message is checked against the request that it answers before any
//! of its data is stored.

use super::received_ranges::ReceivedRanges;
use super::{ExportInfo, NbdCommand, encoded, said};
use lunar_wire::nbd::{
    CHUNK_LEN, ChunkHeader, ErrorBody, OffsetData, OffsetHole, REQUEST_LEN, Request, SIMPLE_REPLY_LEN,
    SimpleReply, StatusDescriptor, chunk, command, state,
};
use std::ops::Range;

/// Maximum length of a chunk that carries no data of a read, in bytes: an error with the longest message.
const MAX_CONTROL: u32 = 8 << 10;

/// The server violated the protocol; the connection cannot be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);

/// An error reply of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The error number of the protocol, which is that of Linux.
    pub errno: u32,
    /// The server's message; may be empty.
    pub said: String,
}

/// The first extent of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentStatus {
    /// Length in bytes; may extend beyond the requested range.
    pub len: u32,
    /// It reads as zeros.
    pub zero: bool,
}

/// An outstanding request with the received part of its reply.
#[derive(Clone, Debug)]
pub struct PendingCommand {
    request: Request,
    covered: ReceivedRanges,
    refused: Option<ServerError>,
    status: Option<ExtentStatus>,
}

impl PendingCommand {
    /// A request for a command. `cookie` identifies it. READ and BLOCK_STATUS have a length of at least one byte.
    pub fn new(command: NbdCommand, cookie: u64, offset: u64, len: u32) -> PendingCommand {
        let (command, flags) = encoded(command);
        let request = Request { flags, command, cookie, offset, len };
        PendingCommand { request, covered: ReceivedRanges::default(), refused: None, status: None }
    }

    /// Encodes the request without its payload.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        self.request.encode()
    }

    /// The result of a request that is done. BLOCK_STATUS returns a status.
    ///
    /// # Errors
    /// The error with which the server replied.
    pub fn outcome(&mut self) -> Result<Option<ExtentStatus>, ServerError> {
        self.refused.take().map_or(Ok(self.status), Err)
    }

    /// The range in the buffer of a read for `len` bytes at an offset of the export.
    fn place(&mut self, offset: u64, len: u32) -> Result<Range<usize>, ProtocolViolation> {
        let start = offset.checked_sub(self.request.offset).filter(|_| self.request.command == command::READ);
        let end = start.and_then(|start| start.checked_add(len.into()));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= self.request.len.into())) else {
            return Err(ProtocolViolation("a reply to a read has data outside the requested range"));
        };
        self.covered.add(start as u32, end as u32).map_err(ProtocolViolation)?;
        Ok(start as usize..end as usize)
    }

    /// Checks that a reply which is done is also complete.
    fn check(&self) -> Result<(), ProtocolViolation> {
        let missing = match self.request.command {
            command::READ => !self.covered.is_whole(self.request.len),
            command::BLOCK_STATUS => self.status.is_none(),
            _ => false,
        };
        match missing && self.refused.is_none() {
            true => Err(ProtocolViolation("a reply ended before all requested data arrived")),
            false => Ok(()),
        }
    }
}

/// The change that a message makes to the buffer of its read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferFill {
    /// No change.
    Nothing,
    /// Zeros in this range.
    Zeros(Range<usize>),
    /// The payload that follows the message, in this range.
    Payload(Range<usize>),
}

/// A decoded message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMessage {
    /// Length of the message in bytes, without its payload.
    pub used: usize,
    /// The cookie of the request.
    pub cookie: u64,
    /// The change to the buffer of the read.
    pub fill: BufferFill,
    /// The message, with its payload, completes the request.
    pub done: bool,
}

/// Decodes the message at the start of `bytes`; `None` if more bytes are needed. `find` looks up the outstanding
/// request by its cookie.
///
/// # Errors
/// The server sends an invalid reply, or one to no outstanding request.
pub fn next_message<'a>(
    bytes: &[u8],
    export: &ExportInfo,
    find: impl FnOnce(u64) -> Option<&'a mut PendingCommand>,
) -> Result<Option<ServerMessage>, ProtocolViolation> {
    let Some(header) = bytes.first_chunk::<SIMPLE_REPLY_LEN>() else { return Ok(None) };
    let find = |cookie| find(cookie).ok_or(ProtocolViolation("a reply has a cookie that no request has"));
    if let Some(reply) = SimpleReply::decode(header) {
        return simple(reply, find(reply.cookie)?, export).map(Some);
    }
    let Some(header) = bytes.first_chunk::<CHUNK_LEN>() else { return Ok(None) };
    let header = ChunkHeader::decode(header).filter(|_| export.structured);
    let header = header.ok_or(ProtocolViolation("a reply has a wrong magic number"))?;
    let request = find(header.cookie)?;
    let body = &bytes[CHUNK_LEN..];
    let Some((used, fill)) = chunk(&header, body, request, export)? else { return Ok(None) };
    let done = header.flags & chunk::DONE != 0;
    if done {
        request.check()?;
    }
    Ok(Some(ServerMessage { used: CHUNK_LEN + used, cookie: header.cookie, fill, done }))
}

fn simple(
    reply: SimpleReply,
    request: &mut PendingCommand,
    export: &ExportInfo,
) -> Result<ServerMessage, ProtocolViolation> {
    let is_read = request.request.command == command::READ;
    if is_read && export.structured {
        return Err(ProtocolViolation(
            "a simple reply to a read, although structured replies were negotiated",
        ));
    }
    let mut fill = BufferFill::Nothing;
    if reply.error != 0 {
        request.refused.get_or_insert(ServerError { errno: reply.error, said: String::new() });
    } else if is_read {
        fill = BufferFill::Payload(request.place(request.request.offset, request.request.len)?);
    }
    request.check()?;
    Ok(ServerMessage { used: SIMPLE_REPLY_LEN, cookie: reply.cookie, fill, done: true })
}

/// Decodes the body of a chunk: the number of bytes consumed, and the change to the buffer. `None` if more bytes are
/// needed.
fn chunk(
    header: &ChunkHeader,
    body: &[u8],
    request: &mut PendingCommand,
    export: &ExportInfo,
) -> Result<Option<(usize, BufferFill)>, ProtocolViolation> {
    let len = header.len as usize;
    let (needed, fits) = match header.kind {
        chunk::NONE => (0, len == 0 && header.flags & chunk::DONE != 0),
        chunk::OFFSET_DATA => (OffsetData::LEN, len > OffsetData::LEN),
        chunk::OFFSET_HOLE => (OffsetHole::LEN, len == OffsetHole::LEN),
        chunk::BLOCK_STATUS => (len, is_status_len(len)),
        kind => (len, kind & chunk::ERRORS != 0 && len >= ErrorBody::HEAD_LEN),
    };
    if !fits || needed > MAX_CONTROL as usize {
        return Err(ProtocolViolation("a reply chunk has an invalid type or length"));
    }
    let Some(body) = body.get(..needed) else { return Ok(None) };
    Ok(Some((needed, request.fill(header, body, export)?)))
}

/// Whether a BLOCK_STATUS body of this length has at least one descriptor and ends with one.
fn is_status_len(len: usize) -> bool {
    let descriptors = len.checked_sub(StatusDescriptor::CONTEXT_LEN);
    descriptors.is_some_and(|len| len > 0 && len.is_multiple_of(StatusDescriptor::LEN))
}

impl PendingCommand {
    /// Processes the body of a chunk, whose length fits its type.
    fn fill(
        &mut self,
        header: &ChunkHeader,
        body: &[u8],
        export: &ExportInfo,
    ) -> Result<BufferFill, ProtocolViolation> {
        const CUT: ProtocolViolation = ProtocolViolation("a reply chunk is truncated");
        match header.kind {
            chunk::NONE => Ok(BufferFill::Nothing),
            chunk::OFFSET_DATA => {
                let OffsetData { offset } = OffsetData::decode(body).ok_or(CUT)?;
                self.place(offset, header.len - OffsetData::LEN as u32).map(BufferFill::Payload)
            }
            chunk::OFFSET_HOLE => match OffsetHole::decode(body).ok_or(CUT)? {
                OffsetHole { len: 0, .. } => {
                    Err(ProtocolViolation("a reply to a read has a hole of 0 bytes"))
                }
                OffsetHole { offset, len } => self.place(offset, len).map(BufferFill::Zeros),
            },
            chunk::BLOCK_STATUS => self.status(body, export).map(|()| BufferFill::Nothing),
            _ => self.error(body).map(|()| BufferFill::Nothing),
        }
    }

    fn status(&mut self, body: &[u8], export: &ExportInfo) -> Result<(), ProtocolViolation> {
        let is_requested = self.request.command == command::BLOCK_STATUS && self.status.is_none();
        let first = StatusDescriptor::decode_first(body)
            .filter(|(context, first)| is_requested && export.allocation == Some(*context) && first.len > 0);
        let Some((_, StatusDescriptor { len, flags })) = first else {
            return Err(ProtocolViolation(
                "a reply has block status that was not requested, or a descriptor of 0 bytes",
            ));
        };
        self.status = Some(ExtentStatus { len, zero: flags & state::ZERO != 0 });
        Ok(())
    }

    fn error(&mut self, body: &[u8]) -> Result<(), ProtocolViolation> {
        let Some(ErrorBody { errno, message }) = ErrorBody::decode(body).filter(|body| body.errno != 0)
        else {
            return Err(ProtocolViolation("a reply has a malformed error chunk"));
        };
        self.refused.get_or_insert(ServerError { errno, said: said(message) });
        Ok(())
    }
}
