//! Framing: one receive returns many requests. Small payloads are used in place, in the receive buffer of the core.
//! The rest of a large payload is received directly into the buffer of the write.

use lunar_proto::nbd::{NbdCommand, NegotiatedOptions, RequestError};
use lunar_runtime::{Buf, Stream, with_scratch};
use lunar_wire::nbd::{REQUEST_LEN, Request, command};
use std::io::{self, IoSliceMut};

/// An incomplete payload longer than this, in bytes, gets its own buffer.
const LARGE: usize = 16 << 10;

/// The payload of a request.
pub(super) enum RequestData<'a> {
    /// In the receive buffer, valid during the call.
    Bytes(&'a [u8]),
    /// In its own buffer.
    Buf(Buf),
}

/// A complete request with its payload. If the request is rejected, its payload has been dropped.
pub(super) struct ReceivedRequest<'a> {
    pub request: Request,
    pub verdict: Result<NbdCommand, RequestError>,
    pub data: RequestData<'a>,
    /// The received bytes after the request.
    pub behind: &'a [u8],
}

/// The result of offering a request to the handler.
pub(super) enum Admission {
    /// The request was accepted.
    Yes,
    /// There is no buffer for its payload. The request must be offered again.
    Starved,
    /// The connection ends with this request.
    Last,
}

/// Handles the requests of a connection.
pub(super) trait RequestHandler {
    /// Whether there is currently no room for more requests.
    fn is_full(&self) -> bool;
    /// Returns a buffer for a payload, if one is free.
    fn buffer(&mut self, len: usize) -> Option<Buf>;
    /// Handles a request.
    fn take(&mut self, arrived: ReceivedRequest<'_>) -> Admission;
}

/// The result of a receive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RequestReceive {
    /// Receive again when the socket is readable.
    More,
    /// Resume when the handler has room for more requests.
    Full,
    /// Resume when a buffer of this many bytes is free.
    Starved(usize),
    /// The client has disconnected.
    End,
}

/// An error that ends a connection.
#[derive(Debug)]
pub(super) enum RequestStreamError {
    /// The socket failed.
    Io(io::Error),
    /// A request with a wrong magic number, so message boundaries are unknown.
    Magic,
}

impl From<io::Error> for RequestStreamError {
    fn from(e: io::Error) -> Self {
        RequestStreamError::Io(e)
    }
}

impl std::fmt::Display for RequestStreamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RequestStreamError::Io(e) => write!(f, "{e}"),
            RequestStreamError::Magic => write!(f, "the client sent a request with a wrong magic number"),
        }
    }
}

/// An incomplete payload.
enum PayloadReceive {
    /// It is received into a buffer, of which the first `filled` bytes are complete.
    Gather { request: Request, command: NbdCommand, buf: Buf, filled: usize },
    /// It is discarded. `rest` bytes are still to come.
    Skip { request: Request, refusal: RequestError, rest: usize },
}

/// The receiving side of a connection.
pub(super) struct RequestReceiver {
    terms: NegotiatedOptions,
    /// Unparsed bytes: an incomplete request, or requests for which there was no room.
    partial: Vec<u8>,
    coming: Option<PayloadReceive>,
}

impl RequestReceiver {
    /// Creates a receiver. `begun` has the bytes received after the handshake, which [`RequestReceiver::resume`]
    /// parses.
    pub(super) fn new(terms: NegotiatedOptions, begun: Vec<u8>) -> Self {
        RequestReceiver { terms, partial: begun, coming: None }
    }

    /// Receives once, and hands over all complete requests. Must be called only after [`RequestReceive::More`].
    pub(super) fn receive(
        &mut self,
        stream: &Stream,
        sink: &mut impl RequestHandler,
    ) -> Result<RequestReceive, RequestStreamError> {
        with_scratch(|scratch| {
            let have = self.partial.len();
            scratch[..have].copy_from_slice(&self.partial);
            let got = match &mut self.coming {
                Some(PayloadReceive::Gather { buf, filled, .. }) => {
                    let mut into = [IoSliceMut::new(&mut buf[*filled..]), IoSliceMut::new(scratch)];
                    stream.receive_vectored(&mut into)?
                }
                _ => stream.receive(&mut scratch[have..])?,
            };
            let Some(got) = got else { return Ok(RequestReceive::More) };
            if got == 0 {
                return Ok(RequestReceive::End);
            }
            self.partial.clear();
            let landed = self.landed(got);
            self.parse(&scratch[..have + got - landed], sink)
        })
    }

    /// Hands over the complete requests among the bytes received earlier.
    pub(super) fn resume(
        &mut self,
        sink: &mut impl RequestHandler,
    ) -> Result<RequestReceive, RequestStreamError> {
        let begun = std::mem::take(&mut self.partial);
        self.parse(&begun, sink)
    }

    /// The same as [`RequestReceiver::receive`], with these bytes instead of the socket's.
    pub(super) fn feed(
        &mut self,
        mut chunk: &[u8],
        sink: &mut impl RequestHandler,
    ) -> Result<RequestReceive, RequestStreamError> {
        if let Some(PayloadReceive::Gather { buf, filled, .. }) = &mut self.coming {
            let direct = chunk.len().min(buf.len() - *filled);
            buf[*filled..*filled + direct].copy_from_slice(&chunk[..direct]);
            self.landed(direct);
            chunk = &chunk[direct..];
        }
        let all = [&std::mem::take(&mut self.partial)[..], chunk].concat();
        self.parse(&all, sink)
    }

