//! Software iWARP: RDMA over an ordinary TCP connection, for peers with MPA, DDP and RDMAP (RFC 5044, 5041, 5040,
//! with RFC 6581), such as Linux's siw and hardware.
//!
//! Connections have no markers, and CRCs are optional. A steering tag belongs to one connection; the tag of a local
//! RDMA Read accepts only the response to that read. A protocol error of the peer is reported to it (Terminate) and
//! ends the connection.
//!
//! - `handshake`: MPA connection setup.
//! - [`Engine`]: everything else, without I/O. `framing` splits the stream into FPDUs, `inbox` receives Sends, `reads`
//!   has local RDMA Reads and `responses` those of the peer, `memory` checks access, `transmit` builds FPDUs.
//! - `endpoint`: the engine with its socket.

mod endpoint;
mod engine;
mod fault;
mod framing;
mod handshake;
mod inbox;
mod memory;
mod reads;
mod responses;
mod transmit;

#[cfg(test)]
mod tests;

pub use engine::Engine;
pub use lunar_wire::iwarp::mpa::is_request;

use crate::{
    ConnParam, ConnectError, ConnectRequest, ConnectedEndpoint, Endpoint, EndpointInfo, LocalBoxFuture,
};
use endpoint::IwarpEndpoint;
use lunar_runtime::Stream;
use lunar_wire::iwarp::mpa::{REPLY_KEY, REQUEST_KEY};
use lunar_wire::iwarp::{MalformedFrame, MpaFrame};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Whether a message of the peer may invalidate a local steering tag. It may: each tag belongs to a single connection
/// and memory region.
pub const TAKES_INVALIDATE: bool = true;

/// The time limit for receiving a request.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// The time limit for receiving a reply, and for sending a frame.
const REPLY_TIME: Duration = Duration::from_secs(5);

/// The options of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether to request CRCs. The peer may request them as well.
    pub crc: bool,
    /// The maximum length of an FPDU in bytes. The default is the TCP segment size that the kernel reports.
    pub mss: Option<usize>,
    /// The size of the socket buffers in bytes ([`Stream::set_window`]). It applies to a second TCP connection in place of
    /// the given one.
    pub window: Option<usize>,
}

/// The first FPDU of the initiator, before which the responder must not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstFrame {
    /// Any FPDU.
    Any,
    /// Any FPDU. An empty Send is not a message (RFC 6581 section 5.1).
    Send,
}

/// The negotiated parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NegotiatedMpa {
    /// Whether CRCs are used.
    pub crc: bool,
    /// The maximum number of outstanding RDMA Reads of this end.
    pub ord: u16,
    /// The maximum number of outstanding RDMA Reads of the peer.
    pub ird: u16,
    /// The initially posted receives: their number, and the length of each in bytes.
    pub receives: (usize, usize),
    /// The expected first FPDU, if the peer must send first.
    pub first: Option<FirstFrame>,
}

/// Requests an iWARP connection over a TCP connection to `peer`, with at most [`MAX_PRIVATE`](crate::MAX_PRIVATE) bytes
/// of private data.
///
/// The request has MPA revision 2 (RFC 6581). If the peer closes, or rejects it with revision 1 and no private data,
/// a request with revision 1 (RFC 5044) follows over another TCP connection.
///
/// # Errors
/// When the peer rejects the request, does not speak MPA, requires markers, does not reply within 5 s, or closes.
pub async fn connect(
    stream: Stream,
    peer: SocketAddr,
    private: &[u8],
    terms: ConnParam,
    options: &Options,
) -> Result<ConnectedEndpoint, ConnectError> {
    handshake::check_private(private)?;
    let ask = handshake::ask(private, &terms, options);
    let AcceptError { refused, is_old } = match call(stream, peer, &ask, &terms, options).await {
        Ok(connected) => return Ok(connected),
        Err(failed) => failed,
    };
    if !is_old {
        return Err(refused);
    }
    // If the peer is now unreachable, the first error is returned.
    let Ok(stream) = dial(peer, options).await else { return Err(refused) };
    let ask = MpaFrame { revision: 1, enhanced: None, ..ask };
    call(stream, peer, &ask, &terms, options).await.map_err(|again| match again.refused {
        ConnectError::Rejected(private) => ConnectError::Rejected(private),
        ConnectError::Io(_) => refused,
    })
}

/// Opens another TCP connection with the options of the first.
async fn dial(peer: SocketAddr, options: &Options) -> io::Result<Stream> {
    let stream = Stream::connect(peer).await?;
    options.window.map_or(Ok(()), |bytes| stream.set_window(bytes))?;
    Ok(stream)
}

/// A failed request.
struct AcceptError {
    refused: ConnectError,
    /// Whether the peer may only support revision 1.
    is_old: bool,
}

impl From<io::Error> for AcceptError {
    fn from(e: io::Error) -> AcceptError {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let is_old = matches!(e.kind(), BrokenPipe | ConnectionReset | UnexpectedEof);
        AcceptError { refused: e.into(), is_old }
    }
}

