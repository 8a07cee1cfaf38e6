//! What a server answers to requests ("Transmission phase"): each message is checked against the request that
//! it answers, before a byte of it lands anywhere.

use super::covered::Covered;
use super::{Command, Export, encoded, said};
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
pub struct Broken(pub &'static str);

/// An error that the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The protocol's number of it, as Linux has it.
    pub errno: u32,
    /// The server's words; may be empty.
    pub said: String,
}

/// The first extent of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// Bytes; may reach beyond what was asked about.
    pub len: u32,
    /// It reads as zeros.
    pub zero: bool,
}

/// A request on its way, and what of its answer has come.
#[derive(Clone, Debug)]
pub struct InFlight {
    request: Request,
    covered: Covered,
    refused: Option<Refused>,
    status: Option<Status>,
}

impl InFlight {
    /// A command with the client's name for it. READ and BLOCK_STATUS are of one byte at least.
    pub fn new(command: Command, cookie: u64, offset: u64, len: u32) -> InFlight {
        let (command, flags) = encoded(command);
        let request = Request { flags, command, cookie, offset, len };
        InFlight { request, covered: Covered::default(), refused: None, status: None }
    }

    /// The bytes of the request, without a payload.
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        self.request.encode()
    }

    /// What its answer came to, once it is done; a status is that of BLOCK_STATUS.
    ///
    /// # Errors
    /// What the server refused it with.
    pub fn outcome(&mut self) -> Result<Option<Status>, Refused> {
        self.refused.take().map_or(Ok(self.status), Err)
    }

    /// The place in the buffer of a read for `len` bytes at an offset of the export.
    fn place(&mut self, offset: u64, len: u32) -> Result<Range<usize>, Broken> {
        let start = offset.checked_sub(self.request.offset).filter(|_| self.request.command == command::READ);
        let end = start.and_then(|start| start.checked_add(len.into()));
        let (Some(start), Some(end)) = (start, end.filter(|end| *end <= self.request.len.into())) else {
            return Err(Broken("bytes that were not asked for"));
        };
        self.covered.add(start as u32, end as u32).map_err(Broken)?;
        Ok(start as usize..end as usize)
    }

    /// Whether what is done is also complete.
    fn check(&self) -> Result<(), Broken> {
        let missing = match self.request.command {
            command::READ => !self.covered.is_whole(self.request.len),
            command::BLOCK_STATUS => self.status.is_none(),
            _ => false,
        };
        match missing && self.refused.is_none() {
            true => Err(Broken("an answer that is not complete")),
            false => Ok(()),
        }
    }
}

/// What a message puts into the buffer of its read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Nothing.
    Nothing,
    /// Zeros.
    Zeros(Range<usize>),
    /// The bytes that follow the message.
    Payload(Range<usize>),
}

/// A message of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its bytes, without a payload.
    pub used: usize,
    /// Whose answer it is.
    pub cookie: u64,
    /// What is to be done with the buffer.
    pub fill: Fill,
    /// With it, and its payload, the request is answered.
    pub done: bool,
}

/// Takes the message at the start of `bytes`; None when more of them are needed. `find` gives the request in
/// flight of a cookie.
///
/// # Errors
/// When the server says what it was not asked, or what makes no sense.
pub fn next<'a>(
    bytes: &[u8],
    export: &Export,
    find: impl FnOnce(u64) -> Option<&'a mut InFlight>,
) -> Result<Option<Taken>, Broken> {
    let Some(header) = bytes.first_chunk::<SIMPLE_REPLY_LEN>() else { return Ok(None) };
    let find = |cookie| find(cookie).ok_or(Broken("an answer to what was not asked"));
    if be::get32(header) == SIMPLE_REPLY_MAGIC {
        let reply = SimpleReply::decode(header).expect("its magic is right");
        return simple(reply, find(reply.cookie)?, export).map(Some);
    }
    let Some(header) = bytes.first_chunk::<CHUNK_LEN>() else { return Ok(None) };
    let header = ChunkHeader::decode(header).filter(|_| export.structured);
    let header = header.ok_or(Broken("a reply with a wrong magic"))?;
    let request = find(header.cookie)?;
    let body = &bytes[CHUNK_LEN..];
    let Some((used, fill)) = chunk(&header, body, request, export)? else { return Ok(None) };
    let done = header.flags & chunk::DONE != 0;
    if done {
        request.check()?;
    }
    Ok(Some(Taken { used: CHUNK_LEN + used, cookie: header.cookie, fill, done }))
}

fn simple(reply: SimpleReply, request: &mut InFlight, export: &Export) -> Result<Taken, Broken> {
    let is_read = request.request.command == command::READ;
    if is_read && export.structured {
        return Err(Broken("a simple reply to a read, where chunks were agreed on"));
    }
    let mut fill = Fill::Nothing;
    if reply.error != 0 {
        request.refused.get_or_insert(Refused { errno: reply.error, said: String::new() });
    } else if is_read {
        fill = Fill::Payload(request.place(request.request.offset, request.request.len)?);
    }
    request.check()?;
    Ok(Taken { used: SIMPLE_REPLY_LEN, cookie: reply.cookie, fill, done: true })
}

/// The body of a chunk: bytes of it that were used, and what they fill. None when more are needed.
fn chunk(
    header: &ChunkHeader,
    body: &[u8],
    request: &mut InFlight,
    export: &Export,
) -> Result<Option<(usize, Fill)>, Broken> {
    let len = header.len as usize;
    let (needed, fits) = match header.kind {
        chunk::NONE => (0, len == 0 && header.flags & chunk::DONE != 0),
        chunk::OFFSET_DATA => (8, len > 8),
        chunk::OFFSET_HOLE => (12, len == 12),
        chunk::BLOCK_STATUS => (len, len >= 12 && len % 8 == 4),
        kind => (len, kind & chunk::ERRORS != 0 && len >= 6),
    };
    if !fits || needed > MAX_CONTROL as usize {
        return Err(Broken("a chunk of a kind or length that cannot be"));
    }
    let Some(body) = body.get(..needed) else { return Ok(None) };
    let fill = match header.kind {
        chunk::NONE => Fill::Nothing,
        chunk::OFFSET_DATA => Fill::Payload(request.place(be::get64(body), header.len - 8)?),
        chunk::OFFSET_HOLE => match be::get32(&body[8..]) {
            0 => return Err(Broken("an empty hole")),
            len => Fill::Zeros(request.place(be::get64(body), len)?),
        },
        chunk::BLOCK_STATUS => {
            request.status(body, export)?;
            Fill::Nothing
        }
        _ => {
            request.error(body)?;
            Fill::Nothing
        }
    };
    Ok(Some((needed, fill)))
}

impl InFlight {
    fn status(&mut self, body: &[u8], export: &Export) -> Result<(), Broken> {
        let (context, len, flags) = (be::get32(body), be::get32(&body[4..]), be::get32(&body[8..]));
        let asked = self.request.command == command::BLOCK_STATUS && export.allocation == Some(context);
        if !asked || self.status.is_some() || len == 0 {
            return Err(Broken("extents that were not asked for, or an empty one"));
        }
        self.status = Some(Status { len, zero: flags & state::ZERO != 0 });
        Ok(())
    }

    fn error(&mut self, body: &[u8]) -> Result<(), Broken> {
        let (errno, words) = (be::get32(body), body[6..].get(..usize::from(be::get16(&body[4..]))));
        let (Some(words), true) = (words, errno != 0) else {
            return Err(Broken("an error that is none, or whose words are cut short"));
        };
        self.refused.get_or_insert(Refused { errno, said: said(words) });
        Ok(())
    }
}
