//! What a server answers to requests ("Transmission phase"): each message is checked against the request that
//! it answers, before a byte of it lands anywhere.

use super::received_ranges::ReceivedRanges;
use super::{ExportInfo, NbdCommand, encoded, said};
use lunar_wire::be;
use lunar_wire::nbd::{
    CHUNK_LEN, ChunkHeader, REQUEST_LEN, Request, SIMPLE_REPLY_LEN, SIMPLE_REPLY_MAGIC, SimpleReply, chunk,
    command, state,
};
use std::ops::Range;

/// The longest chunk in bytes that is not a read's data: an error with a string of the longest length.
const MAX_CONTROL: u32 = 8 << 10;

/// Why nothing that follows can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolViolation(pub &'static str);

/// An error that the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerError {
    /// The protocol's number of it, as Linux has it.
    pub errno: u32,
    /// The server's words; may be empty.
    pub said: String,
}

/// The first extent of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentStatus {
    /// Bytes; may reach beyond what was asked about.
    pub len: u32,
    /// It reads as zeros.
    pub zero: bool,
}

/// An outstanding request, and the received part of its reply.
#[derive(Clone, Debug)]
pub struct PendingCommand {
    request: Request,
    covered: ReceivedRanges,
    refused: Option<ServerError>,
    status: Option<ExtentStatus>,
}

impl PendingCommand {
    /// A command with the client's name for it. READ and BLOCK_STATUS are of one byte at least.
    pub fn new(command: NbdCommand, cookie: u64, offset: u64, len: u32) -> PendingCommand {
        let (command, flags) = encoded(command);
        let request = Request { flags, command, cookie, offset, len };
        PendingCommand { request, covered: ReceivedRanges::default(), refused: None, status: None }
    }

    /// The bytes of the request, without a payload.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        self.request.encode()
    }

    /// What its answer came to, once it is done; a status is that of BLOCK_STATUS.
    ///
    /// # Errors
    /// What the server refused it with.
    pub fn outcome(&mut self) -> Result<Option<ExtentStatus>, ServerError> {
        self.refused.take().map_or(Ok(self.status), Err)
    }

    /// The place in the buffer of a read for `len` bytes at an offset of the export.
    fn place(&mut self, offset: u64, len: u32) -> Result<Range<usize>, ProtocolViolation> {
        let start = offset.checked_sub(self.request.offset).filter(|_| self.request.command == command::READ);
        let end = start.and_then(|start| start.checked_add(len.into()));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= self.request.len.into())) else {
            return Err(ProtocolViolation("data outside the requested range"));
        };
        self.covered.add(start as u32, end as u32).map_err(ProtocolViolation)?;
        Ok(start as usize..end as usize)
    }

    /// Whether what is done is also complete.
    fn check(&self) -> Result<(), ProtocolViolation> {
        let missing = match self.request.command {
            command::READ => !self.covered.is_whole(self.request.len),
            command::BLOCK_STATUS => self.status.is_none(),
            _ => false,
        };
        match missing && self.refused.is_none() {
            true => Err(ProtocolViolation("incomplete reply")),
            false => Ok(()),
        }
    }
}

/// What a message puts into the buffer of its read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferFill {
    /// Nothing.
    Nothing,
    /// Zeros.
    Zeros(Range<usize>),
    /// The bytes that follow the message.
    Payload(Range<usize>),
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerMessage {
    /// Its bytes, without a payload.
    pub used: usize,
    /// The cookie of the request.
    pub cookie: u64,
    /// What is to be done with the buffer.
    pub fill: BufferFill,
    /// With it, and its payload, the request is answered.
    pub done: bool,
}

/// Takes the message at the start of `bytes`; None when more of them are needed. `find` gives the request in
/// flight of a cookie.
///
/// # Errors
/// When the server sends an unrequested or invalid reply.
pub fn next_message<'a>(
    bytes: &[u8],
    export: &ExportInfo,
    find: impl FnOnce(u64) -> Option<&'a mut PendingCommand>,
) -> Result<Option<ServerMessage>, ProtocolViolation> {
    let Some(header) = bytes.first_chunk::<SIMPLE_REPLY_LEN>() else { return Ok(None) };
    let find = |cookie| find(cookie).ok_or(ProtocolViolation("a reply with an unknown cookie"));
    if be::get32(header) == SIMPLE_REPLY_MAGIC {
        let reply = SimpleReply::decode(header).expect("its magic is right");
        return simple(reply, find(reply.cookie)?, export).map(Some);
    }
    let Some(header) = bytes.first_chunk::<CHUNK_LEN>() else { return Ok(None) };
    let header = ChunkHeader::decode(header).filter(|_| export.structured);
    let header = header.ok_or(ProtocolViolation("a reply with a wrong magic"))?;
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
        return Err(ProtocolViolation("a simple reply to a read despite structured replies"));
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

/// The body of a chunk: bytes of it that were used, and what they fill. None when more are needed.
fn chunk(
    header: &ChunkHeader,
    body: &[u8],
    request: &mut PendingCommand,
    export: &ExportInfo,
) -> Result<Option<(usize, BufferFill)>, ProtocolViolation> {
    let len = header.len as usize;
    let (needed, fits) = match header.kind {
        chunk::NONE => (0, len == 0 && header.flags & chunk::DONE != 0),
        chunk::OFFSET_DATA => (8, len > 8),
        chunk::OFFSET_HOLE => (12, len == 12),
        chunk::BLOCK_STATUS => (len, len >= 12 && len % 8 == 4),
        kind => (len, kind & chunk::ERRORS != 0 && len >= 6),
    };
    if !fits || needed > MAX_CONTROL as usize {
        return Err(ProtocolViolation("invalid chunk type or length"));
    }
    let Some(body) = body.get(..needed) else { return Ok(None) };
    let fill = match header.kind {
        chunk::NONE => BufferFill::Nothing,
        chunk::OFFSET_DATA => BufferFill::Payload(request.place(be::get64(body), header.len - 8)?),
        chunk::OFFSET_HOLE => match be::get32(&body[8..]) {
            0 => return Err(ProtocolViolation("an empty hole")),
            len => BufferFill::Zeros(request.place(be::get64(body), len)?),
        },
        chunk::BLOCK_STATUS => {
            request.status(body, export)?;
            BufferFill::Nothing
        }
        _ => {
            request.error(body)?;
            BufferFill::Nothing
        }
    };
    Ok(Some((needed, fill)))
}

impl PendingCommand {
    fn status(&mut self, body: &[u8], export: &ExportInfo) -> Result<(), ProtocolViolation> {
        let (context, len, flags) = (be::get32(body), be::get32(&body[4..]), be::get32(&body[8..]));
        let asked = self.request.command == command::BLOCK_STATUS && export.allocation == Some(context);
        if !asked || self.status.is_some() || len == 0 {
            return Err(ProtocolViolation("unrequested extents, or an empty one"));
        }
        self.status = Some(ExtentStatus { len, zero: flags & state::ZERO != 0 });
        Ok(())
    }

    fn error(&mut self, body: &[u8]) -> Result<(), ProtocolViolation> {
        let (errno, words) = (be::get32(body), body[6..].get(..usize::from(be::get16(&body[4..]))));
        let (Some(words), true) = (words, errno != 0) else {
            return Err(ProtocolViolation("malformed error chunk"));
        };
        self.refused.get_or_insert(ServerError { errno, said: said(words) });
        Ok(())
    }
}