/// Sends one request, and waits for the reply.
async fn call(
    stream: Stream,
    peer: SocketAddr,
    ask: &MpaFrame,
    terms: &ConnParam,
    options: &Options,
) -> Result<ConnectedEndpoint, AcceptError> {
    handshake::write(&stream, &ask.encode(&REQUEST_KEY), REPLY_TIME).await?;
    let reply = handshake::read(&stream, &REPLY_KEY, Vec::new(), REPLY_TIME).await?;
    let (reply, begun) = reply.map_err(malformed)?;
    if reply.rejected {
        let is_old = reply.revision < ask.revision && reply.private.is_empty();
        return Err(AcceptError { refused: ConnectError::Rejected(reply.private), is_old });
    }
    if reply.markers {
        return Err(unsupported_markers().into());
    }
    let agreed = handshake::asked(ask, &reply, terms);
    let local = stream.route().local.ok_or(io::ErrorKind::NotConnected).map_err(io::Error::from)?;
    Ok((endpoint(stream, &agreed, (local, peer), options, begun), reply.private))
}

/// Receives the MPA request of a TCP connection. `begun` has the bytes received so far: none, a part of the request,
/// or more.
///
/// # Errors
/// When the bytes are not a request, it does not arrive within 10 s, or the connection is lost. A request with markers,
/// a wrong revision or too much private data is rejected as well.
pub async fn request(
    stream: Stream,
    begun: Vec<u8>,
    local: SocketAddr,
    peer: SocketAddr,
    options: &Options,
) -> io::Result<Box<dyn ConnectRequest>> {
    let (frame, begun) = match handshake::read(&stream, &REQUEST_KEY, begun, REQUEST_TIME).await? {
        Ok(read) => read,
        Err(MalformedFrame::Key) => return Err(malformed(MalformedFrame::Key)),
        Err(wrong) => {
            handshake::write(&stream, &handshake::refusal(None, Vec::new()), REPLY_TIME).await?;
            return Err(malformed(wrong));
        }
    };
    let asked =
        IwarpRequest { frame, begun, addresses: (local, peer), options: *options, stream: Some(stream) };
    match asked.frame.markers {
        // Dropping the request rejects it.
        true => Err(unsupported_markers()),
        false => Ok(Box::new(asked)),
    }
}

fn malformed(wrong: MalformedFrame) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the peer sent {wrong}"))
}

fn unsupported_markers() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "the peer requires MPA markers, which software iWARP does not support",
    )
}

fn endpoint(
    stream: Stream,
    agreed: &NegotiatedMpa,
    (local, peer): (SocketAddr, SocketAddr),
    options: &Options,
    begun: Vec<u8>,
) -> Rc<dyn Endpoint> {
    let info = EndpointInfo {
        provider: "iwarp".into(),
        ord: agreed.ord,
        sends_invalidate: true,
        takes_invalidate: TAKES_INVALIDATE,
        local,
        peer,
    };
    let mss = options.mss.or_else(|| stream.route().mss.and_then(|mss| usize::try_from(mss).ok()));
    Rc::new(IwarpEndpoint::new(stream, info, Engine::new(agreed, mss, begun)))
}

/// A connection request that is not answered yet.
struct IwarpRequest {
    frame: MpaFrame,
    /// The bytes received after the request.
    begun: Vec<u8>,
    addresses: (SocketAddr, SocketAddr),
    options: Options,
    /// None once it is answered.
    stream: Option<Stream>,
}

impl ConnectRequest for IwarpRequest {
    fn private(&self) -> &[u8] {
        &self.frame.private
    }

    fn addresses(&self) -> (SocketAddr, SocketAddr) {
        self.addresses
    }

    fn sends_invalidate(&self) -> bool {
        true
    }

    fn accept(
        mut self: Box<Self>,
        private: Vec<u8>,
        terms: ConnParam,
    ) -> LocalBoxFuture<'static, io::Result<Rc<dyn Endpoint>>> {
        Box::pin(async move {
            handshake::check_private(&private)?;
            let (reply, agreed) = handshake::answer(&self.frame, private, &terms, &self.options);
            let stream = self.stream.take().ok_or(io::ErrorKind::NotConnected)?;
            handshake::write(&stream, &reply.encode(&REPLY_KEY), REPLY_TIME).await?;
            let begun = std::mem::take(&mut self.begun);
            Ok(endpoint(stream, &agreed, self.addresses, &self.options, begun))
        })
    }

    fn reject(mut self: Box<Self>, private: Vec<u8>) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            if let Some(stream) = self.stream.take() {
                let refusal = handshake::refusal(Some(&self.frame), private);
                // If the peer has closed, the reply is not needed.
                _ = handshake::write(&stream, &refusal, REPLY_TIME).await;
            }
        })
    }
}

impl Drop for IwarpRequest {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            let refusal = handshake::refusal(Some(&self.frame), Vec::new());
            // The socket is empty, so the send does not block.
            _ = stream.send(&[io::IoSlice::new(&refusal)], false);
        }
    }
}
