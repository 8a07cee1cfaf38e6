//! Framing: one receive, many PDUs. Small PDUs are parsed in place in the core's scratch buffer. The rest of large data is
//! received directly into a new buffer, or into that of its command.

use crate::iscsi::digest::crc32c;
use crate::received::{ReceiveStatus, ReceivedData};
use crate::{Buf, Stream, with_scratch};
use lunar_wire::nvme::{Digests, NvmePdu, NvmePduError, NvmePduKind, PduHeader, fatal_error};
use std::io::{self, IoSliceMut};
use std::ops::Range;

/// Bytes after which a receive loop yields to other connections.
const TURN: usize = 128 << 10;
/// Behind large data, others are expected. Then a receive reads only this many bytes of the next PDU, because they must be
/// copied.
const PEEK: usize = 256;
/// Incomplete data above this size are received into a separate buffer.
const LARGE: usize = 16 << 10;

/// A received PDU.
pub struct ReceivedNvmePdu<'a> {
    /// Its type, flags and parts.
    pub pdu: &'a NvmePdu,
    /// The header, without digest.
    pub header: &'a [u8],
    /// The data.
    pub data: ReceivedData<'a>,
    /// Whether the data digest matches, or there is none.
    pub intact: bool,
}

/// The consumer of PDUs.
pub trait NvmePduHandler {
    /// The command's buffer for large data and their offset in it; None to use [`NvmePduHandler::buffer`].
    fn place(&mut self, pdu: &NvmePdu, header: &[u8]) -> Option<(Buf, usize)>;
    /// A buffer for large data without a command's buffer.
    fn buffer(&mut self, len: usize) -> Buf;
    /// Whether there is no room for more responses now.
    fn is_full(&self) -> bool;
    /// Takes a PDU. Returns false when it wants no more.
    ///
    /// # Errors
    /// A fault of the PDU that ends the connection.
    fn take(&mut self, received: ReceivedNvmePdu<'_>) -> Result<bool, NvmePduError>;
}

/// The reason why a connection cannot continue.
#[derive(Debug)]
pub enum NvmeReceiveError {
    /// The socket failed.
    Io(io::Error),
    /// A PDU is faulty.
    Pdu {
        /// The fault.
        error: NvmePduError,
        /// The received part of its header.
        header: Vec<u8>,
    },
}

impl From<io::Error> for NvmeReceiveError {
    fn from(e: io::Error) -> Self {
        NvmeReceiveError::Io(e)
    }
}

impl std::fmt::Display for NvmeReceiveError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            NvmeReceiveError::Io(e) => write!(f, "{e}"),
            NvmeReceiveError::Pdu { error, .. } => write!(f, "{error}"),
        }
    }
}

/// Data that are being received into a buffer.
struct DataReceive {
    pdu: NvmePdu,
    header: Vec<u8>,
    buf: Buf,
    /// The data's place in the buffer.
    place: Range<usize>,
    filled: usize,
    landing: bool,
}

impl DataReceive {
    fn is_whole(&self) -> bool {
        self.filled == self.place.end
    }

    /// Bytes of the data digest.
    fn tail(&self) -> usize {
        self.pdu.data_digest.as_ref().map_or(0, Range::len)
    }

    /// Counts a receive and returns the bytes of it that went into this buffer.
    fn fill(&mut self, got: usize) -> usize {
        let direct = got.min(self.place.end - self.filled);
        self.filled += direct;
        direct
    }
}

/// The receiving side of a connection that is initialized.
pub struct NvmeReceiver {
    from_host: bool,
    digests: Digests,
    max_data: usize,
    /// The most data in a capsule.
    max_capsule: usize,
    /// The received start of an incomplete PDU.
    partial: Vec<u8>,
    gather: Option<DataReceive>,
    /// Whether the last data were large, and what followed them was short.
    after_large: bool,
}

impl NvmeReceiver {
    /// Creates a receiver that starts with `begun`, bytes that arrived behind the initialization, and accepts up to `max_data`
    /// bytes of data in a PDU. `from_host`: the peer is a host.
    pub fn new(from_host: bool, digests: Digests, max_data: usize, begun: Vec<u8>) -> NvmeReceiver {
        NvmeReceiver {
            from_host,
            digests,
            max_data,
            max_capsule: max_data,
            partial: begun,
            gather: None,
            after_large: false,
        }
    }