    /// Accounts for received bytes. Returns how many the kernel placed directly in the buffer of a payload.
    fn landed(&mut self, got: usize) -> usize {
        let Some(PayloadReceive::Gather { buf, filled, .. }) = &mut self.coming else { return 0 };
        let direct = got.min(buf.len() - *filled);
        *filled += direct;
        direct
    }

    fn parse(
        &mut self,
        mut bytes: &[u8],
        sink: &mut impl RequestHandler,
    ) -> Result<RequestReceive, RequestStreamError> {
        loop {
            let (used, next) = match self.coming.take() {
                Some(coming) => self.go_on(coming, bytes, sink),
                None if bytes.len() < REQUEST_LEN => (0, Some(RequestReceive::More)),
                None if sink.is_full() => (0, Some(RequestReceive::Full)),
                None => self.begin(bytes, sink)?,
            };
            bytes = &bytes[used..];
            if let Some(next) = next {
                self.partial.extend_from_slice(bytes);
                return Ok(next);
            }
        }
    }

    /// Continues with a payload. Returns the number of consumed bytes, and the result if parsing stops.
    fn go_on(
        &mut self,
        coming: PayloadReceive,
        bytes: &[u8],
        sink: &mut impl RequestHandler,
    ) -> (usize, Option<RequestReceive>) {
        match coming {
            PayloadReceive::Gather { request, command, buf, filled } if filled == buf.len() => {
                (0, hand_over(sink, request, Ok(command), RequestData::Buf(buf), bytes))
            }
            PayloadReceive::Skip { request, refusal, rest } if bytes.len() >= rest => {
                (rest, hand_over(sink, request, Err(refusal), RequestData::Bytes(&[]), &bytes[rest..]))
            }
            PayloadReceive::Skip { request, refusal, rest } => {
                self.coming = Some(PayloadReceive::Skip { request, refusal, rest: rest - bytes.len() });
                (bytes.len(), Some(RequestReceive::More))
            }
            gather => {
                self.coming = Some(gather);
                (0, Some(RequestReceive::More))
            }
        }
    }

    /// Parses the request at the start of `bytes`. Returns the number of consumed bytes, and the result if parsing
    /// stops.
    fn begin(
        &mut self,
        bytes: &[u8],
        sink: &mut impl RequestHandler,
    ) -> Result<(usize, Option<RequestReceive>), RequestStreamError> {
        let header = bytes.first_chunk::<REQUEST_LEN>().expect("a complete request");
        let request = Request::decode(header).ok_or(RequestStreamError::Magic)?;
        let (len, body) = (request.payload_len(), &bytes[REQUEST_LEN..]);
        match (self.terms.check(&request), body.get(..len)) {
            (Ok(command), Some(data)) => {
                let (data, behind) = (RequestData::Bytes(data), &body[len..]);
                Ok(match sink.take(ReceivedRequest { request, verdict: Ok(command), data, behind }) {
                    Admission::Yes => (REQUEST_LEN + len, None),
                    Admission::Starved => (0, Some(RequestReceive::Starved(len))),
                    Admission::Last => (REQUEST_LEN + len, Some(RequestReceive::End)),
                })
            }
            (Ok(_), None) if len <= LARGE => Ok((0, Some(RequestReceive::More))),
            (Ok(command), None) => Ok(match sink.buffer(len) {
                Some(mut buf) => {
                    buf[..body.len()].copy_from_slice(body);
                    self.coming = Some(PayloadReceive::Gather { request, command, buf, filled: body.len() });
                    (bytes.len(), Some(RequestReceive::More))
                }
                None => (0, Some(RequestReceive::Starved(len))),
            }),
            (Err(refusal), _) => {
                self.coming = Some(PayloadReceive::Skip { request, refusal, rest: len });
                Ok((REQUEST_LEN, None))
            }
        }
    }
}

/// Whether the last of these requests is NBD_CMD_DISC.
pub(super) fn ends_with_leave(mut bytes: &[u8]) -> bool {
    let mut leaves = false;
    while let Some(request) = bytes.first_chunk::<REQUEST_LEN>().and_then(Request::decode) {
        let Some(rest) = bytes.get(REQUEST_LEN + request.payload_len()..) else { return false };
        leaves = request.command == command::DISC;
        bytes = rest;
    }
    leaves && bytes.is_empty()
}

/// Hands over a request that needs no further buffer. Returns the result if parsing stops.
fn hand_over(
    sink: &mut impl RequestHandler,
    request: Request,
    verdict: Result<NbdCommand, RequestError>,
    data: RequestData<'_>,
    behind: &[u8],
) -> Option<RequestReceive> {
    match sink.take(ReceivedRequest { request, verdict, data, behind }) {
        Admission::Last => Some(RequestReceive::End),
        Admission::Yes | Admission::Starved => None,
    }
}