    /// Accepts only this many bytes of data in a capsule with a command.
    pub fn with_max_capsule(self, max_capsule: usize) -> NvmeReceiver {
        NvmeReceiver { max_capsule, ..self }
    }

    /// Whether bytes are left over that may contain whole PDUs.
    pub fn has_begun(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Receives what is available, up to a limit, and passes on every whole PDU.
    ///
    /// # Errors
    /// The connection cannot continue.
    pub fn receive(
        &mut self,
        stream: &Stream,
        handler: &mut impl NvmePduHandler,
    ) -> Result<ReceiveStatus, NvmeReceiveError> {
        with_scratch(|buffer| {
            let mut left = TURN;
            loop {
                let have = self.partial.len();
                let Some((got, room)) = self.receive_once(stream, buffer)? else {
                    return Ok(ReceiveStatus::More);
                };
                if got == 0 {
                    return Ok(ReceiveStatus::End);
                }
                self.partial.clear();
                let direct = self.gather.as_mut().map_or(0, |gather| gather.fill(got));
                // The command of large data must run while the next data arrive.
                let is_whole = self.gather.as_ref().is_some_and(DataReceive::is_whole);
                let status = self.parse(&buffer[..have + got - direct], handler)?;
                left = left.saturating_sub(got);
                if status != ReceiveStatus::More || got < room || left == 0 || is_whole {
                    return Ok(status);
                }
            }
        })
    }

    /// One receive: into the buffer of large data up to the next header, or behind an incomplete PDU. Returns the received
    /// bytes, and the room for them.
    fn receive_once(&mut self, stream: &Stream, buffer: &mut [u8]) -> io::Result<Option<(usize, usize)>> {
        let have = self.partial.len();
        if let Some(gather) = self.gather.as_mut().filter(|gather| !gather.is_whole()) {
            let (next, missing) = (gather.tail() + PEEK, gather.filled..gather.place.end);
            let room = missing.len() + next;
            let mut into = [IoSliceMut::new(&mut gather.buf[missing]), IoSliceMut::new(&mut buffer[..next])];
            return Ok(stream.receive_vectored(&mut into)?.map(|got| (got, room)));
        }
        buffer[..have].copy_from_slice(&self.partial);
        let peek = self.after_large && have < PEEK;
        let room = if peek { PEEK } else { buffer.len() - have };
        let got = stream.receive(&mut buffer[have..have + room])?;
        // Many short PDUs are received at once again.
        self.after_large &= got.is_none_or(|got| got < room);
        Ok(got.map(|got| (got, room)))
    }

    /// Passes on the whole PDUs among the bytes that are left over.
    ///
    /// # Errors
    /// The connection cannot continue.
    pub fn resume(&mut self, handler: &mut impl NvmePduHandler) -> Result<ReceiveStatus, NvmeReceiveError> {
        let begun = std::mem::take(&mut self.partial);
        self.parse(&begun, handler)
    }

    /// As [`NvmeReceiver::receive`], with the given bytes. For tests.
    ///
    /// # Errors
    /// The connection cannot continue.
    pub fn feed(
        &mut self,
        mut chunk: &[u8],
        handler: &mut impl NvmePduHandler,
    ) -> Result<ReceiveStatus, NvmeReceiveError> {
        if let Some(gather) = &mut self.gather {
            let at = gather.filled;
            let direct = gather.fill(chunk.len());
            gather.buf[at..at + direct].copy_from_slice(&chunk[..direct]);
            chunk = &chunk[direct..];
        }
        let all = [&std::mem::take(&mut self.partial)[..], chunk].concat();
        self.parse(&all, handler)
    }

    fn parse(
        &mut self,
        mut bytes: &[u8],
        handler: &mut impl NvmePduHandler,
    ) -> Result<ReceiveStatus, NvmeReceiveError> {
        loop {
            if self.gather.is_some() {
                let Some((used, more)) = self.end_gather(bytes, handler)? else { break };
                bytes = &bytes[used..];
                if !more {
                    return Ok(ReceiveStatus::End);
                }
            }
            if handler.is_full() {
                self.partial.extend_from_slice(bytes);
                return Ok(ReceiveStatus::Full);
            }
            let Some(pdu) = self.next(bytes)? else { break };
            let header = &bytes[..pdu.kind.header_len()];
            if bytes.len() < pdu.len {
                if pdu.data.len() <= LARGE {
                    break;
                }
                self.begin_gather(pdu, bytes, handler);
                return Ok(ReceiveStatus::More);
            }
            let data = ReceivedData::Bytes(&bytes[pdu.data.clone()]);
            let digest = pdu.data_digest.clone().map(|at| &bytes[at]);
            let intact = is_intact(&bytes[pdu.data.clone()], digest);
            let received = ReceivedNvmePdu { pdu: &pdu, header, data, intact };
            if !handler.take(received).map_err(|error| faulty(error, header))? {
                return Ok(ReceiveStatus::End);
            }
            bytes = &bytes[pdu.len..];
        }
        self.partial.extend_from_slice(bytes);
        Ok(ReceiveStatus::More)
    }

    /// The PDU at the start of these bytes, after a check of its header; None if the bytes up to its data are incomplete.
    #[inline(always)]
    fn next(&self, bytes: &[u8]) -> Result<Option<NvmePdu>, NvmeReceiveError> {
        let Some(common) = bytes.first_chunk() else { return Ok(None) };
        let checked = PduHeader::decode(common).check(self.from_host, self.digests, self.max_data);
        let pdu = checked.map_err(|error| faulty(error, bytes))?;
        if pdu.kind == NvmePduKind::Command && pdu.data.len() > self.max_capsule {
            return Err(faulty(NvmePduError::of(fatal_error::LIMIT_EXCEEDED), bytes));
        }
        if bytes.len() < pdu.data.start {
            return Ok(None);
        }
        let header = &bytes[..pdu.kind.header_len()];
        let digest = pdu.header_digest.clone().map(|at| &bytes[at]);
        if !is_intact(header, digest) {
            return Err(faulty(NvmePduError::of(fatal_error::HEADER_DIGEST), header));
        }
        Ok(Some(pdu))
    }

    /// Starts to receive data into a buffer. `bytes` is the received part of the PDU.
    fn begin_gather(&mut self, pdu: NvmePdu, bytes: &[u8], handler: &mut impl NvmePduHandler) {
        let (len, header) = (pdu.data.len(), bytes[..pdu.kind.header_len()].to_vec());
        let placed = handler.place(&pdu, &header);
        let landing = placed.is_some();
        let (mut buf, start) = placed.unwrap_or_else(|| (handler.buffer(len), 0));
        let begun = &bytes[pdu.data.start..];
        let (data, tail) = begun.split_at(begun.len().min(len));
        let filled = start + data.len();
        buf[start..filled].copy_from_slice(data);
        self.gather = Some(DataReceive { pdu, header, buf, place: start..start + len, filled, landing });
        self.after_large = true;
        self.partial.extend_from_slice(tail);
    }

    /// Ends large data: `bytes` starts with their digest. Returns the used bytes and whether the handler wants more; None if
    /// they are incomplete.
    fn end_gather(
        &mut self,
        bytes: &[u8],
        handler: &mut impl NvmePduHandler,
    ) -> Result<Option<(usize, bool)>, NvmeReceiveError> {
        let is_ready = |gather: &mut DataReceive| gather.is_whole() && bytes.len() >= gather.tail();
        let Some(gather) = self.gather.take_if(is_ready) else { return Ok(None) };
        let tail = gather.tail();
        let digest = (tail > 0).then(|| &bytes[..tail]);
        let intact = is_intact(&gather.buf[gather.place.clone()], digest);
        let data =
            if gather.landing { ReceivedData::Placed(gather.buf) } else { ReceivedData::Buf(gather.buf) };
        let header = &gather.header[..];
        let received = ReceivedNvmePdu { pdu: &gather.pdu, header, data, intact };
        let more = handler.take(received).map_err(|error| faulty(error, header))?;
        Ok(Some((tail, more)))
    }
}

fn is_intact(bytes: &[u8], digest: Option<&[u8]>) -> bool {
    digest.is_none_or(|digest| crc32c(&[bytes]).to_le_bytes() == digest)
}

/// The longest header in bytes.
const MAX_HEADER: usize = 128;

fn faulty(error: NvmePduError, bytes: &[u8]) -> NvmeReceiveError {
    // The header says how long it is, if that is to be believed.
    let len = bytes.get(2).map_or(0, |len| usize::from(*len)).clamp(PduHeader::LEN, MAX_HEADER);
    NvmeReceiveError::Pdu { error, header: bytes[..bytes.len().min(len)].to_vec() }
}

#[cfg(test)]
mod tests;
